//! Real nodes on this machine: Debian systems in containers or virtual machines.
//!
//! In: calls of the engine's port. Out: processes, links and files of this machine.
//! Never: a trace left when the last node is gone; anything touched that is not ours.

mod cgroup;
mod clean;
mod container;
mod fault;
mod identity;
mod lease;
mod lock;
mod net;
mod node;
mod preflight;
mod provider;
mod realm;
mod remote;
mod wire;

use std::path::PathBuf;
use std::sync::Arc;

use homestak_engine::ports::{
    DiskSource, GuestRef, GuestUuid, Halt, Leased, Listener, NewGuest, Observed, ObservedGuest,
    ObservedHost, ObservedStorage, PortError, Remark,
};

pub use clean::Leftover;
pub use node::{Engine, FirstBoot, Node};
pub use preflight::{PACKAGES, check, setup};
pub use realm::{ROOT, Realm};
pub use remote::Remote;
pub use wire::{Reply, Request};

use crate::image::Images;
use cgroup::{Group, Hierarchies};

/// What the machine is called in plans.
pub const HOST: &str = "local";
/// The storage there is.
const STORAGE: &str = "local";
/// The first id that is given out.
const FIRST_VMID: u32 = 100;

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

/// How nodes are made.
#[derive(Clone, Debug, Default)]
pub struct LocalSettings {
    /// What virtual machines run in.
    pub vm_engine: VmEngine,
    /// How nodes learn who they are.
    pub first_boot: FirstBoot,
    /// The program that hosts inside nodes are driven with: this one.
    pub program: PathBuf,
}

/// This machine as a place where nodes live.
#[derive(Clone)]
pub struct Local {
    realm: Realm,
    images: Images,
    settings: LocalSettings,
    hierarchies: Hierarchies,
    listener: Option<Arc<dyn Listener>>,
}

impl Local {
    /// Opens the local host of a realm. Nothing is made yet.
    pub fn open(realm: Realm, settings: LocalSettings) -> Self {
        Self {
            images: Images::new(realm.images()),
            realm,
            settings,
            hierarchies: Hierarchies::of_machine(),
            listener: None,
        }
    }

    /// Lets someone hear what is being done.
    #[must_use]
    pub fn listening(mut self, listener: Arc<dyn Listener>) -> Self {
        self.listener = Some(listener);
        self
    }

    /// Returns the realm.
    pub fn realm(&self) -> &Realm {
        &self.realm
    }

    /// Returns the nodes that are there, each with whether it runs.
    pub fn nodes(&self) -> Result<Vec<(Node, bool)>, PortError> {
        let nodes = node::all(&self.realm)?.into_iter();
        Ok(nodes
            .map(|node| {
                let running = self.runs(&node);
                (node, running)
            })
            .collect())
    }

    /// Returns the network that nodes are on, once there is one.
    pub fn network(&self) -> Option<String> {
        net::chosen(&self.realm).map(|network| network.to_string())
    }

    /// Returns the number of a node's first process, for those who want to look inside.
    pub fn init(&self, node: &Node) -> Option<u32> {
        let pid = container::init(&self.group(node.vmid))?;
        u32::try_from(pid.as_raw_nonzero().get()).ok()
    }

    fn group(&self, vmid: u32) -> Group {
        let part = self.realm.part(vmid);
        Group::new(self.hierarchies.clone(), self.realm.name(), &part)
    }

    fn runs(&self, node: &Node) -> bool {
        !self.group(node.vmid).processes().is_empty()
    }

    /// Whether this host is inside a node of another, whose network it uses.
    fn is_attached(&self) -> bool {
        self.realm.attached().exists()
    }

    fn say(&self, guest: Option<&GuestUuid>, text: impl Into<String>) {
        if let Some(listener) = &self.listener {
            listener.hear(guest, Remark::Waiting(text.into()));
        }
    }

    fn warn(&self, guest: Option<&GuestUuid>, text: impl Into<String>) {
        if let Some(listener) = &self.listener {
            listener.hear(guest, Remark::Warning(text.into()));
        }
    }

    /// Finds a node by its identity.
    fn find(&self, guest: &GuestRef, doing: &str) -> Result<Node, PortError> {
        node::read(&self.realm, &guest.uuid)?.ok_or_else(|| {
            fault::missing(
                doing,
                format!("there is no node with identity {}", guest.uuid),
            )
        })
    }

    fn everything(&self) -> Result<Observed, PortError> {
        let nodes = self.nodes()?;
        let guests = nodes
            .iter()
            .map(|(node, running)| node.observed(HOST, *running));
        let space = rustix::fs::statvfs(existing(self.realm.root())).ok();
        let system = rustix::system::sysinfo();
        let memory = system.totalram.saturating_mul(u64::from(system.mem_unit));
        Ok(Observed {
            hosts: vec![ObservedHost {
                name: HOST.to_owned(),
                online: true,
                cores: std::thread::available_parallelism()
                    .ok()
                    .and_then(|cores| u32::try_from(cores.get()).ok()),
                memory: Some(memory),
            }],
            guests: guests.collect(),
            storages: vec![ObservedStorage {
                name: STORAGE.to_owned(),
                host: HOST.to_owned(),
                active: true,
                content: ["images", "import", "iso", "vztmpl", "rootdir"]
                    .map(str::to_owned)
                    .into(),
                available: space.map(|space| space.f_bavail * space.f_frsize),
                shared: false,
            }],
            requests: 1,
        })
    }

    fn one(&self, guest: &GuestRef) -> Result<Option<ObservedGuest>, PortError> {
        let node = node::read(&self.realm, &guest.uuid)?;
        Ok(node.map(|node| node.observed(HOST, self.runs(&node))))
    }

    fn leased(
        &self,
        uuid: &GuestUuid,
        asked: Option<std::net::IpAddr>,
    ) -> Result<Option<Leased>, PortError> {
        if self.is_attached() {
            // Addresses are given out by the host that this one is inside of.
            return Ok(None);
        }
        let _turn = self.realm.lock()?;
        let network = net::choose(&self.realm)?;
        let address = lease::take(&self.realm, &network, uuid, asked)?;
        Ok(Some(Leased {
            address: address.into(),
            prefix: network.prefix(),
            gateway: network.gateway().into(),
            dns: net::name_servers(),
        }))
    }

    fn make(&self, new: &NewGuest) -> Result<GuestRef, PortError> {
        let doing = format!("make `{}`", new.name);
        let _node = self.realm.lock_node(&new.uuid)?;
        if let Some(node) = node::read(&self.realm, &new.uuid)? {
            self.tell(&node, new)?;
            return Ok(node.reference(HOST));
        }
        let image = image_of(&new.source).map_err(|detail| {
            PortError::refused(&doing, detail, "name an image: homestak image list")
        })?;
        let tree = self
            .images
            .present(&image)
            .ok_or_else(|| fault::missing(&doing, format!("the image `{image}` is not there")))?;
        let Some(seed) = &new.seed else {
            return Err(PortError::bug(&doing, &"there is no first-boot data"));
        };
        let Some(address) = seed.identity.address else {
            return Err(PortError::bug(&doing, &"there is no address"));
        };
        let engine = self.engine(new);
        let _turn = self.realm.lock()?;
        let node = Node {
            uuid: new.uuid.clone(),
            name: new.name.clone(),
            manifest: new.manifest.clone(),
            vmid: self.vmid(new)?,
            kind: new.kind,
            engine,
            first_boot: self.settings.first_boot,
            cores: new.cores,
            memory: new.memory,
            disk: new.disk,
            address,
            image,
            tree: tree.path,
            hosts: new.hosts_guests,
            identity: seed.identity.clone(),
        };
        node::make(&self.realm, &node)?;
        self.tell(&node, new)?;
        Ok(node.reference(HOST))
    }

    /// Writes down what a node that has not started yet is told when it does.
    fn tell(&self, node: &Node, new: &NewGuest) -> Result<(), PortError> {
        let doing = format!("make `{}`", node.name);
        let directory = self.realm.node(&node.uuid);
        if directory.join("told").exists() {
            return Ok(());
        }
        let Some(seed) = &new.seed else {
            return Ok(());
        };
        let files = [
            ("user-data", seed.user_data.as_str()),
            ("meta-data", seed.meta_data.as_str()),
            ("network-config", seed.network_config.as_str()),
        ];
        let io = |error: std::io::Error| fault::io(&doing, &error);
        container::prepare(&self.realm, node, &files).map_err(io)?;
        if node.hosts {
            fs_err::write(directory.join("nested/attached.json"), "{}\n").map_err(io)?;
        }
        fs_err::write(directory.join("told"), "").map_err(io)
    }

    /// Chooses what a node runs in.
    fn engine(&self, new: &NewGuest) -> Engine {
        use homestak_engine::ports::GuestKind;
        if new.kind == GuestKind::Vm
            && !new.hosts_guests
            && self.settings.vm_engine == VmEngine::Auto
        {
            self.warn(
                Some(&new.uuid),
                "this machine cannot run virtual machines at full speed: `vm` nodes are containers (--vm-engine qemu emulates them)",
            );
        }
        Engine::Container
    }

    /// Chooses an id. The caller holds the realm.
    fn vmid(&self, new: &NewGuest) -> Result<u32, PortError> {
        let taken: std::collections::BTreeMap<u32, String> = node::all(&self.realm)?
            .into_iter()
            .map(|node| (node.vmid, node.name))
            .collect();
        match new.vmid {
            Some(asked) => match taken.get(&asked) {
                None => Ok(asked),
                Some(holder) => Err(PortError::refused(
                    &format!("make `{}`", new.name),
                    format!("id {asked} belongs to `{holder}`"),
                    "write another `vmid`, or leave it out to have one chosen",
                )),
            },
            None => Ok((FIRST_VMID..)
                .find(|id| !taken.contains_key(id))
                .unwrap_or(FIRST_VMID)),
        }
    }

    fn boot(&self, guest: &GuestRef) -> Result<(), PortError> {
        let _node = self.realm.lock_node(&guest.uuid)?;
        let node = self.find(guest, "start a node")?;
        if self.runs(&node) {
            return Ok(());
        }
        let doing = format!("start `{}`", node.name);
        if !node.tree.is_dir() {
            let detail = format!("its image is gone ({})", node.tree.display());
            return Err(fault::missing(&doing, detail));
        }
        let outer = if self.is_attached() {
            None
        } else {
            let _turn = self.realm.lock()?;
            net::up(&self.realm)?;
            Some(self.realm.netns())
        };
        let group = self.group(node.vmid);
        let part = self.realm.part(node.vmid);
        net::plug(
            outer.as_deref(),
            &part,
            &format!("v{}", node.vmid),
            &node.identity.mac,
        )?;
        let program = (node.tree.as_path(), self.settings.program.as_path());
        container::start(
            &self.realm,
            &node,
            program,
            &group,
            self.hierarchies.systemd,
        )
    }

    fn reach(&self, guest: &GuestRef) -> Result<Option<std::net::IpAddr>, PortError> {
        let node = self.find(guest, "look for an address")?;
        if !self.runs(&node) {
            let log = self.console(&node, 8);
            return Err(PortError {
                log,
                ..PortError::refused(
                    &format!("reach `{}`", node.name),
                    "it has ended",
                    format!(
                        "homestak logs {} shows more; apply again starts it",
                        node.name
                    ),
                )
            });
        }
        Ok(Some(node.address.0))
    }

    /// Returns the last lines of a node's console.
    pub fn console(&self, node: &Node, lines: usize) -> Vec<String> {
        let path = self.realm.node(&node.uuid).join("console.log");
        let text = fs_err::read(path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let kept: Vec<&str> = text.lines().rev().take(lines).collect();
        kept.into_iter().rev().map(str::to_owned).collect()
    }

    fn discard(&self, guest: &GuestRef) -> Result<(), PortError> {
        let Some(node) = node::read(&self.realm, &guest.uuid)? else {
            return Ok(());
        };
        let doing = format!("take the first-boot data of `{}` away", node.name);
        container::discard(&self.realm, &node, &self.group(node.vmid))
            .map_err(|error| fault::io(&doing, &error))
    }

    fn change(&self, guest: &GuestRef, change: impl FnOnce(&mut Node)) -> Result<(), PortError> {
        let _node = self.realm.lock_node(&guest.uuid)?;
        let mut node = self.find(guest, "change a node")?;
        change(&mut node);
        node::change(&self.realm, &node)
    }

    fn end(&self, guest: &GuestRef, halt: Halt) -> Result<(), PortError> {
        let _node = self.realm.lock_node(&guest.uuid)?;
        let Some(node) = node::read(&self.realm, &guest.uuid)? else {
            return Ok(());
        };
        self.halt(node.vmid, halt);
        net::unplug(&self.realm.part(node.vmid))
    }

    fn halt(&self, vmid: u32, halt: Halt) {
        let group = self.group(vmid);
        container::stop(&group, halt);
        group.remove();
        container::sweep(&self.realm.part(vmid));
    }

    fn take_away(&self, guest: &GuestRef) -> Result<(), PortError> {
        {
            let _node = self.realm.lock_node(&guest.uuid)?;
            if let Some(node) = node::read(&self.realm, &guest.uuid)? {
                if self.runs(&node) {
                    return Err(PortError::refused(
                        &format!("remove `{}`", node.name),
                        "it runs",
                        "stop it first",
                    ));
                }
                self.halt(node.vmid, Halt::Now);
                net::unplug(&self.realm.part(node.vmid))?;
            }
            node::remove(&self.realm, &guest.uuid)
                .map_err(|error| fault::io("remove a node", &error))?;
            let half = self.realm.nodes().join(format!(".new-{}", guest.uuid));
            node::remove_tree(&half).map_err(|error| fault::io("remove a node", &error))?;
        }
        self.release(&guest.uuid)
    }

    /// Gives a node's address back, and takes the network down after the last one.
    fn release(&self, uuid: &GuestUuid) -> Result<(), PortError> {
        let turn = self.realm.lock()?;
        lease::release(&self.realm, uuid)?;
        let _ = fs_err::remove_file(self.realm.root().join("locks").join(uuid.as_str()));
        if lease::all(&self.realm).is_empty() && node::all(&self.realm)?.is_empty() {
            self.leave(turn)?;
        }
        Ok(())
    }

    /// Takes away what is left when there are no nodes: only images stay.
    fn leave(&self, turn: lock::Lock) -> Result<(), PortError> {
        if !self.is_attached() {
            net::down(&self.realm)?;
        }
        let io = |error: std::io::Error| fault::io("take the local host down", &error);
        for directory in [
            self.realm.nodes(),
            self.realm.leases(),
            self.realm.root().join("locks"),
        ] {
            node::remove_tree(&directory).map_err(io)?;
        }
        let _ = fs_err::remove_file(self.realm.root().join("realm.lock"));
        drop(turn);
        // Refused, and rightly so, while there are images.
        let _ = fs_err::remove_dir(self.realm.root());
        Ok(())
    }
}

/// Returns the image that a guest is made from.
fn image_of(source: &DiskSource) -> Result<String, String> {
    match source {
        DiskSource::Image(file) | DiskSource::Template(file) => Ok(image_name(file).to_owned()),
        DiskSource::Clone { vmid, .. } => Err(format!(
            "the local host makes no copies of guests, such as of {vmid}"
        )),
    }
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
