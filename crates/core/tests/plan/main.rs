//! Plans: unit tests, and properties of the plans of random manifests and inventories.

mod config;
mod guest_matching;
mod lost_guests;
mod steps;

use std::collections::{BTreeMap, BTreeSet};

use homestak_core::catalog::{Catalog, InputDocument};
use homestak_core::doc::DocumentKind;
use homestak_core::doc::manifest::Mode;
use homestak_core::doc::scalar::SiteId;
use homestak_core::observed::{
    GuestKind, GuestRef, GuestUuid, Inventory, ObservedGuest, ObservedHost, ObservedStorage,
    PowerState,
};
use homestak_core::plan::{
    Action, ConfigPlan, NodeLocation, NodeRecord, NodeStatus, Observation, OtherRecords, Plan,
    PlanInputs, PlanOptions, Records, SpecComparison, Step, StepDurations, StepKind, Verb,
    identity, plan,
};
use homestak_core::resolve::{ResolveOptions, ResolvedManifest, manifest};
use homestak_core::units::Gib;
use proptest::prelude::*;

fn documents(text: &str) -> (Catalog, ResolvedManifest) {
    let input = |kind, name: &str, text: &str| InputDocument {
        kind,
        name: name.to_owned(),
        path: format!("{name}.yaml"),
        text: Ok(text.to_owned()),
    };
    let catalog = Catalog::read(vec![
        input(DocumentKind::Manifest, "m", text),
        input(
            DocumentKind::Preset,
            "small",
            "cores: 1\nmemory: 1024\ndisk: 10\n",
        ),
        input(
            DocumentKind::Image,
            "debian-12",
            "source: https://example.org/d.qcow2\n",
        ),
        input(DocumentKind::Image, "pve-9", "recipe: {suite: trixie}\n"),
        input(
            DocumentKind::Node,
            "father",
            "api_endpoint: https://127.0.0.1:8006\n",
        ),
        input(
            DocumentKind::Node,
            "mother",
            "api_endpoint: https://127.0.0.1:8006\n",
        ),
    ]);
    let request = ResolveOptions {
        host: Some("father".to_owned()),
        ..ResolveOptions::default()
    };
    let (resolved, diagnostics) = manifest(&catalog, "m", &request);
    assert_eq!(diagnostics.errors(), 0, "{diagnostics:?}\n{text}");
    (catalog, resolved.expect("a manifest"))
}

fn host(guests: Vec<ObservedGuest>) -> Inventory {
    Inventory {
        hosts: vec![ObservedHost {
            name: "father".to_owned(),
            online: true,
            cores: Some(16),
            memory: Some(Gib(64).into()),
        }],
        guests,
        storages: vec![ObservedStorage {
            name: "local".to_owned(),
            host: "father".to_owned(),
            active: true,
            content: ["images", "import", "iso"].map(str::to_owned).to_vec(),
            available: Some(Gib(1024).into()),
            shared: false,
        }],
        requests: 1,
    }
}

fn site() -> SiteId {
    SiteId::new("kq7f2mzx4vbt3npw").expect("an id")
}

fn guest(name: &str, vmid: u32, power: PowerState, uuid: Option<GuestUuid>) -> ObservedGuest {
    ObservedGuest {
        is_unrelated: false,
        kind: GuestKind::Vm,
        vmid: vmid.into(),
        host: "father".to_owned(),
        name: name.to_owned(),
        manifest: uuid.is_some().then(|| "m".to_owned()),
        site: uuid.is_some().then(site),
        uuid,
        created_as: None,
        run: None,
        contested: None,
        power,
        template: false,
        lock: None,
        cores: Some(1),
        memory: Some(Gib(1).into()),
        disk: Some(Gib(10).into()),
        tags: Vec::new(),
    }
}

fn ours(name: &str, vmid: u32) -> ObservedGuest {
    guest(
        name,
        vmid,
        PowerState::Running,
        Some(identity::uuid(&site(), "m", "father", name)),
    )
}

fn planned(text: &str, guests: Vec<ObservedGuest>, options: &PlanOptions) -> Plan {
    recorded(text, guests, &[], options)
}

/// Plans with records of nodes.
fn recorded(
    text: &str,
    guests: Vec<ObservedGuest>,
    records: &[NodeRecord],
    options: &PlanOptions,
) -> Plan {
    with(text, guests, (records, &OtherRecords::default()), options)
}

/// Plans with records of other manifests and hosts.
fn with_journal(
    text: &str,
    guests: Vec<ObservedGuest>,
    other_records: &OtherRecords,
    options: &PlanOptions,
) -> Plan {
    with(text, guests, (&[], other_records), options)
}

fn with(
    text: &str,
    guests: Vec<ObservedGuest>,
    (records, other_records): (&[NodeRecord], &OtherRecords),
    options: &PlanOptions,
) -> Plan {
    let observations = [(
        NodeLocation::Host("father".to_owned()),
        Observation::Available(host(guests)),
    )]
    .into();
    plan_observed(text, &observations, (records, other_records), options)
}

/// Plans with observations of several locations.
fn plan_observed(
    text: &str,
    observations: &BTreeMap<NodeLocation, Observation>,
    (records, other_records): (&[NodeRecord], &OtherRecords),
    options: &PlanOptions,
) -> Plan {
    let (catalog, resolved) = documents(text);
    let records = records.iter().cloned();
    plan(&PlanInputs {
        site: &site(),
        catalog: &catalog,
        resolved: &resolved,
        observations,
        records: &records.collect(),
        other_records,
        configs: &BTreeMap::new(),
        options,
        step_durations: &StepDurations::default(),
    })
}

/// The record of a guest that is ready.
fn record(guest: &ObservedGuest, name: &str) -> NodeRecord {
    NodeRecord {
        name: name.to_owned(),
        host: "father".to_owned(),
        location: NodeLocation::Host("father".to_owned()),
        site: guest.site.clone(),
        guest: GuestRef {
            uuid: guest.uuid.clone().expect("an identity"),
            kind: guest.kind,
            vmid: Some(guest.vmid),
            host: guest.host.clone(),
        },
        status: NodeStatus::Ready,
        source: None,
        address: None,
        user: None,
        configured: None,
        hosts_guests: None,
    }
}

fn apply(text: &str, guests: Vec<ObservedGuest>) -> Plan {
    planned(text, guests, &PlanOptions::new(Verb::Apply))
}

const TWO: &str = "nodes:\n  - {name: a, preset: small}\n  - {name: b, preset: small, vmid: 500}\n";

#[test]
fn a_spec_that_a_node_refuses_is_refused_by_the_plan_with_its_reason() {
    let (catalog, resolved) = documents(TWO);
    let there = host(vec![ours("a", 200), ours("b", 500)]);
    let found = SpecComparison {
        refusals: vec!["the time zone `Europe/Nowhere` does not exist".into()],
        ..SpecComparison::default()
    };
    let config = ConfigPlan {
        spec: "base".to_owned(),
        digest: String::new(),
        port: 22,
        mode: Mode::Push,
        found: Some(found),
        unseen: None,
    };
    let plan = plan(&PlanInputs {
        site: &site(),
        catalog: &catalog,
        resolved: &resolved,
        observations: &[(
            NodeLocation::Host("father".to_owned()),
            Observation::Available(there),
        )]
        .into(),
        records: &Records::default(),
        other_records: &OtherRecords::default(),
        configs: &[("a".to_owned(), config)].into(),
        options: &PlanOptions::new(Verb::Apply),
        step_durations: &StepDurations::default(),
    });
    let [refusal] = &plan.refusals[..] else {
        panic!("{:?}", plan.refusals)
    };
    assert_eq!(refusal.node.as_deref(), Some("a"));
    assert_eq!(
        refusal.reason.text,
        "the time zone `Europe/Nowhere` does not exist"
    );
}

#[test]
fn unchanged_nodes_need_no_steps() {
    let plan = apply(TWO, vec![ours("a", 200), ours("b", 500)]);
    assert!(plan.is_empty(), "{:#?}", plan.nodes);
    assert!(plan.steps.is_empty());
}

#[test]
fn a_vmid_of_another_guest_is_refused_with_its_line() {
    let plan = apply(TWO, vec![guest("other", 500, PowerState::Running, None)]);
    let [refusal] = plan.refusals.as_slice() else {
        panic!("{:#?}", plan.refusals);
    };
    assert_eq!(refusal.node.as_deref(), Some("b"));
    assert!(refusal.reason.text.contains("`other`"), "{refusal:?}");
    assert_eq!(refusal.reason.source.as_deref(), Some("m.yaml:3:36"));
    assert_eq!(plan.foreign.len(), 1);
}

#[test]
fn the_vmid_of_a_guest_being_created_is_not_refused() {
    // How a guest is listed while it is being created.
    let plan = apply(TWO, vec![guest("", 500, PowerState::Unknown, None)]);
    assert_eq!(plan.refusals, []);
    assert_eq!(plan.node("b").map(|node| node.action), Some(Action::Create));
}

#[test]
fn an_unknown_power_state_is_refused() {
    let there = ObservedGuest {
        power: PowerState::Unknown,
        ..ours("a", 200)
    };
    let known = record(&there, "a");
    let there = vec![there, ours("b", 500)];
    let plan = recorded(TWO, there, &[known], &PlanOptions::new(Verb::Apply));
    let [refusal] = plan.refusals.as_slice() else {
        panic!("{:#?}", plan.refusals);
    };
    assert!(refusal.reason.text.contains("is unknown"), "{refusal:?}");
    assert!(plan.steps.iter().all(|step| step.kind != StepKind::Start));
}

#[test]
fn sizes_are_changed_in_place_and_disks_only_grow() {
    let text = "nodes:\n  - {name: a, preset: small, memory: 2048, disk: 20}\n";
    let plan = apply(text, vec![ours("a", 200)]);
    let node = plan.node("a").expect("a");
    assert_eq!(node.action, Action::Change);
    let reasons: Vec<&str> = node.reasons.iter().map(|one| one.text.as_str()).collect();
    let (restart, sizes) = reasons.split_last().expect("reasons");
    assert_eq!(sizes, ["memory 1024 -> 2048 MiB", "disk 10 -> 20 GiB"]);
    assert!(restart.starts_with("it is restarted"), "{restart}");
    let kinds: Vec<StepKind> = plan.steps.iter().map(|step| step.kind).collect();
    use StepKind::{Discard, Grow, Ready, Reshape, Start, Stop};
    // Nothing records whether its first-boot data was removed.
    assert_eq!(kinds, [Grow, Stop, Reshape, Start, Ready, Discard]);
    let smaller = "nodes:\n  - {name: a, preset: small, disk: 5}\n";
    let plan = apply(smaller, vec![ours("a", 200)]);
    assert!(plan.is_empty());
    assert!(plan.nodes[0].reasons[0].text.contains("never shrunk"));
}

#[test]
fn nodes_below_the_depth_are_not_planned() {
    let text = "nodes:\n  - {name: a, type: pve, preset: small, image: pve-9}\n  - {name: b, preset: small, parent: a}\n";
    let options = PlanOptions {
        depth: Some(1),
        prune: true,
        ..PlanOptions::new(Verb::Apply)
    };
    let plan = planned(text, Vec::new(), &options);
    let names: Vec<&str> = plan.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["a"]);
}

#[test]
fn an_offline_host_is_refused() {
    let (catalog, resolved) = documents(TWO);
    let mut seen = host(Vec::new());
    seen.hosts[0].online = false;
    let observations = [(
        NodeLocation::Host("father".to_owned()),
        Observation::Available(seen),
    )]
    .into();
    let options = PlanOptions::new(Verb::Apply);
    let plan = plan(&PlanInputs {
        site: &site(),
        catalog: &catalog,
        resolved: &resolved,
        observations: &observations,
        records: &Records::default(),
        other_records: &OtherRecords::default(),
        configs: &BTreeMap::new(),
        options: &options,
        step_durations: &StepDurations::default(),
    });
    assert_eq!(plan.refusals.len(), 2, "one for each node");
    assert!(plan.refusals[0].reason.text.contains("offline"));
}

#[test]
fn a_serialized_plan_deserializes_to_the_same() {
    let plan = apply(TWO, vec![guest("other", 900, PowerState::Stopped, None)]);
    let text = serde_json::to_string(&plan).expect("JSON");
    let back: Plan = serde_json::from_str(&text).expect("a plan");
    assert_eq!(back, plan);
    assert!(back.same_work(&plan));
}

#[test]
fn ten_thousand_nodes_are_planned() {
    let mut text = "nodes:\n".to_owned();
    for n in 0..10_000 {
        text += &format!("  - {{name: n{n:05}, preset: small}}\n");
    }
    let there = (0..9_999)
        .map(|n| ours(&format!("n{n:05}"), 1000 + n))
        .collect();
    let plan = apply(&text, there);
    let new: Vec<&str> = plan
        .nodes
        .iter()
        .filter(|node| node.action.changes())
        .map(|node| node.name.as_str())
        .collect();
    assert_eq!(new, ["n09999"]);
}

/// A random forest: each node is a hypervisor or runs on one.
fn forest() -> impl Strategy<Value = Vec<Option<usize>>> {
    proptest::collection::vec(any::<Option<u8>>(), 1..12).prop_map(|picks| {
        let parent = |at: usize, pick: u8| (at > 0).then(|| usize::from(pick) % at);
        let picks = picks.into_iter().enumerate();
        picks
            .map(|(at, pick)| pick.and_then(|pick| parent(at, pick)))
            .collect()
    })
}

fn text_of(parents: &[Option<usize>]) -> String {
    let mut text = "nodes:\n".to_owned();
    for (at, parent) in parents.iter().enumerate() {
        let parent = parent
            .map(|p| format!(", parent: n{p}"))
            .unwrap_or_default();
        text += &format!("  - {{name: n{at}, type: pve, preset: small, image: pve-9{parent}}}\n");
    }
    text
}

/// Returns every step that comes before another, directly or not.
fn before(steps: &[Step], at: usize) -> BTreeSet<usize> {
    let mut seen = BTreeSet::new();
    let mut open = steps[at].after.clone();
    while let Some(one) = open.pop() {
        if seen.insert(one) {
            open.extend(&steps[one].after);
        }
    }
    seen
}

proptest! {
    #[test]
    fn parents_are_ready_before_their_children_are_created(parents in forest()) {
        let plan = apply(&text_of(&parents), Vec::new());
        let steps = &plan.steps;
        let find = |node: usize, kind| {
            let name = format!("n{node}");
            steps.iter().position(|step| {
                step.kind == kind && step.node.is_some_and(|at| plan.nodes[at].name == name)
            })
        };
        for (node, parent) in parents.iter().enumerate() {
            let create = find(node, StepKind::Create).expect("a create");
            prop_assert!(!before(steps, create).contains(&create), "no cycle");
            if let Some(parent) = parent {
                let ready = find(*parent, StepKind::Ready).expect("a ready");
                prop_assert!(before(steps, create).contains(&ready));
            }
        }
    }

    #[test]
    fn the_order_of_nodes_does_not_change_the_work(parents in forest(), running in any::<u16>()) {
        let text = text_of(&parents);
        let mut lines: Vec<&str> = text.lines().skip(1).collect();
        lines.reverse();
        let reversed = format!("nodes:\n{}\n", lines.join("\n"));
        let there: Vec<ObservedGuest> = (0..parents.len())
            .filter(|at| parents[*at].is_none() && running & (1 << at) != 0)
            .map(|at| ours(&format!("n{at}"), 600 + u32::try_from(at).expect("small")))
            .collect();
        let work = |text: &str| {
            let plan = apply(text, there.clone());
            let nodes: Vec<_> = plan.nodes.iter().map(|n| (n.name.clone(), n.action, n.wanted.clone())).collect();
            (nodes, plan.steps)
        };
        prop_assert_eq!(work(&text), work(&reversed));
    }
}
