//! What a run knows so far: guests, addresses, and the doors to places.
//!
//! In: what steps learnt. Out: what later steps need.
//! Never: knowledge that is not in the journal too; a crash must lose nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use homestak_core::plan::{NodeLocation, NodePlan, NodeRecord, Plan};

use crate::ports::{GuestRef, Places, PortError, PowerState, Provider};
use crate::steps::planned;

/// What a run knows so far.
pub(crate) struct Board {
    plan: Arc<Plan>,
    places: Arc<dyn Places>,
    /// Nodes that others run on.
    hosting: BTreeSet<String>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    guests: BTreeMap<String, GuestRef>,
    addresses: BTreeMap<String, IpAddr>,
    doors: BTreeMap<NodeLocation, Arc<dyn Provider>>,
    /// Nodes that had an address at some time.
    reached: BTreeSet<String>,
    /// Nodes that were asked what runs in them before they were stopped, and had nothing in them.
    empty: BTreeSet<String>,
}

impl Known {
    fn reach(&mut self, node: &str, address: IpAddr) {
        self.addresses.insert(node.to_owned(), address);
        self.reached.insert(node.to_owned());
    }
}

impl Board {
    /// Begins with what the plan found and what is written down.
    pub(crate) fn new<'r>(
        plan: Arc<Plan>,
        places: Arc<dyn Places>,
        records: impl IntoIterator<Item = &'r NodeRecord>,
    ) -> Arc<Self> {
        let mut known = Known::default();
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
        // A node on two hosts, here and where it was before, has two records.
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
            places,
            known: Mutex::new(known),
        })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns where places are found.
    pub(crate) fn places(&self) -> &Arc<dyn Places> {
        &self.places
    }

    /// Tells whether other nodes of the plan run on a node.
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

    /// Learns what came of a step.
    pub(crate) fn learn(&self, node: &str, guest: Option<&GuestRef>, address: Option<IpAddr>) {
        let mut known = self.known();
        if let Some(guest) = guest {
            known.guests.insert(node.to_owned(), guest.clone());
        }
        if let Some(address) = address {
            known.reach(node, address);
        }
    }

    /// Tells whether a node was reached at some time, as far as this run knows.
    pub(crate) fn was_reached(&self, node: &str) -> bool {
        self.known().reached.contains(node)
    }

    /// Learns that nothing is in a node that goes.
    pub(crate) fn found_empty(&self, node: &str) {
        self.known().empty.insert(node.to_owned());
    }

    /// Tells whether nothing was in a node when it was asked.
    pub(crate) fn was_empty(&self, node: &str) -> bool {
        self.known().empty.contains(node)
    }

    /// Forgets how a node is reached: it stops, and may have another address when it is back.
    pub(crate) fn leave(&self, node: &str) {
        let mut known = self.known();
        known.addresses.remove(node);
        known.doors.remove(&NodeLocation::Inside(node.to_owned()));
    }

    /// Opens a place; it stays open.
    pub(crate) async fn open(
        &self,
        host: &str,
        place: &NodeLocation,
    ) -> Result<Arc<dyn Provider>, PortError> {
        if let Some(door) = self.known().doors.get(place) {
            return Ok(door.clone());
        }
        let door = match place {
            NodeLocation::Host(name) => self.places.host(name).await?,
            NodeLocation::Inside(name) => {
                let address = self.find(name).await?;
                self.places.inside(host, name, address).await?
            }
        };
        self.known().doors.insert(place.clone(), door.clone());
        Ok(door)
    }

    /// Returns the address of a node that others run on, and that runs: a copy that has its address
    /// is another machine.
    async fn find(&self, name: &str) -> Result<IpAddr, PortError> {
        let node = self.plan.node(name);
        let node: &NodePlan = node.ok_or_else(|| {
            PortError::bug("open a node", &format!("`{name}` is not in the plan"))
        })?;
        let guest = self.guest(name).or_else(|| planned(node));
        let guest = guest
            .ok_or_else(|| PortError::bug("open a node", &format!("`{name}` has no guest")))?;
        let away = |detail: &str, hint: &str| {
            PortError::unreachable(&format!("open `{name}`"), detail, hint)
        };
        let provider = Box::pin(self.open(&node.host, &node.location)).await?;
        let seen = provider.inspect(&guest).await?;
        if let Some(seen) = seen.as_ref().filter(|seen| seen.uuid.is_none()) {
            return Err(PortError::refused(
                &format!("open `{name}`"),
                format!(
                    "the tags of guest {} on {} were removed: what is in it is not changed",
                    seen.vmid, seen.host
                ),
                "restore its tags `homestak*`",
            ));
        }
        if seen.is_none_or(|seen| seen.power != PowerState::Running) {
            return Err(away(
                "it does not run",
                "start it, or look for a copy of it that runs",
            ));
        }
        if let Some(address) = self.address(name) {
            return Ok(address);
        }
        let address = provider.address(&guest).await?.address();
        let address = address
            .ok_or_else(|| away("it has no address", "its guest agent tells the address"))?;
        self.learn(name, None, Some(address));
        Ok(address)
    }
}
