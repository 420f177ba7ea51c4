//! Checks the branches that start runs, each at its interval.
//!
//! A branch is checked once however many nodes follow it. Checks that fail are repeated at growing
//! intervals; a reload of the server repeats them at once.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use homestak_api::limit::monotonic;
use homestak_api::runtime::{Spawner, run_blocking};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::check::{Checked, Checking};
use super::target::{Branch, Polling};
use crate::app::App;

/// The most checks at a time: a slow server does not keep the others waiting.
const AT_ONCE: usize = 4;
/// The longest interval after failures, unless the spec's is longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// The most branches with results that wait.
const RESULTS: usize = AT_ONCE;

/// When a branch is checked next. Times are those of the monotonic clock.
struct Schedule {
    due: Duration,
    /// When the last check began.
    last: Option<Duration>,
    failures: u32,
}

/// Checks branches until `stop`. `root` is a directory of its own.
pub(crate) async fn run(app: Arc<App>, root: PathBuf, stop: CancellationToken) {
    // What a server that was killed left.
    let cleared = root.clone();
    _ = run_blocking(move || {
        _ = fs_err::remove_dir_all(&cleared);
        homestak_api::durable::create_private(&cleared)
    })
    .await;
    let tasks = Spawner::default();
    let mut schedules: BTreeMap<Branch, Schedule> = BTreeMap::new();
    let mut busy: BTreeSet<Branch> = BTreeSet::new();
    let (results, mut finished) = mpsc::channel(RESULTS);
    let mut reloads = app.reloads.subscribe();
    let mut n_checks = 0_u64;
    while !stop.is_cancelled() {
        let served = app.served();
        let now = monotonic();
        let shortest = app.shortest_poll();
        schedules.retain(|branch, _| served.triggers.branches.contains_key(branch));
        for (branch, polling) in &served.triggers.branches {
            let schedule = schedules.entry(branch.clone()).or_insert(Schedule {
                due: now,
                last: None,
                failures: 0,
            });
            if schedule.due > now || busy.contains(branch) || busy.len() >= AT_ONCE {
                continue;
            }
            schedule.last = Some(now);
            busy.insert(branch.clone());
            n_checks += 1;
            let directory = root.join(format!("check-{n_checks}"));
            let task = check(
                app.clone(),
                directory,
                branch.clone(),
                polling.clone(),
                stop.clone(),
            );
            let results = results.clone();
            let branch = branch.clone();
            // Cancel safety: git ends with `stop`; what was recorded is complete.
            tasks.spawn("check of a repository", async move {
                let has_failed = task.await;
                _ = results.send((branch, has_failed)).await;
            });
        }
        let waiting = schedules
            .iter()
            .filter(|(branch, _)| !busy.contains(*branch));
        let next = waiting.map(|(_, schedule)| schedule.due).min();
        let next = next.filter(|_| busy.len() < AT_ONCE);
        tokio::select! {
            // Cancel safety: a flag.
            () = stop.cancelled() => break,
            // Cancel safety: what was published is read again.
            _ = reloads.changed() => {
                let now = monotonic();
                for schedule in schedules.values_mut().filter(|one| one.failures > 0) {
                    let earliest = schedule.last.map_or(now, |last| last + shortest);
                    schedule.due = schedule.due.min(earliest.max(now));
                }
            }
            // Cancel safety: `recv` is cancel-safe.
            Some((branch, has_failed)) = finished.recv() => {
                busy.remove(&branch);
                let interval = served.triggers.branches.get(&branch).map(|polling| polling.interval);
                if let (Some(schedule), Some(interval)) = (schedules.get_mut(&branch), interval) {
                    schedule.failures = match has_failed {
                        true => schedule.failures.saturating_add(1),
                        false => 0,
                    };
                    let pause = pause(interval.max(shortest), schedule.failures, n_checks);
                    schedule.due = monotonic() + pause;
                }
            }
            // Cancel safety: a timer.
            () = until(next) => {}
        }
    }
    tasks.wait().await;
}

async fn until(next: Option<Duration>) {
    match next {
        Some(next) => tokio::time::sleep(next.saturating_sub(monotonic())).await,
        None => std::future::pending().await,
    }
}

/// Returns the time to the next check: longer after failures, and a tenth more or less by chance, so
/// that many servers and branches do not ask at the same time.
fn pause(interval: Duration, failures: u32, salt: u64) -> Duration {
    let longest = interval.max(LONGEST_PAUSE);
    let factor = 1_u32 << failures.min(10);
    let base = interval.saturating_mul(factor).min(longest);
    let chance = RandomState::new().hash_one(salt) % 1000;
    base.mul_f64(0.9 + f64::from(u32::try_from(chance).unwrap_or(0)) / 5000.0)
}

/// Checks a branch. Returns whether it could not be read.
async fn check(
    app: Arc<App>,
    directory: PathBuf,
    branch: Branch,
    polling: Polling,
    stop: CancellationToken,
) -> bool {
    let of = app.clone();
    let checked = run_blocking(move || {
        let checking = Checking {
            registry: &of.registry,
            directory,
            now: of.now().as_second(),
            is_stopped: &|| stop.is_cancelled(),
        };
        let checked = checking.run(&branch, &polling)?;
        of.jobs.announce_added(&checked.jobs, of.jobs_per_node())?;
        Ok::<Checked, homestak_store::registry::RegistryError>(checked)
    });
    // Cancel safety: git ends with `stop`; what was recorded is complete.
    match checked.await {
        Ok(Ok(checked)) => checked.has_failed,
        Ok(Err(error)) => {
            tracing::error!(error = %homestak_core::error::chain(&error), "the registry failed");
            true
        }
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_failures_up_to_an_hour_or_the_interval() {
        let minutes = |number: u64| Duration::from_secs(number * 60);
        for (interval, failures, expected) in [
            (minutes(5), 0, minutes(5)),
            (minutes(5), 1, minutes(10)),
            (minutes(5), 3, minutes(40)),
            (minutes(5), 4, minutes(60)),
            (minutes(5), 1000, minutes(60)),
            (minutes(1440), 1000, minutes(1440)),
        ] {
            for salt in 0..50 {
                let found = pause(interval, failures, salt);
                let (least, most) = (expected.mul_f64(0.9), expected.mul_f64(1.1));
                assert!(
                    found >= least && found <= most,
                    "{interval:?} {failures}: {found:?}"
                );
            }
        }
    }
}
