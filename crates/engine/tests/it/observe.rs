//! The recorded guest is the one that is observed, and an unobservable one is refused.

use homestak_core::plan::{Action, PlanOptions, Verb};
use homestak_engine::journal::RunOutcome;
use homestak_sim::{Boots, Call, Fault, FaultKind, World};

use crate::env::{TestEnv, guests, world_in};

const TIERED: &str = "\
nodes:
  - {name: inner, type: pve, preset: vm-large, image: pve-9, vmid: 8001}
  - {name: kid, preset: vm-small, image: debian-12, parent: inner, vmid: 8002}
";

const TWO: &str = "\
nodes:
  - {name: a, preset: vm-small, image: debian-12, vmid: 8001}
  - {name: b, preset: vm-small, image: debian-12, vmid: 8002}
";

fn destroys() -> PlanOptions {
    PlanOptions::new(Verb::Destroy)
}

/// Stops a hypervisor and starts a copy of it, with copies of its guests.
async fn swapped(env: &TestEnv) -> World {
    let inside = world_in(&env.world, "inner").expect("a hypervisor");
    let kid = inside.guests().pop().expect("its guest");
    env.world.switch_off(8001);
    let guests = env.world.guests();
    let original = guests.iter().find(|guest| guest.vmid == 8001).unwrap();
    let config = original.config.clone().into_iter().collect();
    env.world.put_guest("pve1", original.kind, 9011, config);
    env.world.set_boots(9011, Boots::Hypervisor);
    env.world.start_guest(9011).unwrap();
    env.clock.sleep(std::time::Duration::from_secs(30)).await;
    let copy = world_in(&env.world, "inner").expect("its copy");
    let config = kid.config.clone().into_iter().collect();
    copy.put_guest("inner", kid.kind, kid.vmid, config);
    copy
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_hypervisor_is_not_used_instead_of_it() {
    // Planned before and after the swap.
    for early in [true, false] {
        let env = TestEnv::new();
        assert_eq!(env.apply(TIERED).await, RunOutcome::Done);
        let before = env.plan_with(TIERED, &destroys()).await;
        let copy = swapped(&env).await;
        let plan = match early {
            true => before,
            false => env.plan_with(TIERED, &destroys()).await,
        };
        let kid = plan.node("kid").expect("a node");
        assert_eq!(kid.action == Action::Destroy, early, "{:?}", kid.reasons);
        env.execute(&plan).await;
        env.wait_until_idle().await;
        assert_eq!(guests(&copy).len(), 1, "planned before: {early}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_missing_from_an_outdated_list_is_found_by_its_record() {
    let env = TestEnv::new();
    // This list will be returned again.
    assert!(!env.plan(TWO).await.is_empty());
    assert_eq!(env.apply(TWO).await, RunOutcome::Done);
    let stale_list = Fault::new(
        Call::any().path("/cluster/resources"),
        FaultKind::StaleList(1e9),
    );
    env.world.add_fault(stale_list);
    let plan = env.plan_with(TWO, &destroys()).await;
    let actions: Vec<Action> = plan.nodes.iter().map(|node| node.action).collect();
    assert_eq!(actions, [Action::Destroy, Action::Destroy]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_on_an_offline_member_is_refused_by_name() {
    let env = TestEnv::with(|builder| builder.host("pve1").host("pve2"));
    assert_eq!(env.apply(TWO).await, RunOutcome::Done);
    env.world.migrate_guest(8002, "pve2").unwrap();
    env.wait_for_tasks().await;
    env.world.set_online("pve2", false);
    for options in [destroys(), PlanOptions::new(Verb::Apply)] {
        let plan = env.plan_with(TWO, &options).await;
        let why: Vec<&str> = plan.refusals.iter().map(|one| &*one.reason.text).collect();
        assert_eq!(why.len(), 1, "{why:?}");
        for words in ["8002", "pve2", "`b`"] {
            assert!(why[0].contains(words), "{why:?}");
        }
    }
    assert_eq!(env.guests().len(), 2);
}
