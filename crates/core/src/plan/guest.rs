//! Guests in a plan: the existing one of a node, the desired one with its image, and guests of others.

use std::net::IpAddr;
use std::ops::Deref;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::record::AppliedSpec;
use super::types::NodeLocation;
use crate::doc::scalar::SiteId;
use crate::observed::{GuestId, GuestKind, GuestRef, GuestUuid, PowerState};
use crate::units::{Gib, Mib};

/// The existing guest of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExistingGuest {
    /// Its identity and id.
    pub guest: GuestRef,
    /// Whether its identity is from before sites had an id.
    #[serde(default, rename = "first_form")]
    pub legacy_identity: bool,
    /// Its power state.
    #[serde(default)]
    pub power: PowerState,
    /// Whether it was created completely; null when nothing is recorded.
    #[serde(rename = "made")]
    pub created: Option<bool>,
    /// Whether it was ever reached; null when that is not recorded.
    pub ready: Option<bool>,
    /// Virtual CPUs, when known.
    pub cores: Option<u32>,
    /// Memory, when known.
    pub memory: Option<Mib>,
    /// Disk, when known.
    pub disk: Option<Gib>,
    /// Its address when it was last ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The spec that was last applied to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured: Option<AppliedSpec>,
    /// Whether it was created for guests to run on it; absent when nothing is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts_guests: Option<bool>,
}

/// The network interface of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Nic {
    /// Its MAC address, lower case.
    pub mac: String,
    /// Bridge, on hosts with bridges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<String>,
    /// VLAN tag.
    pub vlan: Option<u16>,
    /// Static address with prefix; null for DHCP. Virtual machines get it from their first-boot data.
    pub address: Option<(IpAddr, u8)>,
    /// Gateway.
    pub gateway: Option<IpAddr>,
}

/// A guest as its hypervisor creates it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GuestPlan {
    /// Its identity.
    pub uuid: GuestUuid,
    /// Virtual machine or container.
    pub kind: GuestKind,
    /// The machine it is created on, by the name the hypervisor uses for it.
    pub host: String,
    /// Its id; null lets the provider choose one.
    pub vmid: Option<GuestId>,
    /// Virtual CPUs.
    pub cores: u32,
    /// Memory.
    pub memory: Mib,
    /// Disk.
    pub disk: Gib,
    /// Storage of the disk, on hosts with storages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
    /// Storage of images and first-boot data, on hosts with storages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_storage: Option<String>,
    /// Its network interface.
    #[serde(flatten)]
    pub nic: Nic,
    /// Whether a container is unprivileged.
    pub unprivileged: bool,
    /// Whether guests will run on it, which requires the CPU features of the host.
    pub hosts_guests: bool,
}

/// The desired guest of a node: everything needed to create it, except secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DesiredGuest {
    /// Its guest.
    #[serde(flatten)]
    pub guest: GuestPlan,
    /// What it is created from: the name of an image, or a volume.
    pub source: String,
    /// Index of the image in the plan; null for an existing volume.
    pub image: Option<usize>,
    /// Name servers.
    pub dns: Vec<IpAddr>,
    /// The user created on first boot.
    pub user: String,
    /// Packages installed on first boot.
    pub packages: Vec<String>,
}

impl Deref for DesiredGuest {
    type Target = GuestPlan;

    fn deref(&self) -> &GuestPlan {
        &self.guest
    }
}

/// An image that must be available on a host before guests are created from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequiredImage {
    /// The name of the image.
    pub name: String,
    /// Where it must be available.
    #[serde(rename = "place")]
    pub location: NodeLocation,
    /// The host of the site behind the location.
    pub site_host: String,
    /// The machine it must be available on.
    pub host: String,
    /// The storage it must be in, on hosts with storages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
    /// The kind of guest it is for.
    pub kind: GuestKind,
    /// Its file name in the storage.
    pub file: String,
    /// The URL it is downloaded from.
    pub url: Option<String>,
    /// Its checksum.
    pub checksum: Option<String>,
}

/// An existing guest that does not belong to this manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ForeignGuest {
    /// Where it is.
    #[serde(rename = "place")]
    pub location: NodeLocation,
    /// Its id.
    pub vmid: GuestId,
    /// Its name.
    pub name: String,
    /// The host it is on.
    #[serde(default)]
    pub host: String,
    /// The manifest it belongs to, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// The site it belongs to, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub site: Option<SiteId>,
    /// The node whose identity it carries, if it is a copy or a restored backup of its guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_of: Option<String>,
}
