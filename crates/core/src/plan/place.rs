//! What a place offers: the machine's own name, its storages.
//!
//! In: documents, and what was seen. Out: [`Offer`], and what is missing there.
//! Never: a storage that cannot hold what is asked of it.

use crate::catalog::Catalog;
use crate::kind::Traits;
use crate::observed::{Observed, ObservedHost, ObservedStorage};

use super::types::Place;
use super::{Inputs, Look};

/// The storage that every Proxmox VE begins with.
const USUAL: &str = "local";

/// What guests at a place are made with.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Offer {
    /// The machine's name as the hypervisor knows it.
    pub(super) host: String,
    /// What its host is like.
    pub(super) traits: Traits,
    /// Storage of disks, where there are storages.
    pub(super) storage: Option<String>,
    /// Storage of images, templates and seeds, where there are storages.
    pub(super) image_storage: Option<String>,
    /// What is wrong with it; making guests is refused then.
    pub(super) wrong: Option<(String, String)>,
}

/// Finds out what a place offers.
pub(super) fn offer(inputs: &Inputs<'_>, place: &Place) -> Offer {
    let (Place::Host(name) | Place::Inside(name)) = place;
    let seen = match inputs.looks.get(place) {
        Some(Look::Seen(observed)) => Some(observed),
        Some(Look::Unseen(_)) | None => None,
    };
    let offer = Offer {
        host: machine(inputs.catalog, name, place, seen),
        traits: inputs.traits_of(place),
        storage: None,
        image_storage: None,
        wrong: None,
    };
    let wrong = seen.and_then(|observed| unusable(observed, &offer.host, name));
    if !offer.traits.has_storages {
        return Offer { wrong, ..offer };
    }
    let named = datastore(inputs.catalog, name);
    let Some(observed) = seen else {
        return Offer {
            storage: named.or_else(|| Some(USUAL.to_owned())),
            image_storage: Some(USUAL.to_owned()),
            ..offer
        };
    };
    let host = &offer.host;
    let there: Vec<&ObservedStorage> = observed
        .storages
        .iter()
        .filter(|storage| storage.host == *host && storage.active)
        .collect();
    let holding = |content: &str| {
        let fit = |storage: &&&ObservedStorage| storage.content.iter().any(|c| c == content);
        // The usual one first, so that the choice does not move when another one is added.
        let usual = there.iter().filter(fit).find(|s| s.name == USUAL);
        usual
            .or_else(|| there.iter().find(fit))
            .map(|storage| storage.name.clone())
    };
    let storage = named.clone().or_else(|| holding("images"));
    let storage = storage.unwrap_or_else(|| USUAL.to_owned());
    let image_storage = holding("import").or_else(|| holding("iso"));
    let image_storage = image_storage.unwrap_or_else(|| USUAL.to_owned());
    let wrong = wrong.or_else(|| lacking(observed, host, &storage, named.is_some(), name));
    Offer {
        storage: Some(storage),
        image_storage: Some(image_storage),
        wrong,
        ..offer
    }
}

/// Returns the name the hypervisor has for the machine.
fn machine(catalog: &Catalog, name: &str, place: &Place, seen: Option<&Observed>) -> String {
    let document = catalog
        .nodes
        .get(name)
        .and_then(|document| document.value.as_ref());
    let written = document.and_then(|node| node.node.as_ref());
    if let Some(written) = written {
        return written.to_string();
    }
    // A single machine is it, whatever it calls itself.
    match (place, seen.map(|seen| seen.hosts.as_slice())) {
        (_, Some([only])) => only.name.clone(),
        (Place::Host(_) | Place::Inside(_), _) => name.to_owned(),
    }
}

fn datastore(catalog: &Catalog, name: &str) -> Option<String> {
    let document = catalog.nodes.get(name)?.value.as_ref();
    let own = document.and_then(|node| node.datastore.as_ref());
    own.or_else(|| catalog.defaults()?.datastore.as_ref())
        .map(|datastore| datastore.value.clone())
}

/// Says why nothing can be made on a machine.
fn unusable(observed: &Observed, host: &str, name: &str) -> Option<(String, String)> {
    let of_host = |one: &&ObservedHost| one.name == host;
    match observed.hosts.iter().find(of_host) {
        None => {
            let known: Vec<&str> = observed.hosts.iter().map(|one| one.name.as_str()).collect();
            Some((
                format!(
                    "there is no machine `{host}`; there is {}",
                    known.join(", ")
                ),
                format!("write `node: NAME` in `nodes/{name}.yaml`"),
            ))
        }
        Some(one) if !one.online => Some((
            format!("`{host}` is offline"),
            "bring it up, or name another host with -H".to_owned(),
        )),
        Some(_) => None,
    }
}

/// Says what is wrong with the storage of disks.
fn lacking(
    observed: &Observed,
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
    let hint = format!("name {other} `datastore` in `nodes/{name}.yaml` or `site.yaml`");
    match found {
        // What a token may not see looks as if it were not there.
        None => Some((
            format!("`{host}` lists no storage `{storage}`"),
            format!("{hint}, or grant Datastore.Audit on /storage/{storage} to the token"),
        )),
        Some(one) if !one.active => Some((
            format!("the storage `{storage}` of `{host}` is not active"),
            hint,
        )),
        Some(_) => None,
    }
}
