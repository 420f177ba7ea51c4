//! Services and the files that they read: a file that a service does not run with is put back,
//! unless another run wrote it, and the service's own message is reported.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use homestak_core::converge::{Facts, Resource, Step};
use homestak_core::foreign::ForeignText;

use crate::error::AgentError;
use crate::gather::LARGEST_FILE;
use crate::path::{self, Found};
use crate::{clock, files, process};

/// How long a service that was restarted is given to fail, in milliseconds: most types of unit count
/// as started before they have read their files.
const GRACE: u64 = 500;
/// How many of its last lines are shown.
const LINES: &str = "--lines=3";

/// A file as it was.
struct Copy {
    content: Vec<u8>,
    mode: u32,
    owner: (u32, u32),
}

/// Files that units read, as they were before the first step.
#[derive(Default)]
pub(crate) struct Before {
    /// `None` for a file that was not there.
    files: BTreeMap<String, Option<Copy>>,
    /// Files by the unit that reads them.
    read_by: BTreeMap<String, BTreeSet<String>>,
    /// Units that ran.
    ran: BTreeSet<String>,
}

impl Before {
    /// Copies files that steps write and that name units.
    pub(crate) fn of(wanted: &[Resource], steps: &[Step], facts: &Facts) -> Self {
        let mut before = Self::default();
        for resource in wanted {
            let Resource::File { path, restart, .. } = resource else {
                continue;
            };
            let writes = |step: &Step| matches!(step, Step::Write { path: one, .. } if one == path);
            if restart.is_empty() || !steps.iter().any(writes) {
                continue;
            }
            // What cannot be kept is not put back.
            let Ok(copy) = copy(path) else { continue };
            before.files.insert(path.clone(), copy);
            for unit in restart {
                let read = before.read_by.entry(unit.clone()).or_default();
                read.insert(path.clone());
                let ran = facts.units.get(unit).map(|unit| unit.active_state.as_str());
                if ran == Some("active") {
                    before.ran.insert(unit.clone());
                }
            }
        }
        before
    }

    /// Returns an error when a unit whose files were written has failed since.
    pub(crate) fn require_running(&self, steps: &[Step]) -> Result<(), AgentError> {
        let moved = steps.iter().filter_map(|step| match step {
            Step::Restart { unit } | Step::Reload { unit } | Step::Start { unit } => Some(unit),
            _ => None,
        });
        let read: Vec<&String> = moved
            .filter(|unit| self.read_by.contains_key(*unit))
            .collect();
        if read.is_empty() {
            return Ok(());
        }
        clock::moment(GRACE);
        for unit in read {
            let state = property(unit, "ActiveState")?;
            if state == "failed" || property(unit, "SubState")? == "auto-restart" {
                return Err(AgentError::Step {
                    step: format!("restart {unit}"),
                    said: format!("it is {state}"),
                });
            }
        }
        Ok(())
    }

    /// Puts back what the unit of an error reads, and returns the error to report.
    pub(crate) fn judge(&self, first: AgentError) -> AgentError {
        let Some(unit) = first.unit().map(str::to_owned) else {
            return first;
        };
        let Some(read) = self.read_by.get(&unit) else {
            return first;
        };
        let said = own_words(&unit).unwrap_or_else(|| first.message());
        for path in read {
            let place = Path::new(path);
            let done = match self.files.get(path) {
                Some(Some(copy)) => files::put(place, &copy.content, copy.mode, copy.owner),
                Some(None) | None => files::remove(place),
            };
            if done.is_err() {
                return first;
            }
        }
        _ = process::run(&["systemctl", "daemon-reload"]);
        _ = process::run(&["systemctl", "reset-failed", "--", &unit]);
        if self.ran.contains(&unit) {
            _ = process::run(&["systemctl", "restart", "--", &unit]);
        } else {
            _ = process::run(&["systemctl", "stop", "--", &unit]);
        }
        let runs = property(&unit, "ActiveState").is_ok_and(|state| state == "active");
        let paths = read.iter().cloned().collect();
        AgentError::Rejected {
            unit,
            said,
            paths,
            runs,
        }
    }
}

fn copy(path: &str) -> std::io::Result<Option<Copy>> {
    match path::look(Path::new(path))? {
        Found::Nothing => Ok(None),
        Found::File(file, stat) => {
            let content = path::read(&file, LARGEST_FILE)?;
            let content = content.ok_or_else(|| std::io::Error::other("it is too large"))?;
            Ok(Some(Copy {
                content,
                mode: path::mode(&stat),
                owner: (stat.st_uid, stat.st_gid),
            }))
        }
        Found::Link(_) | Found::Directory(_) | Found::Other => {
            Err(std::io::Error::other("it is no file"))
        }
    }
}

fn property(unit: &str, name: &str) -> Result<String, AgentError> {
    let property = format!("--property={name}");
    let text = process::must(&["systemctl", "show", &property, "--value", "--", unit])?;
    Ok(text.trim().to_owned())
}

/// Returns what a service logged when it was last started.
fn own_words(unit: &str) -> Option<String> {
    // What it logged last may still be on its way.
    _ = process::run(&["journalctl", "--sync"]);
    let invocation = property(unit, "InvocationID").ok()?;
    let of_run = format!("_SYSTEMD_INVOCATION_ID={invocation}");
    // A process that ended before the journal looked at it is known by its unit alone.
    let since = format!("--since={}", property(unit, "InactiveExitTimestamp").ok()?);
    let of_unit = format!("_SYSTEMD_UNIT={unit}");
    logged(&[&of_run]).or_else(|| logged(&[&since, &of_unit]))
}

fn logged(which: &[&str]) -> Option<String> {
    let words = ["journalctl", "--quiet", "--no-pager", "--output=cat", LINES];
    let ended = process::run(&[&words[..], which].concat()).ok()?;
    let lines: Vec<&str> = ended.out.lines().map(str::trim).collect();
    let said = lines.join("; ");
    (!said.is_empty()).then(|| ForeignText::line(&said).into())
}
