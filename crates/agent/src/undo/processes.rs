//! Ends the processes of a user who is removed, since the UID may be reused. Processes of containers
//! have UIDs of their own and keep running.

use rustix::process::{Pid, Signal, kill_process};

use crate::clock;

/// Ends all processes of a user, and returns whether none is left.
pub(super) fn end(user: u32) -> bool {
    for _ in 0..50 {
        let all = of(user);
        if all.is_empty() {
            return true;
        }
        for process in all {
            // It may have ended meanwhile.
            _ = kill_process(process, Signal::KILL);
        }
        clock::sleep(100);
    }
    false
}

fn of(user: u32) -> Vec<Pid> {
    let entries = fs_err::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter(|number: &i32| {
            let status = fs_err::read(format!("/proc/{number}/status")).unwrap_or_default();
            is_of(&status, user) && !is_contained(*number)
        })
        .filter_map(Pid::from_raw)
        .collect()
}

/// Returns whether a running process has a UID.
fn is_of(status: &[u8], user: u32) -> bool {
    let status = String::from_utf8_lossy(status);
    let value = |name: &str| {
        let mut lines = status.lines();
        lines.find_map(|line| line.strip_prefix(name))
    };
    let ended = value("State:").is_some_and(|state| state.trim_start().starts_with(['Z', 'X']));
    let user = user.to_string();
    !ended && value("Uid:").is_some_and(|ids| ids.split_whitespace().any(|id| id == user))
}

/// Returns whether a process runs in a container of root: in another PID namespace, but in our user
/// namespace. Users cannot create the former without the latter.
fn is_contained(number: i32) -> bool {
    let same = |kind: &str| {
        let own = fs_err::read_link(format!("/proc/self/ns/{kind}")).ok();
        own == fs_err::read_link(format!("/proc/{number}/ns/{kind}")).ok()
    };
    !same("pid") && same("user")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;

    use super::{end, is_of, of};

    #[test]
    fn a_process_belongs_to_a_user_by_any_of_its_uids_until_it_has_ended() {
        let status = |state: &str| format!("Name:\tx\nState:\t{state}\nUid:\t7\t0\t0\t0\n");
        assert!(is_of(status("S (sleeping)").as_bytes(), 7));
        assert!(!is_of(status("S (sleeping)").as_bytes(), 77));
        assert!(!is_of(status("Z (zombie)").as_bytes(), 7));
        assert!(!is_of(b"", 7));
    }

    #[test]
    fn all_processes_of_a_user_are_ended() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let user = 61_777;
        #[expect(clippy::disallowed_methods, reason = "the test starts processes")]
        let sleep = || {
            std::process::Command::new("sleep")
                .arg("60")
                .uid(user)
                .spawn()
        };
        let mut sleepers = [sleep().unwrap(), sleep().unwrap()];
        assert_eq!(of(user).len(), 2);
        assert!(end(user));
        for sleeper in &mut sleepers {
            assert!(!sleeper.wait().unwrap().success());
        }
    }
}
