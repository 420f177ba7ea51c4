//! What runs in a node that goes, and what stays recorded of guests that were removed.

use homestak_core::plan::{Action, NodeRecord, NodeStatus, Options, Plan, Verb};
use homestak_engine::journal::{Ending, Journal as _, Scope};
use homestak_engine::operate::Interrupt;
use homestak_sim::Kind;

use crate::lab::{Lab, world_in};

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

fn prune() -> Options {
    Options {
        prune: true,
        ..Options::new(Verb::Apply)
    }
}

fn both() -> [Options; 2] {
    [prune(), Options::new(Verb::Destroy)]
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
    let scope = Scope {
        site: Some(lab.site.clone()),
        manifest: "m".to_owned(),
        host: host.to_owned(),
    };
    lab.journal.records(&scope).await.unwrap()
}

async fn names(lab: &Lab, host: &str) -> Vec<String> {
    let records = records(lab, host).await.into_iter();
    records.map(|record| record.name).collect()
}

fn vmid(lab: &Lab, name: &str) -> u32 {
    let guests = lab.world.guests();
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
    let destroy = Options::new(Verb::Destroy);
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
        let unseen = |text: &str| text.contains("what runs in it was not seen");
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
        assert_eq!(new.guest.vmid, Some(vmid(&lab, "ha")), "died at {moment}");
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
