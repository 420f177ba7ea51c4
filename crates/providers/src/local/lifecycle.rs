//! Creates, starts, stops and deletes nodes, each under the lock of the node.

use std::path::Path;
use std::sync::PoisonError;
use std::time::Duration;

use homestak_api::limit::monotonic;
use homestak_engine::ports::{
    DiskSource, Gib, GuestKind, GuestRef, GuestUuid, NewGuest, NewIdentity, PortError,
    ProviderEvent, StopMode,
};

use super::emulator::Accel;
use super::instance::is_lease;
use super::lock::Lock;
use super::node::{Engine, Node};
use super::{
    HOST, Local, VmEngine, container, emulator, error, image_name, inotify, isolation, kvm, lease,
    machine, net, node, saved_machine,
};

/// How long a network that this process set up is not checked again.
const FRESH: Duration = Duration::from_secs(10);
/// The first id that is assigned.
const FIRST_VMID: u32 = 100;

impl Local {
    pub(super) fn create_node(&self, new: &NewGuest) -> Result<GuestRef, PortError> {
        let doing = format!("create `{}`", new.name);
        let _node = self.lock(&new.uuid)?;
        let reference = GuestRef {
            uuid: new.uuid.clone(),
            kind: new.kind,
            vmid: None,
            host: HOST.to_owned(),
        };
        if let Some(node) = node::of(&self.instance, &reference)? {
            let is_of_site = match &node.site {
                Some(site) => *site == new.site,
                None => new.first_form,
            };
            if !is_of_site {
                return Err(PortError::refused(
                    &doing,
                    format!(
                        "guest {} has this identity but not the site {}",
                        node.vmid, new.site
                    ),
                    "if it is the original, correct `site` in its node.json",
                ));
            }
            self.write_first_boot_data(&node, new)?;
            return Ok(node.reference(HOST));
        }
        let image = image_of(&new.source).to_owned();
        let Some(seed) = &new.seed else {
            return Err(PortError::bug(&doing, &"there is no first-boot data"));
        };
        let Some(address) = seed.identity.address else {
            return Err(PortError::bug(&doing, &"there is no address"));
        };
        let engine = self.engine(new, &image);
        if engine == Engine::Machine && emulator::version().is_none() {
            return Err(saved_machine::missing(&doing));
        }
        let tree = match engine {
            Engine::Container => self.images.current_tree(&image).map(|tree| tree.path),
            Engine::Machine => self.disk(&image),
        };
        let tree = tree
            .ok_or_else(|| error::missing(&doing, format!("the image `{image}` does not exist")))?;
        let turn = self.instance.lock()?;
        let node = Node {
            uuid: new.uuid.clone(),
            reidentified: None,
            site: Some(new.site.clone()),
            run: Some(new.run.clone()),
            name: new.name.clone(),
            manifest: new.manifest.clone(),
            vmid: self.choose_vmid(new)?,
            kind: new.kind,
            engine,
            first_boot: self.settings.first_boot,
            cores: new.cores,
            memory: new.memory,
            disk: new.disk,
            address,
            image,
            tree,
            hosts: new.hosts_guests,
            ids: match engine {
                Engine::Container if !new.hosts_guests => self.choose_user_ids(address.0),
                Engine::Container | Engine::Machine => None,
            },
            identity: seed.identity.clone(),
        };
        node::make(&self.instance, &node)?;
        drop(turn);
        self.write_first_boot_data(&node, new)?;
        Ok(node.reference(HOST))
    }

    /// Writes the first-boot data of a node that has not started yet.
    fn write_first_boot_data(&self, node: &Node, new: &NewGuest) -> Result<(), PortError> {
        let doing = format!("create `{}`", node.name);
        let directory = self.instance.node(&node.uuid);
        if directory.join("told").exists() {
            return Ok(());
        }
        let Some(seed) = &new.seed else {
            return Ok(());
        };
        // The record has no secrets.
        let node = &Node {
            identity: seed.identity.clone(),
            ..node.clone()
        };
        let files = [
            ("user-data", seed.user_data.as_str()),
            ("meta-data", seed.meta_data.as_str()),
            ("network-config", seed.network_config.as_str()),
        ];
        let io = |error: std::io::Error| error::io(&doing, &error);
        match node.engine {
            Engine::Container => container::prepare(&self.instance, node, &files).map_err(io)?,
            Engine::Machine => machine::prepare(&directory, node, seed).map_err(io)?,
        }
        if node.hosts {
            fs_err::write(directory.join("nested/attached.json"), "{}\n").map_err(io)?;
        }
        fs_err::write(directory.join("told"), "").map_err(io)
    }

    /// Chooses the ids of a container's users on this machine. The caller holds the instance lock.
    fn choose_user_ids(&self, address: std::net::IpAddr) -> Option<u32> {
        let possible = self
            .isolated
            .get_or_init(|| isolation::probe(&self.instance.images()));
        let why = match possible {
            Ok(()) => match isolation::choose(&self.instance, address) {
                Some(ids) => return Some(ids),
                None => "every range of user ids is in use",
            },
            Err(why) => why,
        };
        self.warn_once(&format!(
            "root in a container is root on this machine: {why}"
        ));
        None
    }

    /// Chooses what a node runs in.
    fn engine(&self, new: &NewGuest, image: &str) -> Engine {
        // Hosts are containers: nodes inside of them are as fast as those outside.
        if new.kind != GuestKind::Vm || new.hosts_guests {
            return Engine::Container;
        }
        match self.settings.vm_engine {
            VmEngine::Container => Engine::Container,
            VmEngine::Qemu => Engine::Machine,
            VmEngine::Auto => {
                if self.accel(image) == Accel::Kvm {
                    return Engine::Machine;
                }
                self.warn_once(
                    "this machine has no hardware virtualisation: `vm` nodes run as containers (--vm-engine qemu emulates them)",
                );
                Engine::Container
            }
        }
    }

    /// Returns the directory of an image's disk, when it is built.
    fn disk(&self, image: &str) -> Option<std::path::PathBuf> {
        let disk = self.images.current_disk(image)?;
        disk.qcow2.parent().map(std::path::Path::to_owned)
    }

    /// Determines the accelerator of virtual machines.
    fn accel(&self, image: &str) -> Accel {
        let disk = self.images.current_disk(image);
        let kernel = disk.map(|disk| disk.kernel);
        match kernel.is_some_and(|kernel| kvm::works(&self.instance.images(), &kernel)) {
            true => Accel::Kvm,
            false => Accel::Tcg,
        }
    }

    /// Returns the starter of a virtual machine.
    fn starter<'n>(&self, node: &'n Node) -> machine::MachineStarter<'n> {
        let kernel = node.tree.join("vmlinuz");
        machine::MachineStarter {
            directory: self.instance.node(&node.uuid),
            part: self.instance.part(node.vmid),
            group: self.group(node.vmid),
            systemd: self.hierarchies.systemd,
            netns: self.bridge(),
            link: link(node.vmid),
            accel: if kvm::works(&self.instance.images(), &kernel) {
                Accel::Kvm
            } else {
                Accel::Tcg
            },
            node,
        }
    }

    /// Returns the network namespace of the bridge; none where it is in our own.
    pub(super) fn bridge(&self) -> Option<String> {
        (!self.is_attached()).then(|| self.instance.netns())
    }

    /// Starts a virtual machine: the first time from a saved machine, to which its identity is applied,
    /// otherwise from its own disk.
    fn start_machine(&self, node: &Node) -> Result<(), PortError> {
        let starter = self.starter(node);
        if !machine::awaits_identity(&starter.directory) {
            return starter.boot();
        }
        let kind = saved_machine::SavedMachineSpec {
            image: &node.tree,
            accel: starter.accel,
            cores: node.cores,
            memory: node.memory,
        };
        let report = |what: &str| {
            if let Some(listener) = &self.listener {
                let event = ProviderEvent::Waiting(format!("{}: {what}", node.image));
                listener.report(Some(&node.uuid), event);
            }
        };
        let saved = saved_machine::ensure(
            &self.instance.images(),
            &kind,
            |directory| self.is_base(directory),
            report,
        )?;
        starter.restore(&saved)?;
        starter.apply_identity()
    }

    /// Returns whether the disk of a node is based on one in this directory.
    pub(super) fn is_base(&self, directory: &std::path::Path) -> bool {
        let nodes = fs_err::read_dir(self.instance.nodes())
            .into_iter()
            .flatten();
        nodes.flatten().any(|node| {
            let base = fs_err::read_to_string(node.path().join(machine::BASE));
            base.is_ok_and(|base| std::path::Path::new(&base).starts_with(directory))
        })
    }

    /// Resizes a node's disk.
    pub(super) fn grow_node_disk(&self, guest: &GuestRef, size: Gib) -> Result<(), PortError> {
        self.change(guest, |node| node.disk = node.disk.max(size))?;
        let node = self.find(guest, "grow a disk")?;
        if node.engine == Engine::Machine && self.runs(&node) {
            let directory = self.instance.node(&node.uuid);
            machine::enlarge(&directory, node.disk)
                .map_err(|error| error::io(&format!("grow the disk of `{}`", node.name), &error))?;
        }
        Ok(())
    }

    /// Chooses an id. The caller holds the instance lock.
    fn choose_vmid(&self, new: &NewGuest) -> Result<u32, PortError> {
        let taken: std::collections::BTreeMap<u32, String> = node::all(&self.instance)?
            .into_iter()
            .map(|node| (node.vmid, node.name))
            .collect();
        match new.vmid {
            Some(asked) => {
                let number = asked.number();
                let detail = match number.map(|number| (number, taken.get(&number))) {
                    Some((free, None)) => return Ok(free),
                    Some((_, Some(holder))) => format!("id {asked} belongs to `{holder}`"),
                    None => format!(
                        "`{asked}` is not a number; nodes of the local host have numeric ids"
                    ),
                };
                Err(PortError::refused(
                    &format!("create `{}`", new.name),
                    detail,
                    "use another `vmid`, or omit it to have one chosen",
                ))
            }
            None => Ok((FIRST_VMID..)
                .find(|id| !taken.contains_key(id))
                .unwrap_or(FIRST_VMID)),
        }
    }

    pub(super) fn start_node(&self, guest: &GuestRef) -> Result<(), PortError> {
        let _node = self.lock(&guest.uuid)?;
        let node = self.find(guest, "start a node")?;
        if self.runs(&node) {
            if self.awaits_identity(&node) {
                // The process that started it was killed before its identity was applied.
                return self.starter(&node).apply_identity();
            }
            return Ok(());
        }
        let doing = format!("start `{}`", node.name);
        if !node.tree.is_dir() {
            let detail = format!("its image was deleted ({})", node.tree.display());
            return Err(error::missing(&doing, detail));
        }
        let outer = if self.is_attached() {
            None
        } else {
            self.network_up()?;
            Some(self.instance.netns())
        };
        if node.engine == Engine::Machine {
            net::tap(outer.as_deref(), &link(node.vmid))?;
            return self.start_machine(&node);
        }
        if let Err(error) = inotify::raise(Path::new(inotify::LIMIT)) {
            self.warn_once(&format!(
                "more than about 16 containers may not start: fs.inotify.max_user_instances was not raised ({error})"
            ));
        }
        let group = self.group(node.vmid);
        let part = self.instance.part(node.vmid);
        net::plug(
            outer.as_deref(),
            &part,
            &link(node.vmid),
            &node.identity.mac,
        )?;
        let program = (node.tree.as_path(), self.settings.program.as_path());
        container::start(
            &self.instance,
            &node,
            program,
            &group,
            self.hierarchies.systemd,
        )
    }

    /// Sets up the network, as far as needed. Nodes that are started together need it once.
    fn network_up(&self) -> Result<(), PortError> {
        let _turn = self.instance.lock()?;
        let mut made = self
            .networked
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_fresh = made.is_some_and(|made| monotonic().saturating_sub(made) < FRESH);
        if !is_fresh || !net::is_linked(&self.instance) {
            net::up(&self.instance)?;
            *made = Some(monotonic());
        }
        Ok(())
    }

    pub(super) fn discard_first_boot_data(&self, guest: &GuestRef) -> Result<(), PortError> {
        let Some(node) = node::of(&self.instance, guest)? else {
            return Ok(());
        };
        let doing = format!("remove the first-boot data of `{}`", node.name);
        if node.engine == Engine::Machine {
            let directory = self.instance.node(&node.uuid);
            return machine::discard(&directory, self.runs(&node))
                .map_err(|error| error::io(&doing, &error));
        }
        container::discard(&self.instance, &node, &self.group(node.vmid))
            .map_err(|error| error::io(&doing, &error))
    }

    pub(super) fn change(
        &self,
        guest: &GuestRef,
        change: impl FnOnce(&mut Node),
    ) -> Result<(), PortError> {
        let _node = self.lock(&guest.uuid)?;
        let mut node = self.find(guest, "change a node")?;
        change(&mut node);
        node::change(&self.instance, &node)
    }

    pub(super) fn stop_node(&self, guest: &GuestRef, halt: StopMode) -> Result<(), PortError> {
        let _node = self.lock(&guest.uuid)?;
        let Some(node) = node::of(&self.instance, guest)? else {
            return Ok(());
        };
        let directory = self.instance.node(&node.uuid);
        if node.engine == Engine::Container {
            let doing = format!("stop `{}`", node.name);
            container::mark_stopping(&directory, true)
                .map_err(|error| error::io(&doing, &error))?;
        }
        if node.engine == Engine::Machine {
            // One without identity need not be shut down gracefully.
            let halt = match machine::awaits_identity(&directory) {
                true => StopMode::Now,
                false => halt,
            };
            machine::stop(&directory, &self.group(node.vmid), halt)?;
        }
        self.halt(node.vmid, halt)?;
        self.disconnect(&node)
    }

    fn disconnect(&self, node: &Node) -> Result<(), PortError> {
        match node.engine {
            Engine::Container => net::unplug(&self.instance.part(node.vmid)),
            Engine::Machine => net::untap(self.bridge().as_deref(), &link(node.vmid)),
        }
    }

    pub(super) fn halt(&self, vmid: u32, halt: StopMode) -> Result<(), PortError> {
        let group = self.group(vmid);
        container::stop(&group, halt)?;
        group.remove();
        container::remove_leftovers(&self.instance.part(vmid));
        Ok(())
    }

    pub(super) fn destroy_node(&self, guest: &GuestRef) -> Result<(), PortError> {
        let key = node::key(&self.instance, &guest.uuid)?;
        {
            let _node = self.lock(&key)?;
            let there = node::read(&self.instance, &key)?;
            let own = node::of(&self.instance, guest)?.filter(|_| guest.vmid.is_some());
            if there.is_some() && own.is_none() {
                // Another node has its identity or its id, or the reference is ambiguous.
                return Ok(());
            }
            if let Some(node) = own {
                if self.is_up(&node) {
                    return Err(PortError::refused(
                        &format!("remove `{}`", node.name),
                        "it is running",
                        "stop it first",
                    ));
                }
                self.halt(node.vmid, StopMode::Now)?;
                if node::is_held(&self.instance.node(&node.uuid)) {
                    return Err(PortError::refused(
                        &format!("remove `{}`", node.name),
                        "it is running as a node of a local host at another path",
                        "stop it there first",
                    ));
                }
                self.disconnect(&node)?;
            }
            node::remove(&self.instance, &key)
                .map_err(|error| error::io("remove a node", &error))?;
            let half = self.instance.nodes().join(format!(".new-{key}"));
            node::remove_tree(&half).map_err(|error| error::io("remove a node", &error))?;
        }
        self.release(&key)
    }

    /// Changes the identity of a node; its directory does not change.
    pub(super) fn reidentify_node(
        &self,
        guest: &GuestRef,
        to: &NewIdentity,
    ) -> Result<(), PortError> {
        let renamed = GuestRef {
            uuid: to.uuid.clone(),
            ..guest.clone()
        };
        let _node = self.lock(&guest.uuid)?;
        let there = node::of(&self.instance, &renamed)?;
        if there.is_some_and(|node| node.site.as_ref() == Some(&to.site)) {
            return Ok(());
        }
        if node::of(&self.instance, guest)?.is_none()
            && lease::of(&self.instance, &guest.uuid).is_some()
        {
            // It runs in a node of this host, which only assigned its address.
            let _turn = self.instance.lock()?;
            return lease::rename(&self.instance, &guest.uuid, &to.uuid);
        }
        let mut node = self.find(guest, "change the identity of a node")?;
        node.reidentified = Some(to.uuid.clone());
        node.site = Some(to.site.clone());
        node.manifest.clone_from(&to.manifest);
        node::change(&self.instance, &node)
    }

    fn lock(&self, guest: &GuestUuid) -> Result<Lock, PortError> {
        self.instance.lock_node(&node::key(&self.instance, guest)?)
    }

    /// Releases a node's address, and removes the network after the last one.
    pub(super) fn release(&self, uuid: &GuestUuid) -> Result<(), PortError> {
        let turn = self.instance.lock()?;
        lease::release(&self.instance, uuid)?;
        let _ = fs_err::remove_file(self.instance.root().join("locks").join(uuid.as_str()));
        if lease::all(&self.instance).is_empty() && node::all(&self.instance)?.is_empty() {
            self.remove_shared_state(turn)?;
        }
        Ok(())
    }

    /// Removes everything but images when there are no nodes left.
    pub(super) fn remove_shared_state(&self, turn: Lock) -> Result<(), PortError> {
        if !self.is_attached() {
            net::down(&self.instance)?;
        }
        let io = |error: std::io::Error| error::io("shut down the local host", &error);
        let locks = self.instance.root().join("locks");
        node::remove_matching(&self.instance.leases(), is_lease).map_err(io)?;
        node::remove_matching(&locks, |name| GuestUuid::new(name).is_some()).map_err(io)?;
        // The nodes themselves are deleted already.
        node::remove_matching(&self.instance.nodes(), |_| false).map_err(io)?;
        let _ = fs_err::remove_file(self.instance.root().join("realm.lock"));
        drop(turn);
        self.instance.remove_if_empty();
        Ok(())
    }
}

/// Returns the name of a node's link on the bridge.
pub(super) fn link(vmid: u32) -> String {
    format!("v{vmid}")
}

/// Returns the image that a guest is created from.
fn image_of(source: &DiskSource) -> &str {
    match source {
        DiskSource::Image(file) | DiskSource::Template(file) => image_name(file),
    }
}
