//! The cases: manifests, and snapshots of the World before and after.

use std::collections::BTreeMap;

use homestak_sim::World;

use super::setup::{InitialState, Setup, world_in};

/// A change from one manifest to another.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// The manifest that is applied before.
    pub(super) before: Option<&'static str>,
    pub(super) manifest: &'static str,
    pub(super) command: &'static [&'static str],
    /// Whether a rollback restores exactly the World before.
    pub(super) is_reversible: bool,
}

const APPLY: &[&str] = &[
    "manifest",
    "apply",
    "-M",
    "m",
    "-H",
    "father",
    "--prune",
    "--yes",
    "--skip-preflight",
    "--events",
];
const DESTROY: &[&str] = &[
    "manifest",
    "destroy",
    "-M",
    "m",
    "-H",
    "father",
    "--yes",
    "--skip-preflight",
    "--events",
];

const TIERS: &str = "\
nodes:
  - {name: inner, type: pve, preset: vm-large, image: pve-9, vmid: 7100}
  - {name: leaf, preset: vm-small, image: debian-12, parent: inner}
  - {name: twig, type: ct, preset: vm-small, template: debian-12-standard, parent: inner}
";

pub(super) const CASES: &[Case] = &[
    Case {
        name: "peers",
        before: None,
        manifest: "\
nodes:
  - {name: one, preset: vm-small, image: debian-12}
  - {name: two, preset: vm-small, image: debian-12, vmid: 7001}
  - {name: box, type: ct, preset: vm-small, template: debian-12-standard}
",
        command: APPLY,
        is_reversible: true,
    },
    Case {
        name: "tiers",
        before: None,
        manifest: TIERS,
        command: APPLY,
        is_reversible: true,
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
  - {name: one, preset: vm-small, image: debian-12, memory: 3072, cores: 2}
  - {name: two, preset: vm-small, image: debian-12, memory: 4096}
",
        command: APPLY,
        is_reversible: true,
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
        command: APPLY,
        is_reversible: false,
    },
    Case {
        name: "destroy",
        before: Some(TIERS),
        manifest: TIERS,
        command: DESTROY,
        is_reversible: false,
    },
];

/// The compared parts of a World: guests with their sizes and power, volumes and files, and the
/// same of nested Worlds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    guests: BTreeMap<u32, (String, bool, String)>,
    volumes: Vec<(String, String)>,
    inside: BTreeMap<String, Self>,
}

pub(super) fn snapshot(world: &World) -> Snapshot {
    let mut guests = BTreeMap::new();
    let mut inside = BTreeMap::new();
    for guest in world.guests() {
        let text = |key: &str| guest.config.get(key).cloned().unwrap_or_default();
        let name = text("name") + &text("hostname");
        if let Some(inner) = world_in(world, guest.vmid) {
            inside.insert(name.clone(), snapshot(&inner));
        }
        let rest = ["cores", "memory", "tags", "lock", "smbios1", "ide2"];
        let rest = rest.map(|key| format!("{key}={}", anonymous(&text(key))));
        guests.insert(guest.vmid, (name, guest.running, rest.join(" ")));
    }
    let mut volumes = world.volumes();
    volumes.sort();
    Snapshot {
        guests,
        volumes,
        inside,
    }
}

/// Replaces identities: a replaced node has another one each time.
fn anonymous(text: &str) -> String {
    let is_part = |c: char| c.is_ascii_hexdigit() || c == '-';
    let mut shown = String::new();
    for word in text.split_inclusive(|c: char| !is_part(c)) {
        let id = word.trim_end_matches(|c: char| !is_part(c));
        shown.push_str(if id.len() >= 36 { "ID" } else { id });
        shown.push_str(&word[id.len()..]);
    }
    shown
}

/// The result of a case without a kill, and its numbers of crash points and requests.
pub(super) struct Baseline {
    pub(super) case: &'static Case,
    pub(super) initial: InitialState,
    pub(super) before: Snapshot,
    pub(super) after: Snapshot,
    /// Number of crash points.
    pub(super) crash_points: u64,
    /// Number of requests.
    pub(super) requests: u64,
}

impl Baseline {
    pub(super) fn of(case: &'static Case) -> Self {
        let initial = match case.before {
            None => InitialState::default(),
            Some(before) => {
                let setup = Setup::new(&InitialState::default());
                setup.manifest(before);
                setup.run(APPLY).good();
                setup.save()
            }
        };
        let setup = Setup::new(&initial);
        setup.manifest(case.manifest);
        let before = snapshot(&setup.world);
        setup.trigger.reset();
        let out = setup.run_case(case, None).good();
        let requests = setup.trigger.requests();
        setup.wait_until_idle();
        let steps = out.lines().filter(|line| line.contains("\"step-done\""));
        Self {
            case,
            before,
            after: snapshot(&setup.world),
            crash_points: 4 * steps.count() as u64,
            requests,
            initial,
        }
    }
}
