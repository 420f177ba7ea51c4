//! Guests inside a hypervisor that is destroyed, and the records of removed guests.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use homestak_core::plan::{Action, NodeRecord, NodeStatus, Plan, PlanOptions, Verb};
use homestak_engine::journal::{Journal as _, RunOutcome, Scope, StepEvent};
use homestak_engine::operate::{Interrupt, UndoEffect};
use homestak_engine::ports::{HostConnector, PortError, Provider};
use homestak_sim::{Kind, World};

use crate::env::{TestEnv, guests, world_in};

const HYPER: &str = "\
nodes:
  - {name: hyper, type: pve, preset: vm-large, image: pve-9}
  - {name: other, preset: vm-small, image: debian-12}
";
const NESTED: &str = "\
nodes:
  - {name: hyper, type: pve, preset: vm-large, image: pve-9}
  - {name: kid, preset: vm-small, image: debian-12, parent: hyper}
  - {name: other, preset: vm-small, image: debian-12}
";
const OTHER: &str = "nodes: [{name: other, preset: vm-small, image: debian-12}]\n";
const ONE: &str = "\
nodes:
  - {name: ha, preset: vm-small, image: debian-12, host: pve1}
  - {name: hb, preset: vm-small, image: debian-12, host: pve2}
";
const SWAPPED: &str = "\
nodes:
  - {name: ha, preset: vm-small, image: debian-12, host: pve2}
  - {name: hb, preset: vm-small, image: debian-12, host: pve2}
  - {name: hc, preset: vm-small, image: debian-12, host: pve1}
";

fn prune() -> PlanOptions {
    PlanOptions {
        prune: true,
        ..PlanOptions::new(Verb::Apply)
    }
}

fn both() -> [PlanOptions; 2] {
    [prune(), PlanOptions::new(Verb::Destroy)]
}

fn refused(plan: &Plan) -> String {
    let texts: Vec<&str> = plan
        .refusals
        .iter()
        .map(|refusal| refusal.reason.text.as_str())
        .collect();
    texts.join("\n")
}

async fn records(env: &TestEnv, host: &str) -> Vec<NodeRecord> {
    let scope = Scope::new(Some(&env.site), "m", host);
    env.journal.records(&scope).await.unwrap()
}

async fn names(env: &TestEnv, host: &str) -> Vec<String> {
    let records = records(env, host).await.into_iter();
    records.map(|record| record.name).collect()
}

fn vmid(env: &TestEnv, name: &str) -> u32 {
    vmid_in(&env.world, name)
}

fn vmid_in(world: &World, name: &str) -> u32 {
    let guests = world.guests();
    let mut of = guests.iter().filter(|guest| guest.config["name"] == name);
    of.next().unwrap().vmid
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hypervisor_without_children_is_checked_for_guests() {
    let env = TestEnv::new();
    assert_eq!(env.apply(HYPER).await, RunOutcome::Done);
    env.wait_until_idle().await;
    let inner = world_in(&env.world, "hyper").unwrap();
    let config = vec![("name".to_owned(), "tenant".to_owned())];
    inner.put_guest("hyper", Kind::Qemu, 4444, config);
    let destroy = PlanOptions::new(Verb::Destroy);
    let plan = env.plan_with(HYPER, &destroy).await;
    assert!(refused(&plan).contains("4444 (tenant)"), "{plan:#?}");
    // Also if the manifest no longer contains it.
    for options in both() {
        let plan = env.plan_with(OTHER, &options).await;
        assert!(refused(&plan).contains("4444 (tenant)"), "{plan:#?}");
    }
    // An unreachable hypervisor is reported as not checked.
    env.world.switch_off(vmid(&env, "hyper"));
    env.wait_until_idle().await;
    for (manifest, options) in [(HYPER, &destroy), (OTHER, &destroy), (OTHER, &prune())] {
        let plan = env.plan_with(manifest, options).await;
        let hyper = plan.node("hyper").unwrap();
        assert_eq!(hyper.action, Action::Destroy);
        let unseen = |text: &str| text.contains("guests in it could not be listed");
        assert!(
            hyper.reasons.iter().any(|why| unseen(&why.text)),
            "{hyper:#?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guests_of_a_destroyed_hypervisor_are_no_longer_recorded() {
    for stopped in [false, true] {
        let env = TestEnv::new();
        assert_eq!(env.apply(NESTED).await, RunOutcome::Done);
        if stopped {
            env.world.switch_off(vmid(&env, "hyper"));
        }
        env.wait_until_idle().await;
        let plan = env.plan_with(OTHER, &prune()).await;
        assert_eq!(plan.refusals, []);
        assert_eq!(plan.node("kid").is_some(), !stopped, "{plan:#?}");
        assert_eq!(env.execute(&plan).await, RunOutcome::Done);
        assert_eq!(names(&env, "pve1").await, ["other"]);
        assert_eq!(
            env.seeds.n_recorded(),
            1,
            "keys of removed guests are removed"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_was_renamed_and_pruned_is_no_longer_recorded() {
    let env = TestEnv::new();
    assert_eq!(env.apply(HYPER).await, RunOutcome::Done);
    env.world.rename_guest(vmid(&env, "other"), "zzz").unwrap();
    env.wait_until_idle().await;
    let hyper = "nodes: [{name: hyper, type: pve, preset: vm-large, image: pve-9}]\n";
    let plan = env.plan_with(hyper, &prune()).await;
    assert_eq!(env.execute(&plan).await, RunOutcome::Done);
    assert_eq!(env.guests().len(), 1);
    assert_eq!(names(&env, "pve1").await, ["hyper"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_is_pruned_on_its_former_host_is_no_longer_recorded_there() {
    // With a crash at each step point, and resumed.
    for moment in [1, 3, 5, 8, 12, 20, 30, 45, 100_000] {
        let mut env = TestEnv::with(|builder| builder.cluster("two").host("pve1").host("pve2"));
        assert_eq!(env.apply(ONE).await, RunOutcome::Done);
        env.wait_until_idle().await;
        let old = vmid(&env, "ha");
        let plan = env.plan_with(SWAPPED, &prune()).await;
        assert_eq!(plan.refusals, []);
        let former = plan.node(&format!("ha#{old}")).unwrap();
        assert_eq!(former.action, Action::Destroy, "{former:#?}");
        if env.execute_until(&plan, moment).await.is_none() {
            let run = env.last_run();
            let (_ask, interrupt) = Interrupt::new();
            let operator = env.operator();
            let ended = operator.resume(&run, &[], interrupt).await.unwrap();
            assert_eq!(ended, RunOutcome::Done, "died at {moment}");
        }
        assert_eq!(names(&env, "pve1").await, ["hc"], "died at {moment}");
        assert_eq!(names(&env, "pve2").await, ["ha", "hb"], "died at {moment}");
        let new = records(&env, "pve2").await.remove(0);
        assert_eq!(new.status, NodeStatus::Ready);
        assert_eq!(
            new.guest.vmid,
            Some(vmid(&env, "ha").into()),
            "died at {moment}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_of_a_replaced_hypervisor_are_recorded_as_destroyed_until_they_are_created() {
    let env = TestEnv::new();
    assert_eq!(env.apply(NESTED).await, RunOutcome::Done);
    env.wait_until_idle().await;
    let text = NESTED.replace("image: pve-9", "image: pve-9, vmid: 7001");
    let plan = env.plan(&text).await;
    assert_eq!(plan.refusals, []);
    assert_eq!(env.execute(&plan).await, RunOutcome::Done);
    assert_eq!(names(&env, "pve1").await, ["hyper", "kid", "other"]);
    let statuses = run_entries(&env, "kid");
    assert_eq!(
        statuses.first(),
        Some(&NodeStatus::Destroyed),
        "{statuses:?}"
    );
}

/// Returns what the last run recorded of a node, in order.
fn run_entries(env: &TestEnv, node: &str) -> Vec<NodeStatus> {
    let run = env.last_run();
    let records = run.entries.iter().filter_map(|entry| entry.record.as_ref());
    let of = records.filter(|record| record.name == node);
    of.map(|record| record.status).collect()
}

/// Creates a foreign guest in `hyper`.
fn tenant(env: &TestEnv) {
    let inner = world_in(&env.world, "hyper").unwrap();
    let config = vec![("name".to_owned(), "tenant".to_owned())];
    inner.put_guest("hyper", Kind::Qemu, 4444, config);
}

/// Returns the effects that the preview has for a node, with their text.
async fn preview(env: &TestEnv, node: &str) -> Vec<(UndoEffect, String)> {
    let items = env.operator().rollback_plan(&env.last_run()).await;
    let of = items.into_iter().filter(|item| item.subject == node);
    of.map(|item| (item.effect, item.text)).collect()
}

async fn roll_back(env: &TestEnv) -> RunOutcome {
    let (_ask, interrupt) = Interrupt::new();
    let (operator, run) = (env.operator(), env.last_run());
    operator.roll_back(&run, interrupt).await.unwrap()
}

async fn resume(env: &TestEnv) -> RunOutcome {
    let (_ask, interrupt) = Interrupt::new();
    let (operator, run) = (env.operator(), env.last_run());
    operator.resume(&run, &[], interrupt).await.unwrap()
}

/// Returns the detail of the last failure that the last run recorded.
fn failure(env: &TestEnv) -> String {
    let run = env.last_run();
    let failed = run
        .entries
        .iter()
        .rev()
        .find_map(|entry| match &entry.happened {
            StepEvent::Failed(error) | StepEvent::UndoFailed(error) => Some(error.message.clone()),
            _ => None,
        });
    failed.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_back_keeps_a_hypervisor_with_a_foreign_guest() {
    let env = TestEnv::new();
    assert_eq!(env.apply(NESTED).await, RunOutcome::Done);
    env.wait_until_idle().await;
    let effects = preview(&env, "hyper").await;
    assert_eq!(effects.len(), 1, "{effects:?}");
    assert_eq!(effects[0].0, UndoEffect::Undone, "{effects:?}");
    tenant(&env);
    let effects = preview(&env, "hyper").await;
    assert_eq!(effects.len(), 1, "{effects:?}");
    assert_eq!(effects[0].0, UndoEffect::Lost, "{effects:?}");
    assert!(effects[0].1.contains("4444 (tenant)"), "{effects:?}");
    assert!(!effects[0].1.contains("kid"), "{effects:?}");
    assert_eq!(roll_back(&env).await, RunOutcome::Stuck);
    env.wait_until_idle().await;
    assert!(failure(&env).contains("4444 (tenant)"), "{}", failure(&env));
    assert_eq!(env.guests(), [("hyper".to_owned(), true)]);
    let inner = world_in(&env.world, "hyper").unwrap();
    assert_eq!(guests(&inner), [("tenant".to_owned(), false)]);
    // Once it is moved away, the rest is undone.
    inner.remove_guest(4444);
    env.wait_until_idle().await;
    assert_eq!(resume(&env).await, RunOutcome::RolledBack);
    assert_eq!(env.guests(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resumed_destroy_does_not_delete_a_new_guest() {
    let env = TestEnv::new();
    assert_eq!(env.apply(NESTED).await, RunOutcome::Done);
    let inner = world_in(&env.world, "hyper").unwrap();
    let kid = vmid_in(&inner, "kid");
    inner.change_guest(kid, &[("protection", "1")]).unwrap();
    env.wait_until_idle().await;
    assert_eq!(env.destroy(NESTED).await, RunOutcome::Failed);
    inner
        .change_guest(kid, &[("delete", "protection")])
        .unwrap();
    tenant(&env);
    env.wait_until_idle().await;
    assert_eq!(resume(&env).await, RunOutcome::Failed);
    assert!(failure(&env).contains("4444 (tenant)"), "{}", failure(&env));
    assert_eq!(env.guests(), [("hyper".to_owned(), true)]);
    assert_eq!(guests(&inner), [("tenant".to_owned(), false)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hypervisor_is_checked_again_when_it_is_destroyed_or_replaced() {
    let moved = NESTED.replace("image: pve-9", "image: pve-9, vmid: 7001");
    for (manifest, options) in [
        (NESTED, PlanOptions::new(Verb::Destroy)),
        (&*moved, prune()),
    ] {
        let env = TestEnv::new();
        assert_eq!(env.apply(NESTED).await, RunOutcome::Done);
        env.wait_until_idle().await;
        let plan = env.plan_with(manifest, &options).await;
        assert_eq!(plan.refusals, []);
        tenant(&env);
        assert_eq!(env.execute(&plan).await, RunOutcome::Failed);
        assert!(failure(&env).contains("4444 (tenant)"), "{}", failure(&env));
        let inner = world_in(&env.world, "hyper").unwrap();
        assert!(guests(&inner).contains(&("tenant".to_owned(), false)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hypervisor_stays_when_a_guest_in_it_does() {
    let env = TestEnv::new();
    assert_eq!(env.apply(NESTED).await, RunOutcome::Done);
    let inner = world_in(&env.world, "hyper").unwrap();
    let kid = vmid_in(&inner, "kid");
    inner.change_guest(kid, &[("description", "mine")]).unwrap();
    env.wait_until_idle().await;
    let effects = preview(&env, "kid").await;
    let stays = effects
        .iter()
        .any(|(effect, _)| *effect == UndoEffect::Stays);
    assert!(stays, "{effects:?}");
    let undone = effects
        .iter()
        .any(|(effect, _)| *effect == UndoEffect::Undone);
    assert!(!undone, "{effects:?}");
    let effects = preview(&env, "hyper").await;
    assert_eq!(effects[0].0, UndoEffect::Lost, "{effects:?}");
    assert!(
        effects[0].1.contains(&format!("{kid} (kid)")),
        "{effects:?}"
    );
    assert_eq!(roll_back(&env).await, RunOutcome::Stuck);
    env.wait_until_idle().await;
    assert_eq!(env.guests(), [("hyper".to_owned(), true)]);
    assert_eq!(guests(&inner), [("kid".to_owned(), true)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_hypervisor_is_destroyed_with_a_warning() {
    let env = TestEnv::new();
    assert_eq!(env.apply(HYPER).await, RunOutcome::Done);
    env.world.switch_off(vmid(&env, "hyper"));
    env.wait_until_idle().await;
    let effects = preview(&env, "hyper").await;
    assert_eq!(effects[0].0, UndoEffect::Undone, "{effects:?}");
    assert!(
        effects[0].1.contains("guests in it could not be listed"),
        "{effects:?}"
    );
    assert_eq!(roll_back(&env).await, RunOutcome::RolledBack);
    assert_eq!(env.guests(), []);
}

/// Connects to hosts, but not to hypervisors inside them.
struct UnreachableHypervisors(Arc<dyn HostConnector>);

#[async_trait]
impl HostConnector for UnreachableHypervisors {
    async fn host(&self, name: &str) -> Result<Arc<dyn Provider>, PortError> {
        self.0.host(name).await
    }

    async fn inside(&self, _: &str, node: &str, _: IpAddr) -> Result<Arc<dyn Provider>, PortError> {
        Err(PortError::unreachable(
            &format!("open `{node}`"),
            "no answer",
            "",
        ))
    }

    fn endpoint(&self, name: &str) -> String {
        self.0.endpoint(name)
    }

    async fn ssh_answers(
        &self,
        host: &str,
        address: IpAddr,
        ports: &[u16],
    ) -> Result<bool, PortError> {
        self.0.ssh_answers(host, address, ports).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_hypervisor_that_does_not_answer_is_destroyed_only_as_planned() {
    let destroy = PlanOptions::new(Verb::Destroy);
    let mut env = TestEnv::new();
    assert_eq!(env.apply(HYPER).await, RunOutcome::Done);
    env.wait_until_idle().await;
    let plan = env.plan_with(HYPER, &destroy).await;
    env.connector = Arc::new(UnreachableHypervisors(env.connector.clone()));
    assert_eq!(env.execute(&plan).await, RunOutcome::Failed);
    let message = failure(&env);
    assert!(message.contains("cannot be listed"), "{message}");
    assert!(env.guests().contains(&("hyper".to_owned(), true)));
    env.wait_until_idle().await;
    // Now the plan reports that its guests could not be listed.
    let plan = env.plan_with(HYPER, &destroy).await;
    assert_eq!(env.execute(&plan).await, RunOutcome::Done);
    assert_eq!(env.guests(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undoing_keeps_a_hypervisor_that_no_longer_answers() {
    for (manifest, effect) in [(NESTED, UndoEffect::Lost), (HYPER, UndoEffect::Undone)] {
        let mut env = TestEnv::new();
        assert_eq!(env.apply(manifest).await, RunOutcome::Done);
        env.wait_until_idle().await;
        env.connector = Arc::new(UnreachableHypervisors(env.connector.clone()));
        let effects = preview(&env, "hyper").await;
        assert_eq!(effects[0].0, effect, "{effects:?}");
        let (ending, left) = match effect {
            UndoEffect::Lost => (RunOutcome::Stuck, vec![("hyper".to_owned(), true)]),
            _ => {
                // Nothing was ever created in it.
                assert!(effects[0].1.contains("could not be listed"), "{effects:?}");
                (RunOutcome::RolledBack, vec![])
            }
        };
        assert_eq!(roll_back(&env).await, ending);
        assert_eq!(env.guests(), left);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_undone_in_a_hypervisor_whose_tags_were_removed() {
    let env = TestEnv::new();
    assert_eq!(env.apply(NESTED).await, RunOutcome::Done);
    let inner = world_in(&env.world, "hyper").unwrap();
    let hyper = vmid(&env, "hyper");
    env.world
        .change_guest(hyper, &[("delete", "tags")])
        .unwrap();
    env.wait_until_idle().await;
    let effects = preview(&env, "kid").await;
    assert!(
        effects
            .iter()
            .all(|(effect, _)| *effect == UndoEffect::Lost),
        "{effects:?}"
    );
    assert_eq!(roll_back(&env).await, RunOutcome::Stuck);
    assert_eq!(guests(&inner), [("kid".to_owned(), true)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unrecorded_address_of_a_hypervisor_is_requested_from_its_host() {
    let env = TestEnv::new();
    assert_eq!(env.apply(NESTED).await, RunOutcome::Done);
    tenant(&env);
    env.wait_until_idle().await;
    for run in env.journal.runs.lock().unwrap().iter_mut() {
        let records = run
            .entries
            .iter_mut()
            .filter_map(|entry| entry.record.as_mut());
        records.for_each(|record| record.address = None);
    }
    let destroy = PlanOptions::new(Verb::Destroy);
    let plan = env.plan_with(NESTED, &destroy).await;
    assert!(refused(&plan).contains("4444 (tenant)"), "{plan:#?}");
    let plan = env.plan_with(OTHER, &destroy).await;
    assert!(refused(&plan).contains("4444 (tenant)"), "{plan:#?}");
}
