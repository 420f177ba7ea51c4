//! Packages: tried out first, then had in one transaction.
//!
//! In: names. Out: installed and removed packages.
//! Never: a package removed that nobody named; a question asked.

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
    if ended.code != Some(0) {
        return Err(AgentError::Packages(complaint(&ended)));
    }
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

/// Installs and removes packages in one transaction.
pub(crate) fn transact(
    install: &[String],
    remove: &[String],
    lock_wait: u64,
) -> Result<(), AgentError> {
    let ended = change(install, remove, lock_wait)?;
    if ended.code == Some(0) {
        return Ok(());
    }
    // Lists that are older than the archive name packages that it no longer has, or has otherwise.
    let stale = ["404", "Hash Sum mismatch", "unexpected size"];
    if stale.iter().any(|word| ended.err.contains(word)) {
        update(lock_wait)?;
        let again = change(install, remove, lock_wait)?;
        if again.code == Some(0) {
            return Ok(());
        }
        return Err(AgentError::Packages(complaint(&again)));
    }
    Err(AgentError::Packages(complaint(&ended)))
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
    if ended.code == Some(0) {
        return Ok(());
    }
    Err(AgentError::Packages(complaint(&ended)))
}

fn update(lock_wait: u64) -> Result<(), AgentError> {
    let ended = process::run(&["apt-get", "-q", "-o", &patience(lock_wait), "update"])?;
    if ended.code == Some(0) {
        return Ok(());
    }
    Err(AgentError::Packages(format!(
        "lists of packages cannot be fetched: {}",
        complaint(&ended)
    )))
}

fn wishes(install: &[String], remove: &[String]) -> Vec<String> {
    let remove = remove.iter().map(|name| format!("{name}-"));
    install.iter().cloned().chain(remove).collect()
}

fn simulate(install: &[String], remove: &[String]) -> Result<Ended, AgentError> {
    let wishes = wishes(install, remove);
    let mut words = vec![
        "apt-get",
        "-q",
        "-s",
        "-o",
        "Debug::NoLocking=1",
        "install",
        "--",
    ];
    words.extend(wishes.iter().map(String::as_str));
    Ok(process::run(&words)?)
}

fn change(install: &[String], remove: &[String], lock_wait: u64) -> Result<Ended, AgentError> {
    let wishes = wishes(install, remove);
    let patience = patience(lock_wait);
    let mut words = vec![
        "apt-get",
        "-q",
        "-y",
        "-o",
        &patience,
        "-o",
        "Dpkg::Options::=--force-confdef",
        "-o",
        "Dpkg::Options::=--force-confold",
        "--allow-downgrades",
        "install",
        "--",
    ];
    words.extend(wishes.iter().map(String::as_str));
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
