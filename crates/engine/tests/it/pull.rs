//! Nodes that fetch their specs and configure themselves.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use homestak_core::doc::manifest::Mode;
use homestak_core::plan::{Action, NodeStatus, StepKind};
use homestak_engine::events::EventKind;
use homestak_engine::journal::RunOutcome;
use homestak_engine::operate::{Interrupt, UndoEffect, rollback_plan};
use homestak_engine::ports::{ErrorClass, HostConnector, PortError, Provider};

use crate::env::TestEnv;

const ONE: &str = "nodes:\n  - {name: one, preset: vm-small, image: debian-12}\n";

/// A network without SSH access to nodes.
struct NoSsh(Arc<dyn HostConnector>);

#[async_trait]
impl HostConnector for NoSsh {
    async fn host(&self, name: &str) -> Result<Arc<dyn Provider>, PortError> {
        self.0.host(name).await
    }

    async fn inside(
        &self,
        host: &str,
        node: &str,
        address: IpAddr,
    ) -> Result<Arc<dyn Provider>, PortError> {
        self.0.inside(host, node, address).await
    }

    fn endpoint(&self, name: &str) -> String {
        self.0.endpoint(name)
    }

    async fn ssh_answers(&self, _: &str, _: IpAddr, _: &[u16]) -> Result<bool, PortError> {
        panic!("a node that configures itself needs no SSH")
    }
}

fn pulling() -> TestEnv {
    let mut env = TestEnv::new();
    env.connector = Arc::new(NoSsh(env.connector.clone()));
    *env.configurer.mode.lock().unwrap() = Mode::Pull;
    env
}

fn begun(env: &TestEnv) -> Vec<StepKind> {
    let events = env.events.0.lock().unwrap();
    let steps = events.iter().filter_map(|event| match &event.kind {
        EventKind::StepStarted { step, .. } => Some(*step),
        _ => None,
    });
    steps.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_configures_itself_keeps_its_first_boot_data_until_it_has_reported() {
    let env = pulling();
    assert_eq!(env.apply(ONE).await, RunOutcome::Done);
    let steps = begun(&env);
    let at = |kind| steps.iter().position(|one| *one == kind).unwrap();
    assert!(at(StepKind::Ready) < at(StepKind::Configure), "{steps:?}");
    assert!(at(StepKind::Configure) < at(StepKind::Discard), "{steps:?}");
    env.wait_until_idle().await;
    let plan = env.plan(ONE).await;
    assert!(plan.is_empty(), "{plan:#?}");
    // What it was configured with is on record, although a step followed.
    let found = plan.node("one").unwrap().found.as_ref().unwrap();
    assert_eq!(found.configured.as_ref().unwrap().digest, "one");
    assert_eq!(found.ready, Some(true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_died_before_first_boot_data_was_removed_removes_it_when_it_resumes() {
    for moment in 1.. {
        let mut env = pulling();
        let plan = env.plan(ONE).await;
        let ended = env.execute_until(&plan, moment).await;
        if ended.is_some() {
            assert!(moment > 16, "{moment}");
            return;
        }
        let run = env.last_run();
        let status = |status: NodeStatus| {
            let mut records = run.entries.iter().filter_map(|entry| entry.record.as_ref());
            records
                .next_back()
                .is_some_and(|last| last.status == status)
        };
        let is_discarded = run.entries.iter().any(|entry| {
            let step = entry.step.as_ref().map(|step| step.as_str());
            step.is_some_and(|step| step.starts_with("discard"))
                && matches!(
                    entry.happened,
                    homestak_engine::journal::StepEvent::Done { .. }
                )
        });
        assert!(is_discarded || !status(NodeStatus::Ready), "{moment}");
        let (_ask, interrupt) = Interrupt::new();
        let ended = env.operator().resume(&run, &[], interrupt).await.unwrap();
        assert_eq!(ended, RunOutcome::Done, "{moment}");
        env.wait_until_idle().await;
        assert!(env.plan(ONE).await.is_empty(), "{moment}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_spec_of_a_node_that_configures_itself_is_not_claimed_to_be_revertible() {
    let env = pulling();
    assert_eq!(env.apply(ONE).await, RunOutcome::Done);
    env.wait_until_idle().await;
    *env.configurer.digest.lock().unwrap() = "two".to_owned();
    let plan = env.plan(ONE).await;
    let node = plan.node("one").unwrap();
    assert_eq!(node.action, Action::Configure);
    let reasons: Vec<&str> = node.reasons.iter().map(|one| one.text.as_str()).collect();
    assert!(reasons[0].contains("has not reported"), "{reasons:?}");
    // What the new spec removes there is unknown, so the user must confirm it.
    assert!(plan.removes_inside());
    assert_eq!(env.execute(&plan).await, RunOutcome::Done);
    let run = env.last_run();
    let items = rollback_plan(&run);
    assert!(
        items.iter().any(|item| item.effect == UndoEffect::Lost),
        "{items:#?}"
    );
    let (_ask, interrupt) = Interrupt::new();
    let ended = env.operator().roll_back(&run, interrupt).await.unwrap();
    assert_eq!(ended, RunOutcome::RolledBack);
    let known = env.configurer.known.lock().unwrap();
    assert_eq!(known["one"].1, "two");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partly_refused_node_is_ready_only_after_its_first_boot_data_was_removed() {
    let env = pulling();
    let failing = &env.configurer.failing;
    failing
        .lock()
        .unwrap()
        .insert("one".to_owned(), ErrorClass::Partly);
    assert_eq!(env.apply(ONE).await, RunOutcome::Failed);
    let run = env.last_run();
    let status_after = |kind: StepKind| {
        let entries = run.entries.iter().filter(|entry| {
            let step = entry.step.as_ref().map(|step| step.as_str());
            step.is_some_and(|step| step.starts_with(kind.name()))
        });
        let mut records = entries.filter_map(|entry| entry.record.as_ref());
        records.next_back().map(|record| record.status)
    };
    let after = [StepKind::Configure, StepKind::Discard].map(status_after);
    assert_eq!(after, [NodeStatus::Created, NodeStatus::Ready].map(Some));
}
