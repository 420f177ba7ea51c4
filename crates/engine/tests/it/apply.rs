//! Plan, apply and destroy without faults.

use homestak_core::plan::{Action, PlanOptions, Verb};
use homestak_engine::journal::RunOutcome;

use crate::env::{TestEnv, guests, world_in};

const WORKERS: &str = "\
nodes:
  - {name: worker-1, preset: vm-small, image: debian-12}
  - {name: worker-2, preset: vm-small, image: debian-12}
  - {name: box, type: ct, preset: vm-small, template: debian-12-standard}
";

const TIERED: &str = "\
nodes:
  - {name: inner, type: pve, preset: vm-large, image: pve-9}
  - {name: test, preset: vm-small, image: debian-12, parent: inner}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn apply_is_idempotent_and_the_next_plan_is_empty() {
    let env = TestEnv::new();
    let before = env.world.volumes();
    assert_eq!(env.apply(WORKERS).await, RunOutcome::Done);
    let names = ["box", "worker-1", "worker-2"];
    assert_eq!(env.guests(), names.map(|name| (name.to_owned(), true)));
    let plan = env.plan(WORKERS).await;
    assert!(plan.is_empty(), "{:#?}", plan.nodes);
    assert_eq!(env.apply(WORKERS).await, RunOutcome::Done, "again");
    assert_eq!(env.guests().len(), 3);
    assert_eq!(env.seeds.n_recorded(), 3);
    assert_eq!(env.destroy(WORKERS).await, RunOutcome::Done);
    assert_eq!(env.seeds.n_recorded(), 0, "their seeds are removed");
    assert_eq!(env.destroy(WORKERS).await, RunOutcome::Done, "again");
    env.wait_for_tasks().await;
    assert_eq!(env.guests(), []);
    assert_eq!(env.world.volumes(), before, "nothing is left behind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nested_node_is_created_by_its_hypervisor() {
    let env = TestEnv::new();
    assert_eq!(env.apply(TIERED).await, RunOutcome::Done);
    assert_eq!(env.guests(), [("inner".to_owned(), true)]);
    let inner = world_in(&env.world, "inner").expect("a hypervisor");
    assert_eq!(guests(&inner), [("test".to_owned(), true)]);
    let plan = env.plan(TIERED).await;
    assert!(plan.is_empty(), "{:#?}", plan.nodes);
    assert_eq!(env.destroy(TIERED).await, RunOutcome::Done);
    assert_eq!(env.guests(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_manifest_changes_only_what_differs() {
    let env = TestEnv::new();
    let mut env = env;
    env.apply(WORKERS).await;
    let changed = "\
nodes:
  - {name: worker-1, preset: vm-small, image: debian-12, memory: 2048, disk: 20}
  - {name: box, type: ct, preset: vm-small, template: debian-12-standard}
";
    let plan = env.plan(changed).await;
    let action = |name: &str| plan.node(name).map(|node| node.action);
    assert_eq!(
        action("worker-1"),
        Some(Action::Change),
        "{:#?}",
        plan.nodes
    );
    assert_eq!(action("worker-2"), Some(Action::Keep));
    assert_eq!(action("box"), Some(Action::Nothing));
    assert_eq!(env.apply(changed).await, RunOutcome::Done);
    assert_eq!(env.guests().len(), 3, "nothing is removed without `prune`");
    let plan = env.plan(changed).await;
    assert!(plan.is_empty(), "{:#?}", plan.nodes);
    env.options.prune = true;
    assert_eq!(env.apply(changed).await, RunOutcome::Done);
    assert_eq!(env.guests().len(), 2);
    let plan = env.plan_with(changed, &PlanOptions::new(Verb::Apply)).await;
    assert!(plan.is_empty(), "{:#?}", plan.nodes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_of_a_manually_deleted_node_are_recreated() {
    let env = TestEnv::new();
    env.apply(TIERED).await;
    let vmid = env.world.guests()[0].vmid;
    env.world.remove_guest(vmid);
    let plan = env.plan(TIERED).await;
    let actions: Vec<Action> = plan.nodes.iter().map(|node| node.action).collect();
    assert_eq!(actions, [Action::Create, Action::Create]);
    assert_eq!(env.apply(TIERED).await, RunOutcome::Done);
    let inner = world_in(&env.world, "inner").expect("a hypervisor");
    assert_eq!(guests(&inner), [("test".to_owned(), true)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unobservable_nodes_are_destroyed_and_recreated_with_their_parent() {
    let env = TestEnv::new();
    env.apply(TIERED).await;
    let vmid = env.world.guests()[0].vmid;
    env.world.switch_off(vmid);
    env.wait_until_idle().await;
    let plan = env.plan(TIERED).await;
    let actions: Vec<Action> = plan.nodes.iter().map(|node| node.action).collect();
    assert_eq!(actions, [Action::Start, Action::Start]);
    assert_eq!(env.apply(TIERED).await, RunOutcome::Done);
    env.world.switch_off(vmid);
    env.wait_until_idle().await;
    assert_eq!(env.destroy(TIERED).await, RunOutcome::Done);
    assert_eq!(env.guests(), []);
    let plan = env.plan(TIERED).await;
    let actions: Vec<Action> = plan.nodes.iter().map(|node| node.action).collect();
    assert_eq!(actions, [Action::Create, Action::Create]);
    assert_eq!(plan.nodes[1].found, None, "it has no record");
    assert_eq!(env.seeds.n_recorded(), 0);
}
