//! Observes the hosts of a manifest, and the hypervisors inside its nodes.
//!
//! Guest agents are queried only for the address of a hypervisor that is not recorded. A host that does
//! not answer is never treated as a host without guests.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use homestak_core::observed::IdentityConflict;
use homestak_core::plan::{
    NodeLocation, NodeRecord, NodeStatus, Observation, Plan, Records, Verb, site_hosts,
};
use homestak_core::resolve::ResolvedManifest;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tracing::Instrument as _;

use crate::ports::{ErrorClass, GuestRef, HostConnector, ObservedGuest, PortError, PowerState};

/// Timeout of a hypervisor inside a node.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many guests are inspected at once.
const AT_ONCE: usize = 16;

/// Why hosts could not be observed.
#[derive(Debug)]
pub struct ObserveError {
    /// The host that failed, if it is one.
    pub host: Option<String>,
    /// Its error.
    pub error: PortError,
}

impl From<PortError> for ObserveError {
    fn from(error: PortError) -> Self {
        Self { host: None, error }
    }
}

/// Observes the hosts of a manifest, and the reachable hypervisors inside nodes.
pub async fn observe(
    connector: &Arc<dyn HostConnector>,
    resolved: &ResolvedManifest,
    records: &Records,
) -> Result<BTreeMap<NodeLocation, Observation>, ObserveError> {
    let mut observations = BTreeMap::new();
    let mut hosts: Vec<&str> = resolved
        .nodes
        .iter()
        .filter_map(|node| Some(node.host.as_ref()?.value.as_str()))
        .collect();
    hosts.sort_unstable();
    hosts.dedup();
    let mut endpoints: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for host in hosts {
        endpoints
            .entry(connector.endpoint(host))
            .or_default()
            .push(host);
    }
    let mut asked = JoinSet::new();
    for (endpoint, hosts) in &endpoints {
        let (connector, endpoint, host) =
            (connector.clone(), endpoint.clone(), hosts[0].to_owned());
        // Cancel safety: changes nothing.
        asked.spawn(
            async move {
                let seen = async { connector.host(&host).await?.observe().await };
                (endpoint, seen.await)
            }
            .in_current_span(),
        );
    }
    while let Some(answer) = asked.join_next().await {
        let (endpoint, seen) = answer.map_err(|error| PortError::bug("observe a host", &error))?;
        let seen = seen.map_err(|error| ObserveError {
            host: Some(endpoints[&endpoint][0].to_owned()),
            error,
        })?;
        tracing::debug!(hosts = ?endpoints[&endpoint], guests = seen.guests.len(), "observed");
        for host in &endpoints[&endpoint] {
            observations.insert(
                NodeLocation::Host((*host).to_owned()),
                Observation::Available(seen.clone()),
            );
        }
    }
    // Level by level: a nested hypervisor is reached through its parent.
    let mut nodes: Vec<_> = resolved.nodes.iter().collect();
    nodes.sort_by_key(|node| node.depth);
    let named = nodes.iter().filter_map(|node| node.parent.as_ref());
    // Guests that the manifest no longer names may still run there.
    let remembered = records
        .values()
        .filter_map(|record| match &record.location {
            NodeLocation::Inside(parent) => Some(parent.as_str()),
            NodeLocation::Host(_) => None,
        });
    let made_to = records
        .values()
        .filter(|record| record.hosts_guests == Some(true))
        .map(|record| record.name.as_str());
    let hosting: BTreeSet<&str> = named
        .map(|name| name.as_str())
        .chain(remembered)
        .chain(made_to)
        .collect();
    let roots = site_hosts(resolved);
    let written = nodes.iter().filter_map(|node| {
        let name = node.name.as_str();
        let location = match &node.parent {
            Some(parent) => NodeLocation::Inside(parent.to_string()),
            None => NodeLocation::Host(node.host.as_ref()?.value.clone()),
        };
        let record = roots.get(name).and_then(|host| records.of(name, host));
        (node.can_host || hosting.contains(name)).then_some((name, location, record))
    });
    let names: BTreeSet<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    let is_unnamed = |record: &&NodeRecord| {
        let name = record.name.as_str();
        hosting.contains(name) && !names.contains(name)
    };
    let mut unnamed: Vec<&NodeRecord> = records.values().filter(is_unnamed).collect();
    unnamed.sort_by_key(|record| record.depth(records));
    let unnamed = unnamed.into_iter();
    let unnamed = unnamed.map(|record| (&*record.name, record.location.clone(), Some(record)));
    let mut addresses = BTreeMap::new();
    for (name, location, record) in written.chain(unnamed) {
        let inside = NodeLocation::Inside(name.to_owned());
        if let Some(observation) = observations.get_mut(&inside) {
            *observation =
                Observation::Unavailable(format!("`{name}` is recorded on several hosts"));
            continue;
        }
        let Some(record) = record else {
            if !matches!(observations.get(&location), Some(Observation::Available(_))) {
                observations.insert(
                    inside,
                    Observation::Unavailable(format!("`{name}` cannot be seen")),
                );
            } else {
                let why = format!("`{name}` has not been reached yet");
                observations.insert(inside, Observation::Unavailable(why));
            }
            continue;
        };
        let observation =
            match address(connector, (&observations, &addresses), (&location, record)).await {
                Err(why) => Observation::Unavailable(why),
                Ok(address) => {
                    let seen = async {
                        let provider = connector.inside(&record.host, name, address).await?;
                        provider.observe().await
                    };
                    // Cancel safety: changes nothing.
                    match tokio::time::timeout(PATIENCE, seen).await {
                        Ok(Ok(observed)) => {
                            addresses.insert(name.to_owned(), address);
                            Observation::Available(observed)
                        }
                        Ok(Err(error)) => {
                            Observation::Unavailable(format!("`{name}` does not answer ({error})"))
                        }
                        Err(_) => Observation::Unavailable(format!("`{name}` does not answer")),
                    }
                }
            };
        observations.insert(inside, observation);
    }
    Ok(observations)
}

/// Returns the address of the hypervisor in a recorded node, or why it is not observed. An address
/// that is not recorded is read from the host.
async fn address(
    connector: &Arc<dyn HostConnector>,
    (observations, addresses): (
        &BTreeMap<NodeLocation, Observation>,
        &BTreeMap<String, IpAddr>,
    ),
    (location, record): (&NodeLocation, &NodeRecord),
) -> Result<IpAddr, String> {
    let name = &record.name;
    let Some(Observation::Available(observed)) = observations.get(location) else {
        return Err(format!("`{name}` cannot be seen"));
    };
    // A running copy is another machine, with other guests.
    let mut guests = observed.guests.iter().filter(|guest| {
        guest.uuid.as_ref() == Some(&record.guest.uuid)
            && record.guest.vmid.is_none_or(|id| id == guest.vmid)
    });
    let Some(there) = guests.next() else {
        return Err(format!("the recorded guest of `{name}` does not exist"));
    };
    match there.power {
        PowerState::Running => {}
        PowerState::Stopped => return Err(format!("`{name}` is not running")),
        PowerState::Unknown => return Err(format!("the power state of `{name}` is not known")),
    }
    if let Some(address) = record.address {
        return Ok(address);
    }
    let guest = GuestRef {
        vmid: Some(there.vmid),
        host: there.host.clone(),
        ..record.guest.clone()
    };
    let asked = async {
        let provider = match location {
            NodeLocation::Host(host) => connector.host(host).await?,
            NodeLocation::Inside(parent) => {
                let Some(address) = addresses.get(parent) else {
                    return Ok(None);
                };
                connector.inside(&record.host, parent, *address).await?
            }
        };
        Ok::<_, PortError>(provider.address(&guest).await?.address())
    };
    // Cancel safety: changes nothing.
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(Some(address))) => Ok(address),
        Ok(Err(error)) => Err(format!("the address of `{name}` is not known ({error})")),
        Ok(Ok(None)) | Err(_) => Err(format!("the address of `{name}` is not known")),
    }
}

/// Makes the plan from the observation. Lists of guests may be seconds late, so that guests of the
/// site that seem to differ are inspected first.
pub(crate) async fn inspected_plan(
    connector: &Arc<dyn HostConnector>,
    observations: &mut BTreeMap<NodeLocation, Observation>,
    records: &Records,
    make: impl Fn(&BTreeMap<NodeLocation, Observation>) -> Plan,
) -> Result<Plan, ObserveError> {
    let first = make(observations);
    if !refine(connector, &first, observations, records).await? {
        return Ok(first);
    }
    Ok(make(observations))
}

/// Inspects each guest that the plan would change; returns whether any differs from the list.
async fn refine(
    connector: &Arc<dyn HostConnector>,
    plan: &Plan,
    observations: &mut BTreeMap<NodeLocation, Observation>,
    records: &Records,
) -> Result<bool, PortError> {
    // A step that deletes inspects again, and distinguishes a deleted guest from an incomplete one.
    let removes = plan.verb == Verb::Destroy;
    let mut inspections = Vec::new();
    for node in &plan.nodes {
        // Only guests on observed hosts can be inspected.
        if !matches!(
            observations.get(&node.location),
            Some(Observation::Available(_))
        ) {
            continue;
        }
        let Some(found) = &node.found else {
            continue;
        };
        let unknown = found.power == PowerState::Unknown;
        let at = match &node.location {
            NodeLocation::Host(host) if unknown || node.action.changes() => (host.clone(), None),
            // Nested hypervisors may not answer at their addresses, and each step inspects again.
            NodeLocation::Inside(parent) if unknown => {
                let address = plan
                    .node(parent)
                    .and_then(|node| node.found.as_ref()?.address);
                let Some(address) = address else {
                    continue;
                };
                (node.host.clone(), Some((parent.clone(), address)))
            }
            NodeLocation::Host(_) | NodeLocation::Inside(_) => continue,
        };
        inspections.push((node.location.clone(), found.guest.clone(), at));
    }
    inspections.extend(unlisted(observations, records));
    let mut asked = JoinSet::new();
    let slots = Arc::new(Semaphore::new(AT_ONCE));
    for (location, guest, at) in inspections {
        let (connector, slots) = (connector.clone(), slots.clone());
        // Cancel safety: changes nothing.
        asked.spawn(
            async move {
                let _slot = slots.acquire().await;
                let seen = async {
                    match at {
                        (host, None) => connector.host(&host).await?.inspect(&guest).await,
                        (host, Some((parent, address))) => {
                            let inside = connector.inside(&host, &parent, address).await?;
                            inside.inspect(&guest).await
                        }
                    }
                };
                let seen = seen.await;
                (location, guest, seen)
            }
            .in_current_span(),
        );
    }
    let mut differs = false;
    while let Some(answer) = asked.join_next().await {
        let answer = answer.map_err(|error| PortError::bug("observe a guest", &error))?;
        let (location, guest, seen) = answer;
        let id = guest.vmid;
        let Some(Observation::Available(observed)) = observations.get_mut(&location) else {
            continue;
        };
        let mut guests = observed.guests.iter();
        let at = guests.position(|one| Some(one.vmid) == id);
        let Some(at) = at else {
            match seen {
                Ok(None) => continue,
                // The list was out of date.
                Ok(Some(guest)) => observed.guests.push(guest),
                // It may exist, which concerns its own node only.
                Err(error) => observed.guests.extend(unreadable(&guest, &error)),
            }
            differs = true;
            continue;
        };
        let seen = match seen {
            Ok(seen) => seen,
            // Its power state is unknown; the plan contains that already.
            Err(error)
                if error.class != ErrorClass::Refused
                    && !removes
                    && observed.guests[at].power == PowerState::Unknown =>
            {
                continue;
            }
            // It is not proven to be the guest, or cannot be read: the plan refuses it.
            Err(error) => {
                let contested = Some(contradiction(&error));
                differs |= observed.guests[at].contested != contested;
                observed.guests[at].contested = contested;
                continue;
            }
        };
        match seen {
            // A guest of someone else, or one that is being created.
            None if observed.guests[at].uuid.is_none() => {
                differs |= !observed.guests[at].is_unrelated;
                observed.guests[at].is_unrelated = true;
            }
            None if removes => {}
            // Only inspecting a guest reads which run created it.
            Some(seen)
                if (ObservedGuest {
                    run: None,
                    ..seen.clone()
                }) == observed.guests[at] => {}
            Some(seen) => {
                observed.guests[at] = seen;
                differs = true;
            }
            None => {
                observed.guests.remove(at);
                differs = true;
            }
        }
    }
    Ok(differs)
}

/// Returns why a guest is not proven to be the expected one.
fn contradiction(error: &PortError) -> IdentityConflict {
    let detail = match error.class {
        ErrorClass::Refused => error.detail.to_string(),
        _ => format!("cannot {error}"),
    };
    IdentityConflict {
        detail,
        hint: error.hint.clone(),
    }
}

/// Describes a recorded guest that is not listed and cannot be read.
fn unreadable(guest: &GuestRef, error: &PortError) -> Option<ObservedGuest> {
    Some(ObservedGuest {
        kind: guest.kind,
        vmid: guest.vmid?,
        host: guest.host.clone(),
        name: String::new(),
        uuid: None,
        site: None,
        manifest: None,
        created_as: None,
        run: None,
        contested: Some(contradiction(error)),
        is_unrelated: false,
        power: PowerState::Unknown,
        template: false,
        lock: None,
        cores: None,
        memory: None,
        disk: None,
        tags: Vec::new(),
    })
}

/// A guest to inspect: its location, and the host or node to ask.
type Inspection = (NodeLocation, GuestRef, (String, Option<(String, IpAddr)>));

/// Returns recorded guests that are not listed: the list may be out of date, or the guest may have
/// lost its tags.
fn unlisted(
    observations: &BTreeMap<NodeLocation, Observation>,
    records: &Records,
) -> Vec<Inspection> {
    let mut inspections = Vec::new();
    for record in records.values() {
        let (NodeLocation::Host(host), Some(id)) = (&record.location, record.guest.vmid) else {
            continue;
        };
        let Some(Observation::Available(observed)) = observations.get(&record.location) else {
            continue;
        };
        let other = observed.guests.iter().any(|guest| {
            guest.uuid.as_ref() == Some(&record.guest.uuid)
                || guest.vmid == id && guest.uuid.is_some()
        });
        if !other && record.status != NodeStatus::Destroyed {
            let at = (host.clone(), None);
            inspections.push((record.location.clone(), record.guest.clone(), at));
        }
    }
    inspections
}
