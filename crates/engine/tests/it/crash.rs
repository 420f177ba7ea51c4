//! The operator crashes at every step point, and the run is resumed or rolled back by another one.
//!
//! Here its future is dropped, which aborts all calls in progress. The tests of the command line do
//! the same with the real program and a real kill.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use homestak_core::plan::{OnError, PlanOptions, Verb};
use homestak_engine::journal::{Entry, RunOutcome, StepEvent};
use homestak_engine::operate::{Interrupt, StepPoint, StepPointObserver, replay};
use homestak_sim::{Call, Fault, FaultKind, Timing};
use tokio::sync::Notify;

use crate::cases::{CASES, Case, is_tried, snapshot};
use crate::env::TestEnv;

/// Notifies when the n-th step point is reached.
struct CrashTrigger {
    left: AtomicUsize,
    fired: Notify,
    /// Whether the operator was dropped.
    dropped: AtomicBool,
}

impl CrashTrigger {
    fn new(nth: usize) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicUsize::new(nth),
            fired: Notify::new(),
            dropped: AtomicBool::new(false),
        })
    }
}

impl StepPointObserver for CrashTrigger {
    fn reached(&self, _: StepPoint) {
        let before = self.left.fetch_sub(1, Ordering::SeqCst);
        if before == 1 {
            self.fired.notify_one();
            // Nothing may happen after this point: this thread waits until the operator is dropped.
            while !self.dropped.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Executes a case until the n-th step point. Returns `false` if it ended before.
async fn crash_at(case: &Case, env: &mut TestEnv, nth: usize) -> bool {
    let plan = case.plan(env).await;
    let trigger = CrashTrigger::new(nth);
    env.point_observer = Some(trigger.clone());
    let operator = env.operator();
    let (_ask, interrupt) = Interrupt::new();
    let ended = tokio::select! {
        biased;
        () = trigger.fired.notified() => false,
        _ = operator.execute(plan.verb.name(), &plan, interrupt) => true,
    };
    trigger.dropped.store(true, Ordering::SeqCst);
    env.point_observer = None;
    !ended
}

async fn crash_at_every_point(case: &Case, finish: impl AsyncFn(&Case, TestEnv)) -> usize {
    let mut tried = 0;
    for nth in 1.. {
        if !is_tried(case.name, nth, 4) {
            if nth > 400 {
                break;
            }
            continue;
        }
        let mut env = case.env().await;
        if !crash_at(case, &mut env, nth).await {
            break;
        }
        tried += 1;
        finish(case, env).await;
    }
    tried
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_crashed_anywhere_is_resumed_to_the_same_result() {
    let mut tried = 0;
    for case in CASES {
        let (_, after) = case.snapshots().await;
        tried += crash_at_every_point(case, async |case: &Case, env: TestEnv| {
            let run = env.last_run();
            let (_ask, interrupt) = Interrupt::new();
            let ending = env.operator().resume(&run, &[], interrupt).await.unwrap();
            assert_eq!(
                ending,
                RunOutcome::Done,
                "{}: {:#?}",
                case.name,
                run.entries.last()
            );
            let since = env.last_run().entries.split_off(run.entries.len());
            let states = replay(&run.plan.steps, &run.entries).states;
            for (step, state) in run.plan.steps.iter().zip(states) {
                let of_step = since
                    .iter()
                    .filter(|entry| entry.step.as_ref() == Some(&step.id));
                let mut happened = of_step.map(|entry| &entry.happened);
                let begun = happened.any(|happened| *happened == StepEvent::Intent);
                assert_eq!(begun, !state.is_done(), "{}: {}", case.name, step.id);
            }
            env.wait_until_idle().await;
            assert_eq!(
                snapshot(&env.world),
                after,
                "{}: {:#?}",
                case.name,
                run.entries
            );
            let next = case.plan(&env).await;
            assert!(next.is_empty(), "{}: {:#?}", case.name, next.nodes);
        })
        .await;
    }
    println!("{tried} step points");
    assert!(tried > 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_crashed_anywhere_is_rolled_back_completely() {
    let mut tried = 0;
    for case in CASES {
        let (before, after) = case.snapshots().await;
        tried += crash_at_every_point(case, async |case: &Case, env: TestEnv| {
            let run = env.last_run();
            let (_ask, interrupt) = Interrupt::new();
            let ending = env.operator().roll_back(&run, interrupt).await.unwrap();
            assert_eq!(ending, RunOutcome::RolledBack, "{}", case.name);
            env.wait_until_idle().await;
            if case.reversible {
                assert_eq!(
                    snapshot(&env.world),
                    before,
                    "{}: {:#?}",
                    case.name,
                    run.entries
                );
            }
            // The next run corrects what could not be undone.
            let plan = case.plan(&env).await;
            assert_eq!(env.execute(&plan).await, RunOutcome::Done);
            env.wait_until_idle().await;
            assert_eq!(snapshot(&env.world), after, "{}", case.name);
        })
        .await;
    }
    println!("{tried} step points");
    assert!(tried > 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_arrives_after_a_crash_is_undone_too() {
    let manifest =
        "nodes:\n  - {name: box, type: ct, preset: vm-small, template: debian-12-standard}\n";
    let env = TestEnv::new();
    let before = snapshot(&env.world);
    let plan = env.plan(manifest).await;
    let create = Call::any().method("POST").path("/lxc");
    env.world
        .add_fault(Fault::new(create, FaultKind::Slow(3.0)));
    let operator = env.operator();
    let (_ask, interrupt) = Interrupt::new();
    let sent = async {
        while !env.world.calls().contains_key("POST /nodes/pve1/lxc") {
            env.clock.sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        () = sent => {}
        ended = operator.execute("apply", &plan, interrupt) => panic!("{ended:?}"),
    }
    assert_eq!(snapshot(&env.world), before, "it has not arrived yet");
    let (_ask, interrupt) = Interrupt::new();
    let ending = env.operator().roll_back(&env.last_run(), interrupt).await;
    assert_eq!(ending.unwrap(), RunOutcome::RolledBack);
    env.clock.sleep(Duration::from_secs(20)).await;
    assert_eq!(snapshot(&env.world), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_crashed_anywhere_is_replaced_by_a_new_one() {
    for case in CASES {
        let (_, after) = case.snapshots().await;
        crash_at_every_point(case, async |case: &Case, env: TestEnv| {
            let plan = case.plan(&env).await;
            assert_eq!(plan.refusals, [], "{}", case.name);
            assert_eq!(env.execute(&plan).await, RunOutcome::Done, "{}", case.name);
            env.wait_until_idle().await;
            assert_eq!(snapshot(&env.world), after, "{}", case.name);
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollback_that_crashed_anywhere_is_completed() {
    for case in CASES.iter().filter(|case| case.reversible) {
        let (before, _) = case.snapshots().await;
        for nth in 1.. {
            if !is_tried(case.name, nth, 5) {
                if nth > 400 {
                    break;
                }
                continue;
            }
            let mut env = case.env().await;
            let plan = case.plan(&env).await;
            assert_eq!(env.execute(&plan).await, RunOutcome::Done);
            let trigger = CrashTrigger::new(nth);
            env.point_observer = Some(trigger.clone());
            let (operator, run) = (env.operator(), env.last_run());
            let (_ask, interrupt) = Interrupt::new();
            let ended = tokio::select! {
                biased;
                () = trigger.fired.notified() => false,
                _ = operator.roll_back(&run, interrupt) => true,
            };
            trigger.dropped.store(true, Ordering::SeqCst);
            if ended {
                break;
            }
            env.point_observer = None;
            let run = env.last_run();
            let (_ask, interrupt) = Interrupt::new();
            let operator = env.operator();
            // Resuming continues a rollback that was started.
            let ending = if run
                .entries
                .iter()
                .any(|entry| entry.happened == StepEvent::UndoIntent)
            {
                operator.resume(&run, &[], interrupt).await.unwrap()
            } else {
                operator.roll_back(&run, interrupt).await.unwrap()
            };
            assert_eq!(ending, RunOutcome::RolledBack, "{}", case.name);
            env.wait_until_idle().await;
            assert_eq!(snapshot(&env.world), before, "{} at {nth}", case.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_run_fails_nothing_and_can_be_resumed() {
    let case = &CASES[0];
    let env = case.env().await;
    let plan = case.plan(&env).await;
    let (ask, interrupt) = Interrupt::new();
    let operator = env.operator();
    let asking = async {
        env.clock.sleep(std::time::Duration::from_secs(2)).await;
        ask.request();
    };
    let (ended, ()) = tokio::join!(operator.execute("apply", &plan, interrupt), asking);
    assert_eq!(ended.unwrap().1, RunOutcome::Stopped);
    let run = env.last_run();
    let known =
        |entry: &Entry| matches!(entry.happened, StepEvent::Intent | StepEvent::Done { .. });
    assert!(run.entries.iter().all(known), "what was left has no result");
    let (_ask, interrupt) = Interrupt::new();
    let ending = env.operator().resume(&run, &[], interrupt).await.unwrap();
    assert_eq!(ending, RunOutcome::Done);
    env.wait_until_idle().await;
    assert_eq!(snapshot(&env.world), case.snapshots().await.1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undoing_a_destroy_waits_for_the_restarted_hypervisor() {
    let manifest = "\
nodes:
  - {name: inner, type: pve, preset: vm-large, image: pve-9, vmid: 7100}
  - {name: leaf, preset: vm-small, image: debian-12, parent: inner}
";
    // Longer than a step is retried for.
    let timing = Timing {
        boot: Duration::from_secs(90),
        ..Timing::default()
    };
    let env = TestEnv::with(|builder| builder.host("pve1").timing(timing));
    assert_eq!(env.apply(manifest).await, RunOutcome::Done);
    env.wait_until_idle().await;
    let call = Call::any().method("DELETE").path("/qemu/7100");
    env.world
        .add_fault(Fault::new(call, FaultKind::Status(501)));
    let options = PlanOptions {
        on_error: Some(OnError::Rollback),
        ..PlanOptions::new(Verb::Destroy)
    };
    let plan = env.plan_with(manifest, &options).await;
    assert_eq!(env.execute(&plan).await, RunOutcome::RolledBack);
    assert_eq!(env.guests(), [("inner".to_owned(), true)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guests_of_a_destroyed_hypervisor_need_no_undo() {
    let case = CASES.iter().find(|case| case.name == "destroy").unwrap();
    let env = case.env().await;
    let plan = case.plan(&env).await;
    assert_eq!(env.execute(&plan).await, RunOutcome::Done);
    let run = env.last_run();
    let (_ask, interrupt) = Interrupt::new();
    let ending = env.operator().roll_back(&run, interrupt).await.unwrap();
    assert_eq!(ending, RunOutcome::RolledBack);
    assert_eq!(env.guests(), []);
}
