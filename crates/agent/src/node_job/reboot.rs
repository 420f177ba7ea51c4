//! Restarts the machine as a job, at most every ten minutes.
//!
//! The job and its boot are recorded before the restart; after it, the boot id shows that it took
//! place.

use std::time::Duration;

use homestak_api::v1::node_job::{JobOutcome, JobResult};

use super::record::{JobRecord, Limits, PendingReboot, TimePoint};
use super::{
    NodeJob, Output, Records, failed, limited, lock_for_changes, refused, run_settings, succeeded,
};
use crate::error::AgentError;
use crate::{clock, process, systemctl};

/// The shortest time between two restarts by jobs.
const INTERVAL: Duration = Duration::from_secs(600);
/// How long a machine may take to shut down. Longer than the 90 seconds that systemd waits for a unit.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(180);
/// The interval of checking whether that is over, in milliseconds.
const PAUSE: u64 = 500;
/// Packages create it when they need a restart.
const REBOOT_REQUIRED: &str = "/run/reboot-required";

/// Restarts the machine.
pub(super) fn reboot(
    job: &NodeJob,
    records: &Records,
    output: Output<'_>,
) -> Result<JobOutcome, AgentError> {
    if let Some(why) = not_allowed(job, records)? {
        return Ok(refused(why));
    }
    if job.options.dry_run {
        return Ok(succeeded(JobResult {
            rebooted: Some(false),
            ..JobResult::default()
        }));
    }
    restart(job, records, &succeeded(JobResult::default()), output)
}

/// Restarts the machine after an update, if allowed. Otherwise the outcome has why it was not
/// restarted.
pub(super) fn restart_after(
    job: &NodeJob,
    records: &Records,
    outcome: JobOutcome,
    output: Output<'_>,
) -> Result<JobOutcome, AgentError> {
    let why = match not_allowed(job, records)? {
        Some(why) => why,
        None => match restart(job, records, &outcome, output) {
            // The packages were updated.
            Err(error @ (AgentError::Busy | AgentError::AwaitingConfirmation(_))) => {
                error.message()
            }
            done => return done,
        },
    };
    let message = format!("the node must be restarted, and was not: {why}");
    output(&message);
    Ok(JobOutcome {
        message: Some(message),
        ..outcome
    })
}

/// Returns why a restart is not allowed now.
fn not_allowed(job: &NodeJob, records: &Records) -> Result<Option<String>, AgentError> {
    if job.options.force {
        return Ok(None);
    }
    let settings = run_settings()?;
    if !settings.is_in_window()? {
        return Ok(Some(settings.window_message("restarts are")));
    }
    let last = records.limits()?.reboot;
    let is_recent = last.is_some_and(|last| !last.is_past(INTERVAL, TimePoint::now()));
    Ok(is_recent.then(|| {
        "a job restarted this node less than 10 minutes ago; wait, or use `--force`".to_owned()
    }))
}

/// Restarts the machine: this process is ended by that. Otherwise returns that the
/// machine did not restart.
fn restart(
    job: &NodeJob,
    records: &Records,
    outcome: &JobOutcome,
    output: Output<'_>,
) -> Result<JobOutcome, AgentError> {
    let _lock = lock_for_changes()?;
    let record = records.find(&job.id)?;
    let record = record.ok_or_else(|| AgentError::NoJob(job.id.clone()))?;
    let mut after = outcome.clone();
    after.result.rebooted = Some(true);
    after.result.reboot_needed = outcome.result.reboot_needed.map(|_| false);
    let since = TimePoint::now();
    let limits = Limits {
        reboot: Some(since),
        ..records.limits()?
    };
    records.put_limits(&limits)?;
    records.put(&JobRecord {
        reboot: Some(PendingReboot {
            boot: clock::boot(),
            since,
            outcome: limited(after),
        }),
        ..record.clone()
    })?;
    output("restarting");
    if let Err(error) = systemctl::run_ok(&["--no-wall", "reboot"]) {
        records.put(&record)?;
        return Err(error.into());
    }
    // Nothing else begins before the machine is down: the locks are held.
    while !since.is_past(SHUTDOWN_TIMEOUT, TimePoint::now()) && !process::is_exceeded() {
        clock::sleep(PAUSE);
    }
    Ok(not_restarted(outcome))
}

fn not_restarted(outcome: &JobOutcome) -> JobOutcome {
    let seconds = SHUTDOWN_TIMEOUT.as_secs();
    JobOutcome {
        result: JobResult {
            rebooted: Some(false),
            ..outcome.result.clone()
        },
        ..failed(format!("the node did not restart within {seconds} s"))
    }
}

/// Returns how a job ended whose process does not run any more. `None` while the machine shuts down.
pub(crate) fn settled(record: &JobRecord, boot: &str, now: TimePoint) -> Option<JobOutcome> {
    if let Some(outcome) = &record.outcome {
        return Some(outcome.clone());
    }
    let Some(pending) = &record.reboot else {
        return Some(failed(
            "interrupted: the agent was stopped or the node was restarted during the job, which is \
             not executed again",
        ));
    };
    let is_known = !boot.is_empty() && !pending.boot.is_empty();
    if is_known && pending.boot != boot {
        return Some(pending.outcome.clone());
    }
    let is_over = pending.since.is_past(SHUTDOWN_TIMEOUT, now);
    is_over.then(|| not_restarted(&pending.outcome))
}

/// Returns whether the machine must be restarted for updates to take effect.
pub(super) fn needs_reboot() -> bool {
    if fs_err::exists(REBOOT_REQUIRED).unwrap_or(false) {
        return true;
    }
    // A container has the kernel of its host.
    let container = process::run(&["systemd-detect-virt", "--container", "--quiet"]);
    if container.is_ok_and(|output| output.code == Some(0)) {
        return false;
    }
    let running = rustix::system::uname();
    let running = running.release().to_string_lossy();
    installed_kernels()
        .iter()
        .any(|one| is_newer(one, &running))
}

/// Returns the releases of the kernels that are installed with their modules.
fn installed_kernels() -> Vec<String> {
    let entries = fs_err::read_dir("/lib/modules").into_iter().flatten();
    let names = entries.flatten().map(|entry| entry.file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    let is_bootable = |name: &String| fs_err::exists(format!("/boot/vmlinuz-{name}"));
    names
        .filter(|name| is_bootable(name).unwrap_or(false))
        .collect()
}

/// Returns whether a kernel is a newer one of the same flavour, such as `amd64` or `cloud-amd64`.
fn is_newer(release: &str, running: &str) -> bool {
    let (version, flavour) = kernel(release);
    let (running, running_flavour) = kernel(running);
    flavour == running_flavour && version > running
}

/// Splits a release such as `6.1.0-42-cloud-amd64` into its numbers and its flavour.
fn kernel(release: &str) -> (Vec<u64>, Vec<&str>) {
    let parts = release.split(['.', '-', '+', '~', '_']);
    let (mut numbers, mut flavour) = (Vec::new(), Vec::new());
    for part in parts {
        match part.parse() {
            Ok(number) => numbers.push(number),
            Err(_) => flavour.push(part),
        }
    }
    (numbers, flavour)
}

#[cfg(test)]
mod tests {
    use homestak_api::v1::node_job::{JobKind, JobState};

    use super::super::record::JobOrigin;
    use super::*;

    #[test]
    fn a_newer_kernel_of_the_same_flavour_needs_a_restart() {
        for (release, running) in [
            ("6.1.0-42-amd64", "6.1.0-18-amd64"),
            ("6.1.0-9-amd64", "6.1.0-8-amd64"),
            ("6.1.0-10-cloud-amd64", "6.1.0-9-cloud-amd64"),
            ("6.8.0-100-generic", "6.8.0-45-generic"),
            ("6.8.12-10-pve", "6.8.12-4-pve"),
            ("6.12.9+bpo-amd64", "6.11.10+bpo-amd64"),
        ] {
            assert!(is_newer(release, running), "{release} {running}");
            assert!(!is_newer(running, release), "{running} {release}");
        }
        assert!(!is_newer("6.1.0-42-cloud-amd64", "6.1.0-18-amd64"));
        assert!(!is_newer("6.1.0-18-amd64", "6.1.0-18-amd64"));
    }

    #[test]
    fn a_restart_is_complete_when_the_boot_id_differs() {
        let root = tempfile::tempdir().expect("a directory");
        let records = Records::new(root.path().to_owned());
        let added = records.add("a", JobKind::Reboot, JobOrigin::Command);
        let mut record = added.expect("added");
        let at = |seconds: u64| TimePoint {
            time: 0,
            uptime: seconds * 1_000,
        };
        let state = |record: &JobRecord, boot: &str, seconds| {
            settled(record, boot, at(seconds)).map(|outcome| outcome.state)
        };
        assert_eq!(
            state(&record, "b", 0),
            Some(JobState::Failed),
            "interrupted"
        );
        let done = succeeded(JobResult {
            rebooted: Some(true),
            ..JobResult::default()
        });
        record.reboot = Some(PendingReboot {
            boot: "b".to_owned(),
            since: at(1_000),
            outcome: done.clone(),
        });
        assert_eq!(settled(&record, "c", at(30)), Some(done.clone()));
        assert_eq!(state(&record, "b", 1_010), None, "it shuts down");
        assert_eq!(state(&record, "", 1_010), None);
        let failed = settled(&record, "b", at(1_200)).expect("over");
        assert_eq!(failed.state, JobState::Failed);
        assert_eq!(failed.result.rebooted, Some(false));
        record.outcome = Some(refused("no"));
        assert_eq!(state(&record, "c", 1_200), Some(JobState::Refused));
    }
}
