//! What a plan requires of a Proxmox VE host. Changes nothing.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use homestak_core::observed::GuestKind;
use homestak_core::plan::{self, Action, NodeLocation, NodePlan, Plan};
use homestak_core::units::{Bytes, Mib};
use homestak_providers::pve::preflight::{
    FileRequirement, Requirements, SiteRequirements, StorageRequirement,
};

use crate::error::DriverError;
use crate::hosts::pve::document;
use crate::session::Session;

pub use homestak_providers::finding::{Finding, FindingSeverity};
pub use homestak_providers::pve::preflight::worst;
pub use homestak_providers::pve::role::{Abilities, grants, is_verified, render};

/// The storage of images and seeds, which every Proxmox VE has.
const IMAGE_STORAGE: &str = "local";

/// Returns the guests that a plan creates on a host.
pub(crate) fn made<'p>(plan: Option<&'p Plan>, host: &str) -> Vec<&'p plan::DesiredGuest> {
    let here = NodeLocation::Host(host.to_owned());
    let nodes = plan.iter().flat_map(|plan| &plan.nodes);
    nodes
        .filter(|node| node.location == here)
        .filter(|node| matches!(node.action, Action::Create | Action::Replace))
        .filter_map(|node| node.wanted.as_ref())
        .collect()
}

/// Returns the nodes on a host that a plan changes.
fn changed<'p>(plan: Option<&'p Plan>, host: &str) -> Vec<&'p NodePlan> {
    let here = NodeLocation::Host(host.to_owned());
    let nodes = plan.iter().flat_map(|plan| &plan.nodes);
    nodes
        .filter(|node| node.location == here && node.action.changes())
        .collect()
}

/// Returns the kinds of the guests of a node: those that are deleted, changed and created.
fn kinds(node: &NodePlan) -> impl Iterator<Item = GuestKind> {
    let found = node.found.as_ref().map(|found| found.guest.kind);
    let wanted = node.wanted.as_ref().map(|wanted| wanted.kind);
    found.into_iter().chain(wanted)
}

/// Returns the memory of a guest that gets more.
fn more_memory(node: &NodePlan) -> Option<Mib> {
    let (wanted, found) = (node.wanted.as_ref()?.memory, node.found.as_ref()?.memory);
    let is_more = found.is_none_or(|found| found < wanted);
    (node.action == Action::Change && is_more).then_some(wanted)
}

/// Storages that a plan uses on a host.
struct Storages {
    host: String,
    by_name: BTreeMap<String, StorageRequirement>,
}

impl Storages {
    /// Adds what is used of a storage.
    fn need(&mut self, storage: &str, content: &str, size: Bytes) -> &mut StorageRequirement {
        let entry = self.by_name.entry(storage.to_owned());
        let entry = entry.or_insert_with(|| StorageRequirement {
            host: self.host.clone(),
            storage: storage.to_owned(),
            content: Vec::new(),
            size: Bytes::default(),
            largest: Bytes::default(),
        });
        entry.size.0 += size.0;
        if !entry.content.iter().any(|known| known == content) {
            entry.content.push(content.to_owned());
        }
        entry
    }

    /// Adds the disk and the images of a guest that is created.
    fn create(&mut self, guest: &plan::DesiredGuest) {
        let images = match guest.kind {
            GuestKind::Vm => &["iso", "import"][..],
            GuestKind::Ct => &["vztmpl"],
        };
        if let Some(storage) = &guest.storage {
            let disk = Bytes::from(guest.disk);
            let entry = self.need(storage, disk_content(guest.kind), disk);
            entry.largest = entry.largest.max(disk);
        }
        if let Some(storage) = &guest.image_storage {
            for content in images {
                self.need(storage, content, Bytes::default());
            }
        }
    }

    /// Adds what the disk of a guest grows by.
    fn grow(&mut self, node: &NodePlan) {
        let (Some(wanted), Some(found)) = (&node.wanted, &node.found) else {
            return;
        };
        let (Some(storage), Some(disk)) = (&wanted.storage, found.disk) else {
            return;
        };
        let (now, then) = (Bytes::from(disk), Bytes::from(wanted.disk));
        if now < then {
            let growth = Bytes(then.0 - now.0);
            self.need(storage, disk_content(wanted.kind), growth);
        }
    }

    /// Returns the storages with some content.
    fn of(&self, content: &str) -> Vec<String> {
        let holds = |one: &&StorageRequirement| one.content.iter().any(|known| known == content);
        let storages = self.by_name.values().filter(holds);
        storages.map(|one| one.storage.clone()).collect()
    }
}

/// Returns the content type of the disks of guests.
fn disk_content(kind: GuestKind) -> &'static str {
    match kind {
        GuestKind::Vm => "images",
        GuestKind::Ct => "rootdir",
    }
}

/// Returns what a plan requires of a host; without a plan, what creating virtual machines requires.
pub(crate) fn wanted(
    name: &str,
    plan: Option<&Plan>,
    session: &Session,
) -> Result<Requirements, DriverError> {
    let node = document(name, session)?;
    let defaults = session.catalog.defaults();
    let (made, changed) = (made(plan, name), changed(plan, name));
    let host = made.first().map(|one| one.host.clone());
    let host = host.or_else(|| node.node.as_ref().map(ToString::to_string));
    let found = |node: &&NodePlan| Some(node.found.as_ref()?.guest.host.clone());
    let host = host.or_else(|| changed.iter().find_map(found));
    let host = host.unwrap_or_else(|| name.to_owned());
    let has = |kind| {
        changed
            .iter()
            .any(|node| kinds(node).any(|one| one == kind))
    };
    let mut storages = Storages {
        host: host.clone(),
        by_name: BTreeMap::new(),
    };
    made.iter().for_each(|guest| storages.create(guest));
    let grown = changed.iter().filter(|node| node.action == Action::Change);
    grown.for_each(|node| storages.grow(node));
    // What is removed first leaves room that is not known yet, so a lack of it is only a warning.
    let removes = |node: &&NodePlan| matches!(node.action, Action::Replace | Action::Destroy);
    if changed.iter().any(removes) {
        let storages = storages.by_name.values_mut();
        storages.for_each(|one| one.largest = Bytes::default());
    }
    if plan.is_none() {
        let datastore = node
            .datastore
            .as_ref()
            .or_else(|| defaults?.datastore.as_ref());
        let datastore = datastore.map_or(IMAGE_STORAGE, |one| one);
        for (storage, content) in [
            (datastore, "images"),
            (IMAGE_STORAGE, "iso"),
            (IMAGE_STORAGE, "import"),
        ] {
            storages.need(storage, content, Bytes::default());
        }
    }
    let images = plan.iter().flat_map(|plan| &plan.images);
    let images = images.filter(|image| image.location == NodeLocation::Host(name.to_owned()));
    let images = images.filter_map(|image| {
        Some(FileRequirement {
            host: image.host.clone(),
            storage: image.storage.clone()?,
            content: match image.kind {
                GuestKind::Vm => "import".to_owned(),
                GuestKind::Ct => "vztmpl".to_owned(),
            },
            file: image.file.clone(),
            source: image.url.clone(),
        })
    });
    let mut bridges: Vec<(String, String)> = made
        .iter()
        .filter_map(|one| Some((one.host.clone(), one.nic.bridge.clone()?)))
        .collect();
    bridges.sort();
    bridges.dedup();
    let resized = changed.iter().filter_map(|node| more_memory(node));
    let memory = made.iter().map(|one| one.memory).chain(resized).max();
    let secrets = session.catalog.secrets.as_ref();
    let keys = secrets.and_then(|secrets| secrets.value.as_ref()?.ssh_keys.as_ref());
    let site = SiteRequirements {
        fixed_addresses: made.iter().any(|one| one.nic.address.is_some()),
        gateway: defaults
            .and_then(|defaults| defaults.gateway.as_ref())
            .map(|gateway| gateway.value),
        dns: defaults
            .and_then(|defaults| defaults.dns_servers.as_ref())
            .map(|dns| dns.iter().map(|ip| ip.value).collect())
            .unwrap_or_default(),
        domain: defaults
            .and_then(|defaults| defaults.domain.as_ref())
            .map(ToString::to_string),
        ssh_keys: keys.map_or(0, |keys| keys.len()),
    };
    Ok(Requirements {
        abilities: Abilities {
            vms: plan.is_none() || has(GuestKind::Vm),
            containers: has(GuestKind::Ct),
            downloads: Vec::new(),
            storages: [storages.of("images"), storages.of("rootdir")].concat(),
            images: [storages.of("iso"), storages.of("vztmpl")].concat(),
        },
        memory: memory
            .map(|memory| (host.clone(), memory.into()))
            .into_iter()
            .collect(),
        images: images.collect(),
        nested: match made.iter().any(|one| one.hosts_guests) {
            true => vec![host.clone()],
            false => Vec::new(),
        },
        hosts: vec![host],
        storages: storages.by_name.into_values().collect(),
        bridges,
        ssh: node
            .ip
            .as_ref()
            .map(|ip| SocketAddr::new(ip.value, 22))
            .into_iter()
            .collect(),
        // Guests that exist have their network and their keys.
        site: (plan.is_none() || !made.is_empty()).then_some(site),
    })
}
