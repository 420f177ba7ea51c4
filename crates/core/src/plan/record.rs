//! What is remembered of a node between runs.
//!
//! In: results of steps. Out: [`NodeRecord`], the newest of which counts.
//! Never: what can be observed anew, except where looking would mean waiting.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::types::Place;
use crate::doc::scalar::SiteId;
use crate::observed::{GuestId, GuestRef, GuestUuid};

/// How far a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeStatus {
    /// It is being made, or was when the run ended.
    Creating,
    /// It is made.
    Made,
    /// It runs and was reached.
    Ready,
    /// It is being removed, or was when the run ended.
    Destroying,
    /// It is gone.
    Destroyed,
}

/// What is remembered of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Its name.
    pub name: String,
    /// The host of the site it is on, directly or in another node.
    pub host: String,
    /// Where it lives.
    pub place: Place,
    /// The site it belongs to; `None` in journals of the first form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<SiteId>,
    /// Which guest it is.
    pub guest: GuestRef,
    /// How far it is.
    pub status: NodeStatus,
    /// What it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Its address when it was last reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The user that was made on first boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// What it was last made inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured: Option<Configured>,
    /// Whether it was created for guests to run on it; `None` in records of older programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts_guests: Option<bool>,
}

impl NodeRecord {
    /// Tells whether nobody knows how far its guest came or went.
    pub fn is_cut_off(&self) -> bool {
        matches!(self.status, NodeStatus::Creating | NodeStatus::Destroying)
    }

    /// Tells whether it was ever reached. Of a guest that was found and not created, nobody knows:
    /// what it was created from is not recorded.
    pub fn was_reached(&self) -> Option<bool> {
        match self.status == NodeStatus::Ready {
            true => Some(true),
            false => self.source.as_ref().map(|_| false),
        }
    }

    /// Returns how many recorded nodes it runs on, one in another.
    pub fn depth(&self, records: &Records) -> usize {
        let above = |record: &&Self| match &record.place {
            Place::Inside(parent) => records.of(parent, &record.host),
            Place::Host(_) => None,
        };
        // Records that are wrong may form a circle.
        let chain = std::iter::successors(Some(self), above).take(records.values().count());
        let nested = |record: &&Self| matches!(record.place, Place::Inside(_));
        chain.filter(nested).count()
    }
}

/// What is remembered of the nodes of a manifest. A node that was moved to another host of the site
/// has a record for each of them.
#[derive(Clone, Debug, Default)]
pub struct Records(BTreeMap<(String, String), NodeRecord>);

impl Records {
    /// Returns what is remembered of a node on a host of the site.
    pub fn of(&self, name: &str, host: &str) -> Option<&NodeRecord> {
        self.0.get(&(name.to_owned(), host.to_owned()))
    }

    /// Returns all of them.
    pub fn values(&self) -> impl Iterator<Item = &NodeRecord> {
        self.0.values()
    }

    /// Remembers a node, in place of what was remembered of it on its host.
    pub fn insert(&mut self, record: NodeRecord) {
        self.0
            .insert((record.name.clone(), record.host.clone()), record);
    }
}

impl Extend<NodeRecord> for Records {
    fn extend<T: IntoIterator<Item = NodeRecord>>(&mut self, records: T) {
        records.into_iter().for_each(|record| self.insert(record));
    }
}

impl FromIterator<NodeRecord> for Records {
    fn from_iter<T: IntoIterator<Item = NodeRecord>>(records: T) -> Self {
        let mut all = Self::default();
        all.extend(records);
        all
    }
}

/// Guests of the site that are recorded for another manifest or host than those a plan is for, each
/// with its manifest.
#[derive(Clone, Debug, Default)]
pub struct Elsewhere(pub Vec<(String, NodeRecord)>);

impl Elsewhere {
    /// Tells whether a guest is recorded for another manifest or host of the site.
    pub fn has(&self, uuid: &GuestUuid, vmid: GuestId) -> bool {
        let mut guests = self.0.iter().map(|(_, record)| &record.guest);
        guests.any(|guest| guest.uuid == *uuid && guest.vmid == Some(vmid))
    }
}

/// What a node was made inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configured {
    /// Its spec.
    pub spec: String,
    /// What the resolved spec added up to.
    pub digest: String,
    /// Where its SSH listens.
    pub port: u16,
}
