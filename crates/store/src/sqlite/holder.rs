//! The holder of a lease: a process, known by machine, boot, pid and start time. Whether it is
//! alive is read from the kernel, without clocks.

use std::fmt;
use std::io::ErrorKind;

use homestak_core::hex;
use homestak_engine::journal::HolderState;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::error::StoreError;

/// Separates the digest from those of other programs: machine ids are confidential.
const SALT: &str = "homestak lease";

/// A process, unambiguously.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Holder {
    /// Digest of the machine id; empty in leases of older versions.
    pub(super) machine: String,
    /// Host name.
    pub(super) name: String,
    /// Boot id.
    pub(super) boot: String,
    /// PID namespace; each container has its own.
    pub(super) space: String,
    /// Its pid.
    pub(super) pid: u32,
    /// Its start time, in ticks since boot.
    pub(super) start: i64,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on {}", self.pid, self.name)
    }
}

/// The state of a pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Process {
    /// No process, or a zombie.
    Ended,
    /// A process with this start time.
    Started(i64),
    /// Not readable.
    Hidden,
}

impl Holder {
    /// Returns this process.
    pub(super) fn own() -> Result<Self, StoreError> {
        let pid = std::process::id();
        let Process::Started(start) = process(pid) else {
            return Err(StoreError::other(
                "the start time of this process is not available",
                "check that `/proc` is mounted",
            ));
        };
        let line = |path| fs_err::read_to_string(path).map(|text| text.trim().to_owned());
        let boot = line("/proc/sys/kernel/random/boot_id")?;
        let id = line("/etc/machine-id").ok();
        // Without a machine id, only this boot is known to be of this machine.
        let id = id
            .filter(|id| id.len() == 32)
            .unwrap_or_else(|| boot.clone());
        Ok(Self {
            machine: digest(&[SALT, &id]),
            name: line("/proc/sys/kernel/hostname")?,
            boot,
            space: fs_err::read_link("/proc/self/ns/pid")?
                .to_string_lossy()
                .into_owned(),
            pid,
            start,
        })
    }

    /// Returns the state of another holder, seen from this one.
    pub(super) fn state_of(&self, other: &Self, process: impl Fn(u32) -> Process) -> HolderState {
        if other.boot != self.boot {
            let by_name = other.machine.is_empty() && other.name == self.name;
            return match other.machine == self.machine || by_name {
                true => HolderState::Dead,
                false => HolderState::Unknown,
            };
        }
        if other.space != self.space {
            return HolderState::Unknown;
        }
        match process(other.pid) {
            Process::Ended => HolderState::Dead,
            Process::Started(start) if start != other.start => HolderState::Dead,
            Process::Started(_) | Process::Hidden => HolderState::Alive,
        }
    }
}

/// Returns a digest of some texts, as hexadecimal digits.
pub(super) fn digest(texts: &[&str]) -> String {
    let hash = Sha256::digest(texts.join("\0"));
    hex::encode(&hash[..16])
}

/// Reads the state of a pid.
pub(super) fn process(pid: u32) -> Process {
    match fs_err::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(line) => parse(&line),
        Err(error) if error.kind() == ErrorKind::NotFound => Process::Ended,
        Err(_) => Process::Hidden,
    }
}

/// Reads state (field 3) and start time (field 22). The program name, field 2, is in parentheses
/// and may contain anything.
fn parse(line: &str) -> Process {
    let mut fields = line
        .rsplit_once(')')
        .map_or("", |(_, rest)| rest)
        .split_ascii_whitespace();
    match fields.next() {
        Some("Z" | "X" | "x") => Process::Ended,
        _ => fields
            .nth(18)
            .and_then(|start| start.parse().ok())
            .map_or(Process::Hidden, Process::Started),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desk() -> Holder {
        Holder {
            machine: "d1".into(),
            name: "desk".into(),
            boot: "b1".into(),
            space: "pid:[1]".into(),
            pid: 4711,
            start: 100,
        }
    }

    #[test]
    fn a_process_is_alive_while_pid_and_start_time_match() {
        let state_of = |process| desk().state_of(&desk(), |_| process);
        assert_eq!(state_of(Process::Started(100)), HolderState::Alive);
        assert_eq!(state_of(Process::Hidden), HolderState::Alive);
        assert_eq!(state_of(Process::Started(101)), HolderState::Dead);
        assert_eq!(state_of(Process::Ended), HolderState::Dead);
    }

    #[test]
    fn a_process_of_another_boot_is_dead_even_when_its_pid_is_in_use() {
        let other = Holder {
            boot: "b0".into(),
            ..desk()
        };
        let life = desk().state_of(&other, |_| Process::Started(100));
        assert_eq!(life, HolderState::Dead);
    }

    #[test]
    fn a_lease_without_a_machine_id_is_compared_by_host_name() {
        let other = |name: &str| Holder {
            machine: String::new(),
            name: name.into(),
            boot: "b0".into(),
            ..desk()
        };
        let state_of = |name| desk().state_of(&other(name), |_| Process::Ended);
        assert_eq!(
            (state_of("desk"), state_of("shed")),
            (HolderState::Dead, HolderState::Unknown)
        );
    }

    #[test]
    fn the_machine_id_is_not_stored_in_plain() {
        let id = fs_err::read_to_string("/etc/machine-id").unwrap_or_default();
        let own = serde_json::to_string(&Holder::own().unwrap()).unwrap();
        assert!(id.trim().is_empty() || !own.contains(id.trim()), "{own}");
    }

    #[test]
    fn the_host_name_may_change_while_a_holder_runs() {
        let other = Holder {
            name: "localhost".into(),
            ..desk()
        };
        let state_of = |process| desk().state_of(&other, |_| process);
        assert_eq!(state_of(Process::Started(100)), HolderState::Alive);
        assert_eq!(state_of(Process::Ended), HolderState::Dead);
    }

    #[test]
    fn the_state_of_processes_of_other_machines_and_containers_is_unknown() {
        let machine = Holder {
            machine: "d7".into(),
            boot: "b7".into(),
            ..desk()
        };
        let container = Holder {
            space: "pid:[2]".into(),
            ..desk()
        };
        for other in [machine, container] {
            assert_eq!(
                desk().state_of(&other, |_| Process::Ended),
                HolderState::Unknown
            );
        }
    }

    #[test]
    fn the_stat_line_is_parsed_for_any_program_name() {
        let line = |name: &str, state: &str| {
            format!("7 ({name}) {state} 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2")
        };
        for name in ["homestak", "a) S 1", "(((", "x y z"] {
            assert_eq!(parse(&line(name, "S")), Process::Started(98765), "{name}");
            assert_eq!(parse(&line(name, "Z")), Process::Ended, "{name}");
        }
        assert_eq!(parse("nothing of the kind"), Process::Hidden);
    }

    #[test]
    fn this_process_lives() {
        let own = Holder::own().unwrap();
        assert_eq!(own.state_of(&own, process), HolderState::Alive);
    }
}
