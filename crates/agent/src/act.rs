//! One step done on this machine. Doing it twice does no harm.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

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
        Step::EnableLogin { name, shell } => program(
            step,
            &["usermod", "--expiredate", "", "--shell", shell, name],
        ),
        Step::Write { path, .. } => staged.place(path),
        Step::Link { path, target } => files::link(path, target).map_err(AgentError::write(path)),
        Step::Delete { path } => staged.delete(path),
        Step::Hostname { name } => {
            rustix::system::sethostname(name.as_bytes()).map_err(|error| AgentError::Step {
                step: step.description(),
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
        Step::DaemonReload => program(step, &["systemctl", "daemon-reload"]),
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
        Step::RemoveFromGroup { user, group } => {
            program(step, &["gpasswd", "--delete", user, group])
        }
        Step::DisableLogin { name } => {
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
    let number = unused_number(step)?;
    let mut words = vec!["useradd", "--create-home", "--shell", shell];
    if let Some(number) = &number {
        words.extend(["--uid", number]);
    }
    if known {
        words.extend(["--gid", name]);
    } else {
        // It gets the same number, when that is free.
        words.push("--user-group");
    }
    words.push(name);
    program(step, &words)
}

/// Returns a number for a user and a group, where `useradd` may choose one of a user whose creation
/// was reverted: every file that is left of the first would belong to the next.
fn unused_number(step: &Step) -> Result<Option<String>, AgentError> {
    let retired = state::retired();
    if retired.is_empty() {
        return Ok(None);
    }
    let mut taken = retired.clone();
    for table in ["passwd", "group"] {
        let text = process::must(&["getent", table])?;
        let numbers = rows(text.as_bytes()).into_iter();
        taken.extend(numbers.filter_map(|row| row.get(2)?.parse::<u32>().ok()));
    }
    let settings = fs_err::read_to_string("/etc/login.defs").unwrap_or_default();
    let number = unused(&taken, range(&settings));
    let number = number.ok_or_else(|| AgentError::Step {
        step: step.description(),
        said: "no number is left for a user (UID_MAX and GID_MAX in `/etc/login.defs`)".to_owned(),
    })?;
    Ok(Some(number.to_string()))
}

/// Returns the number after the highest, as `useradd` does, or the lowest that is not taken.
fn unused(taken: &BTreeSet<u32>, range: RangeInclusive<u32>) -> Option<u32> {
    let highest = taken.range(range.clone()).next_back();
    let next = highest.map_or(*range.start(), |highest| highest + 1);
    let free = |number: &u32| !taken.contains(number);
    Some(next)
        .filter(|next| range.contains(next))
        .or_else(|| range.clone().find(free))
}

/// Returns the numbers that users and groups alike may have.
fn range(settings: &str) -> RangeInclusive<u32> {
    let value = |name: &str| {
        settings.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some(name)).then(|| words.next()?.parse().ok())?
        })
    };
    let lowest = value("UID_MIN").max(value("GID_MIN")).unwrap_or(1_000);
    let highest = [value("UID_MAX"), value("GID_MAX")];
    let highest = highest.into_iter().flatten().min().unwrap_or(60_000);
    lowest..=highest
}

fn program(step: &Step, words: &[&str]) -> Result<(), AgentError> {
    match process::must(words) {
        Ok(_) => Ok(()),
        Err(ProcessError::Failed { said, .. }) => Err(AgentError::Step {
            step: step.description(),
            said,
        }),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::{BTreeSet, range, unused};

    #[test]
    fn a_number_is_not_given_again_and_the_end_of_the_range_is_no_end() {
        let unused = |taken: &[u32], range| unused(&BTreeSet::from_iter(taken.to_vec()), range);
        assert_eq!(unused(&[0, 65_534], 1_000..=60_000), Some(1_000));
        assert_eq!(unused(&[0, 1_000, 1_003], 1_000..=60_000), Some(1_004));
        assert_eq!(unused(&[1_000, 1_001, 60_000], 1_000..=60_000), Some(1_002));
        assert_eq!(unused(&[1, 2, 3], 1..=3), None);
    }

    #[test]
    fn numbers_are_those_that_users_and_groups_can_have() {
        assert_eq!(range(""), 1_000..=60_000);
        let settings = "# UID_MIN 5\nUID_MIN\t2000\nGID_MIN 3000\nUID_MAX 9000\nGID_MAX 8000\n";
        assert_eq!(range(settings), 3_000..=8_000);
    }
}
