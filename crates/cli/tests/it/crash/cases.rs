//! What is tried at every point: manifests, and pictures of the World before and after.

use std::collections::BTreeMap;

use homestak_sim::World;

use super::rig::{Base, Rig, world_in};

/// From one manifest to another.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// What is there before.
    pub(super) before: Option<&'static str>,
    pub(super) manifest: &'static str,
    pub(super) command: &'static [&'static str],
    /// Whether undoing gives back exactly what was there before.
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

/// Everything that matters of a World: guests with their sizes and power, volumes and files, and
/// the same of the World inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Picture {
    guests: BTreeMap<u32, (String, bool, String)>,
    volumes: Vec<(String, String)>,
    inside: BTreeMap<String, Self>,
}

pub(super) fn picture(world: &World) -> Picture {
    let mut guests = BTreeMap::new();
    let mut inside = BTreeMap::new();
    for guest in world.guests() {
        let text = |key: &str| guest.config.get(key).cloned().unwrap_or_default();
        let name = text("name") + &text("hostname");
        if let Some(inner) = world_in(world, guest.vmid) {
            inside.insert(name.clone(), picture(&inner));
        }
        let rest = ["cores", "memory", "tags", "lock", "smbios1", "ide2"];
        let rest = rest.map(|key| format!("{key}={}", anonymous(&text(key))));
        guests.insert(guest.vmid, (name, guest.running, rest.join(" ")));
    }
    let mut volumes = world.volumes();
    volumes.sort();
    Picture {
        guests,
        volumes,
        inside,
    }
}

/// Hides identities: a node that was replaced has another one each time.
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

/// What a case comes to when nothing goes wrong, and how much happens on the way.
pub(super) struct Course {
    pub(super) case: &'static Case,
    pub(super) base: Base,
    pub(super) before: Picture,
    pub(super) after: Picture,
    /// How many moments there are to be killed at.
    pub(super) moments: u64,
    /// How many requests there are to be killed at.
    pub(super) requests: u64,
}

impl Course {
    pub(super) fn of(case: &'static Case) -> Self {
        let base = match case.before {
            None => Base::default(),
            Some(before) => {
                let rig = Rig::new(&Base::default());
                rig.manifest(before);
                rig.run(APPLY).good();
                rig.base()
            }
        };
        let rig = Rig::new(&base);
        rig.manifest(case.manifest);
        let before = picture(&rig.world);
        rig.fuse.reset();
        let out = rig.carry_out(case, None).good();
        let requests = rig.fuse.requests();
        rig.settle();
        let steps = out.lines().filter(|line| line.contains("\"step-done\""));
        Self {
            case,
            before,
            after: picture(&rig.world),
            moments: 4 * steps.count() as u64,
            requests,
            base,
        }
    }
}
