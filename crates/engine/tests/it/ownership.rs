//! Only guests that a run created are undone, and a panic in a step is a failure.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use homestak_core::plan::{OnError, PlanOptions, Verb};
use homestak_engine::journal::{Journal as _, RunOutcome, Scope, StepEvent};
use homestak_engine::operate::{Interrupt, UndoEffect, UndoItem};
use homestak_engine::ports::{ErrorClass, GuestId};
use homestak_engine::report::{RowStatus, RunReport};

use crate::env::TestEnv;
use crate::flaky::{Fault, FlakyConnector, When};

const TWO: &str = "nodes:\n  - {name: a, type: vm, image: debian-12, cores: 1, memory: 1024, disk: 8, vmid: 8001}\n  - {name: b, type: vm, image: debian-12, cores: 1, memory: 1024, disk: 8, vmid: 8002}\n";

/// Makes the n-th change fail or panic.
fn break_change(env: &mut TestEnv, nth: usize, when: When, panics: bool) {
    env.connector = Arc::new(FlakyConnector {
        connector: env.connector.clone(),
        hidden: None,
        fault: Arc::new(Fault {
            nth,
            when,
            class: ErrorClass::Refused,
            times: 1,
            panics,
            n_changes: AtomicUsize::new(0),
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
async fn stopped_and_forgotten(lock: Option<&str>) -> TestEnv {
    let env = TestEnv::new();
    assert_eq!(env.apply(TWO).await, RunOutcome::Done);
    env.world.switch_off(8001);
    if let Some(lock) = lock {
        let guests = env.world.guests();
        let guest = guests.iter().find(|guest| guest.vmid == 8001).unwrap();
        let mut config = guest.config.clone();
        config.insert("lock".to_owned(), lock.to_owned());
        let config = config.into_iter().collect();
        env.world.put_guest("pve1", guest.kind, 8001, config);
    }
    env.wait_until_idle().await;
    env.driver_of(env.site.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_back_keeps_a_stopped_guest_that_existed_before() {
    for nth in 1..8 {
        for when in [When::Before, When::After] {
            let mut env = stopped_and_forgotten(None).await;
            let plan = env.plan_with(TWO, &rollback()).await;
            assert_eq!(plan.refusals, []);
            break_change(&mut env, nth, when, false);
            let ending = env.execute(&plan).await;
            env.wait_until_idle().await;
            let names: Vec<String> = env.guests().into_iter().map(|(name, _)| name).collect();
            assert_eq!(names, ["a", "b"], "change {nth} {when:?}: {ending:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_back_keeps_a_guest_that_a_backup_held() {
    let env = stopped_and_forgotten(Some("backup")).await;
    let plan = env.plan_with(TWO, &rollback()).await;
    // The lock is not released, so that the step fails and is undone.
    let ending = env.execute(&plan).await;
    assert_ne!(ending, RunOutcome::Done);
    env.wait_until_idle().await;
    assert_eq!(env.guests().len(), 2, "{ending:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guests_of_a_step_that_panics_are_removed_or_the_run_is_stuck() {
    let mut n_undone = 0;
    for nth in 1..10 {
        for when in [When::Before, When::After] {
            let mut env = TestEnv::new();
            let plan = env.plan_with(TWO, &rollback()).await;
            break_change(&mut env, nth, when, true);
            let ending = env.execute(&plan).await;
            env.wait_until_idle().await;
            let run = env.last_run();
            let failed = run
                .entries
                .iter()
                .any(|entry| matches!(entry.happened, StepEvent::Failed(_)));
            match ending {
                // There are fewer changes.
                RunOutcome::Done => assert_eq!((env.guests().len(), failed), (2, false)),
                RunOutcome::RolledBack => {
                    assert_eq!(env.guests(), [], "change {nth} {when:?}");
                    assert!(failed, "the panic is recorded as a failure");
                    n_undone += 1;
                }
                other => assert_eq!(other, RunOutcome::Stuck),
            }
        }
    }
    assert!(n_undone > 4, "{n_undone}");
}

/// Returns the records: name, id, identity.
async fn recorded(env: &TestEnv) -> Vec<(String, Option<GuestId>, String)> {
    let scope = Scope::new(Some(&env.site), "m", "pve1");
    let records = env.journal.records(&scope).await.unwrap().into_iter();
    let known = records.map(|one| (one.name, one.guest.vmid, one.guest.uuid.to_string()));
    known.collect()
}

/// Rolls the last run back, and returns the preview, the outcome, and the status of each node.
async fn roll_back(env: &TestEnv) -> (Vec<UndoItem>, RunOutcome, Vec<(String, RowStatus)>) {
    let (operator, run) = (env.operator(), env.last_run());
    let preview = operator.rollback_plan(&run).await;
    let (_ask, interrupt) = Interrupt::new();
    let ending = operator.roll_back(&run, interrupt).await.unwrap();
    let rows = RunReport::of_run(&env.last_run()).nodes.into_iter();
    let rows = rows.map(|row| (row.name, row.status)).collect();
    (preview, ending, rows)
}

fn effect(preview: &[UndoItem], node: &str) -> Vec<UndoEffect> {
    let items = preview.iter().filter(|item| item.subject == node);
    items.map(|item| item.effect).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_lost_its_tags_after_the_plan_fails_its_removal_and_stays_recorded() {
    let env = TestEnv::new();
    assert_eq!(env.apply(TWO).await, RunOutcome::Done);
    env.wait_until_idle().await;
    let before = recorded(&env).await;
    let plan = env.plan_with(TWO, &PlanOptions::new(Verb::Destroy)).await;
    env.world
        .change_guest(8001, &[("delete", "tags")])
        .expect("changed");
    assert_eq!(env.execute(&plan).await, RunOutcome::Failed);
    env.wait_until_idle().await;
    assert!(env.guests().contains(&("a".to_owned(), true)));
    assert!(recorded(&env).await.contains(&before[0]));
    // The next guest of the node is a new one.
    let other = TWO.replace("8001", "8011");
    assert_eq!(env.apply(&other).await, RunOutcome::Done);
    let now = recorded(&env).await;
    assert_eq!(now[0].1, Some(8011.into()));
    assert_ne!(now[0].2, before[0].2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undoing_the_create_of_a_guest_that_lost_its_tags_is_stuck() {
    let env = TestEnv::new();
    assert_eq!(env.apply(TWO).await, RunOutcome::Done);
    env.wait_until_idle().await;
    let before = recorded(&env).await;
    env.world
        .change_guest(8001, &[("delete", "tags")])
        .expect("changed");
    let (preview, ending, rows) = roll_back(&env).await;
    assert_eq!(effect(&preview, "a"), [UndoEffect::Lost], "{preview:?}");
    assert_eq!(effect(&preview, "b"), [UndoEffect::Undone], "{preview:?}");
    assert_eq!(ending, RunOutcome::Stuck);
    let expected = [("a", RowStatus::Stuck), ("b", RowStatus::Destroyed)];
    assert_eq!(
        rows,
        expected.map(|(name, status)| (name.to_owned(), status))
    );
    assert_eq!(env.guests(), [("a".to_owned(), true)]);
    assert_eq!(recorded(&env).await, before[..1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guests_created_by_another_driver_are_kept_as_previewed() {
    let first = TestEnv::new();
    let second = first.driver_of(first.site.clone());
    let plan = second.plan(TWO).await;
    assert_eq!(first.apply(TWO).await, RunOutcome::Done);
    first.wait_until_idle().await;
    assert_eq!(second.execute(&plan).await, RunOutcome::Done);
    let guests = second.world.guests();
    let (preview, ending, rows) = roll_back(&second).await;
    for node in ["a", "b"] {
        let effects = effect(&preview, node);
        assert!(effects.contains(&UndoEffect::Stays), "{preview:?}");
        assert!(!effects.contains(&UndoEffect::Undone), "{preview:?}");
    }
    assert_eq!(ending, RunOutcome::RolledBack);
    let expected = ["a", "b"].map(|name| (name.to_owned(), RowStatus::Kept));
    assert_eq!(rows, expected);
    assert_eq!(second.world.guests(), guests);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guests_of_a_later_run_are_not_stopped_by_an_older_journal() {
    let env = TestEnv::new();
    assert_eq!(env.apply(TWO).await, RunOutcome::Done);
    let backup = env.journal.runs.lock().unwrap().clone();
    assert_eq!(env.destroy(TWO).await, RunOutcome::Done);
    assert_eq!(env.apply(TWO).await, RunOutcome::Done);
    env.wait_until_idle().await;
    *env.journal.runs.lock().unwrap() = backup;
    let (preview, ending, _) = roll_back(&env).await;
    for node in ["a", "b"] {
        let effects = effect(&preview, node);
        assert!(effects.contains(&UndoEffect::Stays), "{preview:?}");
        assert!(!effects.contains(&UndoEffect::Undone), "{preview:?}");
    }
    assert_eq!(ending, RunOutcome::RolledBack);
    env.wait_until_idle().await;
    let running = ["a", "b"].map(|name| (name.to_owned(), true));
    assert_eq!(env.guests(), running);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_without_tags_that_is_marked_resolved_stays() {
    let env = TestEnv::new();
    assert_eq!(env.apply(TWO).await, RunOutcome::Done);
    env.wait_until_idle().await;
    let plan = env.plan_with(TWO, &PlanOptions::new(Verb::Destroy)).await;
    env.world
        .change_guest(8001, &[("delete", "tags")])
        .expect("changed");
    assert_eq!(env.execute(&plan).await, RunOutcome::Failed);
    let (_ask, interrupt) = Interrupt::new();
    let (operator, run) = (env.operator(), env.last_run());
    let ended = operator.resume(&run, &["a".to_owned()], interrupt).await;
    assert_eq!(ended.unwrap(), RunOutcome::Done);
    env.wait_until_idle().await;
    assert_eq!(env.guests(), [("a".to_owned(), true)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reused_id_is_not_taken_for_the_guest_that_lost_its_tags() {
    let env = TestEnv::new();
    assert_eq!(env.apply(TWO).await, RunOutcome::Done);
    env.world.remove_guest(8001);
    let config = vec![("name".to_owned(), "theirs".to_owned())];
    env.world
        .put_guest("pve1", homestak_sim::Kind::Qemu, 8001, config);
    env.wait_until_idle().await;
    for verb in [Verb::Destroy, Verb::Apply] {
        let plan = env.plan_with(TWO, &PlanOptions::new(verb)).await;
        let reasons = &plan.node("a").unwrap().reasons;
        let mentioned = reasons.iter().any(|why| why.text.contains("any more"));
        assert!(!mentioned, "{reasons:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreadable_guest_affects_only_its_own_node() {
    let mut env = TestEnv::new();
    assert_eq!(env.apply(TWO).await, RunOutcome::Done);
    env.wait_until_idle().await;
    env.connector = Arc::new(FlakyConnector {
        connector: env.connector.clone(),
        hidden: Some(8001.into()),
        fault: Arc::new(Fault {
            nth: 0,
            when: When::Before,
            class: ErrorClass::Refused,
            times: 0,
            panics: false,
            n_changes: AtomicUsize::new(0),
        }),
    });
    for verb in [Verb::Destroy, Verb::Apply] {
        let plan = env.plan_with(TWO, &PlanOptions::new(verb)).await;
        let nodes = plan.refusals.iter().map(|refusal| refusal.node.as_deref());
        assert_eq!(nodes.collect::<Vec<_>>(), [Some("a")], "{plan:#?}");
        assert!(plan.node("b").unwrap().found.is_some(), "{plan:#?}");
    }
}
