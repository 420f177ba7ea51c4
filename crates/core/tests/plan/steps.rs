//! Step ids: unique in every plan, independent of the rest of it, serialized with it.

use homestak_core::plan::{StepId, Steps, steps};

use super::*;

/// The state of a node before the plan.
#[derive(Clone, Copy, Debug)]
enum NodeState {
    Absent,
    Creating,
    Stopped,
    Small,
    Running,
}

/// Nested hypervisors, and the state of each.
fn node_states() -> impl Strategy<Value = (Vec<Option<usize>>, Vec<NodeState>, usize)> {
    let states = prop::sample::select(vec![
        NodeState::Absent,
        NodeState::Creating,
        NodeState::Stopped,
        NodeState::Small,
        NodeState::Running,
        NodeState::Running,
    ]);
    (forest(), prop::collection::vec(states, 12), 0..3_usize)
}

fn options(which: usize) -> PlanOptions {
    PlanOptions {
        prune: which == 1,
        ..PlanOptions::new(if which == 2 {
            Verb::Destroy
        } else {
            Verb::Apply
        })
    }
}

/// Plans with an orphan of the same name and id in every running node.
fn plan_of(
    text: &str,
    parents: &[Option<usize>],
    states: &[NodeState],
    options: &PlanOptions,
) -> Plan {
    let location = |parent: Option<usize>| match parent {
        Some(parent) => NodeLocation::Inside(format!("n{parent}")),
        None => NodeLocation::Host("father".to_owned()),
    };
    let mut seen: BTreeMap<NodeLocation, Vec<ObservedGuest>> = BTreeMap::new();
    let mut records = Vec::new();
    for (at, parent) in parents.iter().enumerate() {
        let (name, vmid) = (format!("n{at}"), 600 + u32::try_from(at).expect("small"));
        let mut guest = ours(&name, vmid);
        match states[at] {
            NodeState::Absent => continue,
            NodeState::Creating | NodeState::Running => {}
            NodeState::Stopped => guest.power = PowerState::Stopped,
            NodeState::Small => (guest.cores, guest.disk) = (Some(7), Some(Gib(1).into())),
        }
        records.push(NodeRecord {
            location: location(*parent),
            hosts_guests: Some(true),
            status: match states[at] {
                NodeState::Creating => NodeStatus::Creating,
                _ => NodeStatus::Ready,
            },
            ..record(&guest, &name)
        });
        if matches!(states[at], NodeState::Running) {
            seen.entry(location(Some(at)))
                .or_default()
                .push(ours("twin", 700));
        }
        seen.entry(location(*parent)).or_default().push(guest);
    }
    seen.entry(location(None)).or_default();
    let observations = seen.into_iter();
    let observations =
        observations.map(|(location, guests)| (location, Observation::Available(host(guests))));
    let other = OtherRecords::default();
    plan_observed(text, &observations.collect(), (&records, &other), options)
}

/// Returns each step with its node or image and the ids of its dependencies.
fn by_name(plan: &Plan) -> BTreeMap<StepId, (StepKind, String, BTreeSet<StepId>)> {
    let subject = |step: &Step| match (step.node, step.image) {
        (Some(at), _) => format!("{} {}", plan.nodes[at].location, plan.nodes[at].name),
        (None, Some(at)) => format!("{} {}", plan.images[at].location, plan.images[at].file),
        (None, None) => String::new(),
    };
    let names = |step: &Step| {
        step.after
            .iter()
            .map(|at| plan.steps[*at].id.clone())
            .collect()
    };
    let steps = plan.steps.iter();
    steps
        .map(|step| (step.id.clone(), (step.kind, subject(step), names(step))))
        .collect()
}

proptest! {
    #[test]
    fn every_step_of_every_plan_has_a_unique_id((parents, states, which) in node_states()) {
        let plan = plan_of(&text_of(&parents), &parents, &states, &options(which));
        let named = by_name(&plan);
        prop_assert_eq!(named.len(), plan.steps.len());
        for (at, step) in plan.steps.iter().enumerate() {
            prop_assert_eq!(plan.steps.position(&step.id), Some(at));
            // It starts with its kind, and no number was needed to make it unique.
            let start = format!("{}:father/", step.kind.name());
            prop_assert!(step.id.as_str().starts_with(&start), "{}", step.id);
        }
        let text = serde_json::to_string(&plan).expect("JSON");
        let back: Plan = serde_json::from_str(&text).expect("a plan");
        prop_assert_eq!(&back.steps, &plan.steps);
    }

    #[test]
    fn a_step_keeps_its_id_when_another_node_is_added((parents, states, which) in node_states()) {
        let text = text_of(&parents);
        let more = format!("{text}  - {{name: a-new-one, preset: small}}\n");
        let before = by_name(&plan_of(&text, &parents, &states, &options(which)));
        let after = by_name(&plan_of(&more, &parents, &states, &options(which)));
        for (id, step) in &before {
            prop_assert_eq!(after.get(id), Some(step), "{}", id);
        }
        let new = after.keys().filter(|id| !before.contains_key(*id));
        for id in new {
            prop_assert!(id.as_str().ends_with("a-new-one") || id.as_str().starts_with("image:"));
        }
    }
}

#[test]
fn guests_of_one_name_and_id_in_three_locations_have_separate_steps() {
    let parents = [None, None, None];
    let plan = plan_of(
        &text_of(&parents),
        &parents,
        &[NodeState::Running; 3],
        &options(1),
    );
    let names: Vec<&str> = plan.steps.iter().map(|step| step.id.as_str()).collect();
    let mut removed: Vec<&str> = names
        .into_iter()
        .filter(|id| id.starts_with("destroy"))
        .collect();
    removed.sort_unstable();
    let expected = [
        "destroy:father/n0/twin",
        "destroy:father/n1/twin#700",
        "destroy:father/n2/twin#700",
    ];
    assert_eq!(removed, expected);
}

#[test]
fn step_ids_contain_kind_and_location() {
    let text = "nodes:\n  - {name: hv, type: pve, preset: small, image: pve-9}\n  - {name: web, preset: small, image: debian-12, parent: hv}\n";
    let plan = apply(text, Vec::new());
    let names: Vec<&str> = plan.steps.iter().map(|step| step.id.as_str()).collect();
    let expected = [
        "image:father/pve-9.qcow2",
        "create:father/hv",
        "start:father/hv",
        "ready:father/hv",
        "discard:father/hv",
        "image:father/hv/debian-12.qcow2",
        "create:father/hv/web",
        "start:father/hv/web",
        "ready:father/hv/web",
        "discard:father/hv/web",
    ];
    assert_eq!(names, expected);
}

#[test]
fn a_node_with_guests_on_two_hosts_has_steps_for_each() {
    let old = |host: &str, vmid| {
        let mut record = record(&ours("a", vmid), "a");
        record.host = host.to_owned();
        record.location = NodeLocation::Host(host.to_owned());
        record.site = None;
        record
    };
    let records = [old("father", 200), old("mother", 300)];
    let seen = |vmid| {
        let guest = ObservedGuest {
            site: None,
            ..ours("a", vmid)
        };
        Observation::Available(host(vec![guest]))
    };
    let observations = [("father", 200), ("mother", 300)]
        .map(|(name, vmid)| (NodeLocation::Host(name.to_owned()), seen(vmid)));
    let options = PlanOptions::new(Verb::Reidentify);
    let journal = (&records[..], &OtherRecords::default());
    let plan = plan_observed(TWO, &observations.into(), journal, &options);
    let names: Vec<&str> = plan.steps.iter().map(|step| step.id.as_str()).collect();
    assert_eq!(names, ["reidentify:father/a", "reidentify:mother/a"]);
}

#[test]
fn guests_with_the_same_name_do_not_share_a_step() {
    let mut plan = planned(TWO, vec![ours("a", 200)], &PlanOptions::new(Verb::Destroy));
    let node = plan.node("a").expect("a").clone();
    plan.nodes = vec![node.clone(), node];
    let steps = steps(&plan);
    let names: BTreeSet<&str> = steps.iter().map(|step| step.id.as_str()).collect();
    assert_eq!((steps.len(), names.len()), (4, 4));
}

#[test]
fn duplicate_steps_and_invalid_dependencies_are_rejected() {
    let step = |id: &str, after: &[&str]| serde_json::json!({"id": id, "kind": "start", "node": 0, "after": after});
    let read = |steps| serde_json::from_value::<Steps>(serde_json::Value::Array(steps));
    assert_eq!(
        read(vec![step("a", &[]), step("b", &["a"])])
            .expect("steps")
            .len(),
        2
    );
    for wrong in [
        vec![step("a", &[]), step("a", &[])],
        vec![step("a", &["b"]), step("b", &[])],
        vec![step("a", &["a"])],
        vec![step("a", &["nowhere"])],
    ] {
        assert!(read(wrong).is_err());
    }
}

#[test]
fn a_plan_is_the_same_work_when_only_lines_and_reasons_differ() {
    let text = "nodes:\n  - {name: a, preset: small}\n  - {name: b, preset: small, vmid: 900}\n";
    let there = vec![guest("other", 900, PowerState::Stopped, None)];
    let plan = |text: &str| apply(text, there.clone());
    let (before, after) = (plan(text), plan(&format!("# A comment.\n\n{text}")));
    assert_ne!(before, after, "lines are shown");
    assert!(!before.refusals.is_empty());
    assert!(before.same_work(&after));
    assert!(!before.same_work(&plan(&text.replace("900", "901"))));
}
