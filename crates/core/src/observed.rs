//! The observed state of a provider: hosts, guests and storages.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::fmt::Hyphenated;
use uuid::{Builder, Uuid};

use crate::doc::scalar::SiteId;
use crate::units::Bytes;

pub use crate::guest_id::GuestId;

/// The identity that homestak gives a guest: a UUID in lower case. Unlike names and ids it is never
/// reused.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(inline)]
pub struct GuestUuid(String);

impl GuestUuid {
    /// Takes a UUID with hyphens. Other forms (URN, braces, without hyphens) are refused.
    pub fn new(text: &str) -> Option<Self> {
        let uuid = Uuid::try_parse(text).ok()?;
        (text.len() == Hyphenated::LENGTH).then(|| Self(uuid.to_string()))
    }

    /// Derives a UUID of version 8, which is for application-specific content, from 16 bytes.
    pub fn from_custom_bytes(bytes: [u8; 16]) -> Self {
        Self(Builder::from_custom_bytes(bytes).into_uuid().to_string())
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for GuestUuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for GuestUuid {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::new(&text).ok_or("not a UUID")
    }
}

impl From<GuestUuid> for String {
    fn from(uuid: GuestUuid) -> Self {
        uuid.0
    }
}

/// A virtual machine or a container.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum GuestKind {
    /// A virtual machine.
    Vm,
    /// A container.
    Ct,
}

/// The power state of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PowerState {
    /// Running.
    Running,
    /// Stopped.
    Stopped,
    /// Being created, or its host does not answer.
    #[default]
    Unknown,
}

/// A reference to a guest: its identity and the provider's id. Either alone may belong to another
/// guest, because ids are reused and copies keep the identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GuestRef {
    /// Its identity.
    pub uuid: GuestUuid,
    /// Virtual machine or container.
    pub kind: GuestKind,
    /// Its id; null while it has none, or when a create call ended without an answer.
    #[serde(default, deserialize_with = "known_id")]
    pub vmid: Option<GuestId>,
    /// The machine it was last observed on, or is to be created on.
    pub host: String,
}

impl std::fmt::Display for GuestRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.vmid {
            Some(vmid) => write!(f, "guest {vmid} on {}", self.host),
            None => write!(f, "guest on {}", self.host),
        }
    }
}

/// Reads an id. Journals of format 1 contain 0 for a guest that was never observed.
fn known_id<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<GuestId>, D::Error> {
    let id: Option<GuestId> = Deserialize::deserialize(deserializer)?;
    Ok(id.filter(|id| id.number() != Some(0)))
}

/// A guest as observed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedGuest {
    /// Virtual machine or container.
    pub kind: GuestKind,
    /// Its id.
    pub vmid: GuestId,
    /// The host it is on.
    pub host: String,
    /// Its name; empty if it has none, as while it is being created.
    pub name: String,
    /// The identity it carries, if homestak created it or the guest it was copied from.
    pub uuid: Option<GuestUuid>,
    /// The site it belongs to; `None` for a legacy identity, from before sites had an id.
    pub site: Option<SiteId>,
    /// The manifest it belongs to.
    pub manifest: Option<String>,
    /// The id it was created with. Copies and restored backups keep the one of their original.
    pub created_as: Option<GuestId>,
    /// The run that created it, if that was read.
    pub run: Option<String>,
    /// What contradicts its identity, if it was inspected closely. Such a guest is not changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contested: Option<IdentityConflict>,
    /// Whether close inspection showed that it is not the guest recorded under its id.
    #[serde(default, rename = "is_stranger")]
    pub is_unrelated: bool,
    /// Its power state.
    pub power: PowerState,
    /// Whether it is a template.
    pub template: bool,
    /// Its lock, such as `clone` or `backup`.
    pub lock: Option<String>,
    /// Virtual CPUs.
    pub cores: Option<u32>,
    /// Memory.
    pub memory: Option<Bytes>,
    /// Size of its first disk.
    pub disk: Option<Bytes>,
    /// Tags, lower-case, sorted.
    pub tags: Vec<String>,
}

impl ObservedGuest {
    /// Returns whether it carries the identity of a guest that was created with another id.
    pub fn is_copy(&self) -> bool {
        self.created_as.is_some_and(|id| id != self.vmid)
    }

    /// Returns whether it belongs to a manifest of a site.
    pub fn belongs_to(&self, site: &SiteId, manifest: &str) -> bool {
        self.uuid.is_some()
            && self.site.as_ref() == Some(site)
            && self.manifest.as_deref() == Some(manifest)
    }
}

/// Why a guest is not proven to be the one that its tags name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityConflict {
    /// What was found.
    pub detail: String,
    /// What the operator can do.
    pub hint: String,
}

/// A storage as observed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedStorage {
    /// Its name.
    pub name: String,
    /// The host it is on.
    pub host: String,
    /// Whether it can be used.
    pub active: bool,
    /// Content types, such as `images`, `iso`, `import`, `vztmpl`, `rootdir`.
    pub content: Vec<String>,
    /// Free space, if known.
    pub available: Option<Bytes>,
    /// Whether several hosts share it.
    pub shared: bool,
}

/// A host as observed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedHost {
    /// Its name.
    pub name: String,
    /// Whether it is online.
    pub online: bool,
    /// CPU cores.
    pub cores: Option<u32>,
    /// Memory.
    pub memory: Option<Bytes>,
}

/// All hosts, guests and storages of a provider, from one observation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// Hosts, sorted by name.
    pub hosts: Vec<ObservedHost>,
    /// Guests, sorted by id.
    pub guests: Vec<ObservedGuest>,
    /// Storages, sorted by host and name.
    pub storages: Vec<ObservedStorage>,
    /// How many requests the observation took.
    pub requests: u32,
}
