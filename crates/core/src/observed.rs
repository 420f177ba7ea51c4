//! What is there, as a provider saw it: hosts, guests, storages.
//!
//! In: values filled in by providers. Out: values that plans are made from.
//! Never: how they were found out.

use serde::{Deserialize, Serialize};

/// Our own identity of a guest: a UUID in lower case. Names and ids can be reused; this is not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GuestUuid(String);

impl GuestUuid {
    /// Takes a UUID in its usual form.
    pub fn new(text: &str) -> Option<Self> {
        let lower = text.to_ascii_lowercase();
        let form = lower.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        });
        (form && lower.len() == 36).then_some(Self(lower))
    }

    /// Returns the identity of nothing.
    pub fn nil() -> Self {
        Self("00000000-0000-0000-0000-000000000000".to_owned())
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GuestKind {
    /// A virtual machine.
    Vm,
    /// A container.
    Ct,
}

/// Whether a guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Power {
    /// It runs.
    Running,
    /// It does not run.
    Stopped,
    /// It is being made, or its host cannot be asked.
    Unknown,
}

/// How a guest is found: by our UUID. Host and vmid say where it was last seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestRef {
    /// Its identity.
    pub uuid: GuestUuid,
    /// What it is.
    pub kind: GuestKind,
    /// Its id when it was last seen; 0 when it never was, as after a create that failed.
    pub vmid: u32,
    /// The host's name when it was last seen; where it was to be made, when it never was.
    pub host: String,
}

/// A guest as observed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedGuest {
    /// What it is.
    pub kind: GuestKind,
    /// Its id.
    pub vmid: u32,
    /// The host it is on.
    pub host: String,
    /// Its name; empty when it has none, as while it is being made.
    pub name: String,
    /// Our identity, when it is ours.
    pub uuid: Option<GuestUuid>,
    /// The manifest it belongs to, when it is ours.
    pub manifest: Option<String>,
    /// Whether it runs.
    pub power: Power,
    /// Whether it is a template.
    pub template: bool,
    /// What holds it, such as `clone` or `backup`.
    pub lock: Option<String>,
    /// Virtual CPUs.
    pub cores: Option<u32>,
    /// Memory in bytes.
    pub memory: Option<u64>,
    /// Size of its first disk in bytes.
    pub disk: Option<u64>,
    /// Tags, lower-case, sorted.
    pub tags: Vec<String>,
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
    /// What it may hold, such as `images`, `iso`, `import`, `vztmpl`, `rootdir`.
    pub content: Vec<String>,
    /// Free bytes, where known.
    pub available: Option<u64>,
    /// Whether several hosts share it.
    pub shared: bool,
}

/// A host as observed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedHost {
    /// Its name.
    pub name: String,
    /// Whether it answers.
    pub online: bool,
    /// CPU cores.
    pub cores: Option<u32>,
    /// Memory in bytes.
    pub memory: Option<u64>,
}

/// Everything at a place, from one look.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// Hosts, sorted by name.
    pub hosts: Vec<ObservedHost>,
    /// Guests, sorted by vmid.
    pub guests: Vec<ObservedGuest>,
    /// Storages, sorted by host and name.
    pub storages: Vec<ObservedStorage>,
    /// How many requests the look took.
    pub requests: u32,
}
