//! What a location provides for new guests: the name of the machine and its storages.

use crate::catalog::Catalog;
use crate::host_kind::HostTraits;
use crate::observed::{Inventory, ObservedHost, ObservedStorage};

use super::types::NodeLocation;
use super::{Observation, PlanInputs};

/// The storage that every installation of Proxmox VE has.
const DEFAULT_STORAGE: &str = "local";

/// What guests at a location are created with.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HostProfile {
    /// The name the hypervisor uses for the machine.
    pub(super) host: String,
    /// The traits of its host.
    pub(super) traits: HostTraits,
    /// Storage of disks, on hosts with storages.
    pub(super) storage: Option<String>,
    /// Storage of images, templates and first-boot data, on hosts with storages.
    pub(super) image_storage: Option<String>,
    /// Why guests cannot be created there, and a hint.
    pub(super) problem: Option<(String, String)>,
}

/// Returns the profile of a location.
pub(super) fn profile(inputs: &PlanInputs<'_>, location: &NodeLocation) -> HostProfile {
    let (NodeLocation::Host(name) | NodeLocation::Inside(name)) = location;
    let seen = match inputs.observations.get(location) {
        Some(Observation::Available(observed)) => Some(observed),
        Some(Observation::Unavailable(_)) | None => None,
    };
    let profile = HostProfile {
        host: machine(inputs.catalog, name, location, seen),
        traits: inputs.traits_of(location),
        storage: None,
        image_storage: None,
        problem: None,
    };
    let problem = seen.and_then(|observed| machine_problem(observed, &profile.host, name));
    if !profile.traits.has_storages {
        return HostProfile { problem, ..profile };
    }
    let named = datastore(inputs.catalog, name);
    let Some(observed) = seen else {
        return HostProfile {
            storage: named.or_else(|| Some(DEFAULT_STORAGE.to_owned())),
            image_storage: Some(DEFAULT_STORAGE.to_owned()),
            ..profile
        };
    };
    let host = &profile.host;
    let there: Vec<&ObservedStorage> = observed
        .storages
        .iter()
        .filter(|storage| storage.host == *host && storage.active)
        .collect();
    let holding = |content: &str| {
        let fits = |storage: &&&ObservedStorage| storage.content.iter().any(|c| c == content);
        // The default one first, so that the choice does not change when another one is added.
        let default = there
            .iter()
            .filter(fits)
            .find(|s| s.name == DEFAULT_STORAGE);
        default
            .or_else(|| there.iter().find(fits))
            .map(|storage| storage.name.clone())
    };
    let storage = named.clone().or_else(|| holding("images"));
    let storage = storage.unwrap_or_else(|| DEFAULT_STORAGE.to_owned());
    let image_storage = holding("import").or_else(|| holding("iso"));
    let image_storage = image_storage.unwrap_or_else(|| DEFAULT_STORAGE.to_owned());
    let problem =
        problem.or_else(|| storage_problem(observed, host, &storage, named.is_some(), name));
    HostProfile {
        storage: Some(storage),
        image_storage: Some(image_storage),
        problem,
        ..profile
    }
}

/// Returns the name the hypervisor uses for the machine.
fn machine(
    catalog: &Catalog,
    name: &str,
    location: &NodeLocation,
    seen: Option<&Inventory>,
) -> String {
    let document = catalog
        .nodes
        .get(name)
        .and_then(|document| document.value.as_ref());
    let written = document.and_then(|node| node.node.as_ref());
    if let Some(written) = written {
        return written.to_string();
    }
    // If there is a single machine it is that one, whatever its name.
    match (location, seen.map(|seen| seen.hosts.as_slice())) {
        (_, Some([only])) => only.name.clone(),
        (NodeLocation::Host(_) | NodeLocation::Inside(_), _) => name.to_owned(),
    }
}

fn datastore(catalog: &Catalog, name: &str) -> Option<String> {
    let document = catalog.nodes.get(name)?.value.as_ref();
    let own = document.and_then(|node| node.datastore.as_ref());
    own.or_else(|| catalog.defaults()?.datastore.as_ref())
        .map(|datastore| datastore.value.clone())
}

/// Returns why no guest can be created on a machine.
fn machine_problem(observed: &Inventory, host: &str, name: &str) -> Option<(String, String)> {
    let of_host = |one: &&ObservedHost| one.name == host;
    match observed.hosts.iter().find(of_host) {
        None => {
            let known: Vec<&str> = observed.hosts.iter().map(|one| one.name.as_str()).collect();
            Some((
                format!(
                    "there is no machine `{host}`; available: {}",
                    known.join(", ")
                ),
                format!("set `node: NAME` in `nodes/{name}.yaml`"),
            ))
        }
        Some(one) if !one.online => Some((
            format!("`{host}` is offline"),
            "start it, or choose another host with -H".to_owned(),
        )),
        Some(_) => None,
    }
}

/// Returns why a storage cannot be used for disks.
fn storage_problem(
    observed: &Inventory,
    host: &str,
    storage: &str,
    named: bool,
    name: &str,
) -> Option<(String, String)> {
    let found = observed
        .storages
        .iter()
        .find(|one| one.host == host && one.name == storage);
    let other = if named { "another" } else { "a" };
    let hint = format!("set {other} `datastore` in `nodes/{name}.yaml` or `site.yaml`");
    match found {
        // A storage that the token may not see is not listed.
        None => Some((
            format!("`{host}` does not list a storage `{storage}`"),
            format!("{hint}, or grant Datastore.Audit on /storage/{storage} to the token"),
        )),
        Some(one) if !one.active => Some((
            format!("the storage `{storage}` of `{host}` is not active"),
            hint,
        )),
        Some(_) => None,
    }
}
