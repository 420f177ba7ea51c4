//! Guests that are deleted with the node they run in, and the names of orphans.

use super::*;

const NESTED: &str = "nodes: [{name: hv, type: pve, preset: small, vmid: 201}, {name: in, type: vm, preset: small, parent: hv}]\n";
const OTHER: &str = "nodes: [{name: other, preset: small}]\n";
const MOVED: &str =
    "nodes: [{name: a, preset: small, host: mother}, {name: b, preset: small, host: father}]\n";

fn prune() -> PlanOptions {
    PlanOptions {
        prune: true,
        ..PlanOptions::new(Verb::Apply)
    }
}

fn both() -> [PlanOptions; 2] {
    [prune(), PlanOptions::new(Verb::Destroy)]
}

/// Plans with guests on `father` and in the node `hv`.
fn planned(
    text: &str,
    (outside, inside): (Vec<ObservedGuest>, Option<Vec<ObservedGuest>>),
    records: &[NodeRecord],
    options: &PlanOptions,
) -> Plan {
    let mut observations: BTreeMap<NodeLocation, Observation> = ["father", "mother"]
        .map(|name| {
            let seen = Observation::Available(host(outside.clone()));
            (NodeLocation::Host(name.to_owned()), seen)
        })
        .into();
    let inside = inside.map_or_else(
        || Observation::Unavailable("it does not answer".to_owned()),
        |guests| Observation::Available(host(guests)),
    );
    observations.insert(NodeLocation::Inside("hv".to_owned()), inside);
    plan_observed(
        text,
        &observations,
        (records, &OtherRecords::default()),
        options,
    )
}

/// The record of a node in `hv`.
fn in_hv(guest: &ObservedGuest, name: &str) -> NodeRecord {
    NodeRecord {
        location: NodeLocation::Inside("hv".to_owned()),
        ..record(guest, name)
    }
}

/// A record of a node, with whether it was created to host guests.
fn hosting(guest: &ObservedGuest, name: &str, hosts_guests: Option<bool>) -> NodeRecord {
    NodeRecord {
        hosts_guests,
        ..record(guest, name)
    }
}

/// Returns the reasons of a node as one text.
fn reasons(plan: &Plan, node: &str) -> String {
    let node = plan
        .node(node)
        .unwrap_or_else(|| panic!("{:#?}", plan.nodes));
    let texts: Vec<&str> = node.reasons.iter().map(|why| why.text.as_str()).collect();
    texts.join("\n")
}

fn refused(plan: &Plan) -> Vec<(Option<&str>, &str)> {
    let refusals = plan.refusals.iter();
    refusals
        .map(|refusal| (refusal.node.as_deref(), refusal.reason.text.as_str()))
        .collect()
}

#[test]
fn a_copy_of_a_child_refuses_the_replacement_of_the_node_it_runs_in() {
    let (hv, kid) = (ours("hv", 200), ours("in", 300));
    let copy = ObservedGuest {
        vmid: 9100.into(),
        name: "precious-copy".to_owned(),
        ..kid.clone()
    };
    let records = [record(&hv, "hv"), in_hv(&kid, "in")];
    let there = (vec![hv], Some(vec![kid, copy]));
    let plan = planned(NESTED, there, &records, &PlanOptions::new(Verb::Apply));
    assert_eq!(plan.node("hv").map(|hv| hv.action), Some(Action::Replace));
    let [(Some("hv"), why)] = refused(&plan)[..] else {
        panic!("{:#?}", plan.refusals);
    };
    assert!(why.contains("9100 (precious-copy)"), "{why}");
    assert!(!why.contains("300"), "the child is recreated: {why}");
}

#[test]
fn a_recreated_child_reports_that_its_guest_is_destroyed_with_its_disk() {
    let (hv, kid) = (ours("hv", 200), ours("in", 300));
    let records = [record(&hv, "hv"), in_hv(&kid, "in")];
    let apply = PlanOptions::new(Verb::Apply);
    let there = (vec![hv.clone()], Some(vec![kid]));
    let plan = planned(NESTED, there, &records, &apply);
    assert_eq!(plan.refusals, []);
    let why = reasons(&plan, "in");
    assert!(why.contains("guest 300, with its disk"), "{why}");
    // A recorded guest that cannot be observed is reported too.
    let plan = planned(NESTED, (vec![hv], None), &records, &apply);
    let why = reasons(&plan, "in");
    assert!(why.contains("recorded guest 300 in node hv"), "{why}");
    assert!(reasons(&plan, "hv").contains("could not be listed"));
    assert!(reasons(&plan, "hv").contains("`in`"));
}

#[test]
fn children_below_the_depth_refuse_the_replacement_of_their_parent() {
    let (hv, kid) = (ours("hv", 200), ours("in", 300));
    let records = [record(&hv, "hv"), in_hv(&kid, "in")];
    let options = PlanOptions {
        depth: Some(1),
        ..PlanOptions::new(Verb::Apply)
    };
    let plan = planned(NESTED, (vec![hv], Some(vec![kid])), &records, &options);
    let [(Some("hv"), why)] = refused(&plan)[..] else {
        panic!("{:#?}", plan.refusals);
    };
    assert!(why.contains("300 (in)"), "{why}");
}

#[test]
fn an_orphaned_hypervisor_with_foreign_guests_is_not_deleted() {
    let hv = ours("hv", 200);
    let records = [hosting(&hv, "hv", Some(true))];
    let tenant = guest("tenant", 4444, PowerState::Running, None);
    for options in both() {
        let there = (vec![hv.clone()], Some(vec![tenant.clone()]));
        let plan = planned(OTHER, there, &records, &options);
        let [(Some("hv"), why)] = refused(&plan)[..] else {
            panic!("{:#?}", plan.refusals);
        };
        assert!(why.contains("4444 (tenant)"), "{why}");
        let plan = planned(OTHER, (vec![hv.clone()], None), &records, &options);
        assert!(reasons(&plan, "hv").contains("could not be listed"));
    }
}

#[test]
fn a_recorded_child_of_a_deleted_hypervisor_is_deleted_before_it() {
    let (hv, kid) = (ours("hv", 200), ours("in", 300));
    let records = [hosting(&hv, "hv", Some(true)), in_hv(&kid, "in")];
    for options in both() {
        let there = (vec![hv.clone()], Some(vec![kid.clone()]));
        let plan = planned(OTHER, there, &records, &options);
        assert_eq!(plan.refusals, []);
        let steps = &plan.steps;
        let lost = |name: &str| {
            let of = |at: usize| plan.nodes[at].name == name;
            let mut steps = steps.iter();
            steps.position(|step| step.kind == StepKind::Destroy && step.node.is_some_and(of))
        };
        let (kid, hv) = (lost("in").expect("in"), lost("hv").expect("hv"));
        assert!(before(steps, hv).contains(&kid));
        let node = plan.node("in").expect("in");
        assert_eq!((node.host.as_str(), node.depth), ("father", 1));
    }
}

#[test]
fn an_orphan_without_a_record_may_contain_guests() {
    let old = ours("old", 200);
    let container = ObservedGuest {
        kind: GuestKind::Ct,
        ..old.clone()
    };
    for options in both() {
        let reasons_of = |guest: &ObservedGuest, records: &[NodeRecord]| {
            let plan = planned(OTHER, (vec![guest.clone()], None), records, &options);
            reasons(&plan, "old")
        };
        assert!(reasons_of(&old, &[]).contains("may contain guests"));
        let kept = [hosting(&old, "old", None)];
        assert!(
            reasons_of(&old, &kept).contains("may contain guests"),
            "an older record"
        );
        let leaf = [hosting(&old, "old", Some(false))];
        assert!(!reasons_of(&old, &leaf).contains("destroyed with it"));
        assert!(!reasons_of(&container, &[]).contains("destroyed with it"));
    }
}

#[test]
fn an_orphan_keeps_its_recorded_name_when_its_guest_is_renamed() {
    let old = ours("old", 300);
    let records = [record(&old, "old")];
    let renamed = ObservedGuest {
        name: "zzz".to_owned(),
        ..old
    };
    for options in both() {
        let there = (vec![renamed.clone()], None);
        let plan = planned(OTHER, there, &records, &options);
        let node = plan.node("old").expect("by its recorded name");
        assert_eq!(
            (node.action, node.record_name()),
            (Action::Destroy, "old"),
            "{node:#?}"
        );
        let why = reasons(&plan, "old");
        assert!(why.contains("`zzz`"), "{why}");
    }
}

#[test]
fn an_orphan_that_shares_its_name_with_a_node_keeps_the_name_of_its_record() {
    let there = vec![ours("a", 300), ours("b", 301)];
    let records = [record(&there[0], "a"), record(&there[1], "b")];
    for options in both() {
        let plan = planned(MOVED, (there.clone(), None), &records, &options);
        let node = plan.node("a#300").expect("the guest on the old host");
        assert_eq!(
            (node.action, node.record_name(), node.host.as_str()),
            (Action::Destroy, "a", "father")
        );
    }
}

#[test]
fn a_node_moved_to_another_host_is_reported_with_its_new_host() {
    let there = vec![ours("a", 300), ours("b", 301)];
    let records = [record(&there[0], "a"), record(&there[1], "b")];
    for options in [PlanOptions::new(Verb::Apply), prune(), both()[1].clone()] {
        let plan = planned(MOVED, (there.clone(), None), &records, &options);
        let why = reasons(&plan, "a#300");
        assert!(!why.contains("no longer in"), "{why}");
        assert!(why.contains("`mother`"), "{why}");
    }
}

const TO_HV2: &str = "nodes: [{name: hv, type: pve, preset: small}, {name: hv2, type: pve, preset: small}, {name: in, type: vm, preset: small, parent: hv2}]\n";

#[test]
fn the_guest_of_a_node_moved_to_another_parent_is_reported_and_can_be_deleted() {
    let (hv, hv2, kid) = (ours("hv", 200), ours("hv2", 201), ours("in", 300));
    let known = [record(&hv, "hv"), record(&hv2, "hv2"), in_hv(&kid, "in")];
    let seen = |inside: &[&ObservedGuest], inside2: &[&ObservedGuest]| {
        let guests = |guests: &[&ObservedGuest]| guests.iter().map(|one| (*one).clone()).collect();
        let observed = |there| Observation::Available(host(there));
        BTreeMap::from([
            (
                NodeLocation::Host("father".to_owned()),
                observed(vec![hv.clone(), hv2.clone()]),
            ),
            (
                NodeLocation::Inside("hv".to_owned()),
                observed(guests(inside)),
            ),
            (
                NodeLocation::Inside("hv2".to_owned()),
                observed(guests(inside2)),
            ),
        ])
    };
    let plan_for = |observations: &BTreeMap<NodeLocation, Observation>,
                    records: &[NodeRecord],
                    options: &PlanOptions| {
        plan_observed(
            TO_HV2,
            observations,
            (records, &OtherRecords::default()),
            options,
        )
    };
    let apply = PlanOptions::new(Verb::Apply);
    let before = seen(&[&kid], &[]);
    let plan = plan_for(&before, &known, &apply);
    assert_eq!(plan.refusals, []);
    let new = plan.node("in").expect("the node");
    assert_eq!(new.action, Action::Create);
    // Two guests never have one identity.
    let uuid = new.wanted.as_ref().map(|wanted| wanted.uuid.clone());
    assert_ne!(uuid, kid.uuid);
    assert!(reasons(&plan, "in").contains("guest 300"), "{new:#?}");
    let old = plan.node("in#300").expect("the old guest");
    assert_eq!(
        (old.action, old.location.to_string()),
        (Action::Keep, "node hv".to_owned())
    );
    let pruned = plan_for(&before, &known, &prune());
    let old = pruned.node("in#300").expect("the old guest");
    assert_eq!(old.action, Action::Destroy);
    // The record of the node belongs to the new guest.
    assert_eq!(old.record_name(), "in#300");
    // It can be deleted afterwards too.
    let moved = ObservedGuest {
        uuid,
        ..kid.clone()
    };
    let after = seen(&[&kid], &[&moved]);
    let in_hv2 = NodeRecord {
        location: NodeLocation::Inside("hv2".to_owned()),
        ..record(&moved, "in")
    };
    let records = [known[0].clone(), known[1].clone(), in_hv2];
    let plan = plan_for(&after, &records, &PlanOptions::new(Verb::Destroy));
    assert_eq!(plan.refusals, []);
    assert_eq!(
        names_with(&plan, Action::Destroy),
        ["hv", "hv2", "in", "in#300"]
    );
    let plan = plan_for(&after, &records, &apply);
    assert_eq!(
        plan.node("in").map(|node| node.action),
        Some(Action::Nothing)
    );
}

fn names_with(plan: &Plan, action: Action) -> Vec<&str> {
    let nodes = plan.nodes.iter().filter(|node| node.action == action);
    let mut names: Vec<&str> = nodes.map(|node| node.name.as_str()).collect();
    names.sort_unstable();
    names
}
