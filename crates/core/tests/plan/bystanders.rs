//! What a plan says of guests that go with the node they run in, and under which names guests are
//! known that the manifest does not name any more.

use super::*;

const NESTED: &str = "nodes: [{name: hv, type: pve, preset: small, vmid: 201}, {name: in, type: vm, preset: small, parent: hv}]\n";
const OTHER: &str = "nodes: [{name: other, preset: small}]\n";
const MOVED: &str =
    "nodes: [{name: a, preset: small, host: mother}, {name: b, preset: small, host: father}]\n";

fn prune() -> Options {
    Options {
        prune: true,
        ..Options::new(Verb::Apply)
    }
}

fn both() -> [Options; 2] {
    [prune(), Options::new(Verb::Destroy)]
}

/// Plans with guests on `father` and in the node `hv`.
fn planned(
    text: &str,
    (outside, inside): (Vec<ObservedGuest>, Option<Vec<ObservedGuest>>),
    records: &[NodeRecord],
    options: &Options,
) -> Plan {
    let mut looks: BTreeMap<Place, Look> = ["father", "mother"]
        .map(|name| {
            let seen = Look::Seen(host(outside.clone()));
            (Place::Host(name.to_owned()), seen)
        })
        .into();
    let inside = inside.map_or_else(
        || Look::Unseen("it does not answer".to_owned()),
        |guests| Look::Seen(host(guests)),
    );
    looks.insert(Place::Inside("hv".to_owned()), inside);
    looked(text, &looks, (records, &Elsewhere::default()), options)
}

/// What the journal knows of a node in `hv`.
fn in_hv(guest: &ObservedGuest, name: &str) -> NodeRecord {
    NodeRecord {
        place: Place::Inside("hv".to_owned()),
        ..record(guest, name)
    }
}

/// What the journal knows of a node that was created for guests to run on it, or not.
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
    let plan = planned(NESTED, there, &records, &Options::new(Verb::Apply));
    assert_eq!(plan.node("hv").map(|hv| hv.action), Some(Action::Replace));
    let [(Some("hv"), why)] = refused(&plan)[..] else {
        panic!("{:#?}", plan.refusals);
    };
    assert!(why.contains("9100 (precious-copy)"), "{why}");
    assert!(!why.contains("300"), "the child is created again: {why}");
}

#[test]
fn a_child_that_is_created_again_says_that_its_guest_goes_with_its_disk() {
    let (hv, kid) = (ours("hv", 200), ours("in", 300));
    let records = [record(&hv, "hv"), in_hv(&kid, "in")];
    let apply = Options::new(Verb::Apply);
    let there = (vec![hv.clone()], Some(vec![kid]));
    let plan = planned(NESTED, there, &records, &apply);
    assert_eq!(plan.refusals, []);
    let why = reasons(&plan, "in");
    assert!(why.contains("guest 300, with its disk"), "{why}");
    // What is recorded and cannot be seen is named too.
    let plan = planned(NESTED, (vec![hv], None), &records, &apply);
    let why = reasons(&plan, "in");
    assert!(
        why.contains("guest 300, which is recorded in node hv"),
        "{why}"
    );
    assert!(reasons(&plan, "hv").contains("was not seen"));
    assert!(reasons(&plan, "hv").contains("`in`"));
}

#[test]
fn children_below_the_depth_refuse_the_replacement_of_their_parent() {
    let (hv, kid) = (ours("hv", 200), ours("in", 300));
    let records = [record(&hv, "hv"), in_hv(&kid, "in")];
    let options = Options {
        depth: Some(1),
        ..Options::new(Verb::Apply)
    };
    let plan = planned(NESTED, (vec![hv], Some(vec![kid])), &records, &options);
    let [(Some("hv"), why)] = refused(&plan)[..] else {
        panic!("{:#?}", plan.refusals);
    };
    assert!(why.contains("300 (in)"), "{why}");
}

#[test]
fn a_hypervisor_that_the_manifest_does_not_name_any_more_goes_only_without_guests_of_others() {
    let hv = ours("hv", 200);
    let records = [hosting(&hv, "hv", Some(true))];
    let tenant = guest("tenant", 4444, Power::Running, None);
    for options in both() {
        let there = (vec![hv.clone()], Some(vec![tenant.clone()]));
        let plan = planned(OTHER, there, &records, &options);
        let [(Some("hv"), why)] = refused(&plan)[..] else {
            panic!("{:#?}", plan.refusals);
        };
        assert!(why.contains("4444 (tenant)"), "{why}");
        let plan = planned(OTHER, (vec![hv.clone()], None), &records, &options);
        assert!(reasons(&plan, "hv").contains("was not seen"));
    }
}

#[test]
fn a_recorded_child_of_a_hypervisor_that_goes_is_removed_before_it() {
    let (hv, kid) = (ours("hv", 200), ours("in", 300));
    let records = [hosting(&hv, "hv", Some(true)), in_hv(&kid, "in")];
    for options in both() {
        let there = (vec![hv.clone()], Some(vec![kid.clone()]));
        let plan = planned(OTHER, there, &records, &options);
        assert_eq!(plan.refusals, []);
        let steps = &plan.steps;
        let gone = |name: &str| {
            let of = |at: usize| plan.nodes[at].name == name;
            let mut steps = steps.iter();
            steps.position(|step| step.kind == StepKind::Destroy && step.node.is_some_and(of))
        };
        let (kid, hv) = (gone("in").expect("in"), gone("hv").expect("hv"));
        assert!(before(steps, hv).contains(&kid));
        let node = plan.node("in").expect("in");
        assert_eq!((node.host.as_str(), node.depth), ("father", 1));
    }
}

#[test]
fn whether_guests_run_in_a_stray_is_unknown_when_nothing_records_it() {
    let old = ours("old", 200);
    let container = ObservedGuest {
        kind: GuestKind::Ct,
        ..old.clone()
    };
    for options in both() {
        let say = |guest: &ObservedGuest, records: &[NodeRecord]| {
            let plan = planned(OTHER, (vec![guest.clone()], None), records, &options);
            reasons(&plan, "old")
        };
        assert!(say(&old, &[]).contains("is not known"));
        let kept = [hosting(&old, "old", None)];
        assert!(say(&old, &kept).contains("is not known"), "an older record");
        let leaf = [hosting(&old, "old", Some(false))];
        assert!(!say(&old, &leaf).contains("destroyed with it"));
        assert!(!say(&container, &[]).contains("destroyed with it"));
    }
}

#[test]
fn a_stray_is_known_by_its_recorded_name_whatever_its_guest_is_called_now() {
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
fn a_stray_that_shares_its_name_with_a_node_keeps_the_name_of_its_record() {
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
fn a_node_that_the_manifest_names_on_another_host_is_not_called_unnamed() {
    let there = vec![ours("a", 300), ours("b", 301)];
    let records = [record(&there[0], "a"), record(&there[1], "b")];
    for options in [Options::new(Verb::Apply), prune(), both()[1].clone()] {
        let plan = planned(MOVED, (there.clone(), None), &records, &options);
        let why = reasons(&plan, "a#300");
        assert!(!why.contains("does not name"), "{why}");
        assert!(why.contains("`mother`"), "{why}");
    }
}

const TO_HV2: &str = "nodes: [{name: hv, type: pve, preset: small}, {name: hv2, type: pve, preset: small}, {name: in, type: vm, preset: small, parent: hv2}]\n";

#[test]
fn the_guest_of_a_node_that_was_moved_to_another_parent_is_named_and_can_be_removed() {
    let (hv, hv2, kid) = (ours("hv", 200), ours("hv2", 201), ours("in", 300));
    let known = [record(&hv, "hv"), record(&hv2, "hv2"), in_hv(&kid, "in")];
    let seen = |inside: &[&ObservedGuest], inside2: &[&ObservedGuest]| {
        let guests = |guests: &[&ObservedGuest]| guests.iter().map(|one| (*one).clone()).collect();
        let look = |there| Look::Seen(host(there));
        BTreeMap::from([
            (
                Place::Host("father".to_owned()),
                look(vec![hv.clone(), hv2.clone()]),
            ),
            (Place::Inside("hv".to_owned()), look(guests(inside))),
            (Place::Inside("hv2".to_owned()), look(guests(inside2))),
        ])
    };
    let made = |looks: &BTreeMap<Place, Look>, records: &[NodeRecord], options: &Options| {
        looked(TO_HV2, looks, (records, &Elsewhere::default()), options)
    };
    let apply = Options::new(Verb::Apply);
    let before = seen(&[&kid], &[]);
    let plan = made(&before, &known, &apply);
    assert_eq!(plan.refusals, []);
    let new = plan.node("in").expect("the node");
    assert_eq!(new.action, Action::Create);
    // Two guests never have one identity.
    let uuid = new.wanted.as_ref().map(|wanted| wanted.uuid.clone());
    assert_ne!(uuid, kid.uuid);
    assert!(reasons(&plan, "in").contains("guest 300"), "{new:#?}");
    let old = plan.node("in#300").expect("the old guest");
    assert_eq!(
        (old.action, old.place.to_string()),
        (Action::Leave, "node hv".to_owned())
    );
    let pruned = made(&before, &known, &prune());
    let old = pruned.node("in#300").expect("the old guest");
    assert_eq!(old.action, Action::Destroy);
    // What is recorded of the node is the new guest's.
    assert_eq!(old.record_name(), "in#300");
    // It is removed afterwards too.
    let moved = ObservedGuest {
        uuid,
        ..kid.clone()
    };
    let after = seen(&[&kid], &[&moved]);
    let in_hv2 = NodeRecord {
        place: Place::Inside("hv2".to_owned()),
        ..record(&moved, "in")
    };
    let records = [known[0].clone(), known[1].clone(), in_hv2];
    let plan = made(&after, &records, &Options::new(Verb::Destroy));
    assert_eq!(plan.refusals, []);
    assert_eq!(
        steps_of(&plan, Action::Destroy),
        ["hv", "hv2", "in", "in#300"]
    );
    let plan = made(&after, &records, &apply);
    assert_eq!(
        plan.node("in").map(|node| node.action),
        Some(Action::Nothing)
    );
}

fn steps_of(plan: &Plan, action: Action) -> Vec<&str> {
    let nodes = plan.nodes.iter().filter(|node| node.action == action);
    let mut names: Vec<&str> = nodes.map(|node| node.name.as_str()).collect();
    names.sort_unstable();
    names
}
