//! What the steps of a run share: guests, addresses and connections.
//!
//! Everything here is also in the journal or can be observed again, so that a crash loses nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use homestak_core::plan::{NodeLocation, NodePlan, NodeRecord, Plan};

use crate::ports::{GuestRef, HostConnector, PortError, PowerState, Provider};
use crate::steps::planned;

/// What the steps of a run share.
pub(crate) struct RunContext {
    plan: Arc<Plan>,
    connector: Arc<dyn HostConnector>,
    /// Nodes that host other nodes.
    hosting: BTreeSet<String>,
    known: Mutex<KnownGuests>,
}

#[derive(Default)]
struct KnownGuests {
    guests: BTreeMap<String, GuestRef>,
    addresses: BTreeMap<String, IpAddr>,
    providers: BTreeMap<NodeLocation, Arc<dyn Provider>>,
    /// Nodes that have had an address.
    reached: BTreeSet<String>,
    /// Nodes that were found to host no guests before they were stopped.
    empty: BTreeSet<String>,
}

impl KnownGuests {
    fn reach(&mut self, node: &str, address: IpAddr) {
        self.addresses.insert(node.to_owned(), address);
        self.reached.insert(node.to_owned());
    }
}

impl RunContext {
    /// Starts with the guests that the plan found and the journal records.
    pub(crate) fn new<'r>(
        plan: Arc<Plan>,
        connector: Arc<dyn HostConnector>,
        records: impl IntoIterator<Item = &'r NodeRecord>,
    ) -> Arc<Self> {
        let mut known = KnownGuests::default();
        for node in &plan.nodes {
            let Some(found) = &node.found else {
                continue;
            };
            if let Some(address) = found.address {
                known.reach(&node.name, address);
            }
            let same = node
                .wanted
                .as_ref()
                .is_none_or(|w| w.uuid == found.guest.uuid);
            if same {
                known.guests.insert(node.name.clone(), found.guest.clone());
            }
        }
        // A node that was moved to another host has two records.
        let names: BTreeMap<(&str, &str), &String> = plan
            .nodes
            .iter()
            .map(|node| ((node.host.as_str(), node.record_name()), &node.name))
            .collect();
        for record in records {
            let Some(name) = names.get(&(record.host.as_str(), record.name.as_str())) else {
                continue;
            };
            known.guests.insert((*name).clone(), record.guest.clone());
            if let Some(address) = record.address {
                known.reach(name, address);
            }
        }
        let inside = plan.nodes.iter().filter_map(|node| match &node.location {
            NodeLocation::Inside(parent) => Some(parent.clone()),
            NodeLocation::Host(_) => None,
        });
        Arc::new(Self {
            hosting: inside.collect(),
            plan,
            connector,
            known: Mutex::new(known),
        })
    }

    fn known(&self) -> MutexGuard<'_, KnownGuests> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the connector.
    pub(crate) fn connector(&self) -> &Arc<dyn HostConnector> {
        &self.connector
    }

    /// Returns whether other nodes of the plan run on a node.
    pub(crate) fn hosts_others(&self, node: &str) -> bool {
        self.hosting.contains(node)
    }

    /// Returns the guest of a node, when it is known.
    pub(crate) fn guest(&self, node: &str) -> Option<GuestRef> {
        self.known().guests.get(node).cloned()
    }

    /// Returns the address of a node, when it is known.
    pub(crate) fn address(&self, node: &str) -> Option<IpAddr> {
        self.known().addresses.get(node).copied()
    }

    /// Stores the result of a step.
    pub(crate) fn update(&self, node: &str, guest: Option<&GuestRef>, address: Option<IpAddr>) {
        let mut known = self.known();
        if let Some(guest) = guest {
            known.guests.insert(node.to_owned(), guest.clone());
        }
        if let Some(address) = address {
            known.reach(node, address);
        }
    }

    /// Returns whether this run knows that a node has been reached.
    pub(crate) fn was_reached(&self, node: &str) -> bool {
        self.known().reached.contains(node)
    }

    /// Stores that a node to be removed hosts no guests.
    pub(crate) fn set_empty(&self, node: &str) {
        self.known().empty.insert(node.to_owned());
    }

    /// Returns whether a node was found to host no guests.
    pub(crate) fn was_empty(&self, node: &str) -> bool {
        self.known().empty.contains(node)
    }

    /// Drops address and connection of a node that stops; it may get another address.
    pub(crate) fn disconnect(&self, node: &str) {
        let mut known = self.known();
        known.addresses.remove(node);
        known
            .providers
            .remove(&NodeLocation::Inside(node.to_owned()));
    }

    /// Returns the provider of a host or of a node, connecting once.
    pub(crate) async fn provider(
        &self,
        host: &str,
        location: &NodeLocation,
    ) -> Result<Arc<dyn Provider>, PortError> {
        if let Some(provider) = self.known().providers.get(location) {
            return Ok(provider.clone());
        }
        let provider = match location {
            NodeLocation::Host(name) => self.connector.host(name).await?,
            NodeLocation::Inside(name) => {
                let address = self.running_address(name).await?;
                self.connector.inside(host, name, address).await?
            }
        };
        let mut known = self.known();
        known.providers.insert(location.clone(), provider.clone());
        Ok(provider)
    }

    /// Returns the address of a node that hosts others. The node must run: otherwise a copy of it may
    /// have its address.
    async fn running_address(&self, name: &str) -> Result<IpAddr, PortError> {
        let node = self.plan.node(name);
        let node: &NodePlan = node.ok_or_else(|| {
            PortError::bug("connect to a node", &format!("`{name}` is not in the plan"))
        })?;
        let guest = self.guest(name).or_else(|| planned(node));
        let guest = guest.ok_or_else(|| {
            PortError::bug("connect to a node", &format!("`{name}` has no guest"))
        })?;
        let unreachable = |detail: &str, hint: &str| {
            PortError::unreachable(&format!("connect to `{name}`"), detail, hint)
        };
        let provider = Box::pin(self.provider(&node.host, &node.location)).await?;
        let seen = provider.inspect(&guest).await?;
        if let Some(seen) = seen.as_ref().filter(|seen| seen.uuid.is_none()) {
            return Err(PortError::refused(
                &format!("connect to `{name}`"),
                format!(
                    "the tags of guest {} on {} were removed, so that nothing inside it is changed",
                    seen.vmid, seen.host
                ),
                "restore its tags `homestak*`",
            ));
        }
        if seen.is_none_or(|seen| seen.power != PowerState::Running) {
            return Err(unreachable(
                "it is not running",
                "start it, or check whether a copy of it runs",
            ));
        }
        if let Some(address) = self.address(name) {
            return Ok(address);
        }
        let address = provider.address(&guest).await?.address();
        let address = address.ok_or_else(|| {
            unreachable("it has no address", "its guest agent reports the address")
        })?;
        self.update(name, None, Some(address));
        Ok(address)
    }
}
