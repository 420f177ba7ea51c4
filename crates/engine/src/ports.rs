//! Every seam of the engine: what it needs of a place where nodes live.
//!
//! In: our own types. Out: our own types, and errors that say what can be done about them.
//! Never: default bodies; an implementation that lacks something must not compile.

use std::net::IpAddr;
use std::time::Duration;

use async_trait::async_trait;

/// What the caller can reasonably do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The request was understood and refused. Trying again changes nothing.
    Refused,
    /// What was named is not there.
    Missing,
    /// Someone else holds it. Later may work.
    Busy,
    /// The other side was not reached, or went away.
    Unreachable {
        /// Whether it may have acted on the request.
        sent: Sent,
    },
    /// The answer made no sense.
    Broken,
    /// We are wrong. File a bug.
    Bug,
}

/// Whether the other side may have acted on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It never left, or was refused before anything happened.
    No,
    /// It may have been acted on: look before repeating.
    Maybe,
}

/// An error that crossed a port.
#[derive(Debug, thiserror::Error)]
#[error("{doing}: {detail}")]
pub struct PortError {
    /// What can be done about it.
    pub class: Class,
    /// What we were doing to what, such as `create guest 99011 on father`.
    pub doing: String,
    /// What the other side said.
    pub detail: String,
    /// The last lines of the task's log, oldest first.
    pub log: Vec<String>,
    /// What a person can do next; may be empty.
    pub hint: String,
}

/// Our own identity of a guest: a UUID in lower case. Names and ids can be reused; this is not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

/// A virtual machine or a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GuestKind {
    /// A virtual machine.
    Vm,
    /// A container.
    Ct,
}

/// Whether a guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// It runs.
    Running,
    /// It does not run.
    Stopped,
    /// It is being made, or its host cannot be asked.
    Unknown,
}

/// How a guest is found: by our UUID. Host and vmid say where it was last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedGuest {
    /// What it is.
    pub kind: GuestKind,
    /// Its id.
    pub vmid: u32,
    /// The host it is on.
    pub host: String,
    /// Its name; empty while it is being made.
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

/// What a place can do, and how much at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Name and version of what is there, such as `Proxmox VE 9.1.7`.
    pub product: String,
    /// Kinds of guests that can be made.
    pub kinds: Vec<GuestKind>,
    /// How many changes may be under way at once.
    pub parallel_changes: usize,
    /// Whether changes are possible now; a cluster without quorum only answers questions.
    pub writable: bool,
}

/// Where a guest's disk comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskSource {
    /// A disk image by its name in the storage, such as `debian-12.qcow2`.
    Image(String),
    /// A copy of another guest, by its id.
    Clone {
        /// The guest to copy.
        vmid: u32,
        /// Whether all data is copied, instead of sharing it.
        full: bool,
    },
    /// A container template by its name in the storage, or as a whole volume id.
    Template(String),
}

/// First-boot data: what the guest is told before anyone can reach it.
#[derive(Clone, PartialEq, Eq)]
pub struct Seed {
    /// cloud-init's user-data. May hold a token, so there is no `Debug`.
    pub user_data: String,
    /// cloud-init's meta-data.
    pub meta_data: String,
    /// cloud-init's network-config, version 2, matched by MAC.
    pub network_config: String,
}

/// A guest's place on the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Its MAC address, lower case.
    pub mac: String,
    /// Bridge of the host.
    pub bridge: String,
    /// VLAN tag.
    pub vlan: Option<u16>,
    /// Fixed address with prefix, for containers; virtual machines get it from their seed.
    pub address: Option<(IpAddr, u8)>,
    /// Gateway, for containers.
    pub gateway: Option<IpAddr>,
}

/// A guest to be made. It contains every choice; making it makes none but the id, and that only
/// when it is left open.
#[derive(Clone, PartialEq, Eq)]
pub struct NewGuest {
    /// Its identity.
    pub uuid: GuestUuid,
    /// What it is.
    pub kind: GuestKind,
    /// Its name, which is its host name.
    pub name: String,
    /// The manifest it belongs to.
    pub manifest: String,
    /// The host it is made on.
    pub host: String,
    /// Its id, or `None` to have one chosen.
    pub vmid: Option<u32>,
    /// Virtual CPUs.
    pub cores: u32,
    /// Memory in MiB.
    pub memory: u64,
    /// Disk in GiB.
    pub disk: u64,
    /// Storage of the disk.
    pub storage: String,
    /// Storage of the seed and of images.
    pub image_storage: String,
    /// Where the disk comes from.
    pub source: DiskSource,
    /// Its place on the network.
    pub nic: Nic,
    /// First-boot data of a virtual machine.
    pub seed: Option<Seed>,
    /// Whether a container runs without privileges.
    pub unprivileged: bool,
    /// Public SSH keys of root in a container.
    pub ssh_keys: Vec<String>,
    /// Whether guests will run on it, so that it needs the host's CPU features.
    pub hosts_guests: bool,
}

/// How a guest is brought to a halt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    /// It is asked first, and switched off when it has not ended by then.
    Graceful(Duration),
    /// It is switched off.
    Now,
}

/// An image or template that must be in a storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageWanted {
    /// Its file name in the storage.
    pub file: String,
    /// What it is for.
    pub kind: GuestKind,
    /// The host that must have it.
    pub host: String,
    /// The storage that must have it.
    pub storage: String,
    /// Where it comes from.
    pub source: ImageSource,
    /// What it must add up to, as `sha256:...` or `sha512:...`.
    pub checksum: Option<String>,
}

/// Where an image comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageSource {
    /// A file here, sent over.
    File(std::path::PathBuf),
    /// An address the host fetches it from.
    Url(String),
}

/// What a provider says while it works. It changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remark {
    /// What is being waited for, such as `task qmclone on pve1` or `lock "backup" held by ...`.
    Waiting(String),
    /// Something a person should know, although it worked, such as the warnings of a task.
    Warning(String),
}

/// Someone who hears what a provider says. It is called in the middle of the work, so it returns
/// at once.
pub trait Listener: Send + Sync {
    /// Hears a remark, and about which guest, where it is about one.
    fn hear(&self, guest: Option<&GuestUuid>, remark: Remark);
}

/// A place where nodes live.
///
/// Every call can be repeated: it looks first and does what is still to do. On
/// [`Sent::Maybe`] the caller repeats the call, and the look finds out what happened.
#[async_trait]
pub trait Provider: Send + Sync {
    /// Says what the place can do.
    async fn capabilities(&self) -> Result<Capabilities, PortError>;
    /// Looks at everything, in a constant number of requests.
    async fn observe(&self) -> Result<Observed, PortError>;
    /// Looks at one guest; `None` when it is nowhere.
    async fn inspect(&self, guest: &GuestRef) -> Result<Option<ObservedGuest>, PortError>;
    /// Makes a guest and leaves it stopped. A guest of that UUID that is already there is
    /// completed, not doubled.
    async fn create(&self, guest: &NewGuest) -> Result<GuestRef, PortError>;
    /// Starts a guest; one that runs is left alone.
    async fn start(&self, guest: &GuestRef) -> Result<(), PortError>;
    /// Looks once for the address behind a MAC; `None` while there is none.
    async fn address(&self, guest: &GuestRef, mac: &str) -> Result<Option<IpAddr>, PortError>;
    /// Takes the first-boot data away, once the guest is ready.
    async fn discard_seed(&self, guest: &GuestRef) -> Result<(), PortError>;
    /// Grows the first disk to a size in GiB; a disk that is as large is left alone.
    async fn grow_disk(&self, guest: &GuestRef, gib: u64) -> Result<(), PortError>;
    /// Brings a guest to a halt; one that is stopped is left alone.
    async fn stop(&self, guest: &GuestRef, halt: Halt) -> Result<(), PortError>;
    /// Removes a stopped guest with what belongs to it; one that is gone is no error.
    async fn destroy(&self, guest: &GuestRef) -> Result<(), PortError>;
    /// Tells whether an image is in its storage.
    async fn has_image(&self, image: &ImageWanted) -> Result<bool, PortError>;
    /// Brings an image into its storage.
    async fn ensure_image(&self, image: &ImageWanted) -> Result<(), PortError>;
    /// Removes first-boot data whose guest is gone, and returns how many pieces.
    async fn sweep(&self) -> Result<usize, PortError>;
}
