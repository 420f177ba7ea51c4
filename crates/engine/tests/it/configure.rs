//! Configuring nodes by their specs.

use std::time::Duration;

use homestak_core::converge::{Change, ChangeCause, Handling};
use homestak_core::plan::{Action, NodeStatus, OnError, Plan, PlanOptions, StepKind, Verb};
use homestak_engine::events::EventKind;
use homestak_engine::journal::{RunOutcome, StepEvent};
use homestak_engine::operate::{Interrupt, UndoEffect, rollback_plan};
use homestak_engine::ports::ErrorClass;

use crate::configurer::UNREACHABLE;
use crate::env::TestEnv;

const TIERS: &str = "\
nodes:
  - {name: inner, type: pve, preset: vm-large, image: pve-9}
  - {name: leaf, preset: vm-small, image: debian-12, parent: inner}
";
const PEERS: &str = "\
nodes:
  - {name: one, preset: vm-small, image: debian-12}
  - {name: two, preset: vm-small, image: debian-12}
";

/// Returns node and kind of each step in start order.
fn begun(env: &TestEnv) -> Vec<(String, StepKind)> {
    let events = env.events.0.lock().unwrap();
    let steps = events.iter().filter_map(|event| match &event.kind {
        EventKind::StepStarted { subject, step, .. } => Some((subject.to_string(), *step)),
        _ => None,
    });
    steps.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_wait_until_their_parent_is_configured() {
    let env = TestEnv::new();
    assert_eq!(env.apply(TIERS).await, RunOutcome::Done);
    let begun = begun(&env);
    let at = |node: &str, kind| {
        let found = begun.iter().position(|one| *one == (node.to_owned(), kind));
        found.unwrap_or_else(|| panic!("{node} {kind:?} in {begun:?}"))
    };
    assert!(at("inner", StepKind::Ready) < at("inner", StepKind::Configure));
    assert!(at("inner", StepKind::Configure) < at("leaf", StepKind::Create));
    assert!(at("leaf", StepKind::Ready) < at("leaf", StepKind::Configure));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_differs_inside_is_configured_and_nothing_else_happens() {
    let env = TestEnv::new();
    assert_eq!(env.apply(PEERS).await, RunOutcome::Done);
    env.wait_until_idle().await;
    assert!(env.plan(PEERS).await.is_empty());
    env.configurer.known.lock().unwrap().remove("two");
    let plan = env.plan(PEERS).await;
    assert_eq!(plan.node("one").unwrap().action, Action::Nothing);
    let two = plan.node("two").unwrap();
    assert_eq!(two.action, Action::Configure);
    assert!(two.reasons[0].text.contains("1 difference"), "{two:#?}");
    env.events.0.lock().unwrap().clear();
    assert_eq!(env.execute(&plan).await, RunOutcome::Done);
    assert_eq!(begun(&env), [("two".to_owned(), StepKind::Configure)]);
    assert!(env.plan(PEERS).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_node_is_configured_and_the_plan_gives_the_reason() {
    let env = TestEnv::new();
    assert_eq!(env.apply(PEERS).await, RunOutcome::Done);
    env.wait_until_idle().await;
    let failing = &env.configurer.failing;
    failing
        .lock()
        .unwrap()
        .insert("one".to_owned(), UNREACHABLE);
    let plan = env.plan(PEERS).await;
    assert_eq!(plan.node("two").unwrap().action, Action::Nothing);
    let one = plan.node("one").unwrap();
    assert_eq!(one.action, Action::Configure);
    let why = &one.reasons[0].text;
    assert!(
        why.contains("could not be compared with its spec `base`: no such package"),
        "{why}"
    );
    assert!(one.config.as_ref().unwrap().found.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_journal_stores_which_fields_differ_but_not_their_values() {
    let env = TestEnv::new();
    assert_eq!(env.apply(PEERS).await, RunOutcome::Done);
    env.wait_until_idle().await;
    *env.configurer.digest.lock().unwrap() = "two".to_owned();
    let plan = env.plan(PEERS).await;
    let changes = |plan: &Plan| {
        let config = plan.node("two").unwrap().config.clone().unwrap();
        config.found.unwrap().changes
    };
    assert_eq!(changes(&plan)[0].expected, "two");
    assert_eq!(env.execute(&plan).await, RunOutcome::Done);
    let change = &changes(&env.last_run().plan)[0];
    assert_eq!(change.id, "hostname/name");
    assert!(
        change.expected.is_empty() && change.found.is_empty(),
        "{change:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_spec_configures_every_node_again() {
    let env = TestEnv::new();
    assert_eq!(env.apply(PEERS).await, RunOutcome::Done);
    env.wait_until_idle().await;
    *env.configurer.digest.lock().unwrap() = "two".to_owned();
    assert_eq!(env.apply(PEERS).await, RunOutcome::Done);
    let known = env.configurer.known.lock().unwrap();
    assert!(known.values().all(|(_, digest)| digest == "two"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_cannot_be_configured_fails_and_is_tried_again_when_resumed() {
    let env = TestEnv::new();
    let failing = &env.configurer.failing;
    failing
        .lock()
        .unwrap()
        .insert("inner".to_owned(), ErrorClass::Refused);
    assert_eq!(env.apply(TIERS).await, RunOutcome::Failed);
    let created = (String::from("leaf"), StepKind::Create);
    assert!(!begun(&env).contains(&created), "its child was not started");
    failing.lock().unwrap().clear();
    let (_ask, interrupt) = Interrupt::new();
    let run = env.last_run();
    let ending = env.operator().resume(&run, &[], interrupt).await.unwrap();
    assert_eq!(ending, RunOutcome::Done);
    assert_eq!(*env.configurer.converged.lock().unwrap(), ["inner", "leaf"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partial_refusals_of_a_node_neither_stop_nor_roll_back_a_run() {
    for mode in [OnError::Stop, OnError::Rollback] {
        let env = TestEnv::new();
        let failing = &env.configurer.failing;
        failing
            .lock()
            .unwrap()
            .insert("inner".to_owned(), ErrorClass::Partly);
        let options = PlanOptions {
            on_error: Some(mode),
            ..PlanOptions::new(Verb::Apply)
        };
        let plan = env.plan_with(TIERS, &options).await;
        assert_eq!(env.execute(&plan).await, RunOutcome::Failed);
        assert_eq!(*env.configurer.converged.lock().unwrap(), ["leaf"]);
        let run = env.last_run();
        let mut entries = run.entries.iter();
        assert!(entries.all(|entry| entry.happened != StepEvent::UndoIntent));
        // The result is recorded as applied, so that it can be undone.
        let mut records = run.entries.iter().filter_map(|entry| entry.record.as_ref());
        let inner = records.rfind(|record| record.name == "inner");
        assert!(inner.unwrap().configured.is_some());
        // It is retried when the run is resumed.
        failing.lock().unwrap().clear();
        let (_ask, interrupt) = Interrupt::new();
        let ending = env.operator().resume(&run, &[], interrupt).await.unwrap();
        assert_eq!(ending, RunOutcome::Done);
        assert_eq!(*env.configurer.converged.lock().unwrap(), ["leaf", "inner"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_run_does_not_wait_for_a_node_that_configures_itself() {
    let env = TestEnv::new();
    let endless = &env.configurer.endless;
    endless.lock().unwrap().insert("one".to_owned());
    let plan = env.plan(PEERS).await;
    let (ask, interrupt) = Interrupt::new();
    let operator = env.operator();
    let asking = async {
        env.clock.sleep(Duration::from_secs(600)).await;
        ask.request();
    };
    let (ended, ()) = tokio::join!(operator.execute("apply", &plan, interrupt), asking);
    assert_eq!(ended.unwrap().1, RunOutcome::Stopped);
    let messages = warnings(&env);
    let continues =
        "the node continues on its own; changes that could disconnect it are reverted after 30 s";
    assert!(messages.contains(continues), "{messages}");
    endless.lock().unwrap().clear();
    let (_ask, interrupt) = Interrupt::new();
    let run = env.last_run();
    let ending = env.operator().resume(&run, &[], interrupt).await.unwrap();
    assert_eq!(ending, RunOutcome::Done);
    let converged = env.configurer.converged.lock().unwrap().clone();
    assert!(converged.contains(&"one".to_owned()), "{converged:?}");
}

/// Returns every warning of a run.
fn warnings(env: &TestEnv) -> String {
    let events = env.events.0.lock().unwrap();
    let texts = events.iter().filter_map(|event| match &event.kind {
        EventKind::Warning { text, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_run_reports_a_node_that_has_not_started() {
    let env = TestEnv::new();
    for nodes in [&env.configurer.endless, &env.configurer.silent] {
        nodes.lock().unwrap().insert("one".to_owned());
    }
    let plan = env.plan(PEERS).await;
    let (ask, interrupt) = Interrupt::new();
    let operator = env.operator();
    let asking = async {
        env.clock.sleep(Duration::from_secs(600)).await;
        ask.request();
    };
    let (ended, ()) = tokio::join!(operator.execute("apply", &plan, interrupt), asking);
    assert_eq!(ended.unwrap().1, RunOutcome::Stopped);
    let messages = warnings(&env);
    assert!(
        messages.contains("has not reported that it started"),
        "{messages}"
    );
    assert!(!messages.contains("on its own"), "{messages}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_unreachable_for_a_while_is_retried() {
    let env = TestEnv::new();
    env.configurer
        .failing
        .lock()
        .unwrap()
        .insert("one".to_owned(), UNREACHABLE);
    let plan = env.plan(PEERS).await;
    let failing = async {
        while !begun(&env).contains(&("one".to_owned(), StepKind::Configure)) {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        env.configurer.failing.lock().unwrap().clear();
    };
    let (ending, ()) = tokio::join!(env.execute(&plan), failing);
    assert_eq!(ending, RunOutcome::Done);
}

/// Rolls the last run back, and returns its preview.
async fn roll_back(env: &TestEnv) -> Vec<UndoEffect> {
    let run = env.last_run();
    let effects = rollback_plan(&run).into_iter().map(|item| item.effect);
    let effects = effects.collect();
    let (_ask, interrupt) = Interrupt::new();
    let ending = env.operator().roll_back(&run, interrupt).await.unwrap();
    assert_eq!(ending, RunOutcome::RolledBack);
    effects
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_only_configured_nodes_is_reverted_from_their_records() {
    let env = TestEnv::new();
    assert_eq!(env.apply(PEERS).await, RunOutcome::Done);
    env.wait_until_idle().await;
    *env.configurer.digest.lock().unwrap() = "two".to_owned();
    assert_eq!(env.apply(PEERS).await, RunOutcome::Done);
    assert_eq!(roll_back(&env).await, [UndoEffect::Undone; 2]);
    {
        let known = env.configurer.known.lock().unwrap();
        assert!(known.values().all(|(_, digest)| digest == "one"));
    }
    *env.configurer.digest.lock().unwrap() = "one".to_owned();
    assert!(env.plan(PEERS).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn differences_that_were_corrected_are_not_claimed_to_be_undone() {
    let env = TestEnv::new();
    assert_eq!(env.apply(PEERS).await, RunOutcome::Done);
    env.wait_until_idle().await;
    env.configurer.known.lock().unwrap().remove("two");
    assert_eq!(env.apply(PEERS).await, RunOutcome::Done);
    assert_eq!(roll_back(&env).await, [UndoEffect::Lost]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accounts_that_a_run_added_are_not_claimed_to_be_undone() {
    let env = TestEnv::new();
    assert_eq!(env.apply(PEERS).await, RunOutcome::Done);
    env.wait_until_idle().await;
    *env.configurer.digest.lock().unwrap() = "two".to_owned();
    let mut plan = env.plan(PEERS).await;
    let one = plan.nodes.iter_mut().find(|node| node.name == "one");
    let found = one
        .unwrap()
        .config
        .as_mut()
        .unwrap()
        .found
        .as_mut()
        .unwrap();
    let mut account = found.changes[0].clone();
    account.id = "user:bob/account".to_owned();
    (account.resource, account.field) = ("user:bob".to_owned(), "account".to_owned());
    found.changes.push(account);
    assert_eq!(env.execute(&plan).await, RunOutcome::Done);
    let lost = |env: &TestEnv| {
        let mut items = rollback_plan(&env.last_run());
        items.retain(|item| item.effect == UndoEffect::Lost);
        items
    };
    let before = lost(&env);
    roll_back(&env).await;
    // The text is the same in the preview and in the result.
    assert_eq!(lost(&env), before);
    let [item] = &before[..] else {
        panic!("{before:?}")
    };
    assert_eq!(item.subject, "one");
    let text = "accounts that it added stay disabled, with their home directories: bob";
    assert_eq!(item.text, text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drift_that_was_corrected_with_a_new_spec_is_not_claimed_to_be_undone() {
    let env = TestEnv::new();
    assert_eq!(env.apply(PEERS).await, RunOutcome::Done);
    env.wait_until_idle().await;
    *env.configurer.digest.lock().unwrap() = "two".to_owned();
    let mut plan = env.plan(PEERS).await;
    let one = plan.nodes.iter_mut().find(|node| node.name == "one");
    let config = one.unwrap().config.as_mut().unwrap();
    let changes = &mut config.found.as_mut().unwrap().changes;
    for (id, cause, handling) in [
        ("package:tree/state", ChangeCause::Spec, Handling::Enforce),
        ("package:htop/state", ChangeCause::Node, Handling::Enforce),
        ("keys:ops/foreign", ChangeCause::Node, Handling::Report),
    ] {
        let id = id.to_owned();
        changes.push(Change {
            id,
            cause,
            handling,
            ..changes[0].clone()
        });
    }
    assert_eq!(env.execute(&plan).await, RunOutcome::Done);
    let items = rollback_plan(&env.last_run());
    let lost = items.iter().filter(|item| item.effect == UndoEffect::Lost);
    let lost: Vec<(&str, &str)> = lost.map(|item| (&*item.subject, &*item.text)).collect();
    let text = "differences that were corrected stay corrected: package:htop/state";
    assert_eq!(lost, [("one", text)]);
    let undone = items
        .iter()
        .filter(|item| item.effect == UndoEffect::Undone);
    assert_eq!(undone.count(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_source_of_an_existing_guest_is_not_recorded_before_it_is_reached() {
    let env = TestEnv::new();
    assert_eq!(env.apply(PEERS).await, RunOutcome::Done);
    env.wait_until_idle().await;
    let mut plan = env.plan(&PEERS.replace("vm-small", "vm-large")).await;
    for node in &mut plan.nodes {
        assert_eq!(node.action, Action::Change);
        // As for a guest that `state rebuild` recorded.
        node.found.as_mut().unwrap().ready = None;
    }
    assert_eq!(env.execute(&plan).await, RunOutcome::Done);
    let run = env.last_run();
    let records = run.entries.iter().filter_map(|entry| entry.record.as_ref());
    let (ready, before): (Vec<_>, Vec<_>) =
        records.partition(|record| record.status == NodeStatus::Ready);
    assert!(!ready.is_empty() && !before.is_empty());
    assert!(ready.iter().all(|record| record.source.is_some()));
    assert!(
        before.iter().all(|record| record.source.is_none()),
        "{before:#?}"
    );
}
