//! A failure before and after each change, in each error mode, leaves the documented state.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use homestak_core::plan::{OnError, Verb};
use homestak_engine::journal::{RunOutcome, StepEvent};
use homestak_engine::operate::Interrupt;
use homestak_engine::ports::{ErrorClass, Sent};

use crate::cases::{CASES, Case, is_tried, snapshot};
use crate::env::TestEnv;
use crate::flaky::{Fault, FlakyConnector, When};

const LOST: ErrorClass = ErrorClass::Unreachable { sent: Sent::Maybe };

/// Executes a case in which the n-th change fails `times` times. Returns the outcome, and whether it
/// failed.
async fn failing(
    case: &Case,
    env: &mut TestEnv,
    mode: OnError,
    (nth, when, class, times): (usize, When, ErrorClass, usize),
) -> (RunOutcome, bool) {
    let mut options = case.options();
    options.on_error = Some(mode);
    let plan = env.plan_with(case.manifest, &options).await;
    let fault = Arc::new(Fault {
        nth,
        when,
        class,
        times,
        panics: false,
        n_changes: AtomicUsize::new(0),
    });
    let inner = env.connector.clone();
    env.connector = Arc::new(FlakyConnector {
        hidden: None,
        connector: inner.clone(),
        fault: fault.clone(),
    });
    let ending = env.execute(&plan).await;
    env.connector = inner;
    (ending, fault.n_changes.load(Ordering::SeqCst) >= nth)
}

async fn each_failure(mode: OnError, check: impl AsyncFn(&Case, TestEnv, RunOutcome)) -> usize {
    let mut tried = 0;
    for case in CASES {
        for nth in 1.. {
            let mut hit = false;
            for when in [When::Before, When::After] {
                let point = nth * 2 + usize::from(when == When::After);
                if !is_tried(case.name, point, 4) {
                    hit |= nth < 20;
                    continue;
                }
                let mut env = case.env().await;
                let fault = (nth, when, ErrorClass::Refused, 1);
                let (ending, failed) = failing(case, &mut env, mode, fault).await;
                if !failed {
                    assert_eq!(ending, RunOutcome::Done);
                    continue;
                }
                hit = true;
                tried += 1;
                env.wait_until_idle().await;
                check(case, env, ending).await;
            }
            if !hit {
                break;
            }
        }
    }
    println!("{mode:?}: {tried} failures");
    tried
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_undoes_nothing_and_can_be_resumed() {
    let tried = each_failure(OnError::Stop, async |case: &Case, env: TestEnv, ending| {
        assert_eq!(ending, RunOutcome::Failed, "{}", case.name);
        let run = env.last_run();
        let (_ask, interrupt) = Interrupt::new();
        let ending = env.operator().resume(&run, &[], interrupt).await.unwrap();
        assert_eq!(ending, RunOutcome::Done, "{}", case.name);
        env.wait_until_idle().await;
        let (_, after) = case.snapshots().await;
        assert_eq!(snapshot(&env.world), after, "{}", case.name);
    })
    .await;
    assert!(tried > 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollback_restores_everything_including_the_node_that_failed() {
    let tried = each_failure(
        OnError::Rollback,
        async |case: &Case, env: TestEnv, ending| {
            assert_eq!(ending, RunOutcome::RolledBack, "{}", case.name);
            let (before, after) = case.snapshots().await;
            if case.reversible {
                assert_eq!(snapshot(&env.world), before, "{}", case.name);
                let n_seeds = case.env().await.seeds.n_recorded();
                assert_eq!(env.seeds.n_recorded(), n_seeds, "{}: seeds", case.name);
            }
            let plan = case.plan(&env).await;
            assert_eq!(env.execute(&plan).await, RunOutcome::Done);
            env.wait_until_idle().await;
            assert_eq!(snapshot(&env.world), after, "{}", case.name);
        },
    )
    .await;
    assert!(tried > 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn continue_executes_everything_that_does_not_depend_on_the_failed_node() {
    let tried = each_failure(
        OnError::Continue,
        async |case: &Case, env: TestEnv, ending| {
            assert_eq!(ending, RunOutcome::Failed, "{}", case.name);
            let run = env.last_run();
            let steps = &run.plan.steps;
            let states = homestak_engine::operate::replay(steps, &run.entries).states;
            for (at, step) in steps.iter().enumerate() {
                let blocked = step.after.iter().any(|before| !states[*before].is_done());
                let tried = states[at].is_done() || states[at].needs_undo();
                assert_eq!(tried, !blocked, "{}: step {at} {step:?}", case.name);
            }
            let plan = case.plan(&env).await;
            assert_eq!(env.execute(&plan).await, RunOutcome::Done, "{}", case.name);
            env.wait_until_idle().await;
            let (_, after) = case.snapshots().await;
            assert_eq!(snapshot(&env.world), after, "{}", case.name);
        },
    )
    .await;
    assert!(tried > 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_lost_is_no_failure() {
    for case in CASES {
        let (_, after) = case.snapshots().await;
        for nth in 1..30 {
            if !is_tried(case.name, nth, 5) {
                continue;
            }
            let mut env = case.env().await;
            let fault = (nth, When::After, LOST, 1);
            let (ending, _) = failing(case, &mut env, OnError::Stop, fault).await;
            assert_eq!(ending, RunOutcome::Done, "{} at {nth}", case.name);
            env.wait_until_idle().await;
            assert_eq!(snapshot(&env.world), after, "{} at {nth}", case.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_that_fails_ends_stuck_and_is_finished_later() {
    let case = &CASES[0];
    let mut env = case.env().await;
    // The third change fails, and everything after it: nothing can be undone.
    let fault = (3, When::Before, ErrorClass::Refused, 1000);
    let (ending, _) = failing(case, &mut env, OnError::Rollback, fault).await;
    assert_eq!(ending, RunOutcome::Stuck);
    let run = env.last_run();
    let (_ask, interrupt) = Interrupt::new();
    let ending = env.operator().resume(&run, &[], interrupt).await.unwrap();
    assert_eq!(
        ending,
        RunOutcome::RolledBack,
        "resume continues the rollback"
    );
    env.wait_until_idle().await;
    assert_eq!(snapshot(&env.world), case.snapshots().await.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_marked_as_resolved_are_skipped() {
    let case = &CASES[0];
    assert_eq!(case.verb, Verb::Apply);
    let mut env = case.env().await;
    let fault = (1, When::Before, ErrorClass::Refused, 1000);
    let (ending, _) = failing(case, &mut env, OnError::Continue, fault).await;
    assert_eq!(ending, RunOutcome::Failed);
    let run = env.last_run();
    let (_ask, interrupt) = Interrupt::new();
    let all = ["one", "two", "box"].map(str::to_owned);
    let ending = env.operator().resume(&run, &all[..1], interrupt).await;
    // The step after the resolved one finds no guest to start.
    assert_eq!(ending.unwrap(), RunOutcome::Failed);
    let names: Vec<String> = env.guests().into_iter().map(|guest| guest.0).collect();
    assert_eq!(names, ["box", "two"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stops_the_run_and_loses_nothing() {
    for case in CASES {
        let (_, after) = case.snapshots().await;
        for room in 0.. {
            if !is_tried(case.name, room, 6) {
                if room > 200 {
                    break;
                }
                continue;
            }
            let env = case.env().await;
            let plan = case.plan(&env).await;
            *env.journal.room.lock().unwrap() = Some(room);
            let (_ask, interrupt) = Interrupt::new();
            let operator = env.operator();
            let ended = operator.execute(plan.verb.name(), &plan, interrupt).await;
            *env.journal.room.lock().unwrap() = None;
            if ended.is_ok() {
                break;
            }
            let run = env.last_run();
            let acts = run.entries.iter();
            let intents = acts.filter(|one| one.happened == StepEvent::Intent).count();
            assert!(
                intents <= room,
                "nothing is done that is not written down first"
            );
            let (_ask, interrupt) = Interrupt::new();
            let ending = env.operator().resume(&run, &[], interrupt).await.unwrap();
            assert_eq!(
                ending,
                RunOutcome::Done,
                "{} with room for {room}",
                case.name
            );
            env.wait_until_idle().await;
            assert_eq!(
                snapshot(&env.world),
                after,
                "{} with room for {room}",
                case.name
            );
        }
    }
}
