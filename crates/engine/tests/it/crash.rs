//! The operator dies at every moment of every step, and is resumed, or undone, by another one.
//!
//! Here it is dropped in the middle, which ends every call on its way; with the real program and
//! a real kill the same is tried in the tests of the command line.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use homestak_core::plan::{OnError, PlanOptions, Verb};
use homestak_engine::journal::{Ending, Entry, Happened};
use homestak_engine::operate::{Interrupt, Moment, Watcher, replay};
use homestak_sim::{Call, Fault, FaultKind, Timing};
use tokio::sync::Notify;

use crate::cases::{CASES, Case, is_tried, picture};
use crate::lab::Lab;

/// Says when the moment has come.
struct Fuse {
    left: AtomicUsize,
    burnt: Notify,
    /// Whether the operator was dropped.
    dropped: AtomicBool,
}

impl Fuse {
    fn new(nth: usize) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicUsize::new(nth),
            burnt: Notify::new(),
            dropped: AtomicBool::new(false),
        })
    }
}

impl Watcher for Fuse {
    fn reached(&self, _: Moment) {
        let before = self.left.fetch_sub(1, Ordering::SeqCst);
        if before == 1 {
            self.burnt.notify_one();
            // Nothing after this moment happens: the thread that would go on waits until the
            // whole operator is dropped.
            while !self.dropped.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Carries out a case until the n-th moment. Returns `false` when it ended before.
async fn until(case: &Case, lab: &mut Lab, nth: usize) -> bool {
    let plan = case.plan(lab).await;
    let fuse = Fuse::new(nth);
    lab.watcher = Some(fuse.clone());
    let operator = lab.operator();
    let (_ask, interrupt) = Interrupt::new();
    let ended = tokio::select! {
        biased;
        () = fuse.burnt.notified() => false,
        _ = operator.carry_out(plan.verb.word(), &plan, interrupt) => true,
    };
    fuse.dropped.store(true, Ordering::SeqCst);
    lab.watcher = None;
    !ended
}

async fn at_every_moment(case: &Case, finish: impl AsyncFn(&Case, Lab)) -> usize {
    let mut tried = 0;
    for nth in 1.. {
        if !is_tried(case.name, nth, 4) {
            if nth > 400 {
                break;
            }
            continue;
        }
        let mut lab = case.lab().await;
        if !until(case, &mut lab, nth).await {
            break;
        }
        tried += 1;
        finish(case, lab).await;
    }
    tried
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_died_anywhere_is_resumed_to_the_same_world() {
    let mut tried = 0;
    for case in CASES {
        let (_, after) = case.pictures().await;
        tried += at_every_moment(case, async |case: &Case, lab: Lab| {
            let run = lab.last_run();
            let (_ask, interrupt) = Interrupt::new();
            let ending = lab.operator().resume(&run, &[], interrupt).await.unwrap();
            assert_eq!(
                ending,
                Ending::Done,
                "{}: {:#?}",
                case.name,
                run.entries.last()
            );
            let since = lab.last_run().entries.split_off(run.entries.len());
            let states = replay(&run.plan.steps, &run.entries).states;
            for (step, state) in run.plan.steps.iter().zip(states) {
                let of_step = since
                    .iter()
                    .filter(|entry| entry.step.as_ref() == Some(&step.id));
                let mut happened = of_step.map(|entry| &entry.happened);
                let begun = happened.any(|happened| *happened == Happened::Intent);
                assert_eq!(begun, !state.is_done(), "{}: {}", case.name, step.id);
            }
            lab.rest().await;
            assert_eq!(
                picture(&lab.world),
                after,
                "{}: {:#?}",
                case.name,
                run.entries
            );
            let next = case.plan(&lab).await;
            assert!(next.is_empty(), "{}: {:#?}", case.name, next.nodes);
        })
        .await;
    }
    println!("{tried} moments");
    assert!(tried > 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_died_anywhere_is_undone_to_the_world_before() {
    let mut tried = 0;
    for case in CASES {
        let (before, after) = case.pictures().await;
        tried += at_every_moment(case, async |case: &Case, lab: Lab| {
            let run = lab.last_run();
            let (_ask, interrupt) = Interrupt::new();
            let ending = lab.operator().roll_back(&run, interrupt).await.unwrap();
            assert_eq!(ending, Ending::RolledBack, "{}", case.name);
            lab.rest().await;
            if case.reversible {
                assert_eq!(
                    picture(&lab.world),
                    before,
                    "{}: {:#?}",
                    case.name,
                    run.entries
                );
            }
            // Whatever was irreversible: the next run makes it right.
            let plan = case.plan(&lab).await;
            assert_eq!(lab.carry_out(&plan).await, Ending::Done);
            lab.rest().await;
            assert_eq!(picture(&lab.world), after, "{}", case.name);
        })
        .await;
    }
    println!("{tried} moments");
    assert!(tried > 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_arrives_after_the_program_died_is_undone_too() {
    let manifest =
        "nodes:\n  - {name: box, type: ct, preset: vm-small, template: debian-12-standard}\n";
    let lab = Lab::new();
    let before = picture(&lab.world);
    let plan = lab.plan(manifest).await;
    let create = Call::any().method("POST").path("/lxc");
    lab.world
        .add_fault(Fault::new(create, FaultKind::Slow(3.0)));
    let operator = lab.operator();
    let (_ask, interrupt) = Interrupt::new();
    let sent = async {
        while !lab.world.calls().contains_key("POST /nodes/pve1/lxc") {
            lab.clock.sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        () = sent => {}
        ended = operator.carry_out("apply", &plan, interrupt) => panic!("{ended:?}"),
    }
    assert_eq!(picture(&lab.world), before, "it has not arrived yet");
    let (_ask, interrupt) = Interrupt::new();
    let ending = lab.operator().roll_back(&lab.last_run(), interrupt).await;
    assert_eq!(ending.unwrap(), Ending::RolledBack);
    lab.clock.sleep(Duration::from_secs(20)).await;
    assert_eq!(picture(&lab.world), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_died_anywhere_is_taken_over_by_a_new_one() {
    for case in CASES {
        let (_, after) = case.pictures().await;
        at_every_moment(case, async |case: &Case, lab: Lab| {
            let plan = case.plan(&lab).await;
            assert_eq!(plan.refusals, [], "{}", case.name);
            assert_eq!(lab.carry_out(&plan).await, Ending::Done, "{}", case.name);
            lab.rest().await;
            assert_eq!(picture(&lab.world), after, "{}", case.name);
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undoing_that_died_anywhere_is_finished() {
    for case in CASES.iter().filter(|case| case.reversible) {
        let (before, _) = case.pictures().await;
        for nth in 1.. {
            if !is_tried(case.name, nth, 5) {
                if nth > 400 {
                    break;
                }
                continue;
            }
            let mut lab = case.lab().await;
            let plan = case.plan(&lab).await;
            assert_eq!(lab.carry_out(&plan).await, Ending::Done);
            let fuse = Fuse::new(nth);
            lab.watcher = Some(fuse.clone());
            let (operator, run) = (lab.operator(), lab.last_run());
            let (_ask, interrupt) = Interrupt::new();
            let ended = tokio::select! {
                biased;
                () = fuse.burnt.notified() => false,
                _ = operator.roll_back(&run, interrupt) => true,
            };
            fuse.dropped.store(true, Ordering::SeqCst);
            if ended {
                break;
            }
            lab.watcher = None;
            let run = lab.last_run();
            let (_ask, interrupt) = Interrupt::new();
            let operator = lab.operator();
            // Going on goes back, once it was begun.
            let ending = if run
                .entries
                .iter()
                .any(|entry| entry.happened == Happened::UndoIntent)
            {
                operator.resume(&run, &[], interrupt).await.unwrap()
            } else {
                operator.roll_back(&run, interrupt).await.unwrap()
            };
            assert_eq!(ending, Ending::RolledBack, "{}", case.name);
            lab.rest().await;
            assert_eq!(picture(&lab.world), before, "{} at {nth}", case.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_run_fails_nothing_and_goes_on_later() {
    let case = &CASES[0];
    let lab = case.lab().await;
    let plan = case.plan(&lab).await;
    let (ask, interrupt) = Interrupt::new();
    let operator = lab.operator();
    let asking = async {
        lab.clock.sleep(std::time::Duration::from_secs(2)).await;
        ask.ask();
    };
    let (ended, ()) = tokio::join!(operator.carry_out("apply", &plan, interrupt), asking);
    assert_eq!(ended.unwrap().1, Ending::Stopped);
    let run = lab.last_run();
    let known = |entry: &Entry| matches!(entry.happened, Happened::Intent | Happened::Done { .. });
    assert!(run.entries.iter().all(known), "what was left has no result");
    let (_ask, interrupt) = Interrupt::new();
    let ending = lab.operator().resume(&run, &[], interrupt).await.unwrap();
    assert_eq!(ending, Ending::Done);
    lab.rest().await;
    assert_eq!(picture(&lab.world), case.pictures().await.1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undone_destroy_waits_until_the_hypervisor_it_started_again_is_up() {
    let manifest = "\
nodes:
  - {name: inner, type: pve, preset: vm-large, image: pve-9, vmid: 7100}
  - {name: leaf, preset: vm-small, image: debian-12, parent: inner}
";
    // Longer than a step is tried for.
    let timing = Timing {
        boot: Duration::from_secs(90),
        ..Timing::default()
    };
    let lab = Lab::with(|builder| builder.host("pve1").timing(timing));
    assert_eq!(lab.apply(manifest).await, Ending::Done);
    lab.rest().await;
    let call = Call::any().method("DELETE").path("/qemu/7100");
    lab.world
        .add_fault(Fault::new(call, FaultKind::Status(501)));
    let options = PlanOptions {
        on_error: Some(OnError::Rollback),
        ..PlanOptions::new(Verb::Destroy)
    };
    let plan = lab.plan_with(manifest, &options).await;
    assert_eq!(lab.carry_out(&plan).await, Ending::RolledBack);
    assert_eq!(lab.guests(), [("inner".to_owned(), true)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_in_a_hypervisor_that_is_gone_needs_no_undoing() {
    let case = CASES.iter().find(|case| case.name == "destroy").unwrap();
    let lab = case.lab().await;
    let plan = case.plan(&lab).await;
    assert_eq!(lab.carry_out(&plan).await, Ending::Done);
    let run = lab.last_run();
    let (_ask, interrupt) = Interrupt::new();
    let ending = lab.operator().roll_back(&run, interrupt).await.unwrap();
    assert_eq!(ending, Ending::RolledBack);
    assert_eq!(lab.guests(), []);
}
