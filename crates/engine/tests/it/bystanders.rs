//! What runs in a node that goes, and what stays recorded of guests that were removed.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use homestak_core::plan::{Action, NodeRecord, NodeStatus, Plan, PlanOptions, Verb};
use homestak_engine::journal::{Ending, Happened, Journal as _, Scope};
use homestak_engine::operate::{Interrupt, UndoEffect};
use homestak_engine::ports::{Places, PortError, Provider};
use homestak_sim::{Kind, World};

use crate::lab::{Lab, guests, world_in};

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

async fn records(lab: &Lab, host: &str) -> Vec<NodeRecord> {
    let scope = Scope::new(Some(&lab.site), "m", host);
    lab.journal.records(&scope).await.unwrap()
}

async fn names(lab: &Lab, host: &str) -> Vec<String> {
    let records = records(lab, host).await.into_iter();
    records.map(|record| record.name).collect()
}

fn vmid(lab: &Lab, name: &str) -> u32 {
    vmid_in(&lab.world, name)
}

fn vmid_in(world: &World, name: &str) -> u32 {
    let guests = world.guests();
    let mut of = guests.iter().filter(|guest| guest.config["name"] == name);
    of.next().unwrap().vmid
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hypervisor_without_children_is_asked_what_runs_in_it() {
    let lab = Lab::new();
    assert_eq!(lab.apply(HYPER).await, Ending::Done);
    lab.rest().await;
    let inner = world_in(&lab.world, "hyper").unwrap();
    let config = vec![("name".to_owned(), "tenant".to_owned())];
    inner.put_guest("hyper", Kind::Qemu, 4444, config);
    let destroy = PlanOptions::new(Verb::Destroy);
    let plan = lab.plan_with(HYPER, &destroy).await;
    assert!(refused(&plan).contains("4444 (tenant)"), "{plan:#?}");
    // The same when the manifest does not name it any more.
    for options in both() {
        let plan = lab.plan_with(OTHER, &options).await;
        assert!(refused(&plan).contains("4444 (tenant)"), "{plan:#?}");
    }
    // What cannot be asked is said not to have been seen.
    lab.world.switch_off(vmid(&lab, "hyper"));
    lab.rest().await;
    for (manifest, options) in [(HYPER, &destroy), (OTHER, &destroy), (OTHER, &prune())] {
        let plan = lab.plan_with(manifest, options).await;
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
async fn what_ran_in_a_hypervisor_that_goes_is_not_recorded_any_more() {
    for stopped in [false, true] {
        let lab = Lab::new();
        assert_eq!(lab.apply(NESTED).await, Ending::Done);
        if stopped {
            lab.world.switch_off(vmid(&lab, "hyper"));
        }
        lab.rest().await;
        let plan = lab.plan_with(OTHER, &prune()).await;
        assert_eq!(plan.refusals, []);
        assert_eq!(plan.node("kid").is_some(), !stopped, "{plan:#?}");
        assert_eq!(lab.carry_out(&plan).await, Ending::Done);
        assert_eq!(names(&lab, "pve1").await, ["other"]);
        assert_eq!(lab.seeds.n_kept(), 1, "keys of what is gone are gone");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_was_renamed_and_pruned_is_not_recorded_any_more() {
    let lab = Lab::new();
    assert_eq!(lab.apply(HYPER).await, Ending::Done);
    lab.world.rename_guest(vmid(&lab, "other"), "zzz").unwrap();
    lab.rest().await;
    let hyper = "nodes: [{name: hyper, type: pve, preset: vm-large, image: pve-9}]\n";
    let plan = lab.plan_with(hyper, &prune()).await;
    assert_eq!(lab.carry_out(&plan).await, Ending::Done);
    assert_eq!(lab.guests().len(), 1);
    assert_eq!(names(&lab, "pve1").await, ["hyper"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_is_pruned_where_its_node_was_before_is_not_recorded_there_any_more() {
    // Dying at each moment, and resumed.
    for moment in [1, 3, 5, 8, 12, 20, 30, 45, 100_000] {
        let mut lab = Lab::with(|builder| builder.cluster("two").host("pve1").host("pve2"));
        assert_eq!(lab.apply(ONE).await, Ending::Done);
        lab.rest().await;
        let old = vmid(&lab, "ha");
        let plan = lab.plan_with(SWAPPED, &prune()).await;
        assert_eq!(plan.refusals, []);
        let gone = plan.node(&format!("ha#{old}")).unwrap();
        assert_eq!(gone.action, Action::Destroy, "{gone:#?}");
        if lab.carry_out_until(&plan, moment).await.is_none() {
            let run = lab.last_run();
            let (_ask, interrupt) = Interrupt::new();
            let operator = lab.operator();
            let ended = operator.resume(&run, &[], interrupt).await.unwrap();
            assert_eq!(ended, Ending::Done, "died at {moment}");
        }
        assert_eq!(names(&lab, "pve1").await, ["hc"], "died at {moment}");
        assert_eq!(names(&lab, "pve2").await, ["ha", "hb"], "died at {moment}");
        let new = records(&lab, "pve2").await.remove(0);
        assert_eq!(new.status, NodeStatus::Ready);
        assert_eq!(
            new.guest.vmid,
            Some(vmid(&lab, "ha").into()),
            "died at {moment}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_of_a_hypervisor_that_was_replaced_are_recorded_as_gone_until_they_are_created() {
    let lab = Lab::new();
    assert_eq!(lab.apply(NESTED).await, Ending::Done);
    lab.rest().await;
    let text = NESTED.replace("image: pve-9", "image: pve-9, vmid: 7001");
    let plan = lab.plan(&text).await;
    assert_eq!(plan.refusals, []);
    assert_eq!(lab.carry_out(&plan).await, Ending::Done);
    assert_eq!(names(&lab, "pve1").await, ["hyper", "kid", "other"]);
    let gone = run_entries(&lab, "kid");
    assert_eq!(gone.first(), Some(&NodeStatus::Destroyed), "{gone:?}");
}

/// Returns what the last run recorded of a node, in order.
fn run_entries(lab: &Lab, node: &str) -> Vec<NodeStatus> {
    let run = lab.last_run();
    let records = run.entries.iter().filter_map(|entry| entry.record.as_ref());
    let of = records.filter(|record| record.name == node);
    of.map(|record| record.status).collect()
}

/// Creates a guest of someone else in `hyper`.
fn tenant(lab: &Lab) {
    let inner = world_in(&lab.world, "hyper").unwrap();
    let config = vec![("name".to_owned(), "tenant".to_owned())];
    inner.put_guest("hyper", Kind::Qemu, 4444, config);
}

/// Returns the effects that the preview has for a node, with their text.
async fn preview(lab: &Lab, node: &str) -> Vec<(UndoEffect, String)> {
    let items = lab.operator().rollback_plan(&lab.last_run()).await;
    let of = items.into_iter().filter(|item| item.subject == node);
    of.map(|item| (item.effect, item.text)).collect()
}

async fn roll_back(lab: &Lab) -> Ending {
    let (_ask, interrupt) = Interrupt::new();
    let (operator, run) = (lab.operator(), lab.last_run());
    operator.roll_back(&run, interrupt).await.unwrap()
}

async fn resume(lab: &Lab) -> Ending {
    let (_ask, interrupt) = Interrupt::new();
    let (operator, run) = (lab.operator(), lab.last_run());
    operator.resume(&run, &[], interrupt).await.unwrap()
}

/// Returns the detail of the last failure that the last run recorded.
fn failure(lab: &Lab) -> String {
    let run = lab.last_run();
    let failed = run
        .entries
        .iter()
        .rev()
        .find_map(|entry| match &entry.happened {
            Happened::Failed(trouble) | Happened::UndoFailed(trouble) => {
                Some(trouble.message.clone())
            }
            _ => None,
        });
    failed.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_back_does_not_remove_a_hypervisor_with_a_guest_of_someone_else_in_it() {
    let lab = Lab::new();
    assert_eq!(lab.apply(NESTED).await, Ending::Done);
    lab.rest().await;
    let said = preview(&lab, "hyper").await;
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!(said[0].0, UndoEffect::Undone, "{said:?}");
    tenant(&lab);
    let said = preview(&lab, "hyper").await;
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!(said[0].0, UndoEffect::Lost, "{said:?}");
    assert!(said[0].1.contains("4444 (tenant)"), "{said:?}");
    assert!(!said[0].1.contains("kid"), "{said:?}");
    assert_eq!(roll_back(&lab).await, Ending::Stuck);
    lab.rest().await;
    assert!(failure(&lab).contains("4444 (tenant)"), "{}", failure(&lab));
    assert_eq!(lab.guests(), [("hyper".to_owned(), true)]);
    let inner = world_in(&lab.world, "hyper").unwrap();
    assert_eq!(guests(&inner), [("tenant".to_owned(), false)]);
    // Once it is moved away, the rest is undone.
    inner.remove_guest(4444);
    lab.rest().await;
    assert_eq!(resume(&lab).await, Ending::RolledBack);
    assert_eq!(lab.guests(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_that_is_resumed_does_not_take_a_guest_that_came_meanwhile() {
    let lab = Lab::new();
    assert_eq!(lab.apply(NESTED).await, Ending::Done);
    let inner = world_in(&lab.world, "hyper").unwrap();
    let kid = vmid_in(&inner, "kid");
    inner.change_guest(kid, &[("protection", "1")]).unwrap();
    lab.rest().await;
    assert_eq!(lab.destroy(NESTED).await, Ending::Failed);
    inner
        .change_guest(kid, &[("delete", "protection")])
        .unwrap();
    tenant(&lab);
    lab.rest().await;
    assert_eq!(resume(&lab).await, Ending::Failed);
    assert!(failure(&lab).contains("4444 (tenant)"), "{}", failure(&lab));
    assert_eq!(lab.guests(), [("hyper".to_owned(), true)]);
    assert_eq!(guests(&inner), [("tenant".to_owned(), false)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hypervisor_is_asked_again_when_it_is_removed_or_replaced() {
    let moved = NESTED.replace("image: pve-9", "image: pve-9, vmid: 7001");
    for (manifest, options) in [
        (NESTED, PlanOptions::new(Verb::Destroy)),
        (&*moved, prune()),
    ] {
        let lab = Lab::new();
        assert_eq!(lab.apply(NESTED).await, Ending::Done);
        lab.rest().await;
        let plan = lab.plan_with(manifest, &options).await;
        assert_eq!(plan.refusals, []);
        tenant(&lab);
        assert_eq!(lab.carry_out(&plan).await, Ending::Failed);
        assert!(failure(&lab).contains("4444 (tenant)"), "{}", failure(&lab));
        let inner = world_in(&lab.world, "hyper").unwrap();
        assert!(guests(&inner).contains(&("tenant".to_owned(), false)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hypervisor_stays_when_a_guest_in_it_does() {
    let lab = Lab::new();
    assert_eq!(lab.apply(NESTED).await, Ending::Done);
    let inner = world_in(&lab.world, "hyper").unwrap();
    let kid = vmid_in(&inner, "kid");
    inner.change_guest(kid, &[("description", "mine")]).unwrap();
    lab.rest().await;
    let said = preview(&lab, "kid").await;
    let stays = said.iter().any(|(effect, _)| *effect == UndoEffect::Stays);
    assert!(stays, "{said:?}");
    let undone = said.iter().any(|(effect, _)| *effect == UndoEffect::Undone);
    assert!(!undone, "{said:?}");
    let said = preview(&lab, "hyper").await;
    assert_eq!(said[0].0, UndoEffect::Lost, "{said:?}");
    assert!(said[0].1.contains(&format!("{kid} (kid)")), "{said:?}");
    assert_eq!(roll_back(&lab).await, Ending::Stuck);
    lab.rest().await;
    assert_eq!(lab.guests(), [("hyper".to_owned(), true)]);
    assert_eq!(guests(&inner), [("kid".to_owned(), true)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hypervisor_that_does_not_run_is_removed_after_that_was_said() {
    let lab = Lab::new();
    assert_eq!(lab.apply(HYPER).await, Ending::Done);
    lab.world.switch_off(vmid(&lab, "hyper"));
    lab.rest().await;
    let said = preview(&lab, "hyper").await;
    assert_eq!(said[0].0, UndoEffect::Undone, "{said:?}");
    assert!(
        said[0].1.contains("guests in it could not be listed"),
        "{said:?}"
    );
    assert_eq!(roll_back(&lab).await, Ending::RolledBack);
    assert_eq!(lab.guests(), []);
}

/// Hosts that answer, with hypervisors in them that do not.
struct Deaf(Arc<dyn Places>);

#[async_trait]
impl Places for Deaf {
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

    fn door(&self, name: &str) -> String {
        self.0.door(name)
    }

    async fn answers(&self, host: &str, address: IpAddr, ports: &[u16]) -> Result<bool, PortError> {
        self.0.answers(host, address, ports).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hypervisor_that_runs_and_does_not_answer_goes_only_when_the_plan_said_so() {
    let destroy = PlanOptions::new(Verb::Destroy);
    let mut lab = Lab::new();
    assert_eq!(lab.apply(HYPER).await, Ending::Done);
    lab.rest().await;
    let plan = lab.plan_with(HYPER, &destroy).await;
    lab.places = Arc::new(Deaf(lab.places.clone()));
    assert_eq!(lab.carry_out(&plan).await, Ending::Failed);
    let said = failure(&lab);
    assert!(said.contains("is not known"), "{said}");
    assert!(lab.guests().contains(&("hyper".to_owned(), true)));
    lab.rest().await;
    // Now the plan says that it was not asked.
    let plan = lab.plan_with(HYPER, &destroy).await;
    assert_eq!(lab.carry_out(&plan).await, Ending::Done);
    assert_eq!(lab.guests(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undoing_keeps_a_hypervisor_that_was_opened_and_does_not_answer_any_more() {
    for (manifest, effect) in [(NESTED, UndoEffect::Lost), (HYPER, UndoEffect::Undone)] {
        let mut lab = Lab::new();
        assert_eq!(lab.apply(manifest).await, Ending::Done);
        lab.rest().await;
        lab.places = Arc::new(Deaf(lab.places.clone()));
        let said = preview(&lab, "hyper").await;
        assert_eq!(said[0].0, effect, "{said:?}");
        let (ending, left) = match effect {
            UndoEffect::Lost => (Ending::Stuck, vec![("hyper".to_owned(), true)]),
            _ => {
                // Nothing was ever created in it.
                assert!(said[0].1.contains("could not be listed"), "{said:?}");
                (Ending::RolledBack, vec![])
            }
        };
        assert_eq!(roll_back(&lab).await, ending);
        assert_eq!(lab.guests(), left);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_undone_in_a_hypervisor_whose_tags_were_removed() {
    let lab = Lab::new();
    assert_eq!(lab.apply(NESTED).await, Ending::Done);
    let inner = world_in(&lab.world, "hyper").unwrap();
    let hyper = vmid(&lab, "hyper");
    lab.world
        .change_guest(hyper, &[("delete", "tags")])
        .unwrap();
    lab.rest().await;
    let said = preview(&lab, "kid").await;
    assert!(
        said.iter().all(|(effect, _)| *effect == UndoEffect::Lost),
        "{said:?}"
    );
    assert_eq!(roll_back(&lab).await, Ending::Stuck);
    assert_eq!(guests(&inner), [("kid".to_owned(), true)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hypervisor_whose_address_is_not_recorded_is_asked_for_it() {
    let lab = Lab::new();
    assert_eq!(lab.apply(NESTED).await, Ending::Done);
    tenant(&lab);
    lab.rest().await;
    for run in lab.journal.runs.lock().unwrap().iter_mut() {
        let records = run
            .entries
            .iter_mut()
            .filter_map(|entry| entry.record.as_mut());
        records.for_each(|record| record.address = None);
    }
    let destroy = PlanOptions::new(Verb::Destroy);
    let plan = lab.plan_with(NESTED, &destroy).await;
    assert!(refused(&plan).contains("4444 (tenant)"), "{plan:#?}");
    let plan = lab.plan_with(OTHER, &destroy).await;
    assert!(refused(&plan).contains("4444 (tenant)"), "{plan:#?}");
}
