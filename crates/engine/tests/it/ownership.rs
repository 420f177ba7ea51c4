//! Only what a run created is undone, and a step that panics is a step that failed.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use homestak_core::plan::{OnError, PlanOptions, Verb};
use homestak_engine::chronicle::{Chronicle, Status};
use homestak_engine::journal::{Ending, Happened, Journal as _, Scope};
use homestak_engine::operate::{Interrupt, UndoEffect, UndoItem};
use homestak_engine::ports::{Class, GuestId};

use crate::flaky::{Fault, Flaky, When};
use crate::lab::Lab;

const TWO: &str = "nodes:\n  - {name: a, type: vm, image: debian-12, cores: 1, memory: 1024, disk: 8, vmid: 8001}\n  - {name: b, type: vm, image: debian-12, cores: 1, memory: 1024, disk: 8, vmid: 8002}\n";

/// Lets the n-th change fail, or panic.
fn break_change(lab: &mut Lab, nth: usize, when: When, panics: bool) {
    lab.places = Arc::new(Flaky {
        whole: lab.places.clone(),
        hidden: None,
        fault: Arc::new(Fault {
            nth,
            when,
            class: Class::Refused,
            times: 1,
            panics,
            seen: AtomicUsize::new(0),
        }),
    });
}

fn rollback() -> PlanOptions {
    PlanOptions {
        on_error: Some(OnError::Rollback),
        ..PlanOptions::new(Verb::Apply)
    }
}

/// A World with a guest of ours that is stopped, and a driver that lost its journal.
async fn stopped_and_forgotten(lock: Option<&str>) -> Lab {
    let lab = Lab::new();
    assert_eq!(lab.apply(TWO).await, Ending::Done);
    lab.world.switch_off(8001);
    if let Some(lock) = lock {
        let guests = lab.world.guests();
        let guest = guests.iter().find(|guest| guest.vmid == 8001).unwrap();
        let mut config = guest.config.clone();
        config.insert("lock".to_owned(), lock.to_owned());
        let config = config.into_iter().collect();
        lab.world.put_guest("pve1", guest.kind, 8001, config);
    }
    lab.rest().await;
    lab.driver_of(lab.site.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_back_keeps_a_stopped_guest_that_was_there_before_whatever_is_recorded() {
    for nth in 1..8 {
        for when in [When::Before, When::After] {
            let mut lab = stopped_and_forgotten(None).await;
            let plan = lab.plan_with(TWO, &rollback()).await;
            assert_eq!(plan.refusals, []);
            break_change(&mut lab, nth, when, false);
            let ending = lab.carry_out(&plan).await;
            lab.rest().await;
            let names: Vec<String> = lab.guests().into_iter().map(|(name, _)| name).collect();
            assert_eq!(names, ["a", "b"], "change {nth} {when:?}: {ending:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_back_keeps_a_guest_that_a_backup_held() {
    let lab = stopped_and_forgotten(Some("backup")).await;
    let plan = lab.plan_with(TWO, &rollback()).await;
    // Nobody releases the lock, so that the step fails and is undone.
    let ending = lab.carry_out(&plan).await;
    assert_ne!(ending, Ending::Done);
    lab.rest().await;
    assert_eq!(lab.guests().len(), 2, "{ending:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_step_that_panics_created_is_removed_or_the_run_is_stuck() {
    let mut n_undone = 0;
    for nth in 1..10 {
        for when in [When::Before, When::After] {
            let mut lab = Lab::new();
            let plan = lab.plan_with(TWO, &rollback()).await;
            break_change(&mut lab, nth, when, true);
            let ending = lab.carry_out(&plan).await;
            lab.rest().await;
            let run = lab.last_run();
            let failed = run
                .entries
                .iter()
                .any(|entry| matches!(entry.happened, Happened::Failed(_)));
            match ending {
                // There are fewer changes than that.
                Ending::Done => assert_eq!((lab.guests().len(), failed), (2, false)),
                Ending::RolledBack => {
                    assert_eq!(lab.guests(), [], "change {nth} {when:?}");
                    assert!(failed, "what panicked is recorded as a failure");
                    n_undone += 1;
                }
                other => assert_eq!(other, Ending::Stuck),
            }
        }
    }
    assert!(n_undone > 4, "{n_undone}");
}

/// Returns what is recorded: name, id, identity.
async fn recorded(lab: &Lab) -> Vec<(String, Option<GuestId>, String)> {
    let scope = Scope::new(Some(&lab.site), "m", "pve1");
    let records = lab.journal.records(&scope).await.unwrap().into_iter();
    let known = records.map(|one| (one.name, one.guest.vmid, one.guest.uuid.to_string()));
    known.collect()
}

/// Returns what the preview says, what undoing the last run ended in, and how nodes came out.
async fn roll_back(lab: &Lab) -> (Vec<UndoItem>, Ending, Vec<(String, Status)>) {
    let (operator, run) = (lab.operator(), lab.last_run());
    let preview = operator.rollback_plan(&run).await;
    let (_ask, interrupt) = Interrupt::new();
    let ending = operator.roll_back(&run, interrupt).await.unwrap();
    let rows = Chronicle::of_run(&lab.last_run()).nodes.into_iter();
    let rows = rows.map(|row| (row.name, row.status)).collect();
    (preview, ending, rows)
}

fn effect(preview: &[UndoItem], node: &str) -> Vec<UndoEffect> {
    let items = preview.iter().filter(|item| item.subject == node);
    items.map(|item| item.effect).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_lost_its_tags_after_the_plan_fails_its_removal_and_stays_recorded() {
    let lab = Lab::new();
    assert_eq!(lab.apply(TWO).await, Ending::Done);
    lab.rest().await;
    let before = recorded(&lab).await;
    let plan = lab.plan_with(TWO, &PlanOptions::new(Verb::Destroy)).await;
    lab.world
        .change_guest(8001, &[("delete", "tags")])
        .expect("changed");
    assert_eq!(lab.carry_out(&plan).await, Ending::Failed);
    lab.rest().await;
    assert!(lab.guests().contains(&("a".to_owned(), true)));
    assert!(recorded(&lab).await.contains(&before[0]));
    // What is created for the node next is another guest.
    let other = TWO.replace("8001", "8011");
    assert_eq!(lab.apply(&other).await, Ending::Done);
    let now = recorded(&lab).await;
    assert_eq!(now[0].1, Some(8011.into()));
    assert_ne!(now[0].2, before[0].2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undoing_the_create_of_a_guest_that_lost_its_tags_is_stuck() {
    let lab = Lab::new();
    assert_eq!(lab.apply(TWO).await, Ending::Done);
    lab.rest().await;
    let before = recorded(&lab).await;
    lab.world
        .change_guest(8001, &[("delete", "tags")])
        .expect("changed");
    let (preview, ending, rows) = roll_back(&lab).await;
    assert_eq!(effect(&preview, "a"), [UndoEffect::Lost], "{preview:?}");
    assert_eq!(effect(&preview, "b"), [UndoEffect::Undone], "{preview:?}");
    assert_eq!(ending, Ending::Stuck);
    let expected = [("a", Status::Stuck), ("b", Status::Destroyed)];
    assert_eq!(
        rows,
        expected.map(|(name, status)| (name.to_owned(), status))
    );
    assert_eq!(lab.guests(), [("a".to_owned(), true)]);
    assert_eq!(recorded(&lab).await, before[..1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_driver_created_meanwhile_is_kept_as_the_preview_says() {
    let first = Lab::new();
    let second = first.driver_of(first.site.clone());
    let plan = second.plan(TWO).await;
    assert_eq!(first.apply(TWO).await, Ending::Done);
    first.rest().await;
    assert_eq!(second.carry_out(&plan).await, Ending::Done);
    let guests = second.world.guests();
    let (preview, ending, rows) = roll_back(&second).await;
    for node in ["a", "b"] {
        let effects = effect(&preview, node);
        assert!(effects.contains(&UndoEffect::Stays), "{preview:?}");
        assert!(!effects.contains(&UndoEffect::Undone), "{preview:?}");
    }
    assert_eq!(ending, Ending::RolledBack);
    let expected = ["a", "b"].map(|name| (name.to_owned(), Status::Kept));
    assert_eq!(rows, expected);
    assert_eq!(second.world.guests(), guests);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guests_of_a_later_run_are_not_stopped_by_an_older_journal() {
    let lab = Lab::new();
    assert_eq!(lab.apply(TWO).await, Ending::Done);
    let backup = lab.journal.runs.lock().unwrap().clone();
    assert_eq!(lab.destroy(TWO).await, Ending::Done);
    assert_eq!(lab.apply(TWO).await, Ending::Done);
    lab.rest().await;
    *lab.journal.runs.lock().unwrap() = backup;
    let (preview, ending, _) = roll_back(&lab).await;
    for node in ["a", "b"] {
        let effects = effect(&preview, node);
        assert!(effects.contains(&UndoEffect::Stays), "{preview:?}");
        assert!(!effects.contains(&UndoEffect::Undone), "{preview:?}");
    }
    assert_eq!(ending, Ending::RolledBack);
    lab.rest().await;
    let running = ["a", "b"].map(|name| (name.to_owned(), true));
    assert_eq!(lab.guests(), running);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_is_settled_because_its_tags_were_removed_stays() {
    let lab = Lab::new();
    assert_eq!(lab.apply(TWO).await, Ending::Done);
    lab.rest().await;
    let plan = lab.plan_with(TWO, &PlanOptions::new(Verb::Destroy)).await;
    lab.world
        .change_guest(8001, &[("delete", "tags")])
        .expect("changed");
    assert_eq!(lab.carry_out(&plan).await, Ending::Failed);
    let (_ask, interrupt) = Interrupt::new();
    let (operator, run) = (lab.operator(), lab.last_run());
    let ended = operator.resume(&run, &["a".to_owned()], interrupt).await;
    assert_eq!(ended.unwrap(), Ending::Done);
    lab.rest().await;
    assert_eq!(lab.guests(), [("a".to_owned(), true)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_someone_else_uses_now_is_not_taken_for_the_guest_without_its_tags() {
    let lab = Lab::new();
    assert_eq!(lab.apply(TWO).await, Ending::Done);
    lab.world.remove_guest(8001);
    let config = vec![("name".to_owned(), "theirs".to_owned())];
    lab.world
        .put_guest("pve1", homestak_sim::Kind::Qemu, 8001, config);
    lab.rest().await;
    for verb in [Verb::Destroy, Verb::Apply] {
        let plan = lab.plan_with(TWO, &PlanOptions::new(verb)).await;
        let reasons = &plan.node("a").unwrap().reasons;
        let said = reasons.iter().any(|why| why.text.contains("any more"));
        assert!(!said, "{reasons:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_may_not_be_read_concerns_its_own_node_only() {
    let mut lab = Lab::new();
    assert_eq!(lab.apply(TWO).await, Ending::Done);
    lab.rest().await;
    lab.places = Arc::new(Flaky {
        whole: lab.places.clone(),
        hidden: Some(8001.into()),
        fault: Arc::new(Fault {
            nth: 0,
            when: When::Before,
            class: Class::Refused,
            times: 0,
            panics: false,
            seen: AtomicUsize::new(0),
        }),
    });
    for verb in [Verb::Destroy, Verb::Apply] {
        let plan = lab.plan_with(TWO, &PlanOptions::new(verb)).await;
        let nodes = plan.refusals.iter().map(|refusal| refusal.node.as_deref());
        assert_eq!(nodes.collect::<Vec<_>>(), [Some("a")], "{plan:#?}");
        assert!(plan.node("b").unwrap().found.is_some(), "{plan:#?}");
    }
}
