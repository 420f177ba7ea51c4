//! What a plan requires of a Proxmox VE host. Changes nothing.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use homestak_core::observed::GuestKind;
use homestak_core::plan::{self, Action, NodeLocation, Plan};
use homestak_core::units::{Bytes, Gib};
use homestak_providers::pve::preflight::{
    FileRequirement, Requirements, SiteRequirements, StorageRequirement,
};

use crate::error::DriverError;
use crate::hosts::pve::document;
use crate::session::Session;

pub use homestak_providers::finding::{Finding, Severity};
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

/// Returns what a plan requires of a host; without a plan, what creating virtual machines requires.
pub(crate) fn wanted(
    name: &str,
    plan: Option<&Plan>,
    session: &Session,
) -> Result<Requirements, DriverError> {
    let node = document(name, session)?;
    let defaults = session.catalog.defaults();
    let made = made(plan, name);
    let host = made.first().map(|one| one.host.clone());
    let host = host.or_else(|| node.node.as_ref().map(ToString::to_string));
    let host = host.unwrap_or_else(|| name.to_owned());
    let containers = made.iter().any(|one| one.kind == GuestKind::Ct);
    let mut storages: BTreeMap<String, StorageRequirement> = BTreeMap::new();
    let mut need = |storage: &str, content: &str, size: Gib| {
        let entry = storages.entry(storage.to_owned());
        let entry = entry.or_insert_with(|| StorageRequirement {
            host: host.clone(),
            storage: storage.to_owned(),
            content: Vec::new(),
            size: Bytes::default(),
        });
        entry.size.0 += Bytes::from(size).0;
        if !entry.content.iter().any(|known| known == content) {
            entry.content.push(content.to_owned());
        }
    };
    for one in &made {
        let (disk, images) = match one.kind {
            GuestKind::Vm => ("images", &["iso", "import"][..]),
            GuestKind::Ct => ("rootdir", &["vztmpl"][..]),
        };
        if let Some(storage) = &one.storage {
            need(storage, disk, one.disk);
        }
        if let Some(storage) = &one.image_storage {
            images
                .iter()
                .for_each(|content| need(storage, content, Gib(0)));
        }
    }
    if made.is_empty() {
        let datastore = node
            .datastore
            .as_ref()
            .or_else(|| defaults?.datastore.as_ref());
        need(datastore.map_or(IMAGE_STORAGE, |one| one), "images", Gib(0));
        need(IMAGE_STORAGE, "iso", Gib(0));
        need(IMAGE_STORAGE, "import", Gib(0));
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
    let of = |content: &str| {
        let holds = |one: &&StorageRequirement| one.content.iter().any(|known| known == content);
        let storages = storages.values().filter(holds);
        storages.map(|one| one.storage.clone()).collect::<Vec<_>>()
    };
    let secrets = session.catalog.secrets.as_ref();
    let keys = secrets.and_then(|secrets| secrets.value.as_ref()?.ssh_keys.as_ref());
    Ok(Requirements {
        hosts: vec![host.clone()],
        abilities: Abilities {
            vms: true,
            containers,
            downloads: Vec::new(),
            storages: [of("images"), of("rootdir")].concat(),
            images: [of("iso"), of("vztmpl")].concat(),
        },
        images: images.collect(),
        nested: match made.iter().any(|one| one.hosts_guests) {
            true => vec![host],
            false => Vec::new(),
        },
        storages: storages.into_values().collect(),
        bridges,
        ssh: node
            .ip
            .as_ref()
            .map(|ip| SocketAddr::new(ip.value, 22))
            .into_iter()
            .collect(),
        site: SiteRequirements {
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
        },
    })
}
