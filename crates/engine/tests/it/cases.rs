//! Manifests for crash and fault tests, with snapshots of the World before and after.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

use homestak_core::plan::{Plan, PlanOptions, Verb};
use homestak_engine::journal::RunOutcome;
use homestak_sim::World;

use crate::env::{TestEnv, world_in};

/// A change from one manifest to another.
pub struct Case {
    pub name: &'static str,
    /// The manifest that is applied before.
    pub before: Option<&'static str>,
    pub manifest: &'static str,
    pub verb: Verb,
    /// Whether undoing restores exactly the previous state.
    pub reversible: bool,
}

pub const CASES: &[Case] = &[
    Case {
        name: "peers",
        before: None,
        manifest: "\
nodes:
  - {name: one, preset: vm-small, image: debian-12}
  - {name: two, preset: vm-small, image: debian-12, vmid: 7001}
  - {name: box, type: ct, preset: vm-small, template: debian-12-standard}
",
        verb: Verb::Apply,
        reversible: true,
    },
    Case {
        name: "tiers",
        before: None,
        manifest: "\
nodes:
  - {name: inner, type: pve, preset: vm-large, image: pve-9}
  - {name: leaf, preset: vm-small, image: debian-12, parent: inner}
  - {name: twig, type: ct, preset: vm-small, template: debian-12-standard, parent: inner}
",
        verb: Verb::Apply,
        reversible: true,
    },
    Case {
        name: "change",
        before: Some(
            "\
nodes:
  - {name: one, preset: vm-small, image: debian-12}
  - {name: two, preset: vm-small, image: debian-12}
",
        ),
        manifest: "\
nodes:
  - {name: one, preset: vm-small, image: debian-12, memory: 2048, cores: 2}
  - {name: two, preset: vm-small, image: debian-12, memory: 3072}
",
        verb: Verb::Apply,
        reversible: true,
    },
    Case {
        name: "replace and prune",
        before: Some(
            "\
nodes:
  - {name: one, preset: vm-small, image: debian-12, vmid: 7001}
  - {name: gone, preset: vm-small, image: debian-12, vmid: 7002}
",
        ),
        manifest: "\
nodes:
  - {name: one, preset: vm-small, image: debian-12, vmid: 7002}
  - {name: new, preset: vm-small, image: debian-12, vmid: 7001}
",
        verb: Verb::Apply,
        reversible: false,
    },
    Case {
        name: "destroy",
        before: Some(
            "\
nodes:
  - {name: inner, type: pve, preset: vm-large, image: pve-9}
  - {name: leaf, preset: vm-small, image: debian-12, parent: inner}
  - {name: side, preset: vm-small, image: debian-12}
",
        ),
        manifest: "\
nodes:
  - {name: inner, type: pve, preset: vm-large, image: pve-9}
  - {name: leaf, preset: vm-small, image: debian-12, parent: inner}
  - {name: side, preset: vm-small, image: debian-12}
",
        verb: Verb::Destroy,
        reversible: false,
    },
];

/// The state of a World: guests with their sizes and power, volumes, and the Worlds inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    guests: BTreeMap<u32, (String, bool, String)>,
    volumes: Vec<(String, String)>,
    inside: BTreeMap<String, Self>,
}

pub fn snapshot(world: &World) -> Snapshot {
    let mut guests = BTreeMap::new();
    let mut inside = BTreeMap::new();
    for guest in world.guests() {
        let text = |key: &str| guest.config.get(key).cloned().unwrap_or_default();
        let name = text("name") + &text("hostname");
        if let Some(inner) = world_in(world, &name) {
            inside.insert(name.clone(), snapshot(&inner));
        }
        let rest = ["cores", "memory", "tags", "lock", "smbios1", "ide2"];
        let rest: Vec<String> = rest
            .iter()
            .map(|key| format!("{key}={}", anonymous(&text(key))))
            .collect();
        let known = guests.insert(guest.vmid, (name, guest.running, rest.join(" ")));
        assert_eq!(known, None);
    }
    let mut volumes = world.volumes();
    volumes.sort();
    Snapshot {
        guests,
        volumes,
        inside,
    }
}

/// Masks identities, because each replacement of a node has a new one.
fn anonymous(text: &str) -> String {
    let is_part = |c: char| c.is_ascii_hexdigit() || c == '-';
    let words = text.split_inclusive(|c: char| !is_part(c));
    let mut masked = String::new();
    for word in words {
        let id = word.trim_end_matches(|c: char| !is_part(c));
        let hidden = id.len() >= 36;
        masked.push_str(if hidden { "ID" } else { id });
        masked.push_str(&word[id.len()..]);
    }
    masked
}

impl Case {
    pub fn options(&self) -> PlanOptions {
        PlanOptions {
            prune: self.verb == Verb::Apply,
            ..PlanOptions::new(self.verb)
        }
    }

    /// Creates an environment in which the manifest of `before` is applied.
    pub async fn env(&self) -> TestEnv {
        let env = TestEnv::new();
        if let Some(before) = self.before {
            assert_eq!(env.apply(before).await, RunOutcome::Done);
        }
        // The list of guests is updated after some seconds; a plan must see the final one.
        env.wait_until_idle().await;
        env
    }

    pub async fn plan(&self, env: &TestEnv) -> Plan {
        env.plan_with(self.manifest, &self.options()).await
    }

    /// Returns snapshots before and after, without faults.
    pub async fn snapshots(&self) -> (Snapshot, Snapshot) {
        let env = self.env().await;
        let before = snapshot(&env.world);
        let plan = self.plan(&env).await;
        assert_eq!(env.execute(&plan).await, RunOutcome::Done);
        env.wait_until_idle().await;
        (before, snapshot(&env.world))
    }
}

/// Returns whether a point is tested: all in a full run, otherwise a sample by a printed seed, so
/// that a failure can be reproduced.
pub fn is_tried(case: &str, point: usize, one_in: u64) -> bool {
    let variable = |name| std::env::var(name).ok();
    if variable("HOMESTAK_TEST_FULL").is_some() {
        return true;
    }
    let seed = variable("HOMESTAK_TEST_SEED").unwrap_or_default();
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    hasher.hash_one((seed, case, point)) % one_in == 0
}
