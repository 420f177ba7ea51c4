//! Records of nodes, one directory each. A directory appears under its final name only when complete.

use std::ffi::CString;
use std::fs::TryLockError;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use homestak_api::durable::{self, Access};
use homestak_core::doc::scalar::SiteId;
use homestak_core::firstboot::FirstBootConfig;
use homestak_engine::ports::{
    Gib, GuestKind, GuestRef, GuestUuid, Mib, ObservedGuest, PortError, PowerState,
};
use serde::{Deserialize, Serialize};

use super::instance::{Instance, is_node};
use super::{error, tree};

/// The file that the supervisor of a node locks while the node is running.
const HELD: &str = "running";

/// What a node runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// A container.
    Container,
    /// A virtual machine.
    Machine,
}

/// How a node gets its identity on its first boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FirstBoot {
    /// It is written into its tree before it starts.
    #[default]
    Direct,
    /// cloud-init reads it from a seed, as on Proxmox VE.
    CloudInit,
}

/// A node. There is no `Debug`: the identity may hold a private key.
#[derive(Clone, Serialize, Deserialize)]
pub struct Node {
    /// The key of its directory, lock and address: its identity when it was created.
    pub uuid: GuestUuid,
    /// Its identity among guests, once it was given another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reidentified: Option<GuestUuid>,
    /// The site it belongs to; `None` for nodes of programs before sites had an id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<SiteId>,
    /// Its name.
    pub name: String,
    /// The manifest it belongs to.
    pub manifest: String,
    /// The run that created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Its id.
    pub vmid: u32,
    /// Its kind in the plan.
    pub kind: GuestKind,
    /// What it runs in.
    pub engine: Engine,
    /// How it gets its identity.
    pub first_boot: FirstBoot,
    /// CPUs.
    pub cores: u32,
    /// Memory.
    pub memory: Mib,
    /// Disk.
    pub disk: Gib,
    /// Its address with prefix.
    pub address: (IpAddr, u8),
    /// The image's name.
    pub image: String,
    /// The path of its tree, so that a newer image of the same name does not affect the node.
    pub tree: PathBuf,
    /// Whether guests run on it.
    pub hosts: bool,
    /// The first user id of the node on the machine; `None` if root in the node is root on the machine.
    #[serde(default)]
    pub ids: Option<u32>,
    /// Its first-boot identity. It is stored without its secrets, which are only in the first-boot data.
    pub identity: FirstBootConfig,
}

impl Node {
    /// Returns its identity among guests.
    pub fn guest(&self) -> &GuestUuid {
        self.reidentified.as_ref().unwrap_or(&self.uuid)
    }

    /// Returns how the engine refers to it.
    pub fn reference(&self, host: &str) -> GuestRef {
        GuestRef {
            uuid: self.guest().clone(),
            kind: self.kind,
            vmid: Some(self.vmid.into()),
            host: host.to_owned(),
        }
    }

    /// Returns it as an observed guest.
    pub(super) fn observed(&self, host: &str, running: bool) -> ObservedGuest {
        ObservedGuest {
            kind: self.kind,
            vmid: self.vmid.into(),
            host: host.to_owned(),
            name: self.name.clone(),
            uuid: Some(self.guest().clone()),
            site: self.site.clone(),
            manifest: Some(self.manifest.clone()),
            created_as: self.site.is_some().then_some(self.vmid.into()),
            run: self.run.clone(),
            contested: None,
            is_unrelated: false,
            power: if running {
                PowerState::Running
            } else {
                PowerState::Stopped
            },
            template: false,
            lock: None,
            cores: Some(self.cores),
            memory: Some(self.memory.into()),
            disk: Some(self.disk.into()),
            tags: Vec::new(),
        }
    }
}

/// Returns all nodes, by id.
pub(super) fn all(instance: &Instance) -> Result<Vec<Node>, PortError> {
    let doing = "list the nodes";
    let entries = match fs_err::read_dir(instance.nodes()) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error::io(doing, &error)),
    };
    let mut nodes = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| error::io(doing, &error))?;
        let name = entry.file_name();
        // Directories being created or removed have another name.
        if let Some(uuid) = name.to_str().and_then(GuestUuid::new)
            && let Some(node) = read(instance, &uuid)?
        {
            nodes.push(node);
        }
    }
    nodes.sort_by_key(|node| node.vmid);
    Ok(nodes)
}

/// Returns a node, if it exists.
pub(super) fn read(instance: &Instance, uuid: &GuestUuid) -> Result<Option<Node>, PortError> {
    let path = instance.node(uuid).join("node.json");
    let doing = format!("read {}", path.display());
    let text = match fs_err::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error::io(&doing, &error)),
    };
    let node = serde_json::from_slice(&text).map_err(|error| {
        PortError::refused(
            &doing,
            format!("the file is damaged ({error})"),
            "homestak local clean removes the leftovers",
        )
    })?;
    Ok(Some(node))
}

/// Returns the key of a guest: its identity when it was created.
pub(super) fn key(instance: &Instance, guest: &GuestUuid) -> Result<GuestUuid, PortError> {
    if instance.node(guest).exists() {
        return Ok(guest.clone());
    }
    let mut nodes = all(instance)?.into_iter();
    let node = nodes.find(|node| node.guest() == guest);
    Ok(node.map_or_else(|| guest.clone(), |node| node.uuid))
}

/// Returns the node of a guest, if one with its identity and id exists.
pub(super) fn of(instance: &Instance, guest: &GuestRef) -> Result<Option<Node>, PortError> {
    let node = read(instance, &key(instance, &guest.uuid)?)?;
    Ok(node.filter(|node| {
        *node.guest() == guest.uuid && guest.vmid.is_none_or(|id| id == node.vmid.into())
    }))
}

/// Creates the directory of a node, whole or not at all.
pub(super) fn make(instance: &Instance, node: &Node) -> Result<(), PortError> {
    let doing = format!("create node `{}`", node.name);
    let io = |error: std::io::Error| error::io(&doing, &error);
    let new = instance.nodes().join(format!(".new-{}", node.uuid));
    crate::private::directory(&instance.nodes()).map_err(io)?;
    // Leftovers of a killed process.
    remove_tree(&new).map_err(io)?;
    for part in ["upper", "work", "root"] {
        fs_err::create_dir_all(new.join(part)).map_err(io)?;
    }
    // It is the node's own root directory, whatever mask this process has.
    set_mode(&new.join("upper"), 0o755).map_err(io)?;
    if node.hosts {
        fs_err::create_dir_all(new.join("nested/images")).map_err(io)?;
    }
    set_mode(&new, 0o700).map_err(io)?;
    write_record(&new.join("node.json"), node).map_err(io)?;
    durable::rename(&new, &instance.node(&node.uuid)).map_err(io)
}

/// Changes the record of a node.
pub(super) fn change(instance: &Instance, node: &Node) -> Result<(), PortError> {
    let doing = format!("change node `{}`", node.name);
    let path = instance.node(&node.uuid).join("node.json");
    write_record(&path, node).map_err(|error| error::io(&doing, &error))
}

/// Removes the directory of a node; it is renamed first.
pub(super) fn remove(instance: &Instance, uuid: &GuestUuid) -> std::io::Result<()> {
    let renamed = instance.nodes().join(format!(".gone-{uuid}"));
    remove_tree(&renamed)?;
    match durable::rename(&instance.node(uuid), &renamed) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    remove_tree(&renamed)
}

/// Removes matching files from a directory, and the directory if it is empty then.
pub(super) fn remove_matching(
    directory: &std::path::Path,
    known: impl Fn(&str) -> bool,
) -> std::io::Result<()> {
    for entry in fs_err::read_dir(directory).into_iter().flatten() {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(&known) && entry.file_type()?.is_file() {
            fs_err::remove_file(entry.path())?;
        }
    }
    match fs_err::remove_dir(directory) {
        Err(error) if !is_not_empty_or_missing(&error) => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn is_not_empty_or_missing(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{DirectoryNotEmpty, NotFound};
    matches!(error.kind(), DirectoryNotEmpty | NotFound)
}

/// Returns whether the supervisor of a node is running, whichever path it was started with.
pub(super) fn is_held(directory: &std::path::Path) -> bool {
    let held = fs_err::File::open(directory.join(HELD));
    held.is_ok_and(|held| matches!(held.file().try_lock(), Err(TryLockError::WouldBlock)))
}

/// Removes a directory with its content; a missing one is no error.
pub(super) fn remove_tree(path: &std::path::Path) -> std::io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(std::io::ErrorKind::InvalidInput.into());
    };
    match tree::open(parent, "") {
        Ok(parent) => tree::remove(&parent, &CString::new(name.as_bytes())?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns directories of nodes whose creation or deletion was interrupted.
pub(super) fn incomplete(instance: &Instance) -> Vec<PathBuf> {
    let Ok(entries) = fs_err::read_dir(instance.nodes()) else {
        return Vec::new();
    };
    let entries = entries.filter_map(Result::ok);
    let half = |name: &str| name.starts_with('.') && is_node(name);
    entries
        .filter(|entry| entry.file_name().to_str().is_some_and(half))
        .map(|entry| entry.path())
        .collect()
}

/// Writes the record of a node without token and private key: a copy would outlive the first-boot data.
fn write_record(path: &std::path::Path, node: &Node) -> std::io::Result<()> {
    let mut stored = node.clone();
    stored.identity.enrolment = None;
    stored.identity.host_key = None;
    let text = serde_json::to_vec_pretty(&stored).map_err(std::io::Error::other)?;
    durable::write(path, &text, Access::PRIVATE)
}

fn set_mode(path: &std::path::Path, mode: u32) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs_err::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use homestak_core::firstboot::{Enrolment, HostKey};

    use super::*;

    #[test]
    fn the_record_of_a_node_has_neither_its_token_nor_its_private_key() {
        let root = tempfile::tempdir().expect("a directory");
        let uuid = GuestUuid::new("5d1f2a3b-0000-4000-8000-000000000001").expect("a UUID");
        let node = Node {
            uuid: uuid.clone(),
            reidentified: None,
            site: None,
            name: "web".to_owned(),
            manifest: "lab".to_owned(),
            run: None,
            vmid: 100,
            kind: GuestKind::Vm,
            engine: Engine::Container,
            first_boot: FirstBoot::Direct,
            cores: 1,
            memory: Mib(512),
            disk: Gib(4),
            address: ([10, 77, 0, 5].into(), 24),
            image: "debian-12".to_owned(),
            tree: root.path().to_owned(),
            hosts: false,
            ids: None,
            identity: FirstBootConfig {
                uuid: uuid.clone(),
                hostname: "web".to_owned(),
                user: "ops".to_owned(),
                keys: Vec::new(),
                host_key: Some(HostKey {
                    private: "the private key".to_owned(),
                    public: "ssh-ed25519 BBBB web".to_owned(),
                }),
                mac: "02:00:00:00:00:0a".to_owned(),
                address: None,
                gateway: None,
                dns: vec![[10, 0, 0, 2].into()],
                packages: Vec::new(),
                enrolment: Some(Enrolment {
                    identity: "web".to_owned(),
                    uuid,
                    servers: Vec::new(),
                    authorities: Vec::new(),
                    site: "s".to_owned(),
                    site_keys: Vec::new(),
                    token: "the token".to_owned(),
                    issued: 0,
                    agent_generation: 0,
                }),
            },
        };
        let path = root.path().join("node.json");
        write_record(&path, &node).expect("written");
        let text = fs_err::read_to_string(&path).expect("read");
        assert!(!text.contains("the token") && !text.contains("the private key"));
        // What later starts need is there.
        let read: Node = serde_json::from_str(&text).expect("a node");
        assert_eq!(read.identity.mac, node.identity.mac);
        assert_eq!(read.identity.dns, node.identity.dns);
    }
}
