//! The traits through which the engine reaches hosts, first-boot data and the inside of nodes.
//!
//! The traits have no default bodies, so that an incomplete implementation does not compile.

use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use homestak_core::doc::manifest::Mode;
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

/// The class of an error, which decides about retries and exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ErrorClass {
    /// The request was refused. Retrying does not help.
    Refused,
    /// Everything was done except parts that were refused.
    Partly,
    /// The named object does not exist.
    Missing,
    /// It is locked or busy. Retrying later may work.
    Busy,
    /// The other side did not answer, or the connection was lost.
    Unreachable {
        /// Whether it may have acted on the request.
        sent: Sent,
    },
    /// The answer was not understood.
    Broken,
    /// A bug of homestak.
    Bug,
}

impl ErrorClass {
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

    /// Returns the name stored in the journal.
    pub fn name(self) -> &'static str {
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

    /// Parses a name in the journal; an unknown one is [`Self::Broken`].
    pub(crate) fn from_name(name: &str) -> Self {
        let mut all = Self::ALL.into_iter();
        all.find(|class| class.name() == name)
            .unwrap_or(Self::Broken)
    }
}

/// Whether the other side may have acted on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sent {
    /// It was not sent, or refused before anything happened.
    No,
    /// It may have been executed: observe before repeating.
    Maybe,
}

/// What to do after an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NextAction {
    /// Repeat the command once the cause is fixed.
    #[default]
    Repeat,
    /// Make a new plan: the input of this one has changed, or has to be corrected.
    NewPlan,
    /// Decide whether to trust the host's certificate.
    Trust,
}

impl NextAction {
    /// Returns whether it is the default.
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// An error of a port.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
#[error("{doing}: {detail}")]
pub struct PortError {
    /// Its class.
    pub class: ErrorClass,
    /// The operation, such as `create guest 99011 on father`.
    pub doing: String,
    /// The message of the other side.
    pub detail: ForeignText,
    /// The last lines of the task log, oldest first.
    pub log: Vec<ForeignText>,
    /// What the user can do; may be empty.
    pub hint: String,
    /// What to do next.
    #[serde(default)]
    pub next: NextAction,
}

impl PortError {
    /// Makes an error for a bug of homestak.
    pub fn bug(doing: &str, error: &dyn std::fmt::Display) -> Self {
        Self {
            class: ErrorClass::Bug,
            ..Self::refused(doing, error.to_string(), "")
        }
    }

    /// Makes a refusal.
    pub fn refused(doing: &str, detail: impl Into<ForeignText>, hint: impl Into<String>) -> Self {
        Self {
            class: ErrorClass::Refused,
            doing: doing.to_owned(),
            detail: detail.into(),
            log: Vec::new(),
            hint: hint.into(),
            next: NextAction::default(),
        }
    }

    /// Makes an error for something that was not reached, so that nothing was done.
    pub fn unreachable(
        doing: &str,
        detail: impl Into<ForeignText>,
        hint: impl Into<String>,
    ) -> Self {
        Self {
            class: ErrorClass::Unreachable { sent: Sent::No },
            ..Self::refused(doing, detail, hint)
        }
    }
}

/// What a host can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Product and version, such as `Proxmox VE 9.1.7`.
    pub product: String,
    /// Whether changes are possible now; a cluster without quorum is read-only.
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

/// First-boot data of a guest, in the form of a cloud-init seed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seed {
    /// cloud-init's user-data. May hold a token, so there is no `Debug`.
    pub user_data: String,
    /// cloud-init's meta-data.
    pub meta_data: String,
    /// cloud-init's network-config, version 2, matched by MAC.
    pub network_config: String,
    /// The same as data, for hosts that write the files themselves.
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

/// A guest to create. All choices are made here, except the id when it is not given.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewGuest {
    /// Its hardware and network.
    pub guest: GuestPlan,
    /// Its name, which is its host name.
    pub name: String,
    /// The site it belongs to.
    pub site: SiteId,
    /// The manifest it belongs to.
    pub manifest: String,
    /// The mark of the run that creates it, stored on the guest: only that run may undo it.
    pub run: String,
    /// Where the disk comes from.
    pub source: DiskSource,
    /// First-boot data. Proxmox VE supports it for virtual machines only.
    pub seed: Option<Seed>,
    /// Public SSH keys of root in a container.
    pub ssh_keys: Vec<String>,
    /// Whether the plan found it as a guest of the first format, which has no site tag. Any other
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

/// The new identity of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewIdentity {
    /// Its UUID.
    pub uuid: GuestUuid,
    /// Its site.
    pub site: SiteId,
    /// Its manifest.
    pub manifest: String,
}

/// An address assigned by a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressLease {
    /// The address.
    pub address: IpAddr,
    /// Its prefix length.
    pub prefix: u8,
    /// The gateway.
    pub gateway: IpAddr,
    /// Name servers.
    pub dns: Vec<IpAddr>,
}

/// The address of a guest, or why there is none yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GuestAddress {
    /// It has this address.
    At(IpAddr),
    /// Its guest agent does not answer, and the host does not know its address.
    NoAgent,
    /// Its network card has no address yet.
    NoAddress,
}

impl GuestAddress {
    /// Returns the address, when there is one.
    pub fn address(self) -> Option<IpAddr> {
        match self {
            Self::At(address) => Some(address),
            Self::NoAgent | Self::NoAddress => None,
        }
    }
}

impl From<Option<IpAddr>> for GuestAddress {
    fn from(address: Option<IpAddr>) -> Self {
        address.map_or(Self::NoAddress, Self::At)
    }
}

/// How a guest is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopMode {
    /// Shut down; powered off after this time.
    Graceful(Duration),
    /// Powered off.
    Now,
}

/// An image or template that is needed in a storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRequest {
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
    /// Its checksum, as `sha256:...` or `sha512:...`.
    pub checksum: Option<String>,
}

/// Where an image comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageSource {
    /// A local file, which is uploaded.
    File(std::path::PathBuf),
    /// A URL that the host downloads it from.
    Url(String),
    /// None is configured; the host may have the image, or build it.
    None,
}

/// Progress of a provider, for display only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProviderEvent {
    /// It waits for something, such as `task qmclone on pve1` or `lock "backup" held by ...`.
    Waiting(String),
    /// It does something inside a node.
    Doing(String),
    /// A node has started to apply its spec, and continues without a connection.
    Began,
    /// Progress of an image that is being built or downloaded.
    Image {
        /// Its name.
        name: String,
        /// Its progress.
        what: String,
    },
    /// A warning, such as those of a task that succeeded.
    Warning(String),
}

/// Receives the progress of a provider. Must not block.
pub trait ProgressListener: Send + Sync {
    /// Receives an event, with the guest it is about, if any.
    fn report(&self, guest: Option<&GuestUuid>, event: ProviderEvent);
}

/// A host that runs guests.
///
/// Every call is idempotent: it observes first and does what is left to do. On [`Sent::Maybe`] the
/// caller repeats the call.
#[async_trait]
pub trait Provider: Send + Sync {
    /// Returns what the host can do.
    async fn capabilities(&self) -> Result<Capabilities, PortError>;
    /// Lists hosts, storages and guests, in a constant number of requests.
    async fn observe(&self) -> Result<Inventory, PortError>;
    /// Reads one guest, wherever in the cluster it is now; `None` when no guest has both its identity
    /// and its id. Without an id, the only guest of that identity is meant. A guest with its id whose
    /// tags were removed is returned without a `uuid`: it belongs to no site.
    async fn inspect(&self, guest: &GuestRef) -> Result<Option<ObservedGuest>, PortError>;
    /// Assigns an address, where the host does so itself: the requested one, or one that the guest
    /// keeps until it is destroyed. `None` where a DHCP server or the like does.
    async fn lease(
        &self,
        guest: &GuestUuid,
        asked: Option<IpAddr>,
    ) -> Result<Option<AddressLease>, PortError>;
    /// Creates a guest, stopped. An existing guest with that UUID is completed, not duplicated; when
    /// there are several, the call is refused.
    async fn create(&self, guest: &NewGuest) -> Result<GuestRef, PortError>;
    /// Starts a guest, unless it runs.
    async fn start(&self, guest: &GuestRef) -> Result<(), PortError>;
    /// Reads the address of a guest's network interface, without waiting.
    async fn address(&self, guest: &GuestRef) -> Result<GuestAddress, PortError>;
    /// Removes the first-boot data of a guest that is ready.
    async fn discard_seed(&self, guest: &GuestRef) -> Result<(), PortError>;
    /// Grows the first disk to a size, unless it is as large.
    async fn grow_disk(&self, guest: &GuestRef, size: Gib) -> Result<(), PortError>;
    /// Changes the CPUs and memory of a guest, effective from its next start.
    async fn reshape(&self, guest: &GuestRef, cores: u32, memory: Mib) -> Result<(), PortError>;
    /// Stops a guest, unless it is stopped.
    async fn stop(&self, guest: &GuestRef, halt: StopMode) -> Result<(), PortError>;
    /// Deletes the stopped guest with this identity and id on this host, with everything that
    /// belongs to it. A guest that does not exist is no error; one that was migrated or has lost its
    /// tags is refused. Without an id, only what was stored for it (first-boot data, address) is
    /// deleted.
    async fn destroy(&self, guest: &GuestRef) -> Result<(), PortError>;
    /// Changes the identity of a guest. Its id, hardware, addresses and power state stay the same.
    async fn reidentify(&self, guest: &GuestRef, to: &NewIdentity) -> Result<(), PortError>;
    /// Returns whether an image is in its storage.
    async fn has_image(&self, image: &ImageRequest) -> Result<bool, PortError>;
    /// Uploads, downloads or builds an image, unless it is in its storage.
    async fn ensure_image(&self, image: &ImageRequest) -> Result<(), PortError>;
}

/// Connects to hosts of the site, and to hypervisors inside nodes.
#[async_trait]
pub trait HostConnector: Send + Sync {
    /// Connects to a host of the site.
    async fn host(&self, name: &str) -> Result<Arc<dyn Provider>, PortError>;
    /// Connects to the hypervisor inside a node of the manifest on a host of the site.
    async fn inside(
        &self,
        host: &str,
        node: &str,
        address: IpAddr,
    ) -> Result<Arc<dyn Provider>, PortError>;
    /// Returns the endpoint of a host of the site. Hosts of a cluster with the same endpoint are
    /// observed once.
    fn endpoint(&self, name: &str) -> String;
    /// Returns whether SSH answers at one of some ports of a guest, without waiting.
    async fn ssh_answers(
        &self,
        host: &str,
        address: IpAddr,
        ports: &[u16],
    ) -> Result<bool, PortError>;
}

/// A node that gets first-boot data.
#[derive(Clone, Copy, Debug)]
pub struct SeedRequest<'a> {
    /// Its manifest.
    pub manifest: &'a str,
    /// Its plan, with its name, its host and its configuration.
    pub node: &'a NodePlan,
    /// Its guest, with the address that its host assigned.
    pub wanted: &'a DesiredGuest,
}

/// Makes the first-boot data of nodes, including secrets, when it is needed.
#[async_trait]
pub trait SeedSource: Send + Sync {
    /// Returns the first-boot data of a node, always the same until [`Self::forget`] or the node
    /// has used it.
    async fn seed(&self, node: &SeedRequest<'_>) -> Result<Seed, PortError>;
    /// Stores what is kept for a guest (its host key) under another identity as well. Idempotent.
    async fn rename(&self, from: &GuestUuid, to: &GuestUuid) -> Result<(), PortError>;
    /// Deletes what is kept for a guest that was deleted. An unknown guest is no error.
    async fn forget(&self, guest: &GuestUuid) -> Result<(), PortError>;
}

/// A running node to which a spec is applied.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigTarget {
    /// Its manifest.
    pub manifest: String,
    /// Its name.
    pub node: String,
    /// The host of the site it is on.
    pub host: String,
    /// Its guest.
    pub guest: GuestUuid,
    /// Its address.
    pub address: IpAddr,
    /// Ports on which its SSH may listen, the most likely first.
    pub ports: Vec<u16>,
    /// Its planned properties.
    pub wanted: DesiredGuest,
    /// The spec.
    pub config: ConfigPlan,
    /// Whether it may be on its first boot, when its user may not exist yet.
    pub is_new: bool,
    /// Whether this run creates it, so that its first-boot data is for the mode of the plan.
    pub is_created: bool,
    /// The mode in which it was configured last, if that is recorded.
    pub mode_before: Option<Mode>,
}

impl ConfigTarget {
    /// Describes a running node of a plan. `None` when the plan removes it.
    pub fn of(
        manifest: &str,
        (node, config): (&NodePlan, &ConfigPlan),
        guest: GuestUuid,
        address: IpAddr,
    ) -> Option<Self> {
        let is_created = matches!(node.action, Action::Create | Action::Replace);
        Some(Self {
            manifest: manifest.to_owned(),
            node: node.name.clone(),
            host: node.host.clone(),
            guest,
            address,
            ports: ssh_ports(node, Some(config)),
            wanted: node.wanted.clone()?,
            config: config.clone(),
            is_created,
            is_new: is_created
                || node
                    .found
                    .as_ref()
                    .is_some_and(|found| found.ready == Some(false)),
            mode_before: node.mode_before(),
        })
    }
}

/// Returns the ports on which the SSH of a node may listen, the most likely first.
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

/// Applies specs inside nodes.
#[async_trait]
pub trait Configurer: Send + Sync {
    /// Compares a running node with its spec.
    async fn check(&self, node: &ConfigTarget) -> Result<SpecComparison, PortError>;
    /// Applies its spec to a node, and returns whether anything was changed.
    async fn converge(
        &self,
        node: &ConfigTarget,
        progress: Arc<dyn Fn(ProviderEvent) + Send + Sync>,
    ) -> Result<bool, PortError>;
    /// Reverts a node to what it was before its spec was applied, from the node's own record.
    /// Refused when it has none. Returns whether anything was changed.
    async fn revert(
        &self,
        node: &ConfigTarget,
        before: &AppliedSpec,
        progress: Arc<dyn Fn(ProviderEvent) + Send + Sync>,
    ) -> Result<bool, PortError>;
}
