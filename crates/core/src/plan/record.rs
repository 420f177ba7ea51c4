//! What is remembered of a node between runs.
//!
//! In: results of steps. Out: [`NodeRecord`], the newest of which counts.
//! Never: what can be observed anew, except where looking would mean waiting.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::types::Place;
use crate::doc::scalar::SiteId;
use crate::observed::{GuestRef, GuestUuid};

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
    /// Returns how many recorded nodes it runs on, one in another.
    pub fn depth(&self, records: &BTreeMap<String, Self>) -> usize {
        let above = |record: &&Self| match &record.place {
            Place::Inside(parent) => records.get(parent),
            Place::Host(_) => None,
        };
        // Records that are wrong may form a circle.
        let chain = std::iter::successors(Some(self), above).take(records.len());
        let nested = |record: &&Self| matches!(record.place, Place::Inside(_));
        chain.filter(nested).count()
    }
}

/// Guests of the site that are recorded for another manifest or host than those a plan is for, each
/// with its manifest.
#[derive(Clone, Debug, Default)]
pub struct Elsewhere(pub Vec<(String, NodeRecord)>);

impl Elsewhere {
    /// Tells whether a guest is recorded for another manifest or host of the site.
    pub fn has(&self, uuid: &GuestUuid, vmid: u32) -> bool {
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
