//! The program is killed at every crash point of a run and at every request; the run is then
//! resumed or rolled back. `make test` runs a sample, `make test-full` all trials.

mod cases;
mod proxy;
mod setup;

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher, Hash};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};

use homestak_sim::{Call, Fault, FaultKind};
use serde_json::Value;

use crate::support::Run;
use cases::{Baseline, CASES, snapshot};
use proxy::When;
use setup::Setup;

/// Number of parallel trials: the program mostly waits.
const THREADS: usize = 4;

static BASELINES: LazyLock<Vec<Baseline>> = LazyLock::new(|| {
    std::thread::scope(|scope| {
        let all: Vec<_> = CASES
            .iter()
            .map(|case| scope.spawn(|| Baseline::of(case)))
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
});

/// Where the program is killed.
#[derive(Clone, Copy, Debug, Hash)]
enum KillPoint {
    /// At the n-th crash point of the run (`HOMESTAK_CRASH_AT`).
    CrashPoint(u64),
    /// At the n-th request.
    Request(u64, When),
}

/// How the run is continued.
#[derive(Clone, Copy, Debug, Hash)]
enum Recovery {
    Resume,
    Rollback,
}

/// A case, a point to kill the program at, and what follows.
#[derive(Clone, Debug)]
struct Trial {
    baseline: usize,
    kill_point: KillPoint,
    recovery: Recovery,
    fault: Option<Fault>,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn seed() -> String {
    variable("HOMESTAK_TEST_SEED").unwrap_or_else(|| "1".to_owned())
}

fn hash(what: impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one((seed(), what))
}

/// Selects `of_each` trials of each case by the seed; all of them in a full run.
fn sample(trials: Vec<Trial>, of_each: usize) -> Vec<Trial> {
    if variable("HOMESTAK_TEST_FULL").is_some() {
        return trials;
    }
    let mut by_case: BTreeMap<usize, Vec<Trial>> = BTreeMap::new();
    for trial in trials {
        by_case.entry(trial.baseline).or_default().push(trial);
    }
    let mut taken = Vec::new();
    for (_, mut trials) in by_case {
        trials.sort_by_key(|trial| hash((trial.baseline, trial.kill_point, trial.recovery)));
        trials.truncate(of_each);
        taken.extend(trials);
    }
    taken
}

fn trials(kill_points: impl Fn(&Baseline) -> Vec<KillPoint>) -> Vec<Trial> {
    let mut all = Vec::new();
    for (index, baseline) in BASELINES.iter().enumerate() {
        for kill_point in kill_points(baseline) {
            all.extend(
                [Recovery::Resume, Recovery::Rollback].map(|recovery| Trial {
                    baseline: index,
                    kill_point,
                    recovery,
                    fault: None,
                }),
            );
        }
    }
    all
}

fn crash_points(baseline: &Baseline) -> Vec<KillPoint> {
    (1..=baseline.crash_points)
        .map(KillPoint::CrashPoint)
        .collect()
}

fn requests(baseline: &Baseline) -> Vec<KillPoint> {
    let both = |nth| [When::Before, When::After].map(|when| KillPoint::Request(nth, when));
    (1..=baseline.requests).flat_map(both).collect()
}

/// Runs all trials, several at a time. Returns in how many the program was killed.
fn run_all(what: &str, trials: &[Trial]) -> usize {
    let (next, killed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    let Some(trial) = trials.get(nth) else {
                        break;
                    };
                    if nth > 0 && nth.is_multiple_of(200) {
                        println!("{what}: {nth} of {}", trials.len());
                    }
                    match std::panic::catch_unwind(|| run_trial(trial)) {
                        Ok(was_killed) => {
                            _ = killed.fetch_add(was_killed.into(), Ordering::Relaxed);
                        }
                        Err(_) => failures.lock().unwrap().push(trial.clone()),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    let killed = killed.into_inner();
    println!("{what}: {} trials, killed in {killed}", trials.len());
    assert!(
        failures.is_empty(),
        "HOMESTAK_TEST_SEED={} repeats it; {} of {} trials failed: {failures:#?}",
        seed(),
        failures.len(),
        trials.len()
    );
    killed
}

/// Whether a rollback reverted what it can and listed the rest.
fn is_reverted(run: &Run) -> bool {
    run.code == 1
        && run
            .err
            .contains("Reverted, except for what cannot be reverted:")
}

/// Kills the program, recovers, and compares the World. Returns whether it was killed.
fn run_trial(trial: &Trial) -> bool {
    let baseline = &BASELINES[trial.baseline];
    let case = baseline.case;
    let setup = Setup::new(&baseline.initial);
    setup.manifest(case.manifest);
    if let Some(fault) = &trial.fault {
        setup.world.add_fault(fault.clone());
    }
    let mut log = format!("{}: {trial:?}\n", case.name);
    let mut record = |run: &Run| log += &format!("--- {}\n{}{}", run.code, run.out, run.err);
    let killed = match trial.kill_point {
        KillPoint::CrashPoint(nth) => setup.run_case(case, Some(nth)),
        KillPoint::Request(nth, when) => {
            setup.trigger.arm(nth, when);
            setup.run_case(case, None)
        }
    };
    setup.trigger.reset();
    record(&killed);
    let was_killed = killed.code == -1;
    match trial.recovery {
        Recovery::Resume => {}
        Recovery::Rollback => {
            let mut attempts = 4;
            let rollback = loop {
                let run = setup.run(&["manifest", "rollback", "--yes"]);
                record(&run);
                attempts -= 1;
                let ended = matches!(run.code, 0 | 3) || is_reverted(&run);
                if ended || trial.fault.is_none() || attempts == 0 {
                    break run;
                }
            };
            // There may be nothing to revert: the run was not started, or it finished.
            if rollback.code == 3 {
                assert!(rollback.err.contains("There is no unfinished run"), "{log}");
            } else {
                assert!(rollback.code == 0 || is_reverted(&rollback), "{log}");
            }
            setup.wait_until_idle();
            if case.is_reversible && killed.code != 0 {
                assert_eq!(snapshot(&setup.world), baseline.before, "{log}");
            }
        }
    }
    // Reverted or never started: the same command completes it.
    let mut attempts = 6;
    loop {
        let run = match trial.recovery {
            Recovery::Resume => setup.run(&["manifest", "resume"]),
            Recovery::Rollback => setup.run_case(case, None),
        };
        record(&run);
        let run = if run.code == 3 && run.err.contains("There is no unfinished run") {
            let run = setup.run_case(case, None);
            record(&run);
            run
        } else {
            run
        };
        attempts -= 1;
        if run.code == 0 {
            break;
        }
        assert!(trial.fault.is_some() && attempts > 0, "{log}");
    }
    setup.world.clear_faults();
    setup.wait_until_idle();
    assert_eq!(snapshot(&setup.world), baseline.after, "{log}");
    let events = |word: &&&str| **word != "--events";
    let mut plan: Vec<&str> = case.command.iter().filter(events).copied().collect();
    plan.extend(["--dry-run", "--json-output"]);
    let plan = setup.run(&plan);
    record(&plan);
    assert_eq!(plan.code, 0, "{log}");
    let json: Value = serde_json::from_str(&plan.out).unwrap();
    let nodes = json["nodes"].as_array().unwrap();
    assert!(
        nodes.iter().all(|node| node["action"] == "nothing"),
        "{log}"
    );
    was_killed
}

#[test]
fn a_run_killed_at_any_crash_point_can_be_resumed_or_rolled_back() {
    let trials = sample(trials(crash_points), 14);
    assert_eq!(run_all("crash points", &trials), trials.len());
}

#[test]
fn a_run_killed_at_any_request_can_be_resumed_or_rolled_back() {
    let trials = sample(trials(requests), 14);
    let killed = run_all("requests", &trials);
    // The number of requests depends on the speed of the host.
    assert!(killed * 2 > trials.len(), "{killed}");
}

#[test]
fn a_run_killed_on_a_faulty_host_can_be_resumed_or_rolled_back() {
    let kinds = [
        FaultKind::ResetBefore,
        FaultKind::ResetAfter,
        FaultKind::LostAnswer,
        FaultKind::RepeatedAnswer,
        FaultKind::Status(596),
        FaultKind::Garbage,
        FaultKind::Truncated,
    ];
    let all = trials(|baseline| [crash_points(baseline), requests(baseline)].concat());
    let mut trials = sample(all, 10);
    for trial in &mut trials {
        let random = hash((trial.baseline, trial.kill_point, trial.recovery, "fault"));
        let kind = kinds[(random % 7) as usize].clone();
        let nth = 1 + random / 7 % BASELINES[trial.baseline].requests;
        trial.fault = Some(Fault::new(Call::nth(nth), kind));
    }
    let killed = run_all("requests and faults", &trials);
    assert!(killed * 3 > trials.len(), "{killed}");
}
