//! Executes single steps on this machine. Every step can be repeated.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use homestak_core::converge::ConvergeStep;

use crate::error::AgentError;
use crate::facts::{parse_account_rows, sysctl_path};
use crate::files::{self, Staged};
use crate::process::{self, ProcessError};
use crate::{state, systemctl};

/// The shell of users who do not log in.
const NOLOGIN: &str = "/usr/sbin/nologin";

/// Executes a step. Files are staged already; packages are handled elsewhere.
pub(crate) fn execute(step: &ConvergeStep, staged: &mut Staged) -> Result<(), AgentError> {
    match step {
        ConvergeStep::Packages { .. } | ConvergeStep::Directory { .. } => Ok(()),
        ConvergeStep::CreateUser { name, shell } => create_user(step, name, shell),
        ConvergeStep::EnableLogin { name, shell } => program(
            step,
            &["usermod", "--expiredate", "", "--shell", shell, name],
        ),
        ConvergeStep::Write { path, .. } => staged.commit(path),
        ConvergeStep::Link { path, target } => {
            files::link(path, target).map_err(AgentError::write(path))
        }
        ConvergeStep::Delete { path } => staged.delete(path),
        ConvergeStep::Hostname { name } => {
            rustix::system::sethostname(name.as_bytes()).map_err(|error| AgentError::Step {
                step: step.description(),
                reason: error.to_string(),
            })
        }
        ConvergeStep::Sysctl { key, value } => {
            let path = sysctl_path(key).unwrap_or_default();
            fs_err::write(&path, value).map_err(AgentError::write(path))
        }
        ConvergeStep::Network { interface } => {
            program(step, &["networkctl", "reload"])?;
            program(step, &["networkctl", "reconfigure", interface])
        }
        ConvergeStep::DaemonReload => unit(step, &["daemon-reload"]),
        ConvergeStep::Stop { unit: name } => match unit(step, &["stop", "--", name]) {
            // The run that is reverted was killed before the unit existed.
            Err(AgentError::Step { reason, .. }) if reason.ends_with("not loaded.") => Ok(()),
            stopped => stopped,
        },
        ConvergeStep::Disable { unit: name } => unit(step, &["--quiet", "disable", "--", name]),
        ConvergeStep::Enable { unit: name, masked } => {
            if *masked {
                unit(step, &["--quiet", "unmask", "--", name])?;
            }
            unit(step, &["--quiet", "enable", "--", name])
        }
        ConvergeStep::Reload { unit: name } => unit(step, &["try-reload-or-restart", "--", name]),
        ConvergeStep::Restart { unit: name } => unit(step, &["try-restart", "--", name]),
        ConvergeStep::Start { unit: name } => unit(step, &["start", "--", name]),
        ConvergeStep::RemoveFromGroup { user, group } => {
            program(step, &["gpasswd", "--delete", user, group])
        }
        ConvergeStep::DisableLogin { name } => {
            let words = ["usermod", "--expiredate", "1", "--shell", NOLOGIN, name];
            program(step, &words)
        }
    }
}

/// Creates a user, with an existing group of the same name if there is one.
fn create_user(step: &ConvergeStep, name: &str, shell: &str) -> Result<(), AgentError> {
    let groups = fs_err::read("/etc/group").unwrap_or_default();
    let has_group = parse_account_rows(&groups)
        .iter()
        .any(|row| row.first().is_some_and(|group| group == name));
    let id = unused_id(step)?;
    let mut words = vec!["useradd", "--create-home", "--shell", shell];
    if let Some(id) = &id {
        words.extend(["--uid", id]);
    }
    if has_group {
        words.extend(["--gid", name]);
    } else {
        // It gets the same id, if that is free.
        words.push("--user-group");
    }
    words.push(name);
    program(step, &words)
}

/// Returns an id for a user and a group, if `useradd` could reuse that of a user whose creation was
/// reverted: files of that user may be left.
fn unused_id(step: &ConvergeStep) -> Result<Option<String>, AgentError> {
    let retired = state::retired();
    if retired.is_empty() {
        return Ok(None);
    }
    let mut taken = retired.clone();
    for table in ["passwd", "group"] {
        let text = process::run_ok(&["getent", table])?;
        let entries = parse_account_rows(text.as_bytes()).into_iter();
        taken.extend(entries.filter_map(|row| row.get(2)?.parse::<u32>().ok()));
    }
    let settings = fs_err::read_to_string("/etc/login.defs").unwrap_or_default();
    let id = unused(&taken, range(&settings));
    let id = id.ok_or_else(|| AgentError::Step {
        step: step.description(),
        reason: "no unused UID and GID left (see UID_MAX and GID_MAX in `/etc/login.defs`)"
            .to_owned(),
    })?;
    Ok(Some(id.to_string()))
}

/// Returns the id after the highest, as `useradd` does, or the lowest unused one.
fn unused(taken: &BTreeSet<u32>, range: RangeInclusive<u32>) -> Option<u32> {
    let highest = taken.range(range.clone()).next_back();
    let next = highest.map_or(*range.start(), |highest| highest + 1);
    let free = |id: &u32| !taken.contains(id);
    Some(next)
        .filter(|next| range.contains(next))
        .or_else(|| range.clone().find(free))
}

/// Returns the ids that both users and groups may have.
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

fn program(step: &ConvergeStep, words: &[&str]) -> Result<(), AgentError> {
    done(step, process::run_ok(words))
}

/// Runs `systemctl`, again while systemd does not answer: steps can be repeated.
fn unit(step: &ConvergeStep, words: &[&str]) -> Result<(), AgentError> {
    done(step, systemctl::run_ok(words))
}

fn done(step: &ConvergeStep, result: Result<String, ProcessError>) -> Result<(), AgentError> {
    match result {
        Ok(_) => Ok(()),
        Err(ProcessError::Failed { reason, .. }) => Err(AgentError::Step {
            step: step.description(),
            reason,
        }),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::{BTreeSet, range, unused};

    #[test]
    fn an_id_is_not_reused_and_lower_ids_follow_the_end_of_the_range() {
        let unused = |taken: &[u32], range| unused(&BTreeSet::from_iter(taken.to_vec()), range);
        assert_eq!(unused(&[0, 65_534], 1_000..=60_000), Some(1_000));
        assert_eq!(unused(&[0, 1_000, 1_003], 1_000..=60_000), Some(1_004));
        assert_eq!(unused(&[1_000, 1_001, 60_000], 1_000..=60_000), Some(1_002));
        assert_eq!(unused(&[1, 2, 3], 1..=3), None);
    }

    #[test]
    fn ids_are_within_the_ranges_of_both_users_and_groups() {
        assert_eq!(range(""), 1_000..=60_000);
        let settings = "# UID_MIN 5\nUID_MIN\t2000\nGID_MIN 3000\nUID_MAX 9000\nGID_MAX 8000\n";
        assert_eq!(range(settings), 3_000..=8_000);
    }
}
