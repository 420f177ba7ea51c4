//! Steps by their names: unique in every plan, the same whatever else is in it, written with it.

use homestak_core::plan::{StepId, Steps, steps};

use super::*;

/// What there is of a node, and what the journal knows of it.
#[derive(Clone, Copy, Debug)]
enum Was {
    Absent,
    Half,
    Stopped,
    Small,
    Running,
}

/// A manifest of hypervisors in each other, and what there is of each.
fn worlds() -> impl Strategy<Value = (Vec<Option<usize>>, Vec<Was>, usize)> {
    let was = prop::sample::select(vec![
        Was::Absent,
        Was::Half,
        Was::Stopped,
        Was::Small,
        Was::Running,
        Was::Running,
    ]);
    (forest(), prop::collection::vec(was, 12), 0..3_usize)
}

fn options(which: usize) -> Options {
    Options {
        prune: which == 1,
        ..Options::new(if which == 2 {
            Verb::Destroy
        } else {
            Verb::Apply
        })
    }
}

/// Plans for a world in which every node that runs has a guest in it that the manifest does not name,
/// all of one name and id.
fn plan_of(text: &str, parents: &[Option<usize>], was: &[Was], options: &Options) -> Plan {
    let place = |parent: Option<usize>| match parent {
        Some(parent) => Place::Inside(format!("n{parent}")),
        None => Place::Host("father".to_owned()),
    };
    let mut seen: BTreeMap<Place, Vec<ObservedGuest>> = BTreeMap::new();
    let mut records = Vec::new();
    for (at, parent) in parents.iter().enumerate() {
        let (name, vmid) = (format!("n{at}"), 600 + u32::try_from(at).expect("small"));
        let mut guest = ours(&name, vmid);
        match was[at] {
            Was::Absent => continue,
            Was::Half | Was::Running => {}
            Was::Stopped => guest.power = Power::Stopped,
            Was::Small => (guest.cores, guest.disk) = (Some(7), Some(Gib(1).into())),
        }
        records.push(NodeRecord {
            place: place(*parent),
            hosts_guests: Some(true),
            status: match was[at] {
                Was::Half => NodeStatus::Creating,
                _ => NodeStatus::Ready,
            },
            ..record(&guest, &name)
        });
        if matches!(was[at], Was::Running) {
            seen.entry(place(Some(at)))
                .or_default()
                .push(ours("twin", 700));
        }
        seen.entry(place(*parent)).or_default().push(guest);
    }
    seen.entry(place(None)).or_default();
    let looks = seen.into_iter();
    let looks = looks.map(|(place, guests)| (place, Look::Seen(host(guests))));
    let elsewhere = Elsewhere::default();
    looked(text, &looks.collect(), (&records, &elsewhere), options)
}

/// Returns each step with the node or image it is about and the names of those it waits for.
fn by_name(plan: &Plan) -> BTreeMap<StepId, (StepKind, String, BTreeSet<StepId>)> {
    let subject = |step: &Step| match (step.node, step.image) {
        (Some(at), _) => format!("{} {}", plan.nodes[at].place, plan.nodes[at].name),
        (None, Some(at)) => format!("{} {}", plan.images[at].place, plan.images[at].file),
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
    fn every_step_of_every_plan_has_a_name_of_its_own((parents, was, which) in worlds()) {
        let plan = plan_of(&text_of(&parents), &parents, &was, &options(which));
        let named = by_name(&plan);
        prop_assert_eq!(named.len(), plan.steps.len());
        for (at, step) in plan.steps.iter().enumerate() {
            prop_assert_eq!(plan.steps.position(&step.id), Some(at));
            // It says what it does, and no number was needed to tell it from another.
            let start = format!("{}:father/", step.kind.word());
            prop_assert!(step.id.as_str().starts_with(&start), "{}", step.id);
        }
        let text = serde_json::to_string(&plan).expect("JSON");
        let back: Plan = serde_json::from_str(&text).expect("a plan");
        prop_assert_eq!(&back.steps, &plan.steps);
    }

    #[test]
    fn a_step_keeps_its_name_when_another_node_is_added((parents, was, which) in worlds()) {
        let text = text_of(&parents);
        let more = format!("{text}  - {{name: a-new-one, preset: small}}\n");
        let before = by_name(&plan_of(&text, &parents, &was, &options(which)));
        let after = by_name(&plan_of(&more, &parents, &was, &options(which)));
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
fn guests_of_one_name_and_id_in_three_places_have_steps_of_their_own() {
    let parents = [None, None, None];
    let plan = plan_of(
        &text_of(&parents),
        &parents,
        &[Was::Running; 3],
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
fn steps_are_named_after_what_they_do_and_where() {
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
        record.place = Place::Host(host.to_owned());
        record.site = None;
        record
    };
    let records = [old("father", 200), old("mother", 300)];
    let seen = |vmid| {
        let guest = ObservedGuest {
            site: None,
            ..ours("a", vmid)
        };
        Look::Seen(host(vec![guest]))
    };
    let looks = [("father", 200), ("mother", 300)]
        .map(|(name, vmid)| (Place::Host(name.to_owned()), seen(vmid)));
    let options = Options::new(Verb::Reidentify);
    let journal = (&records[..], &Elsewhere::default());
    let plan = looked(TWO, &looks.into(), journal, &options);
    let names: Vec<&str> = plan.steps.iter().map(|step| step.id.as_str()).collect();
    assert_eq!(names, ["reidentify:father/a", "reidentify:mother/a"]);
}

#[test]
fn guests_that_a_host_calls_the_same_do_not_share_a_step() {
    let mut plan = planned(TWO, vec![ours("a", 200)], &Options::new(Verb::Destroy));
    let node = plan.node("a").expect("a").clone();
    plan.nodes = vec![node.clone(), node];
    let steps = steps(&plan);
    let names: BTreeSet<&str> = steps.iter().map(|step| step.id.as_str()).collect();
    assert_eq!((steps.len(), names.len()), (4, 4));
}

#[test]
fn steps_that_are_there_twice_or_wait_for_what_is_not_before_them_are_not_read() {
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
    let there = vec![guest("other", 900, Power::Stopped, None)];
    let plan = |text: &str| apply(text, there.clone());
    let (before, after) = (plan(text), plan(&format!("# A comment.\n\n{text}")));
    assert_ne!(before, after, "lines are shown");
    assert!(!before.refusals.is_empty());
    assert!(before.same_work(&after));
    assert!(!before.same_work(&plan(&text.replace("900", "901"))));
}
