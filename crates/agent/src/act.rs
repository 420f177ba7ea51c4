//! One step done on this machine.
//!
//! In: a [`Step`]. Out: the machine changed.
//! Never: harm when it is done twice.

use homestak_core::converge::Step;

use crate::error::AgentError;
use crate::files::{self, Staged};
use crate::gather::{rows, sysctl_path};
use crate::process::{self, ProcessError};

/// Does a step. Files were written beside their places before. Packages are not done here.
pub(crate) fn act(step: &Step, staged: &mut Staged) -> Result<(), AgentError> {
    match step {
        Step::Packages { .. } | Step::Directory { .. } => Ok(()),
        Step::CreateUser { name, shell } => create_user(step, name, shell),
        Step::OpenUser { name, shell } => program(
            step,
            &["usermod", "--expiredate", "", "--shell", shell, name],
        ),
        Step::Write { path, .. } => staged.place(path),
        Step::Link { path, target } => {
            files::link(path, target).map_err(|source| AgentError::Write {
                path: path.clone(),
                source,
            })
        }
        Step::Delete { path } => staged.delete(path),
        Step::Hostname { name } => {
            rustix::system::sethostname(name.as_bytes()).map_err(|error| AgentError::Step {
                step: step.words(),
                said: error.to_string(),
            })
        }
        Step::Sysctl { key, value } => {
            let path = sysctl_path(key).unwrap_or_default();
            fs_err::write(&path, value).map_err(|source| AgentError::Write { path, source })
        }
        Step::Network { interface } => {
            program(step, &["networkctl", "reload"])?;
            program(step, &["networkctl", "reconfigure", interface])
        }
        Step::ReadUnits => program(step, &["systemctl", "daemon-reload"]),
        Step::Stop { unit } => program(step, &["systemctl", "stop", "--", unit]),
        Step::Disable { unit } => program(step, &["systemctl", "--quiet", "disable", "--", unit]),
        Step::Enable { unit, masked } => {
            if *masked {
                program(step, &["systemctl", "--quiet", "unmask", "--", unit])?;
            }
            program(step, &["systemctl", "--quiet", "enable", "--", unit])
        }
        Step::Reload { unit } => program(step, &["systemctl", "try-reload-or-restart", "--", unit]),
        Step::Restart { unit } => program(step, &["systemctl", "try-restart", "--", unit]),
        Step::Start { unit } => program(step, &["systemctl", "start", "--", unit]),
        Step::LeaveGroup { user, group } => program(step, &["gpasswd", "--delete", user, group]),
        Step::CloseUser { name } => program(
            step,
            &[
                "usermod",
                "--expiredate",
                "1",
                "--shell",
                "/usr/sbin/nologin",
                name,
            ],
        ),
    }
}

/// A group of the user's name may be there already; it is taken then.
fn create_user(step: &Step, name: &str, shell: &str) -> Result<(), AgentError> {
    let groups = fs_err::read("/etc/group").unwrap_or_default();
    let known = rows(&groups)
        .iter()
        .any(|row| row.first().is_some_and(|group| group == name));
    let mut words = vec!["useradd", "--create-home", "--shell", shell];
    if known {
        words.extend(["--gid", name]);
    } else {
        words.push("--user-group");
    }
    words.push(name);
    program(step, &words)
}

fn program(step: &Step, words: &[&str]) -> Result<(), AgentError> {
    match process::must(words) {
        Ok(_) => Ok(()),
        Err(ProcessError::Failed { said, .. }) => Err(AgentError::Step {
            step: step.words(),
            said,
        }),
        Err(error) => Err(error.into()),
    }
}
