//! The recorded state of nodes between runs. It contains only what cannot be observed again, or not
//! without waiting.

use std::collections::BTreeMap;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::types::NodeLocation;
use crate::doc::manifest::Mode;
use crate::doc::scalar::SiteId;
use crate::observed::{GuestId, GuestRef, GuestUuid};

/// The recorded status of a node.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "RecordedStatus")]
pub enum NodeStatus {
    /// Being created, or the run ended while it was.
    Creating,
    /// Created.
    #[serde(rename = "made")]
    Created,
    /// Running and reached.
    Ready,
    /// Being deleted, or the run ended while it was.
    Destroying,
    /// Deleted.
    Destroyed,
}

/// The record of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeRecord {
    /// Its name.
    pub name: String,
    /// The host of the site it is on, directly or in another node.
    pub host: String,
    /// Where it runs.
    #[serde(rename = "place")]
    pub location: NodeLocation,
    /// The site it belongs to; absent in journals of format 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub site: Option<SiteId>,
    /// Its guest.
    pub guest: GuestRef,
    /// Its status.
    pub status: NodeStatus,
    /// What it was created from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Its address when it was last reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The user created on first boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The spec that was last applied to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured: Option<AppliedSpec>,
    /// Whether it was created for guests to run on it; absent in records of older programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts_guests: Option<bool>,
}

impl NodeRecord {
    /// Returns whether a run was interrupted while it created or deleted the guest.
    pub fn is_interrupted(&self) -> bool {
        matches!(self.status, NodeStatus::Creating | NodeStatus::Destroying)
    }

    /// Returns whether it was ever reached. Unknown for a guest whose record was rebuilt: such a record
    /// has no source.
    pub fn was_reached(&self) -> Option<bool> {
        match self.status == NodeStatus::Ready {
            true => Some(true),
            false => self.source.as_ref().map(|_| false),
        }
    }

    /// Returns its nesting depth among the recorded nodes.
    pub fn depth(&self, records: &Records) -> usize {
        let above = |record: &&Self| match &record.location {
            NodeLocation::Inside(parent) => records.of(parent, &record.host),
            NodeLocation::Host(_) => None,
        };
        // Corrupt records may form a cycle.
        let chain = std::iter::successors(Some(self), above).take(records.values().count());
        let nested = |record: &&Self| matches!(record.location, NodeLocation::Inside(_));
        chain.filter(nested).count()
    }
}

/// The records of the nodes of a manifest. A node that was moved to another host of the site has one
/// for each host.
#[derive(Clone, Debug, Default)]
pub struct Records(BTreeMap<(String, String), NodeRecord>);

impl Records {
    /// Returns the record of a node on a host of the site.
    pub fn of(&self, name: &str, host: &str) -> Option<&NodeRecord> {
        self.0.get(&(name.to_owned(), host.to_owned()))
    }

    /// Returns all records.
    pub fn values(&self) -> impl Iterator<Item = &NodeRecord> {
        self.0.values()
    }

    /// Adds a record, replacing the one of the same node and host.
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

/// Records of the site's other manifests and hosts, each with its manifest.
#[derive(Clone, Debug, Default)]
pub struct OtherRecords(pub Vec<(String, NodeRecord)>);

impl OtherRecords {
    /// Returns whether a guest is recorded for another manifest or host of the site.
    pub fn has(&self, uuid: &GuestUuid, vmid: GuestId) -> bool {
        let mut guests = self.0.iter().map(|(_, record)| &record.guest);
        guests.any(|guest| guest.uuid == *uuid && guest.vmid == Some(vmid))
    }
}

/// A spec that was applied to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AppliedSpec {
    /// The name of the spec.
    pub spec: String,
    /// Digest of the resolved spec.
    pub digest: String,
    /// The SSH port of the node.
    pub port: u16,
    /// Who applied it; absent in records of older programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
}
