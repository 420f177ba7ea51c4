//! Plans as pure functions: the same for the same input, whole, in order, and big.
//!
//! In: random manifests and worlds. Out: what must hold of every plan.
//! Never: a provider.

mod bystanders;
mod insides;
mod owners;
mod steps;

use std::collections::{BTreeMap, BTreeSet};

use homestak_core::catalog::{Catalog, Input};
use homestak_core::doc::DocumentKind;
use homestak_core::doc::scalar::SiteId;
use homestak_core::observed::{
    GuestKind, GuestRef, GuestUuid, Observed, ObservedGuest, ObservedHost, ObservedStorage, Power,
};
use homestak_core::plan::{
    Action, Comparison, ConfigPlan, Elsewhere, Inputs, Look, NodeRecord, NodeStatus, Options,
    Paces, Place, Plan, Records, Step, StepKind, Verb, identity, plan,
};
use homestak_core::resolve::{Request, Resolved, manifest};
use homestak_core::units::Gib;
use proptest::prelude::*;

fn documents(text: &str) -> (Catalog, Resolved) {
    let input = |kind, name: &str, text: &str| Input {
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
    let request = Request {
        host: Some("father".to_owned()),
        ..Request::default()
    };
    let (resolved, faults) = manifest(&catalog, "m", &request);
    assert_eq!(faults.errors(), 0, "{faults:?}\n{text}");
    (catalog, resolved.expect("a manifest"))
}

fn host(guests: Vec<ObservedGuest>) -> Observed {
    Observed {
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

fn guest(name: &str, vmid: u32, power: Power, uuid: Option<GuestUuid>) -> ObservedGuest {
    ObservedGuest {
        is_stranger: false,
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
        Power::Running,
        Some(identity::uuid(&site(), "m", "father", name)),
    )
}

fn planned(text: &str, guests: Vec<ObservedGuest>, options: &Options) -> Plan {
    recorded(text, guests, &[], options)
}

/// Plans with what the journal knows of nodes.
fn recorded(
    text: &str,
    guests: Vec<ObservedGuest>,
    records: &[NodeRecord],
    options: &Options,
) -> Plan {
    with(text, guests, (records, &Elsewhere::default()), options)
}

/// Plans with what the journal knows of other manifests and hosts.
fn with_journal(
    text: &str,
    guests: Vec<ObservedGuest>,
    elsewhere: &Elsewhere,
    options: &Options,
) -> Plan {
    with(text, guests, (&[], elsewhere), options)
}

fn with(
    text: &str,
    guests: Vec<ObservedGuest>,
    (records, elsewhere): (&[NodeRecord], &Elsewhere),
    options: &Options,
) -> Plan {
    let looks = [(Place::Host("father".to_owned()), Look::Seen(host(guests)))].into();
    looked(text, &looks, (records, elsewhere), options)
}

/// Plans with what was seen at several places.
fn looked(
    text: &str,
    looks: &BTreeMap<Place, Look>,
    (records, elsewhere): (&[NodeRecord], &Elsewhere),
    options: &Options,
) -> Plan {
    let (catalog, resolved) = documents(text);
    let records = records.iter().cloned();
    plan(&Inputs {
        site: &site(),
        catalog: &catalog,
        resolved: &resolved,
        looks,
        records: &records.collect(),
        elsewhere,
        configs: &BTreeMap::new(),
        options,
        paces: &Paces::default(),
    })
}

/// What the journal knows of a guest that is ready.
fn record(guest: &ObservedGuest, name: &str) -> NodeRecord {
    NodeRecord {
        name: name.to_owned(),
        host: "father".to_owned(),
        place: Place::Host("father".to_owned()),
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
    planned(text, guests, &Options::new(Verb::Apply))
}

const TWO: &str = "nodes:\n  - {name: a, preset: small}\n  - {name: b, preset: small, vmid: 500}\n";

#[test]
fn what_a_node_refuses_is_refused_by_the_plan_with_its_reason() {
    let (catalog, resolved) = documents(TWO);
    let there = host(vec![ours("a", 200), ours("b", 500)]);
    let found = Comparison {
        refusals: vec!["time zone `Europe/Nowhere` does not exist".into()],
        ..Comparison::default()
    };
    let config = ConfigPlan {
        spec: "base".to_owned(),
        digest: String::new(),
        port: 22,
        found: Some(found),
        unseen: None,
    };
    let plan = plan(&Inputs {
        site: &site(),
        catalog: &catalog,
        resolved: &resolved,
        looks: &[(Place::Host("father".to_owned()), Look::Seen(there))].into(),
        records: &Records::default(),
        elsewhere: &Elsewhere::default(),
        configs: &[("a".to_owned(), config)].into(),
        options: &Options::new(Verb::Apply),
        paces: &Paces::default(),
    });
    let [refusal] = &plan.refusals[..] else {
        panic!("{:?}", plan.refusals)
    };
    assert_eq!(refusal.node.as_deref(), Some("a"));
    assert_eq!(
        refusal.reason.text,
        "time zone `Europe/Nowhere` does not exist"
    );
}

#[test]
fn nodes_that_are_there_as_written_need_nothing() {
    let plan = apply(TWO, vec![ours("a", 200), ours("b", 500)]);
    assert!(plan.is_empty(), "{:#?}", plan.nodes);
    assert!(plan.steps.is_empty());
}

#[test]
fn an_id_that_belongs_to_someone_else_is_refused_with_its_line() {
    let plan = apply(TWO, vec![guest("other", 500, Power::Running, None)]);
    let [refusal] = plan.refusals.as_slice() else {
        panic!("{:#?}", plan.refusals);
    };
    assert_eq!(refusal.node.as_deref(), Some("b"));
    assert!(refusal.reason.text.contains("`other`"), "{refusal:?}");
    assert_eq!(refusal.reason.source.as_deref(), Some("m.yaml:3:36"));
    assert_eq!(plan.foreign.len(), 1);
}

#[test]
fn a_guest_that_is_being_made_may_be_ours_and_is_not_refused() {
    // What the list shows of a guest whose making has just begun.
    let plan = apply(TWO, vec![guest("", 500, Power::Unknown, None)]);
    assert_eq!(plan.refusals, []);
    assert_eq!(plan.node("b").map(|node| node.action), Some(Action::Create));
}

#[test]
fn unknown_power_is_refused_and_never_planned_upon() {
    let there = ObservedGuest {
        power: Power::Unknown,
        ..ours("a", 200)
    };
    let known = record(&there, "a");
    let there = vec![there, ours("b", 500)];
    let plan = recorded(TWO, there, &[known], &Options::new(Verb::Apply));
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
    assert!(plan.nodes[0].reasons[0].text.contains("never made smaller"));
}

#[test]
fn depth_counts_levels_and_deeper_nodes_are_left_alone() {
    let text = "nodes:\n  - {name: a, type: pve, preset: small, image: pve-9}\n  - {name: b, preset: small, parent: a}\n";
    let options = Options {
        depth: Some(1),
        prune: true,
        ..Options::new(Verb::Apply)
    };
    let plan = planned(text, Vec::new(), &options);
    let names: Vec<&str> = plan.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["a"]);
}

#[test]
fn a_host_that_is_offline_or_lacks_the_storage_is_refused() {
    let (catalog, resolved) = documents(TWO);
    let mut seen = host(Vec::new());
    seen.hosts[0].online = false;
    let looks = [(Place::Host("father".to_owned()), Look::Seen(seen))].into();
    let options = Options::new(Verb::Apply);
    let plan = plan(&Inputs {
        site: &site(),
        catalog: &catalog,
        resolved: &resolved,
        looks: &looks,
        records: &Records::default(),
        elsewhere: &Elsewhere::default(),
        configs: &BTreeMap::new(),
        options: &options,
        paces: &Paces::default(),
    });
    assert_eq!(plan.refusals.len(), 2, "one for each node");
    assert!(plan.refusals[0].reason.text.contains("offline"));
}

#[test]
fn a_written_plan_reads_back_the_same() {
    let plan = apply(TWO, vec![guest("other", 900, Power::Stopped, None)]);
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
    fn parents_are_ready_before_their_children_are_made(parents in forest()) {
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
        let turned = format!("nodes:\n{}\n", lines.join("\n"));
        let there: Vec<ObservedGuest> = (0..parents.len())
            .filter(|at| parents[*at].is_none() && running & (1 << at) != 0)
            .map(|at| ours(&format!("n{at}"), 600 + u32::try_from(at).expect("small")))
            .collect();
        let work = |text: &str| {
            let plan = apply(text, there.clone());
            let nodes: Vec<_> = plan.nodes.iter().map(|n| (n.name.clone(), n.action, n.wanted.clone())).collect();
            (nodes, plan.steps)
        };
        prop_assert_eq!(work(&text), work(&turned));
    }
}
