//! Nodes on this machine: Debian systems in containers or virtual machines.
//!
//! Leaves nothing behind when the last node is deleted, and changes nothing that homestak did not
//! create.

mod cgroup;
mod clean;
mod container;
mod emulator;
mod enter;
mod error;
mod fence;
mod identity;
mod inotify;
mod instance;
mod isolation;
mod kvm;
mod launch;
mod lease;
mod lifecycle;
mod lock;
mod machine;
mod net;
mod node;
mod preflight;
mod protocol;
mod provider;
mod qmp;
mod remote;
mod saved_machine;
mod tree;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use homestak_engine::ports::{
    AddressLease, GuestRef, GuestUuid, Inventory, NextAction, ObservedGuest, ObservedHost,
    PortError, ProgressListener, ProviderEvent,
};

pub use clean::Leftover;
pub use instance::{Instance, ROOT};
pub use net::OPEN_PORTS;
pub use node::{Engine, FirstBoot, Node};
pub use preflight::{PACKAGES, PlanNeeds, check, check_addresses, check_needs, setup};
pub use protocol::{RemoteCall, RemoteReply, RemoteRequest};
pub use remote::{RemoteHost, RemoteTransport};

use crate::image::Images;
use cgroup::{Cgroup, Hierarchies};

/// The name of the machine in plans.
pub const HOST: &str = "local";

/// What virtual machines run in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VmEngine {
    /// Virtual machines where the processor can, containers otherwise.
    #[default]
    Auto,
    /// Virtual machines, emulated where the processor cannot.
    Qemu,
    /// Containers.
    Container,
}

/// How nodes are created.
#[derive(Clone, Debug, Default)]
pub struct LocalSettings {
    /// What virtual machines run in.
    pub vm_engine: VmEngine,
    /// How nodes get their identity.
    pub first_boot: FirstBoot,
    /// Mirror that images are built from; apt's when there is none.
    pub mirror: Option<String>,
    /// The program that is run in nodes that are hosts: this one.
    pub program: PathBuf,
}

/// The local host.
#[derive(Clone)]
pub struct Local {
    instance: Instance,
    images: Images,
    settings: LocalSettings,
    hierarchies: Hierarchies,
    listener: Option<Arc<dyn ProgressListener>>,
    warned: Arc<Mutex<BTreeSet<String>>>,
    isolated: Arc<OnceLock<Result<(), String>>>,
    /// When this process last made the network, by the monotonic clock.
    networked: Arc<Mutex<Option<Duration>>>,
}

impl Local {
    /// Opens the local host of an instance. Nothing is created yet.
    pub fn open(instance: Instance, settings: LocalSettings) -> Self {
        Self {
            images: Images::new(instance.images()).with_mirror(settings.mirror.clone()),
            instance,
            settings,
            hierarchies: Hierarchies::of_machine(),
            listener: None,
            warned: Arc::default(),
            isolated: Arc::default(),
            networked: Arc::default(),
        }
    }

    /// Reports progress to a listener.
    #[must_use]
    pub fn listening(mut self, listener: Arc<dyn ProgressListener>) -> Self {
        self.listener = Some(listener);
        self
    }

    /// Returns the instance.
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// Returns the nodes that are there, each with whether it runs.
    pub fn nodes(&self) -> Result<Vec<(Node, bool)>, PortError> {
        let nodes = node::all(&self.instance)?.into_iter();
        Ok(nodes
            .map(|node| {
                let running = self.is_up(&node);
                (node, running)
            })
            .collect())
    }

    /// Returns the network that nodes are on, once there is one.
    pub fn network(&self) -> Option<String> {
        net::chosen(&self.instance).map(|network| network.to_string())
    }

    /// Returns the holder of an address, also inside of nodes.
    pub fn holder(&self, address: std::net::IpAddr) -> Option<GuestUuid> {
        let leases = lease::all(&self.instance).into_iter();
        let mut held = leases.filter(|(held, _)| std::net::IpAddr::V4(*held) == address);
        GuestUuid::new(&held.next()?.1)
    }

    /// Returns the PID of a node's first process.
    pub fn init(&self, node: &Node) -> Option<u32> {
        let pid = container::init(&self.group(node.vmid))?;
        u32::try_from(pid.as_raw_nonzero().get()).ok()
    }

    fn group(&self, vmid: u32) -> Cgroup {
        let part = self.instance.part(vmid);
        Cgroup::new(self.hierarchies.clone(), self.instance.name(), &part)
    }

    fn runs(&self, node: &Node) -> bool {
        self.group(node.vmid).is_alive()
    }

    /// Whether a node is running with its identity. A restored machine without identity counts as not
    /// started.
    fn is_up(&self, node: &Node) -> bool {
        self.runs(node) && !self.awaits_identity(node)
    }

    fn awaits_identity(&self, node: &Node) -> bool {
        node.engine == Engine::Machine && machine::awaits_identity(&self.instance.node(&node.uuid))
    }

    /// Whether this host is inside a node of another, whose network it uses.
    fn is_attached(&self) -> bool {
        self.instance.attached().exists()
    }

    /// Reports a warning once.
    fn warn_once(&self, text: &str) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let first = warned.insert(text.to_owned());
        if let Some(listener) = self.listener.as_ref().filter(|_| first) {
            listener.report(None, ProviderEvent::Warning(text.to_owned()));
        }
    }

    /// Finds a node by its identity.
    fn find(&self, guest: &GuestRef, doing: &str) -> Result<Node, PortError> {
        node::of(&self.instance, guest)?.ok_or_else(|| {
            error::missing(doing, format!("no node has the identity {}", guest.uuid))
        })
    }

    fn observe_all(&self) -> Result<Inventory, PortError> {
        let nodes = self.nodes()?;
        let guests = nodes
            .iter()
            .map(|(node, running)| node.observed(HOST, *running));
        Ok(Inventory {
            hosts: vec![ObservedHost {
                name: HOST.to_owned(),
                online: true,
                cores: std::thread::available_parallelism()
                    .ok()
                    .and_then(|cores| u32::try_from(cores.get()).ok()),
                memory: Some(preflight::memory()),
            }],
            guests: guests.collect(),
            storages: Vec::new(),
            requests: 1,
        })
    }

    fn inspect_node(&self, guest: &GuestRef) -> Result<Option<ObservedGuest>, PortError> {
        let node = node::of(&self.instance, guest)?;
        Ok(node.map(|node| node.observed(HOST, self.is_up(&node))))
    }

    fn lease_address(
        &self,
        uuid: &GuestUuid,
        asked: Option<std::net::IpAddr>,
    ) -> Result<Option<AddressLease>, PortError> {
        if self.is_attached() {
            // Addresses are given out by the host that this one is inside of.
            return Ok(None);
        }
        let _turn = self.instance.lock()?;
        let network = net::choose(&self.instance)?;
        let address = lease::take(&self.instance, &network, uuid, asked)?;
        Ok(Some(AddressLease {
            address: address.into(),
            prefix: network.prefix(),
            gateway: network.gateway().into(),
            dns: net::name_servers(),
        }))
    }

    fn find_address(&self, guest: &GuestRef) -> Result<Option<std::net::IpAddr>, PortError> {
        let node = self.find(guest, "find an address")?;
        if !self.runs(&node) {
            let log = self.console(&node, 8).into_iter().map(Into::into).collect();
            return Err(PortError {
                log,
                next: NextAction::NewPlan,
                ..PortError::refused(
                    &format!("reach `{}`", node.name),
                    "it is not running",
                    format!(
                        "homestak logs {} shows more; run apply to start it",
                        node.name
                    ),
                )
            });
        }
        Ok(Some(node.address.0))
    }

    /// Returns the last lines of a node's console.
    pub fn console(&self, node: &Node, lines: usize) -> Vec<String> {
        console_tail(&self.instance.node(&node.uuid), lines)
    }
}

/// How much of a console log is read, in bytes: nodes may write any amount.
const CONSOLE: u64 = 1 << 20;

/// Returns the last lines of the console in a node's directory.
fn console_tail(directory: &std::path::Path, lines: usize) -> Vec<String> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = fs_err::File::open(directory.join("console.log"))?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(CONSOLE)))?;
        let mut bytes = Vec::new();
        file.take(CONSOLE).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let kept: Vec<&str> = text.lines().rev().take(lines).collect();
    kept.into_iter().rev().map(str::to_owned).collect()
}

/// Returns the name of an image from the name of its file.
fn image_name(file: &str) -> &str {
    let endings = [".qcow2", ".tar.zst", ".tar.xz", ".tar.gz", ".img"];
    endings
        .iter()
        .find_map(|ending| file.strip_suffix(ending))
        .unwrap_or(file)
}

/// Returns the nearest directory that exists.
fn existing(path: &std::path::Path) -> &std::path::Path {
    path.ancestors().find(|path| path.exists()).unwrap_or(path)
}
