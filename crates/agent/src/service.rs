//! Services and the files that they read: if a service fails with new files, the old ones are restored
//! and the service's own messages are reported.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use homestak_core::converge::{ConvergeStep, Facts, Resource};
use homestak_core::foreign::ForeignText;

use crate::error::AgentError;
use crate::facts::LARGEST_FILE;
use crate::path::{self, Entry};
use crate::{clock, files, process, systemctl};

/// How long a restarted service is observed for a failure, in milliseconds: most types of unit count as
/// started before they have read their files.
const GRACE_PERIOD: u64 = 500;
/// How many of its last log lines are shown.
const LINES: &str = "--lines=3";

/// A file before the run.
struct Copy {
    content: Vec<u8>,
    mode: u32,
    owner: (u32, u32),
}

/// Files that units read, before the first step.
#[derive(Default)]
pub(crate) struct ServiceFiles {
    /// `None` for a file that did not exist.
    files: BTreeMap<String, Option<Copy>>,
    /// Files by the unit that reads them.
    read_by: BTreeMap<String, BTreeSet<String>>,
    /// Units that were active.
    active: BTreeSet<String>,
}

impl ServiceFiles {
    /// Copies files that steps write and that units read.
    pub(crate) fn of(wanted: &[Resource], steps: &[ConvergeStep], facts: &Facts) -> Self {
        let mut before = Self::default();
        for resource in wanted {
            let Resource::File { path, restart, .. } = resource else {
                continue;
            };
            let writes = |step: &ConvergeStep| matches!(step, ConvergeStep::Write { path: one, .. } if one == path);
            if restart.is_empty() || !steps.iter().any(writes) {
                continue;
            }
            // What cannot be copied is not restored.
            let Ok(copy) = copy(path) else { continue };
            before.files.insert(path.clone(), copy);
            for unit in restart {
                let read = before.read_by.entry(unit.clone()).or_default();
                read.insert(path.clone());
                let state = facts.units.get(unit).map(|unit| unit.active_state.as_str());
                if state == Some("active") {
                    before.active.insert(unit.clone());
                }
            }
        }
        before
    }

    /// Returns an error if a unit whose files were written has failed.
    pub(crate) fn require_running(&self, steps: &[ConvergeStep]) -> Result<(), AgentError> {
        let restarted = steps.iter().filter_map(|step| match step {
            ConvergeStep::Restart { unit }
            | ConvergeStep::Reload { unit }
            | ConvergeStep::Start { unit } => Some(unit),
            _ => None,
        });
        let read: Vec<&String> = restarted
            .filter(|unit| self.read_by.contains_key(*unit))
            .collect();
        if read.is_empty() {
            return Ok(());
        }
        clock::sleep(GRACE_PERIOD);
        for unit in read {
            let state = property(unit, "ActiveState")?;
            if state == "failed" || property(unit, "SubState")? == "auto-restart" {
                return Err(AgentError::Step {
                    step: format!("restart {unit}"),
                    reason: format!("it is {state}"),
                });
            }
        }
        Ok(())
    }

    /// Restores the files of the unit that an error is about, and returns the error to report.
    pub(crate) fn restore(&self, first: AgentError) -> AgentError {
        let Some(unit) = first.unit().map(str::to_owned) else {
            return first;
        };
        let Some(read) = self.read_by.get(&unit) else {
            return first;
        };
        let reason = last_log_lines(&unit).unwrap_or_else(|| first.message());
        for path in read {
            let target = Path::new(path);
            let done = match self.files.get(path) {
                Some(Some(copy)) => files::put(target, &copy.content, copy.mode, copy.owner),
                Some(None) | None => files::remove(target),
            };
            if done.is_err() {
                return first;
            }
        }
        _ = systemctl::run(&["daemon-reload"]);
        _ = systemctl::run(&["reset-failed", "--", &unit]);
        if self.active.contains(&unit) {
            _ = systemctl::run(&["restart", "--", &unit]);
        } else {
            _ = systemctl::run(&["stop", "--", &unit]);
        }
        let runs = property(&unit, "ActiveState").is_ok_and(|state| state == "active");
        let paths = read.iter().cloned().collect();
        AgentError::Rejected {
            unit,
            reason,
            paths,
            runs,
        }
    }
}

fn copy(path: &str) -> std::io::Result<Option<Copy>> {
    match path::lookup(Path::new(path))? {
        Entry::Nothing => Ok(None),
        Entry::File(file, stat) => {
            let content = path::read(&file, LARGEST_FILE)?;
            let content = content.ok_or_else(|| std::io::Error::other("the file is too large"))?;
            Ok(Some(Copy {
                content,
                mode: path::mode(&stat),
                owner: (stat.st_uid, stat.st_gid),
            }))
        }
        Entry::Link(_) | Entry::Directory(_) | Entry::Other => {
            Err(std::io::Error::other("not a regular file"))
        }
    }
}

fn property(unit: &str, name: &str) -> Result<String, AgentError> {
    let property = format!("--property={name}");
    let text = systemctl::run_ok(&["show", &property, "--value", "--", unit])?;
    Ok(text.trim().to_owned())
}

/// Returns what a service logged during its last start.
fn last_log_lines(unit: &str) -> Option<String> {
    // Its last messages may not have reached the journal.
    _ = process::run(&["journalctl", "--sync"]);
    let invocation = property(unit, "InvocationID").ok()?;
    let of_run = format!("_SYSTEMD_INVOCATION_ID={invocation}");
    // Messages of a process that ended early have no invocation id, only the unit.
    let since = format!("--since={}", property(unit, "InactiveExitTimestamp").ok()?);
    let of_unit = format!("_SYSTEMD_UNIT={unit}");
    logged(&[&of_run]).or_else(|| logged(&[&since, &of_unit]))
}

fn logged(which: &[&str]) -> Option<String> {
    let words = ["journalctl", "--quiet", "--no-pager", "--output=cat", LINES];
    let output = process::run(&[&words[..], which].concat()).ok()?;
    let lines: Vec<&str> = output.out.lines().map(str::trim).collect();
    let reason = lines.join("; ");
    (!reason.is_empty()).then(|| ForeignText::line(&reason).into())
}
