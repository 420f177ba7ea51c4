//! Every seam of the engine: what it needs of a place where nodes live.
//!
//! In: our own types. Out: our own types, and errors that say what can be done about them.
//! Never: default bodies; an implementation that lacks something must not compile.

use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use homestak_core::doc::scalar::SiteId;
use homestak_core::foreign::ForeignText;
use homestak_core::plan::{Action, AppliedSpec, ConfigPlan, DesiredGuest, NodePlan};
use serde::{Deserialize, Serialize};

pub use homestak_core::firstboot::{FirstBootConfig, HostKey};
pub use homestak_core::observed::{
    GuestId, GuestKind, GuestRef, GuestUuid, Inventory, ObservedGuest, ObservedHost,
    ObservedStorage, PowerState,
};
pub use homestak_core::plan::{GuestPlan, Nic, SpecComparison};
pub use homestak_core::units::{Bytes, Gib, Mib};

/// What the caller can reasonably do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Class {
    /// The request was understood and refused. Trying again changes nothing.
    Refused,
    /// Everything was done but parts that were refused by themselves.
    Partly,
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

impl Class {
    const ALL: [Self; 8] = [
        Self::Refused,
        Self::Partly,
        Self::Missing,
        Self::Busy,
        Self::Unreachable { sent: Sent::No },
        Self::Unreachable { sent: Sent::Maybe },
        Self::Broken,
        Self::Bug,
    ];

    /// Returns the word that the journal has for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Partly => "partly-refused",
            Self::Missing => "missing",
            Self::Busy => "busy",
            Self::Unreachable { sent: Sent::No } => "unreachable",
            Self::Unreachable { sent: Sent::Maybe } => "lost",
            Self::Broken => "broken",
            Self::Bug => "bug",
        }
    }

    /// Returns the class behind a word; one that is not known makes no sense to us.
    pub(crate) fn from_word(word: &str) -> Self {
        let mut all = Self::ALL.into_iter();
        all.find(|class| class.word() == word)
            .unwrap_or(Self::Broken)
    }
}

/// Whether the other side may have acted on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sent {
    /// It never left, or was refused before anything happened.
    No,
    /// It may have been acted on: look before repeating.
    Maybe,
}

/// What leads on after an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Next {
    /// The same again, once the cause is gone.
    #[default]
    Repeat,
    /// A new plan: what this one was made with has changed, or is to be corrected.
    NewPlan,
    /// A person who says whether the host's certificate is to be trusted.
    Trust,
}

impl Next {
    /// Tells whether it is what usually leads on.
    pub(crate) fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

/// An error that crossed a port.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
#[error("{doing}: {detail}")]
pub struct PortError {
    /// What can be done about it.
    pub class: Class,
    /// What we were doing to what, such as `create guest 99011 on father`.
    pub doing: String,
    /// What the other side said.
    pub detail: ForeignText,
    /// The last lines of the task's log, oldest first.
    pub log: Vec<ForeignText>,
    /// What a person can do next; may be empty.
    pub hint: String,
    /// What leads on.
    #[serde(default)]
    pub next: Next,
}

impl PortError {
    /// Makes an error of ours: something that cannot happen did.
    pub fn bug(doing: &str, error: &dyn std::fmt::Display) -> Self {
        Self {
            class: Class::Bug,
            ..Self::refused(doing, error.to_string(), "")
        }
    }

    /// Makes a refusal.
    pub fn refused(doing: &str, detail: impl Into<ForeignText>, hint: impl Into<String>) -> Self {
        Self {
            class: Class::Refused,
            doing: doing.to_owned(),
            detail: detail.into(),
            log: Vec::new(),
            hint: hint.into(),
            next: Next::default(),
        }
    }

    /// Makes the error of something that was not reached, so that nothing was done.
    pub fn unreachable(
        doing: &str,
        detail: impl Into<ForeignText>,
        hint: impl Into<String>,
    ) -> Self {
        Self {
            class: Class::Unreachable { sent: Sent::No },
            ..Self::refused(doing, detail, hint)
        }
    }
}

/// What a place can do, and how much at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskSource {
    /// A disk image by its name in the storage, such as `debian-12.qcow2`.
    Image(String),
    /// A container template by its name in the storage, or as a whole volume id.
    Template(String),
}

/// First-boot data: what the guest is told before anyone can reach it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seed {
    /// cloud-init's user-data. May hold a token, so there is no `Debug`.
    pub user_data: String,
    /// cloud-init's meta-data.
    pub meta_data: String,
    /// cloud-init's network-config, version 2, matched by MAC.
    pub network_config: String,
    /// What the three say, for a place that writes it down itself.
    pub identity: FirstBootConfig,
}

impl From<FirstBootConfig> for Seed {
    fn from(identity: FirstBootConfig) -> Self {
        let made = identity.nocloud_files();
        Self {
            user_data: made.user_data,
            meta_data: made.meta_data,
            network_config: made.network_config,
            identity,
        }
    }
}

/// A guest to be made. It contains every choice; making it makes none but the id, and that only
/// when it is left open.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewGuest {
    /// What it is like.
    pub guest: GuestPlan,
    /// Its name, which is its host name.
    pub name: String,
    /// The site it belongs to.
    pub site: SiteId,
    /// The manifest it belongs to.
    pub manifest: String,
    /// The run that creates it. It is written on the guest, as the proof that this run may undo it.
    pub run: String,
    /// Where the disk comes from.
    pub source: DiskSource,
    /// First-boot data. Proxmox VE takes it for virtual machines only.
    pub seed: Option<Seed>,
    /// Public SSH keys of root in a container.
    pub ssh_keys: Vec<String>,
    /// Whether the plan found it as a guest of the first form, which carries no site. Any other
    /// guest of its identity without a site is refused.
    #[serde(default)]
    pub first_form: bool,
}

impl Deref for NewGuest {
    type Target = GuestPlan;

    fn deref(&self) -> &GuestPlan {
        &self.guest
    }
}

impl DerefMut for NewGuest {
    fn deref_mut(&mut self) -> &mut GuestPlan {
        &mut self.guest
    }
}

/// The identity that a guest gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewIdentity {
    /// Its UUID.
    pub uuid: GuestUuid,
    /// Its site.
    pub site: SiteId,
    /// Its manifest.
    pub manifest: String,
}

/// An address that a place gave out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leased {
    /// The address.
    pub address: IpAddr,
    /// Bits of its network.
    pub prefix: u8,
    /// The way out.
    pub gateway: IpAddr,
    /// Name servers.
    pub dns: Vec<IpAddr>,
}

/// Where a guest is reached, or what it still lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reach {
    /// At this address.
    At(IpAddr),
    /// Its agent does not answer, and nobody else knows its address.
    NoAgent,
    /// Its network card has no address yet.
    NoAddress,
}

impl Reach {
    /// Returns the address, when there is one.
    pub fn address(self) -> Option<IpAddr> {
        match self {
            Self::At(address) => Some(address),
            Self::NoAgent | Self::NoAddress => None,
        }
    }
}

impl From<Option<IpAddr>> for Reach {
    fn from(address: Option<IpAddr>) -> Self {
        address.map_or(Self::NoAddress, Self::At)
    }
}

/// How a guest is brought to a halt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Halt {
    /// It is asked first, and switched off when it has not ended by then.
    Graceful(Duration),
    /// It is switched off.
    Now,
}

/// An image or template that must be in a storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageWanted {
    /// Its file name in the storage.
    pub file: String,
    /// What it is for.
    pub kind: GuestKind,
    /// The host that must have it.
    pub host: String,
    /// The storage that must have it, where there are storages.
    pub storage: Option<String>,
    /// Where it comes from.
    pub source: ImageSource,
    /// What it must add up to, as `sha256:...` or `sha512:...`.
    pub checksum: Option<String>,
}

/// Where an image comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageSource {
    /// A file here, sent over.
    File(std::path::PathBuf),
    /// An address the host fetches it from.
    Url(String),
    /// No document names one; a host may have it, or make it by itself.
    None,
}

/// What a provider says while it works. It changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remark {
    /// What is being waited for, such as `task qmclone on pve1` or `lock "backup" held by ...`.
    Waiting(String),
    /// What is being done inside a node.
    Doing(String),
    /// A node has begun to become what its spec says, and goes on by itself from now on.
    Began,
    /// How far an image is that is being made or fetched.
    Image {
        /// Its name.
        name: String,
        /// How far it is.
        what: String,
    },
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
    async fn observe(&self) -> Result<Inventory, PortError>;
    /// Looks at one guest, wherever in the cluster it is now; `None` when nothing has both its
    /// identity and its id. Without an id, the only guest of that identity is meant. The guest with
    /// its id that someone removed the tags of is returned without a `uuid`: it is no one's.
    async fn inspect(&self, guest: &GuestRef) -> Result<Option<ObservedGuest>, PortError>;
    /// Gives out an address, where the place does so itself: the one asked for, or one that is the
    /// guest's from now on until it is destroyed. `None` where others do, such as a DHCP server.
    async fn lease(
        &self,
        guest: &GuestUuid,
        asked: Option<IpAddr>,
    ) -> Result<Option<Leased>, PortError>;
    /// Makes a guest and leaves it stopped. A guest of that UUID that is already there is
    /// completed, not doubled; several are a refusal.
    async fn create(&self, guest: &NewGuest) -> Result<GuestRef, PortError>;
    /// Starts a guest; one that runs is left alone.
    async fn start(&self, guest: &GuestRef) -> Result<(), PortError>;
    /// Looks once for the address of a guest's network card.
    async fn address(&self, guest: &GuestRef) -> Result<Reach, PortError>;
    /// Takes the first-boot data away, once the guest is ready.
    async fn discard_seed(&self, guest: &GuestRef) -> Result<(), PortError>;
    /// Grows the first disk to a size; a disk that is as large is left alone.
    async fn grow_disk(&self, guest: &GuestRef, size: Gib) -> Result<(), PortError>;
    /// Gives a guest other CPUs and memory, which count from its next start on.
    async fn reshape(&self, guest: &GuestRef, cores: u32, memory: Mib) -> Result<(), PortError>;
    /// Brings a guest to a halt; one that is stopped is left alone.
    async fn stop(&self, guest: &GuestRef, halt: Halt) -> Result<(), PortError>;
    /// Removes one stopped guest with what belongs to it: the one with this identity and this id,
    /// on this host, as they are at the moment of the call. One that is gone is no error, one that
    /// was moved to another host or lost its tags is refused. Without an id only what was stored for it (first-boot
    /// data, address) is removed.
    async fn destroy(&self, guest: &GuestRef) -> Result<(), PortError>;
    /// Gives a guest another identity. Its id, hardware, addresses and power stay as they are.
    async fn reidentify(&self, guest: &GuestRef, to: &NewIdentity) -> Result<(), PortError>;
    /// Tells whether an image is in its storage.
    async fn has_image(&self, image: &ImageWanted) -> Result<bool, PortError>;
    /// Brings an image into its storage.
    async fn ensure_image(&self, image: &ImageWanted) -> Result<(), PortError>;
}

/// Where places are found: hosts of the site, and hosts inside guests.
#[async_trait]
pub trait Places: Send + Sync {
    /// Opens a host of the site.
    async fn host(&self, name: &str) -> Result<Arc<dyn Provider>, PortError>;
    /// Opens the hypervisor that runs in a node of the manifest on a host of the site.
    async fn inside(
        &self,
        host: &str,
        node: &str,
        address: IpAddr,
    ) -> Result<Arc<dyn Provider>, PortError>;
    /// Returns where a host of the site is looked at. Hosts of one cluster that are reached at the
    /// same address have the same one, and are looked at once.
    fn door(&self, name: &str) -> String;
    /// Looks once whether SSH answers at one of some ports of a guest on a host of the site.
    async fn answers(&self, host: &str, address: IpAddr, ports: &[u16]) -> Result<bool, PortError>;
}

/// Makes the first-boot data of nodes, secrets included, when it is needed and not before.
#[async_trait]
pub trait Seeds: Send + Sync {
    /// Returns the first-boot data of a node; the same whenever it is asked for, until the guest is
    /// forgotten.
    async fn seed(&self, node: &str, wanted: &DesiredGuest) -> Result<Seed, PortError>;
    /// Keeps what was stored for a guest (its host key) under another identity as well. Repeating
    /// it changes nothing.
    async fn rename(&self, from: &GuestUuid, to: &GuestUuid) -> Result<(), PortError>;
    /// Forgets what was kept for a guest that is gone. One that is not known is no error.
    async fn forget(&self, guest: &GuestUuid) -> Result<(), PortError>;
}

/// A node that is made inside what its spec says.
#[derive(Clone, Debug, PartialEq)]
pub struct Inner {
    /// Its name.
    pub node: String,
    /// The host of the site it is on.
    pub host: String,
    /// Which guest it is.
    pub guest: GuestUuid,
    /// Where it is reached.
    pub address: IpAddr,
    /// Where its SSH may listen, the likeliest first.
    pub ports: Vec<u16>,
    /// What it should be, as the plan has it.
    pub wanted: DesiredGuest,
    /// What it becomes.
    pub config: ConfigPlan,
    /// Whether it may be booting for the first time, so that its user may still be being created.
    pub is_new: bool,
}

impl Inner {
    /// Puts together what is known of a node that runs. `None` when it should not be there.
    pub fn of(
        node: &NodePlan,
        config: &ConfigPlan,
        guest: GuestUuid,
        address: IpAddr,
    ) -> Option<Self> {
        Some(Self {
            node: node.name.clone(),
            host: node.host.clone(),
            guest,
            address,
            ports: ssh_ports(node, Some(config)),
            wanted: node.wanted.clone()?,
            config: config.clone(),
            is_new: matches!(node.action, Action::Create | Action::Replace)
                || node
                    .found
                    .as_ref()
                    .is_some_and(|found| found.ready == Some(false)),
        })
    }
}

/// Returns where SSH of a node may listen that becomes what `config` says, the likeliest first.
pub fn ssh_ports(node: &NodePlan, config: Option<&ConfigPlan>) -> Vec<u16> {
    let found = node.found.as_ref();
    let was = found.and_then(|found| Some(found.configured.as_ref()?.port));
    let mut ports = Vec::new();
    for port in was.into_iter().chain(config.map(|config| config.port)) {
        if !ports.contains(&port) {
            ports.push(port);
        }
    }
    if !ports.contains(&22) {
        ports.push(22);
    }
    ports
}

/// Makes nodes inside what their specs say.
#[async_trait]
pub trait Configurer: Send + Sync {
    /// Looks what differs on a node that runs.
    async fn check(&self, node: &Inner) -> Result<SpecComparison, PortError>;
    /// Makes a node what its spec says, and returns whether anything was changed. `hear` is told
    /// what is being done.
    async fn converge(
        &self,
        node: &Inner,
        hear: Arc<dyn Fn(Remark) + Send + Sync>,
    ) -> Result<bool, PortError>;
    /// Makes a node again what it was before its spec was applied, by the node's own record.
    /// Refused when the node has no such record. Returns whether anything was changed.
    async fn revert(
        &self,
        node: &Inner,
        before: &AppliedSpec,
        hear: Arc<dyn Fn(Remark) + Send + Sync>,
    ) -> Result<bool, PortError>;
}
