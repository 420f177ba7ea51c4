//! A failure before and after each change, in each error mode, leaves exactly the promised world.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use homestak_core::plan::{OnError, Verb};
use homestak_engine::journal::{Ending, Happened};
use homestak_engine::operate::Interrupt;
use homestak_engine::ports::{Class, Sent};

use crate::cases::{CASES, Case, is_tried, picture};
use crate::flaky::{Fault, Flaky, When};
use crate::lab::Lab;

const LOST: Class = Class::Unreachable { sent: Sent::Maybe };

/// Carries a case out with the n-th change failing so many times. Returns the ending, and whether
/// it failed at all.
async fn failing(
    case: &Case,
    lab: &mut Lab,
    mode: OnError,
    (nth, when, class, times): (usize, When, Class, usize),
) -> (Ending, bool) {
    let mut options = case.options();
    options.on_error = Some(mode);
    let plan = lab.plan_with(case.manifest, &options).await;
    let fault = Arc::new(Fault {
        nth,
        when,
        class,
        times,
        panics: false,
        seen: AtomicUsize::new(0),
    });
    let whole = lab.places.clone();
    lab.places = Arc::new(Flaky {
        hidden: None,
        whole: whole.clone(),
        fault: fault.clone(),
    });
    let ending = lab.carry_out(&plan).await;
    lab.places = whole;
    (ending, fault.seen.load(Ordering::SeqCst) >= nth)
}

async fn each_failure(mode: OnError, check: impl AsyncFn(&Case, Lab, Ending)) -> usize {
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
                let mut lab = case.lab().await;
                let fault = (nth, when, Class::Refused, 1);
                let (ending, failed) = failing(case, &mut lab, mode, fault).await;
                if !failed {
                    assert_eq!(ending, Ending::Done);
                    continue;
                }
                hit = true;
                tried += 1;
                lab.rest().await;
                check(case, lab, ending).await;
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
async fn stop_leaves_what_is_there_and_can_be_resumed() {
    let tried = each_failure(OnError::Stop, async |case: &Case, lab: Lab, ending| {
        assert_eq!(ending, Ending::Failed, "{}", case.name);
        let run = lab.last_run();
        let (_ask, interrupt) = Interrupt::new();
        let ending = lab.operator().resume(&run, &[], interrupt).await.unwrap();
        assert_eq!(ending, Ending::Done, "{}", case.name);
        lab.rest().await;
        let (_, after) = case.pictures().await;
        assert_eq!(picture(&lab.world), after, "{}", case.name);
    })
    .await;
    assert!(tried > 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollback_gives_back_the_world_before_with_the_node_that_failed() {
    let tried = each_failure(OnError::Rollback, async |case: &Case, lab: Lab, ending| {
        assert_eq!(ending, Ending::RolledBack, "{}", case.name);
        let (before, after) = case.pictures().await;
        if case.reversible {
            assert_eq!(picture(&lab.world), before, "{}", case.name);
            let kept = case.lab().await.seeds.n_kept();
            assert_eq!(lab.seeds.n_kept(), kept, "{}: seeds", case.name);
        }
        let plan = case.plan(&lab).await;
        assert_eq!(lab.carry_out(&plan).await, Ending::Done);
        lab.rest().await;
        assert_eq!(picture(&lab.world), after, "{}", case.name);
    })
    .await;
    assert!(tried > 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn continue_makes_everything_that_does_not_depend_on_the_failed_node() {
    let tried = each_failure(OnError::Continue, async |case: &Case, lab: Lab, ending| {
        assert_eq!(ending, Ending::Failed, "{}", case.name);
        let run = lab.last_run();
        let steps = &run.plan.steps;
        let states = homestak_engine::operate::replay(steps, &run.entries).states;
        for (at, step) in steps.iter().enumerate() {
            let blocked = step.after.iter().any(|before| !states[*before].is_done());
            let tried = states[at].is_done() || states[at].needs_undo();
            assert_eq!(tried, !blocked, "{}: step {at} {step:?}", case.name);
        }
        let plan = case.plan(&lab).await;
        assert_eq!(lab.carry_out(&plan).await, Ending::Done, "{}", case.name);
        lab.rest().await;
        let (_, after) = case.pictures().await;
        assert_eq!(picture(&lab.world), after, "{}", case.name);
    })
    .await;
    assert!(tried > 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_lost_is_no_failure() {
    for case in CASES {
        let (_, after) = case.pictures().await;
        for nth in 1..30 {
            if !is_tried(case.name, nth, 5) {
                continue;
            }
            let mut lab = case.lab().await;
            let fault = (nth, When::After, LOST, 1);
            let (ending, _) = failing(case, &mut lab, OnError::Stop, fault).await;
            assert_eq!(ending, Ending::Done, "{} at {nth}", case.name);
            lab.rest().await;
            assert_eq!(picture(&lab.world), after, "{} at {nth}", case.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_that_fails_ends_stuck_and_is_finished_later() {
    let case = &CASES[0];
    let mut lab = case.lab().await;
    // The third change fails, and everything after it: nothing can be undone.
    let fault = (3, When::Before, Class::Refused, 1000);
    let (ending, _) = failing(case, &mut lab, OnError::Rollback, fault).await;
    assert_eq!(ending, Ending::Stuck);
    let run = lab.last_run();
    let (_ask, interrupt) = Interrupt::new();
    let ending = lab.operator().resume(&run, &[], interrupt).await.unwrap();
    assert_eq!(ending, Ending::RolledBack, "going on goes back");
    lab.rest().await;
    assert_eq!(picture(&lab.world), case.pictures().await.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_person_settled_is_left_alone() {
    let case = &CASES[0];
    assert_eq!(case.verb, Verb::Apply);
    let mut lab = case.lab().await;
    let fault = (1, When::Before, Class::Refused, 1000);
    let (ending, _) = failing(case, &mut lab, OnError::Continue, fault).await;
    assert_eq!(ending, Ending::Failed);
    let run = lab.last_run();
    let (_ask, interrupt) = Interrupt::new();
    let all = ["one", "two", "box"].map(str::to_owned);
    let ending = lab.operator().resume(&run, &all[..1], interrupt).await;
    // The step after the settled one finds no guest to start.
    assert_eq!(ending.unwrap(), Ending::Failed);
    let names: Vec<String> = lab.guests().into_iter().map(|guest| guest.0).collect();
    assert_eq!(names, ["box", "two"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stops_the_run_and_loses_nothing() {
    for case in CASES {
        let (_, after) = case.pictures().await;
        for room in 0.. {
            if !is_tried(case.name, room, 6) {
                if room > 200 {
                    break;
                }
                continue;
            }
            let lab = case.lab().await;
            let plan = case.plan(&lab).await;
            *lab.journal.room.lock().unwrap() = Some(room);
            let (_ask, interrupt) = Interrupt::new();
            let operator = lab.operator();
            let ended = operator.carry_out(plan.verb.word(), &plan, interrupt).await;
            *lab.journal.room.lock().unwrap() = None;
            if ended.is_ok() {
                break;
            }
            let run = lab.last_run();
            let acts = run.entries.iter();
            let intents = acts.filter(|one| one.happened == Happened::Intent).count();
            assert!(
                intents <= room,
                "nothing is done that is not written down first"
            );
            let (_ask, interrupt) = Interrupt::new();
            let ending = lab.operator().resume(&run, &[], interrupt).await.unwrap();
            assert_eq!(ending, Ending::Done, "{} with room for {room}", case.name);
            lab.rest().await;
            assert_eq!(
                picture(&lab.world),
                after,
                "{} with room for {room}",
                case.name
            );
        }
    }
}
