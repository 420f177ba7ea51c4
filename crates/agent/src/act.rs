//! One step done on this machine. Doing it twice does no harm.

use homestak_core::converge::Step;

use crate::error::AgentError;
use crate::files::{self, Staged};
use crate::gather::{rows, sysctl_path};
use crate::process::{self, ProcessError};
use crate::state;

/// The shell of users who do not log in.
const NOLOGIN: &str = "/usr/sbin/nologin";

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
        Step::Link { path, target } => files::link(path, target).map_err(AgentError::write(path)),
        Step::Delete { path } => staged.delete(path),
        Step::Hostname { name } => {
            rustix::system::sethostname(name.as_bytes()).map_err(|error| AgentError::Step {
                step: step.words(),
                said: error.to_string(),
            })
        }
        Step::Sysctl { key, value } => {
            let path = sysctl_path(key).unwrap_or_default();
            fs_err::write(&path, value).map_err(AgentError::write(path))
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
        Step::CloseUser { name } => {
            let words = ["usermod", "--expiredate", "1", "--shell", NOLOGIN, name];
            program(step, &words)
        }
    }
}

/// A group of the user's name may be there already; it is taken then.
fn create_user(step: &Step, name: &str, shell: &str) -> Result<(), AgentError> {
    let groups = fs_err::read("/etc/group").unwrap_or_default();
    let known = rows(&groups)
        .iter()
        .any(|row| row.first().is_some_and(|group| group == name));
    let words = useradd(name, shell, known, state::retired_user());
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    program(step, &words)
}

/// Returns how a user is created. `useradd` alone would give the number of a user whose creation was
/// reverted to the next one, with every file that is left of the first.
fn useradd(name: &str, shell: &str, has_group: bool, retired: Option<u32>) -> Vec<String> {
    let mut words = vec!["useradd", "--create-home", "--shell", shell];
    let lowest = retired.map(|number| number.saturating_add(1));
    let lowest = lowest.map(|lowest| [format!("UID_MIN={lowest}"), format!("GID_MIN={lowest}")]);
    for setting in lowest.iter().flatten() {
        words.extend(["--key", setting]);
    }
    if has_group {
        words.extend(["--gid", name]);
    } else {
        words.push("--user-group");
    }
    words.push(name);
    words.into_iter().map(str::to_owned).collect()
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

#[cfg(test)]
mod tests {
    use super::useradd;

    #[test]
    fn a_user_gets_no_number_up_to_the_highest_that_was_reverted() {
        let words = |retired| useradd("dave", "/bin/bash", false, retired).join(" ");
        assert_eq!(
            words(None),
            "useradd --create-home --shell /bin/bash --user-group dave"
        );
        assert_eq!(
            words(Some(1003)),
            "useradd --create-home --shell /bin/bash --key UID_MIN=1004 --key GID_MIN=1004 --user-group dave"
        );
    }
}
