//! Plan, apply and destroy when nothing goes wrong.

use homestak_core::plan::{Action, PlanOptions, Verb};
use homestak_engine::journal::Ending;

use crate::lab::{Lab, guests, world_in};

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
async fn what_is_applied_is_there_once_and_the_next_plan_is_empty() {
    let lab = Lab::new();
    let before = lab.world.volumes();
    assert_eq!(lab.apply(WORKERS).await, Ending::Done);
    let names = ["box", "worker-1", "worker-2"];
    assert_eq!(lab.guests(), names.map(|name| (name.to_owned(), true)));
    let plan = lab.plan(WORKERS).await;
    assert!(plan.is_empty(), "{:#?}", plan.nodes);
    assert_eq!(lab.apply(WORKERS).await, Ending::Done, "again");
    assert_eq!(lab.guests().len(), 3);
    assert_eq!(lab.seeds.n_kept(), 3);
    assert_eq!(lab.destroy(WORKERS).await, Ending::Done);
    assert_eq!(lab.seeds.n_kept(), 0, "their seeds are forgotten");
    assert_eq!(lab.destroy(WORKERS).await, Ending::Done, "again");
    lab.settle().await;
    assert_eq!(lab.guests(), []);
    assert_eq!(lab.world.volumes(), before, "nothing is left behind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_in_a_node_is_made_by_the_hypervisor_it_runs_on() {
    let lab = Lab::new();
    assert_eq!(lab.apply(TIERED).await, Ending::Done);
    assert_eq!(lab.guests(), [("inner".to_owned(), true)]);
    let inner = world_in(&lab.world, "inner").expect("a hypervisor");
    assert_eq!(guests(&inner), [("test".to_owned(), true)]);
    let plan = lab.plan(TIERED).await;
    assert!(plan.is_empty(), "{:#?}", plan.nodes);
    assert_eq!(lab.destroy(TIERED).await, Ending::Done);
    assert_eq!(lab.guests(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_manifest_changes_what_it_must_and_nothing_else() {
    let lab = Lab::new();
    let mut lab = lab;
    lab.apply(WORKERS).await;
    let changed = "\
nodes:
  - {name: worker-1, preset: vm-small, image: debian-12, memory: 2048, disk: 20}
  - {name: box, type: ct, preset: vm-small, template: debian-12-standard}
";
    let plan = lab.plan(changed).await;
    let action = |name: &str| plan.node(name).map(|node| node.action);
    assert_eq!(
        action("worker-1"),
        Some(Action::Change),
        "{:#?}",
        plan.nodes
    );
    assert_eq!(action("worker-2"), Some(Action::Leave));
    assert_eq!(action("box"), Some(Action::Nothing));
    assert_eq!(lab.apply(changed).await, Ending::Done);
    assert_eq!(lab.guests().len(), 3, "nothing is removed unasked");
    let plan = lab.plan(changed).await;
    assert!(plan.is_empty(), "{:#?}", plan.nodes);
    lab.options.prune = true;
    assert_eq!(lab.apply(changed).await, Ending::Done);
    assert_eq!(lab.guests().len(), 2);
    let plan = lab.plan_with(changed, &PlanOptions::new(Verb::Apply)).await;
    assert!(plan.is_empty(), "{:#?}", plan.nodes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ran_on_a_node_that_was_removed_by_hand_is_made_anew() {
    let lab = Lab::new();
    lab.apply(TIERED).await;
    let vmid = lab.world.guests()[0].vmid;
    lab.world.remove_guest(vmid);
    let plan = lab.plan(TIERED).await;
    let actions: Vec<Action> = plan.nodes.iter().map(|node| node.action).collect();
    assert_eq!(actions, [Action::Create, Action::Create]);
    assert_eq!(lab.apply(TIERED).await, Ending::Done);
    let inner = world_in(&lab.world, "inner").expect("a hypervisor");
    assert_eq!(guests(&inner), [("test".to_owned(), true)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_seen_goes_with_the_node_it_runs_on_and_comes_back_with_it() {
    let lab = Lab::new();
    lab.apply(TIERED).await;
    let vmid = lab.world.guests()[0].vmid;
    lab.world.switch_off(vmid);
    lab.rest().await;
    let plan = lab.plan(TIERED).await;
    let actions: Vec<Action> = plan.nodes.iter().map(|node| node.action).collect();
    assert_eq!(actions, [Action::Start, Action::Start]);
    assert_eq!(lab.apply(TIERED).await, Ending::Done);
    lab.world.switch_off(vmid);
    lab.rest().await;
    assert_eq!(lab.destroy(TIERED).await, Ending::Done);
    assert_eq!(lab.guests(), []);
    let plan = lab.plan(TIERED).await;
    let actions: Vec<Action> = plan.nodes.iter().map(|node| node.action).collect();
    assert_eq!(actions, [Action::Create, Action::Create]);
    assert_eq!(plan.nodes[1].found, None, "nothing is remembered of it");
    assert_eq!(lab.seeds.n_kept(), 0);
}
