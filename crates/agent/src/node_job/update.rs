//! Installs newer versions of packages. No package is removed, and configuration files that were
//! changed are kept.

use std::collections::BTreeSet;

use homestak_api::v1::node_job::{JobOutcome, JobResult, PackageUpdate, UpdateScope};
use homestak_core::converge::{FactScope, State};

use super::reboot::{self, needs_reboot};
use super::simulation::{Simulation, parse};
use super::{NodeJob, Output, Records, lock_for_changes, refused, run_settings, succeeded};
use crate::error::AgentError;
use crate::packages::{self, KEEP_FILES, apt_error, lock_timeout};
use crate::process;
use crate::system::{Machine, System as _};

/// How long to wait for the lock of the package database, in seconds.
const LOCK_WAIT: u64 = 600;

/// Updates packages, and restarts the machine if that is necessary and allowed.
pub(super) fn update(
    job: &NodeJob,
    records: &Records,
    output: Output<'_>,
) -> Result<JobOutcome, AgentError> {
    let settings = run_settings()?;
    let scope = match job.options.scope.unwrap_or(settings.updates) {
        UpdateScope::None => return Ok(refused(no_scope(job.options.scope.is_some()))),
        scope @ (UpdateScope::Security | UpdateScope::All) => scope,
    };
    let closed = match job.options.force || settings.is_in_window()? {
        true => None,
        false => Some(settings.window_message("updates are")),
    };
    if let (Some(closed), false) = (&closed, job.options.dry_run) {
        return Ok(refused(closed.clone()));
    }
    output("apt-get update");
    packages::update(LOCK_WAIT, &mut |words| {
        process::run_streaming(words, output)
    })?;
    if job.options.dry_run {
        let simulation = simulate(scope)?;
        let mut machine = Machine::default();
        let before = machine.load_state()?;
        let unfinished = is_unfinished(&mut machine, &before)?;
        let outcome = finished(simulation, output, |result| {
            result.changed = Some(false);
            result.unfinished = unfinished.then_some(true);
        });
        let has_packages = unfinished || !outcome.result.packages.is_empty();
        return Ok(JobOutcome {
            message: closed.filter(|_| has_packages),
            ..outcome
        });
    }
    let done = {
        let _lock = lock_for_changes()?;
        change(scope, output)
    };
    let outcome = match done {
        Ok(simulation) => finished(simulation, output, |result| {
            result.changed = Some(!result.packages.is_empty());
        }),
        Err(error) => return Err(error),
    };
    restart(job, records, outcome, output)
}

fn no_scope(is_given: bool) -> String {
    match is_given {
        true => "the scope of updates is `none`: use `security` or `all`".to_owned(),
        false => "updates are disabled by the spec of this node: set `run.updates` to `security` \
                  or `all`, or give the job `--updates security` or `--updates all`"
            .to_owned(),
    }
}

fn finished(
    simulation: Simulation,
    output: Output<'_>,
    change: impl FnOnce(&mut JobResult),
) -> JobOutcome {
    let count = simulation.packages.len();
    output(&format!(
        "{count} {}",
        if count == 1 { "package" } else { "packages" }
    ));
    let mut result = JobResult {
        packages: simulation.packages,
        reboot_needed: Some(needs_reboot()),
        ..JobResult::default()
    };
    change(&mut result);
    succeeded(result)
}

/// Restarts the machine if that is necessary.
fn restart(
    job: &NodeJob,
    records: &Records,
    outcome: JobOutcome,
    output: Output<'_>,
) -> Result<JobOutcome, AgentError> {
    if outcome.result.reboot_needed != Some(true) || job.options.no_reboot {
        return Ok(outcome);
    }
    reboot::restart_after(job, records, outcome, output)
}

/// Returns whether an earlier installation of packages is not complete.
fn is_unfinished(machine: &mut Machine, before: &State) -> Result<bool, AgentError> {
    Ok(before.in_packages || !machine.facts(&FactScope::default())?.dpkg_errors.is_empty())
}

/// Installs the newer versions. The caller holds the run lock.
fn change(scope: UpdateScope, output: Output<'_>) -> Result<Simulation, AgentError> {
    let mut machine = Machine::default();
    let before = machine.load_state()?;
    if is_unfinished(&mut machine, &before)? {
        output("finishing an interrupted installation of packages");
        packages::finish_interrupted(LOCK_WAIT)?;
    }
    let simulation = simulate(scope)?;
    if simulation.packages.is_empty() {
        return Ok(simulation);
    }
    // Recorded before the first change: the next run finishes what is interrupted.
    let mut during = before.clone();
    during.in_packages = true;
    machine.save_state(&during)?;
    let words = words(scope, &simulation.packages, &["-y"]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = process::run_streaming(&words, output)?;
    if done.code != Some(0) {
        return Err(AgentError::Packages(apt_error(&done)));
    }
    let mut after = before;
    after.in_packages = false;
    machine.save_state(&after)?;
    Ok(simulation)
}

/// Returns what would be installed.
fn simulate(scope: UpdateScope) -> Result<Simulation, AgentError> {
    let run = |scope, packages: &[PackageUpdate]| {
        let words = words(scope, packages, &["-s", "-o", "Debug::NoLocking=1"]);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let done = process::run(&words)?;
        match done.code {
            Some(0) => Ok(parse(&done.out)),
            Some(_) | None => Err(AgentError::Packages(apt_error(&done))),
        }
    };
    let mut simulation = run(UpdateScope::All, &[])?;
    if scope == UpdateScope::Security {
        let packages = &mut simulation.packages;
        // New packages are installed only because others need them.
        packages.retain(|package| package.security && !package.from.is_empty());
        if !packages.is_empty() {
            simulation = run(scope, &simulation.packages)?;
        }
    }
    match simulation.removed.is_empty() {
        true => Ok(simulation),
        false => Err(AgentError::Packages(format!(
            "this would remove {}",
            simulation.removed.join(", ")
        ))),
    }
}

/// Returns the command of apt: all newer versions, or those of some packages and what they need.
fn words(scope: UpdateScope, packages: &[PackageUpdate], options: &[&str]) -> Vec<String> {
    let lock_timeout = lock_timeout(LOCK_WAIT);
    // Without a terminal of its own, dpkg is in the process group of apt, and its output has lines.
    let mut words = vec![
        "apt-get",
        "-q",
        "-o",
        "Dpkg::Use-Pty=0",
        "-o",
        &lock_timeout,
    ];
    words.extend(KEEP_FILES);
    words.push("--no-remove");
    words.extend(options);
    match scope {
        UpdateScope::All | UpdateScope::None => words.extend(["--with-new-pkgs", "upgrade"]),
        UpdateScope::Security => {
            words.extend(["--only-upgrade", "install", "--"]);
            let names = packages.iter().filter(|package| !package.from.is_empty());
            let names: BTreeSet<&str> = names.map(|package| package.name.as_str()).collect();
            words.extend(names);
        }
    }
    words.into_iter().map(str::to_owned).collect()
}
