//! Looks at every place a manifest touches, once, without waiting for anything.
//!
//! In: a manifest and what is remembered of its nodes. Out: what was seen, place by place.
//! Never: a guest agent asked; a place that does not answer taken for empty.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use homestak_core::plan::{Look, NodeRecord, Place};
use homestak_core::resolve::Resolved;
use tokio::task::JoinSet;

use crate::ports::{Places, PortError, Power};

/// How long a host inside a guest may take to answer; it is only looked at when it does.
const PATIENCE: Duration = Duration::from_secs(5);

/// Looks at the hosts of a manifest, and into nodes that host and can be asked.
pub async fn look(
    places: &std::sync::Arc<dyn Places>,
    resolved: &Resolved,
    records: &BTreeMap<String, NodeRecord>,
) -> Result<BTreeMap<Place, Look>, PortError> {
    let mut looks = BTreeMap::new();
    let mut hosts: Vec<&str> = resolved
        .nodes
        .iter()
        .filter_map(|node| Some(node.host.as_ref()?.value.as_str()))
        .collect();
    hosts.sort_unstable();
    hosts.dedup();
    let mut asked = JoinSet::new();
    for host in hosts {
        let (places, host) = (places.clone(), host.to_owned());
        // Cancel safety: looking changes nothing.
        asked.spawn(async move {
            let seen = async { places.host(&host).await?.observe().await };
            (host.clone(), seen.await)
        });
    }
    while let Some(answer) = asked.join_next().await {
        let (host, seen) = answer.map_err(|error| PortError::bug("look at a host", &error))?;
        looks.insert(Place::Host(host), Look::Seen(seen?));
    }
    // One level after the other: a host inside a host is found through it.
    let mut nodes: Vec<_> = resolved.nodes.iter().collect();
    nodes.sort_by_key(|node| node.depth);
    let hosting: BTreeSet<_> = nodes
        .iter()
        .filter_map(|node| node.parent.as_ref())
        .collect();
    for node in nodes.iter().filter(|node| hosting.contains(&node.name)) {
        let place = match &node.parent {
            Some(parent) => Place::Inside(parent.to_string()),
            None => match &node.host {
                Some(host) => Place::Host(host.value.clone()),
                None => continue,
            },
        };
        let name = node.name.as_str();
        let inside = Place::Inside(name.to_owned());
        let Some(record) = records.get(name) else {
            if !matches!(looks.get(&place), Some(Look::Seen(_))) {
                looks.insert(inside, Look::Unseen(format!("`{name}` cannot be seen")));
            } else {
                let why = format!("`{name}` was not reached yet");
                looks.insert(inside, Look::Unseen(why));
            }
            continue;
        };
        let running = match looks.get(&place) {
            Some(Look::Seen(observed)) => observed.guests.iter().any(|guest| {
                guest.uuid.as_ref() == Some(&record.guest.uuid) && guest.power == Power::Running
            }),
            Some(Look::Unseen(_)) | None => false,
        };
        let look = match record.address.filter(|_| running) {
            None => Look::Unseen(format!("`{name}` does not run")),
            Some(address) => {
                let seen = async {
                    let provider = places.inside(&record.host, name, address).await?;
                    provider.observe().await
                };
                // Cancel safety: looking changes nothing.
                match tokio::time::timeout(PATIENCE, seen).await {
                    Ok(Ok(observed)) => Look::Seen(observed),
                    Ok(Err(error)) => Look::Unseen(format!("`{name}` does not answer ({error})")),
                    Err(_) => Look::Unseen(format!("`{name}` does not answer")),
                }
            }
        };
        looks.insert(inside, look);
    }
    Ok(looks)
}
