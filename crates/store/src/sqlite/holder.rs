//! Who holds a lease, and whether it lives, by what the kernel says about processes. A process is
//! known by its machine, its boot, its number and its start; no clock is asked.

use std::fmt;
use std::io::ErrorKind;

use homestak_engine::journal::Life;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::fault::Fault;

/// Kept apart from what other programs make of the id of a machine, which is not for everyone.
const SALT: &str = "homestak lease";

/// A process, so that no other is ever taken for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Holder {
    /// Digest of the machine's id; empty for leases of before it was kept.
    pub(super) machine: String,
    /// Name of the machine, for a person.
    pub(super) name: String,
    /// Which boot of it.
    pub(super) boot: String,
    /// In which space of process numbers; each container has its own.
    pub(super) space: String,
    /// Its number.
    pub(super) pid: u32,
    /// When it started, in ticks since the boot.
    pub(super) start: i64,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on {}", self.pid, self.name)
    }
}

/// What the kernel says about a process number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Process {
    /// There is none, or it only waits to be buried.
    Gone,
    /// There is one that started then.
    Started(i64),
    /// The kernel does not say.
    Hidden,
}

impl Holder {
    /// Returns this process.
    pub(super) fn own() -> Result<Self, Fault> {
        let pid = std::process::id();
        let Process::Started(start) = process(pid) else {
            return Err(Fault::said(
                "the kernel does not say when this process started",
                "is `/proc` mounted?",
            ));
        };
        let line = |path| fs_err::read_to_string(path).map(|text| text.trim().to_owned());
        let boot = line("/proc/sys/kernel/random/boot_id")?;
        let id = line("/etc/machine-id").ok();
        // Without an id, only this boot is known to be of this machine.
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

    /// Says whether another holder lives, seen from this one.
    pub(super) fn judge(&self, other: &Self, process: impl Fn(u32) -> Process) -> Life {
        if other.boot != self.boot {
            let by_name = other.machine.is_empty() && other.name == self.name;
            return match other.machine == self.machine || by_name {
                true => Life::Dead,
                false => Life::Unknown,
            };
        }
        if other.space != self.space {
            return Life::Unknown;
        }
        match process(other.pid) {
            Process::Gone => Life::Dead,
            Process::Started(start) if start != other.start => Life::Dead,
            Process::Started(_) | Process::Hidden => Life::Alive,
        }
    }
}

/// Returns a digest of some texts, as hexadecimal digits.
pub(super) fn digest(texts: &[&str]) -> String {
    let hash = Sha256::digest(texts.join("\0"));
    hash[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Asks the kernel about a process number.
pub(super) fn process(pid: u32) -> Process {
    match fs_err::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(line) => parse(&line),
        Err(error) if error.kind() == ErrorKind::NotFound => Process::Gone,
        Err(_) => Process::Hidden,
    }
}

/// Reads state (field 3) and start (field 22). The name of the program, field 2, is in brackets
/// and can hold anything, brackets too.
fn parse(line: &str) -> Process {
    let mut fields = line
        .rsplit_once(')')
        .map_or("", |(_, rest)| rest)
        .split_ascii_whitespace();
    match fields.next() {
        Some("Z" | "X" | "x") => Process::Gone,
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
    fn a_process_lives_while_its_number_and_start_are_the_same() {
        let judge = |process| desk().judge(&desk(), |_| process);
        assert_eq!(judge(Process::Started(100)), Life::Alive);
        assert_eq!(judge(Process::Hidden), Life::Alive);
        assert_eq!(judge(Process::Started(101)), Life::Dead);
        assert_eq!(judge(Process::Gone), Life::Dead);
    }

    #[test]
    fn a_process_of_another_boot_is_dead_even_when_its_number_is_in_use() {
        let other = Holder {
            boot: "b0".into(),
            ..desk()
        };
        let life = desk().judge(&other, |_| Process::Started(100));
        assert_eq!(life, Life::Dead);
    }

    #[test]
    fn a_lease_of_before_machines_had_an_id_goes_by_the_name() {
        let other = |name: &str| Holder {
            machine: String::new(),
            name: name.into(),
            boot: "b0".into(),
            ..desk()
        };
        let judge = |name| desk().judge(&other(name), |_| Process::Gone);
        assert_eq!((judge("desk"), judge("shed")), (Life::Dead, Life::Unknown));
    }

    #[test]
    fn the_id_of_a_machine_is_not_written_as_it_is() {
        let id = fs_err::read_to_string("/etc/machine-id").unwrap_or_default();
        let own = serde_json::to_string(&Holder::own().unwrap()).unwrap();
        assert!(id.trim().is_empty() || !own.contains(id.trim()), "{own}");
    }

    #[test]
    fn a_machine_may_get_another_name_while_it_runs() {
        let other = Holder {
            name: "localhost".into(),
            ..desk()
        };
        let judge = |process| desk().judge(&other, |_| process);
        assert_eq!(judge(Process::Started(100)), Life::Alive);
        assert_eq!(judge(Process::Gone), Life::Dead);
    }

    #[test]
    fn nothing_is_said_about_processes_of_other_machines_and_containers() {
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
            assert_eq!(desk().judge(&other, |_| Process::Gone), Life::Unknown);
        }
    }

    #[test]
    fn the_kernel_line_is_read_whatever_the_program_is_called() {
        let line = |name: &str, state: &str| {
            format!("7 ({name}) {state} 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2")
        };
        for name in ["homestak", "a) S 1", "(((", "x y z"] {
            assert_eq!(parse(&line(name, "S")), Process::Started(98765), "{name}");
            assert_eq!(parse(&line(name, "Z")), Process::Gone, "{name}");
        }
        assert_eq!(parse("nothing of the kind"), Process::Hidden);
    }

    #[test]
    fn this_process_lives() {
        let own = Holder::own().unwrap();
        assert_eq!(own.judge(&own, process), Life::Alive);
    }
}
