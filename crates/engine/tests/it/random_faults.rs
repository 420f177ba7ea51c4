//! Random manifests and edits, each applied to the state that the last one left, with network faults
//! and crashes. In the end the World matches the manifest.

use std::collections::BTreeMap;

use homestak_core::plan::{OnError, PlanOptions, Verb};
use homestak_engine::journal::{RunOutcome, StepEvent};
use homestak_engine::operate::Interrupt;
use homestak_sim::{Call, Fault, FaultKind, World};
use homestak_test_support::random::Random;

use crate::env::{TestEnv, documents, world_in};

/// A node of a random manifest.
#[derive(Clone, Debug)]
struct Node {
    kind: &'static str,
    parent: Option<String>,
    cores: u64,
    memory: u64,
    disk: u64,
    vmid: Option<u64>,
}

type Nodes = BTreeMap<String, Node>;

fn edit(nodes: &mut Nodes, random: &mut Random) {
    for _ in 0..=random.below(3) {
        let name = format!("n{}", random.below(6));
        match random.below(5) {
            0 | 1 => add(nodes, name, random),
            2 => remove(nodes, &name),
            3 => {
                if let Some(node) = nodes.get_mut(&name) {
                    node.memory = 512 * (1 + random.below(4));
                    node.cores = 1 + random.below(3);
                }
            }
            _ => {
                if let Some(node) = nodes.get_mut(&name) {
                    node.disk += random.below(3);
                }
            }
        }
    }
    if nodes.is_empty() {
        add(nodes, "n0".to_owned(), random);
    }
}

fn add(nodes: &mut Nodes, name: String, random: &mut Random) {
    if nodes.contains_key(&name) {
        return;
    }
    let hypervisors: Vec<String> = nodes
        .iter()
        .filter(|(_, node)| node.kind == "pve" && node.parent.is_none())
        .map(|(name, _)| name.clone())
        .collect();
    let kind = match random.below(6) {
        0 => "pve",
        1 | 2 => "ct",
        _ => "vm",
    };
    let parent = hypervisors
        .first()
        .filter(|_| kind != "pve" && random.one_in(2))
        .cloned();
    // Ids follow from names, and are sometimes the former id of another node.
    let vmid = random.one_in(3).then(|| 8000 + random.below(12));
    let vmid = vmid.filter(|vmid| nodes.values().all(|node| node.vmid != Some(*vmid)));
    let node = Node {
        kind,
        parent,
        cores: 1 + random.below(2),
        memory: 1024,
        disk: 8,
        vmid,
    };
    nodes.insert(name, node);
}

fn remove(nodes: &mut Nodes, name: &str) {
    nodes.remove(name);
    nodes.retain(|_, node| node.parent.as_deref() != Some(name));
}

fn text(nodes: &Nodes) -> String {
    let mut text = "nodes:\n".to_owned();
    for (name, node) in nodes {
        let source = match node.kind {
            "ct" => "template: debian-12-standard",
            "pve" => "image: pve-9",
            _ => "image: debian-12",
        };
        let parent = node.parent.as_ref().map(|p| format!(", parent: {p}"));
        let vmid = node.vmid.map(|vmid| format!(", vmid: {vmid}"));
        text += &format!(
            "  - {{name: {name}, type: {}, {source}, cores: {}, memory: {}, disk: {}{}{}}}\n",
            node.kind,
            node.cores,
            node.memory,
            node.disk,
            parent.unwrap_or_default(),
            vmid.unwrap_or_default(),
        );
    }
    text
}

/// Panics unless the World has exactly these nodes, running and as big as they should be.
fn assert_equals(world: &World, nodes: &Nodes, parent: Option<&str>, walk: &str) {
    let mut there: BTreeMap<String, (bool, String, String)> = BTreeMap::new();
    for guest in world.guests() {
        let text = |key: &str| guest.config.get(key).cloned().unwrap_or_default();
        let name = text("name") + &text("hostname");
        let facts = (guest.running, text("cores"), text("memory"));
        let double = there.insert(name.clone(), facts);
        assert_eq!(double, None, "{walk}: two guests `{name}`");
    }
    let wanted: BTreeMap<String, (bool, String, String)> = nodes
        .iter()
        .filter(|(_, node)| node.parent.as_deref() == parent)
        .map(|(name, node)| {
            let facts = (true, node.cores.to_string(), node.memory.to_string());
            (name.clone(), facts)
        })
        .collect();
    assert_eq!(there, wanted, "{walk}");
    for (name, node) in nodes.iter().filter(|_| parent.is_none()) {
        if node.kind == "pve" && node.parent.is_none() {
            let inner = world_in(world, name);
            let inner = inner.unwrap_or_else(|| panic!("{walk}: `{name}` is no hypervisor"));
            assert_equals(&inner, nodes, Some(name), walk);
        }
    }
}

fn add_faults(world: &World, random: &mut Random) {
    let kinds = [
        FaultKind::ResetBefore,
        FaultKind::ResetAfter,
        FaultKind::LostAnswer,
        FaultKind::RepeatedAnswer,
        FaultKind::Status(595),
        FaultKind::Status(596),
        FaultKind::Garbage,
        FaultKind::Truncated,
    ];
    for _ in 0..random.below(3) {
        let kind = kinds[usize::try_from(random.below(8)).unwrap()].clone();
        world.add_fault(Fault::new(Call::nth(1 + random.below(60)), kind));
    }
}

async fn walk(seed: u64) {
    let mut random = Random(seed);
    let mut env = TestEnv::new();
    let mut nodes = Nodes::new();
    for leg in 0..3 {
        edit(&mut nodes, &mut random);
        let manifest = text(&nodes);
        let context = format!("walk {seed}, leg {leg}:\n{manifest}");
        documents(&manifest);
        let options = PlanOptions {
            prune: true,
            on_error: Some(match random.below(3) {
                0 => OnError::Stop,
                1 => OnError::Rollback,
                _ => OnError::Continue,
            }),
            ..PlanOptions::new(Verb::Apply)
        };
        for attempt in 0.. {
            assert!(attempt < 12, "{context}does not finish");
            env.world.clear_faults();
            let calm = attempt > 3;
            // Faults while planning are tested elsewhere.
            let plan = env.plan_with(&manifest, &options).await;
            assert_eq!(plan.refusals, [], "{context}");
            if !calm {
                add_faults(&env.world, &mut random);
            }
            let point = if calm { 100_000 } else { 1 + random.below(60) };
            let ended = env.execute_until(&plan, point).await;
            if ended == Some(RunOutcome::Done) {
                break;
            }
            // Resume, roll back, or just apply again.
            let run = env.last_run();
            let (_ask, interrupt) = Interrupt::new();
            let back = run
                .entries
                .iter()
                .any(|one| one.happened == StepEvent::UndoIntent);
            match random.below(3) {
                0 if !back => _ = env.operator().resume(&run, &[], interrupt).await.unwrap(),
                1 => _ = env.operator().roll_back(&run, interrupt).await.unwrap(),
                _ => {}
            }
        }
        env.world.clear_faults();
        env.wait_until_idle().await;
        assert_equals(&env.world, &nodes, None, &context);
        let next = env.plan_with(&manifest, &options).await;
        assert!(next.is_empty(), "{context}{:#?}", next.nodes);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_random_faults_the_host_matches_the_manifest() {
    let variable = |name| std::env::var(name).ok();
    let first: u64 = variable("HOMESTAK_TEST_SEED")
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(1);
    let n_walks = if variable("HOMESTAK_TEST_FULL").is_some() {
        300
    } else {
        16
    };
    for seed in first..first + n_walks {
        walk(seed).await;
    }
}
