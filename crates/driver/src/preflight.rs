//! What a host must have for a run, and whether all hosts of a plan do.
//!
//! In: a plan, the site's documents. Out: findings, and a refusal when one is a failure.
//! Never: a change.

use std::net::SocketAddr;

use homestak_core::doc::manifest::NodeType;
use homestak_core::resolve::Resolved;
use homestak_providers::pve::preflight::{FileWanted, SiteWanted, StorageWanted, Wanted};

use crate::error::DriverError;
use crate::hosts::pve::document;
use crate::session::Session;

pub use homestak_providers::finding::{Finding, Severity};
pub use homestak_providers::pve::preflight::worst;
pub use homestak_providers::pve::role::{Abilities, grants, is_verified, render};

/// Storage of images and seeds, as every Proxmox VE has it.
const IMAGE_STORAGE: &str = "local";

/// What a run on this host needs: of the host, and of the manifest's nodes that run on it.
pub(crate) fn wanted(
    name: &str,
    resolved: Option<&Resolved>,
    session: &Session,
) -> Result<Wanted, DriverError> {
    let node = document(name, session)?;
    let host = node
        .node
        .as_ref()
        .map_or(name, |node| node.as_str())
        .to_owned();
    let defaults = session.catalog.defaults();
    let datastore = node
        .datastore
        .as_ref()
        .or_else(|| defaults?.datastore.as_ref());
    let datastore = datastore.map_or_else(|| IMAGE_STORAGE.to_owned(), ToString::to_string);
    let here: Vec<_> = resolved
        .iter()
        .flat_map(|resolved| &resolved.nodes)
        .filter(|node| node.host.as_ref().is_some_and(|host| host.value == name))
        .collect();
    let containers = here.iter().any(|node| node.kind.value == NodeType::Ct);
    let bytes: u64 = here
        .iter()
        .filter_map(|node| u64::try_from(node.size.as_ref()?.disk.value).ok())
        .map(|gib| gib << 30)
        .sum();
    let mut content = vec!["images".to_owned()];
    content.extend(containers.then(|| "rootdir".to_owned()));
    let mut images = vec!["iso".to_owned(), "import".to_owned()];
    images.extend(containers.then(|| "vztmpl".to_owned()));
    let storage = |storage: String, content, bytes| StorageWanted {
        host: host.clone(),
        storage,
        content,
        bytes,
    };
    let files = here.iter().filter_map(|node| {
        let image = node.image.as_ref()?;
        let (content, ending) = if node.kind.value == NodeType::Ct {
            ("vztmpl", "tar.zst")
        } else {
            ("import", "qcow2")
        };
        Some(FileWanted {
            host: host.clone(),
            storage: IMAGE_STORAGE.into(),
            content: content.into(),
            file: format!("{}.{ending}", image.value),
            source: source_of(&image.value, session),
        })
    });
    let mut files: Vec<FileWanted> = files.collect();
    files.sort_by(|one, other| one.file.cmp(&other.file));
    files.dedup_by(|one, other| one.file == other.file);
    let nested = resolved.is_some_and(|resolved| {
        resolved.nodes.iter().any(|node| {
            node.parent
                .as_ref()
                .is_some_and(|parent| here.iter().any(|above| above.name == *parent))
        })
    });
    let mut bridges: Vec<(String, String)> = here
        .iter()
        .map(|node| (host.clone(), node.networking.bridge.value.clone()))
        .collect();
    bridges.sort();
    bridges.dedup();
    let secrets = session
        .catalog
        .secrets
        .as_ref()
        .and_then(|secrets| secrets.value.as_ref());
    Ok(Wanted {
        hosts: vec![host.clone()],
        abilities: Abilities {
            vms: true,
            containers,
            downloads: Vec::new(),
            storages: vec![datastore.clone()],
            images: vec![IMAGE_STORAGE.to_owned()],
        },
        storages: vec![
            storage(datastore, content, bytes),
            storage(IMAGE_STORAGE.to_owned(), images, 0),
        ],
        images: files,
        nested: if nested {
            vec![host.clone()]
        } else {
            Vec::new()
        },
        bridges,
        ssh: node
            .ip
            .as_ref()
            .map(|ip| SocketAddr::new(ip.value, 22))
            .into_iter()
            .collect(),
        site: SiteWanted {
            fixed_addresses: here
                .iter()
                .any(|node| node.networking.address.value.is_some()),
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
            ssh_keys: secrets
                .and_then(|secrets| secrets.ssh_keys.as_ref())
                .map_or(0, |keys| keys.len()),
        },
    })
}

/// Returns where a run fetches an image from that is missing.
fn source_of(image: &str, session: &Session) -> Option<String> {
    let document = session.catalog.image(image)?.value.as_ref()?;
    document.source.as_ref().map(ToString::to_string)
}
