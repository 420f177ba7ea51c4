//! A node's life: made, started, brought to a halt, taken away.
//!
//! In: what a node should be. Out: its directory, its processes, and their end.
//! Never: a second node for one identity; two who change one node at a time.

use homestak_engine::ports::{
    DiskSource, GuestKind, GuestRef, GuestUuid, Halt, NewGuest, PortError,
};

use super::lock::Lock;
use super::node::{Engine, Node};
use super::{HOST, Local, VmEngine, container, fault, image_name, lease, net, node};

/// The first id that is given out.
const FIRST_VMID: u32 = 100;

impl Local {
    pub(super) fn make(&self, new: &NewGuest) -> Result<GuestRef, PortError> {
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
        if new.kind == GuestKind::Vm
            && !new.hosts_guests
            && self.settings.vm_engine == VmEngine::Auto
        {
            self.warn_once(
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

    pub(super) fn boot(&self, guest: &GuestRef) -> Result<(), PortError> {
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

    pub(super) fn discard(&self, guest: &GuestRef) -> Result<(), PortError> {
        let Some(node) = node::read(&self.realm, &guest.uuid)? else {
            return Ok(());
        };
        let doing = format!("take the first-boot data of `{}` away", node.name);
        container::discard(&self.realm, &node, &self.group(node.vmid))
            .map_err(|error| fault::io(&doing, &error))
    }

    pub(super) fn change(
        &self,
        guest: &GuestRef,
        change: impl FnOnce(&mut Node),
    ) -> Result<(), PortError> {
        let _node = self.realm.lock_node(&guest.uuid)?;
        let mut node = self.find(guest, "change a node")?;
        change(&mut node);
        node::change(&self.realm, &node)
    }

    pub(super) fn end(&self, guest: &GuestRef, halt: Halt) -> Result<(), PortError> {
        let _node = self.realm.lock_node(&guest.uuid)?;
        let Some(node) = node::read(&self.realm, &guest.uuid)? else {
            return Ok(());
        };
        self.halt(node.vmid, halt);
        net::unplug(&self.realm.part(node.vmid))
    }

    pub(super) fn halt(&self, vmid: u32, halt: Halt) {
        let group = self.group(vmid);
        container::stop(&group, halt);
        group.remove();
        container::sweep(&self.realm.part(vmid));
    }

    pub(super) fn take_away(&self, guest: &GuestRef) -> Result<(), PortError> {
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
    pub(super) fn release(&self, uuid: &GuestUuid) -> Result<(), PortError> {
        let turn = self.realm.lock()?;
        lease::release(&self.realm, uuid)?;
        let _ = fs_err::remove_file(self.realm.root().join("locks").join(uuid.as_str()));
        if lease::all(&self.realm).is_empty() && node::all(&self.realm)?.is_empty() {
            self.leave(turn)?;
        }
        Ok(())
    }

    /// Takes away what is left when there are no nodes: only images stay.
    pub(super) fn leave(&self, turn: Lock) -> Result<(), PortError> {
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
