//! Installs and removes packages in one transaction, without prompts. Removals are simulated first:
//! no package is removed that the spec does not name.

use std::time::Duration;

use crate::clock;
use crate::error::AgentError;
use crate::process::{self, Output, ProcessError};

/// The option of apt for how long to wait for the lock of the package database.
pub(crate) fn lock_timeout(seconds: u64) -> String {
    format!("DPkg::Lock::Timeout={seconds}")
}

/// The options of apt that keep configuration files which were changed.
pub(crate) const KEEP_FILES: [&str; 4] = [
    "-o",
    "Dpkg::Options::=--force-confdef",
    "-o",
    "Dpkg::Options::=--force-confold",
];

/// Simulates the transaction, and returns an error if it would remove other packages. Package lists are
/// updated if it fails at first.
pub(crate) fn check_removals(
    install: &[String],
    remove: &[String],
    lock_wait: u64,
) -> Result<(), AgentError> {
    let mut output = simulate(install, remove)?;
    if output.code != Some(0) {
        update(lock_wait, &mut process::run)?;
        output = simulate(install, remove)?;
    }
    require(&output)?;
    let others: Vec<&str> = output
        .out
        .lines()
        .filter_map(|line| line.strip_prefix("Remv ")?.split_whitespace().next())
        .filter(|name| !remove.iter().any(|one| one == name))
        .collect();
    if others.is_empty() {
        return Ok(());
    }
    Err(AgentError::Packages(format!(
        "this would also remove {}; remove it manually if that is intended",
        others.join(", ")
    )))
}

/// Why packages could not be changed.
pub(crate) struct PackageError {
    pub(crate) error: AgentError,
    /// Whether any package was changed.
    pub(crate) begun: bool,
}

impl From<AgentError> for PackageError {
    fn from(error: AgentError) -> Self {
        Self {
            error,
            begun: false,
        }
    }
}

/// Installs and removes packages in one transaction. Without packages to remove, apt refuses to remove
/// any before it changes the first package.
pub(crate) fn transact(
    install: &[String],
    remove: &[String],
    lock_wait: u64,
) -> Result<(), PackageError> {
    let first = change(install, remove, lock_wait)?;
    if first.code == Some(0) {
        return Ok(());
    }
    // Newer lists do not help against a lock; a transaction that began is finished by the next run.
    if is_begun(&first) || first.err.contains(" lock") {
        return Err(failure(&first));
    }
    // The lists may be missing or out of date.
    update(lock_wait, &mut process::run)?;
    if !remove.is_empty() {
        check_removals(install, remove, lock_wait)?;
    }
    let again = change(install, remove, lock_wait)?;
    if again.code == Some(0) {
        return Ok(());
    }
    if again.err.contains("remove is disabled") {
        // Reports which ones.
        check_removals(install, remove, lock_wait)?;
    }
    Err(failure(&again))
}

/// Returns whether packages were changed: dpkg printed its first line, or was killed.
fn is_begun(output: &Output) -> bool {
    output.code.is_none() || output.out.contains("(Reading database")
}

fn failure(output: &Output) -> PackageError {
    PackageError {
        error: AgentError::Packages(apt_error(output)),
        begun: is_begun(output),
    }
}

/// Finishes a transaction of an earlier run that was interrupted.
pub(crate) fn finish_interrupted(lock_wait: u64) -> Result<(), AgentError> {
    process::run_ok(&[
        "dpkg",
        "--configure",
        "-a",
        "--force-confdef",
        "--force-confold",
    ])?;
    let output = process::run(&[
        "apt-get",
        "-y",
        "-o",
        &lock_timeout(lock_wait),
        "-f",
        "install",
    ])?;
    require(&output)
}

/// Returns an error when apt failed.
fn require(output: &Output) -> Result<(), AgentError> {
    if output.code == Some(0) {
        return Ok(());
    }
    Err(AgentError::Packages(apt_error(output)))
}

/// Where apt verifies signatures of lists: a directory of its own user. Any user can fill `/tmp`, and
/// apt would then report unsigned lists.
const TMPDIR: &str = "TMPDIR=/var/lib/apt/lists/partial";
/// The pause before package lists are updated again while another program does so.
const LISTS_PAUSE: Duration = Duration::from_millis(500);

/// Updates package lists with the function that runs programs.
pub(crate) fn update(
    lock_wait: u64,
    run: &mut dyn FnMut(&[&str]) -> Result<Output, ProcessError>,
) -> Result<(), AgentError> {
    let lock_timeout = lock_timeout(lock_wait);
    let words = [
        "env",
        TMPDIR,
        "apt-get",
        "-q",
        "-o",
        &lock_timeout,
        "update",
    ];
    let begun = clock::instant();
    loop {
        let output = run(&words)?;
        if output.code == Some(0) {
            return Ok(());
        }
        // apt waits for the lock of the package database only. That of the lists may be held by an
        // `apt-get update` of an agent that was killed.
        let is_locked = output.err.contains("Could not get lock /var/lib/apt/lists");
        if !is_locked || begun.elapsed().as_secs() >= lock_wait {
            return Err(AgentError::Packages(format!(
                "package lists cannot be updated: {}",
                apt_error(&output)
            )));
        }
        std::thread::sleep(LISTS_PAUSE);
    }
}

fn simulate(install: &[String], remove: &[String]) -> Result<Output, AgentError> {
    apt(&["-s", "-o", "Debug::NoLocking=1"], install, remove)
}

fn change(install: &[String], remove: &[String], lock_wait: u64) -> Result<Output, AgentError> {
    let lock_timeout = lock_timeout(lock_wait);
    let mut options = vec!["-y", "-o", &lock_timeout, "--allow-downgrades"];
    options.extend(KEEP_FILES);
    if remove.is_empty() {
        options.push("--no-remove");
    }
    apt(&options, install, remove)
}

fn apt(options: &[&str], install: &[String], remove: &[String]) -> Result<Output, AgentError> {
    let remove: Vec<String> = remove.iter().map(|name| format!("{name}-")).collect();
    let mut words = [&["apt-get", "-q"], options, &["install", "--"]].concat();
    words.extend(install.iter().chain(&remove).map(String::as_str));
    Ok(process::run(&words)?)
}

/// Returns the error lines of apt.
pub(crate) fn apt_error(output: &Output) -> String {
    let lines: Vec<&str> = output
        .err
        .lines()
        .filter_map(|line| line.strip_prefix("E: "))
        .collect();
    if lines.is_empty() {
        output.reason()
    } else {
        lines.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts how often lists are updated, if the lock is held the first times.
    fn tries(n_locked: usize, lock_wait: u64) -> (usize, Result<(), AgentError>) {
        let mut n = 0;
        let done = update(lock_wait, &mut |_| {
            n += 1;
            let held = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 207";
            let (code, err) = match n <= n_locked {
                true => (Some(100), held),
                false => (Some(0), ""),
            };
            Ok(Output {
                code,
                out: String::new(),
                err: err.to_owned(),
                timed_out: false,
            })
        });
        (n, done)
    }

    #[test]
    fn lists_that_another_program_updates_are_waited_for() {
        let (n, done) = tries(1, 60);
        assert!(done.is_ok() && n == 2, "{n}");
        let (n, done) = tries(1, 0);
        let error = done.unwrap_err().to_string();
        assert!(
            n == 1 && error.contains("It is held by process 207"),
            "{n}: {error}"
        );
    }
}
