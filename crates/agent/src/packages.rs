//! Packages installed and removed in one transaction, which is simulated first where something is
//! removed. No package is removed that nobody named, and nothing asks questions.

use crate::error::AgentError;
use crate::process::{self, Ended};

/// Tells apt how long another user of the package database is waited for.
fn patience(seconds: u64) -> String {
    format!("DPkg::Lock::Timeout={seconds}")
}

/// Finds out whether packages can be had. Lists of packages are fetched when they are too old to
/// know, which changes nothing that counts.
pub(crate) fn rehearse(
    install: &[String],
    remove: &[String],
    lock_wait: u64,
) -> Result<(), AgentError> {
    let mut ended = simulate(install, remove)?;
    if ended.code != Some(0) {
        update(lock_wait)?;
        ended = simulate(install, remove)?;
    }
    require(&ended)?;
    let unasked: Vec<&str> = ended
        .out
        .lines()
        .filter_map(|line| line.strip_prefix("Remv ")?.split_whitespace().next())
        .filter(|name| !remove.iter().any(|one| one == name))
        .collect();
    if unasked.is_empty() {
        return Ok(());
    }
    Err(AgentError::Packages(format!(
        "this would also remove {}, which is left to a person",
        unasked.join(", ")
    )))
}

/// Why packages could not be had.
pub(crate) struct Fault {
    pub(crate) error: AgentError,
    /// Whether any package was touched.
    pub(crate) begun: bool,
}

impl From<AgentError> for Fault {
    fn from(error: AgentError) -> Self {
        Self {
            error,
            begun: false,
        }
    }
}

/// Installs and removes packages in one transaction. Unless something is to be removed, nothing is:
/// apt finds that out, as everything that cannot be had, before it touches the first package.
pub(crate) fn transact(install: &[String], remove: &[String], lock_wait: u64) -> Result<(), Fault> {
    let first = change(install, remove, lock_wait)?;
    if first.code == Some(0) {
        return Ok(());
    }
    // Newer lists do not help against a lock, and what was begun is finished by the next run.
    if is_begun(&first) || first.err.contains(" lock") {
        return Err(fault(&first));
    }
    // Lists that are missing, or older than the archive, do not know packages, or name others.
    update(lock_wait)?;
    if !remove.is_empty() {
        rehearse(install, remove, lock_wait)?;
    }
    let again = change(install, remove, lock_wait)?;
    if again.code == Some(0) {
        return Ok(());
    }
    if again.err.contains("remove is disabled") {
        // Says which ones.
        rehearse(install, remove, lock_wait)?;
    }
    Err(fault(&again))
}

/// Tells whether packages were touched: dpkg has said its first words, or was cut short.
fn is_begun(ended: &Ended) -> bool {
    ended.code.is_none() || ended.out.contains("(Reading database")
}

fn fault(ended: &Ended) -> Fault {
    Fault {
        error: AgentError::Packages(complaint(ended)),
        begun: is_begun(ended),
    }
}

/// Finishes what a run of ours began and could not end.
pub(crate) fn finish(lock_wait: u64) -> Result<(), AgentError> {
    process::must(&[
        "dpkg",
        "--configure",
        "-a",
        "--force-confdef",
        "--force-confold",
    ])?;
    let ended = process::run(&["apt-get", "-y", "-o", &patience(lock_wait), "-f", "install"])?;
    require(&ended)
}

/// Returns an error when apt failed.
fn require(ended: &Ended) -> Result<(), AgentError> {
    if ended.code == Some(0) {
        return Ok(());
    }
    Err(AgentError::Packages(complaint(ended)))
}

/// Where signatures of lists are checked: a directory of apt's own user, beside what is checked.
/// Any user can fill `/tmp`, and apt would say that the lists are not signed.
const CHECKED: &str = "TMPDIR=/var/lib/apt/lists/partial";

fn update(lock_wait: u64) -> Result<(), AgentError> {
    let patience = patience(lock_wait);
    let words = ["env", CHECKED, "apt-get", "-q", "-o", &patience, "update"];
    let ended = process::run(&words)?;
    if ended.code == Some(0) {
        return Ok(());
    }
    Err(AgentError::Packages(format!(
        "lists of packages cannot be fetched: {}",
        complaint(&ended)
    )))
}

fn simulate(install: &[String], remove: &[String]) -> Result<Ended, AgentError> {
    apt(&["-s", "-o", "Debug::NoLocking=1"], install, remove)
}

fn change(install: &[String], remove: &[String], lock_wait: u64) -> Result<Ended, AgentError> {
    let patience = patience(lock_wait);
    let mut options = vec!["-y", "-o", &patience, "--allow-downgrades"];
    options.extend(["-o", "Dpkg::Options::=--force-confdef"]);
    options.extend(["-o", "Dpkg::Options::=--force-confold"]);
    if remove.is_empty() {
        options.push("--no-remove");
    }
    apt(&options, install, remove)
}

fn apt(options: &[&str], install: &[String], remove: &[String]) -> Result<Ended, AgentError> {
    let remove: Vec<String> = remove.iter().map(|name| format!("{name}-")).collect();
    let mut words = [&["apt-get", "-q"], options, &["install", "--"]].concat();
    words.extend(install.iter().chain(&remove).map(String::as_str));
    Ok(process::run(&words)?)
}

/// Returns what apt says is wrong, without what it says besides.
fn complaint(ended: &Ended) -> String {
    let lines: Vec<&str> = ended
        .err
        .lines()
        .filter_map(|line| line.strip_prefix("E: "))
        .collect();
    if lines.is_empty() {
        ended.said()
    } else {
        lines.join("; ")
    }
}
