//! One instance of the local host: its root directory, names and locks.
//!
//! Names are unique per instance and short enough for network links.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use homestak_api::durable::{self, Access};
use homestak_core::doc::timeouts::{Limit, Timeouts};
use homestak_engine::ports::{GuestUuid, PortError};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::lock::Lock;
use super::{error, fence};
use crate::private;

/// The default root directory.
pub const ROOT: &str = "/var/lib/homestak";
/// The bridge that nodes are on.
pub(super) const BRIDGE: &str = "vmbr0";

/// Marks a directory as the root of a local host.
const MARKER: &str = ".homestak-local";

/// The content of the marker.
#[derive(Serialize, Deserialize)]
struct InstanceMarker {
    /// Its globally unique id.
    id: String,
    /// Its name in network links, namespaces and units.
    name: String,
}

/// One instance of the local host.
#[derive(Clone, Debug)]
pub struct Instance {
    root: PathBuf,
    name: String,
    /// How long to wait for locks of other processes.
    patience: Duration,
}

impl Instance {
    /// Uses a root directory. Everything created on the machine is named after it.
    pub fn at(root: &Path) -> Result<Self, PortError> {
        let doing = format!("use {}", root.display());
        let given_absolute = root.is_absolute();
        // The same directory is the same instance, by whatever path it is named.
        let root = canonical(root);
        let text = root.to_str().unwrap_or_default();
        // The kernel's mount options and nspawn's arguments have their own meaning for these.
        let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        if !given_absolute || !text.chars().all(plain) {
            return Err(PortError::refused(
                &doing,
                "the root of the local host must be an absolute path of letters, digits, `.`, `_` and `-`",
                "set HOMESTAK_LOCAL_ROOT to another path, or unset it",
            ));
        }
        let name = if root == canonical(Path::new(ROOT)) {
            "local".to_owned()
        } else {
            let hash = Sha256::digest(text.as_bytes());
            format!("r{:02x}{:02x}{:02x}", hash[0], hash[1], hash[2])
        };
        let patience = Timeouts::default().of(Limit::Lock);
        Ok(Self {
            root,
            name,
            patience,
        })
    }

    /// Sets how long to wait for locks of other processes.
    #[must_use]
    pub fn with_lock_timeout(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Claims the root directory: creates and marks it, or verifies its marker. Refuses a directory
    /// that is in use for something else.
    pub fn claim(&self) -> Result<(), PortError> {
        let marked = self.check_marker()?;
        self.io(private::directory(&self.root))?;
        // Earlier releases did not restrict these.
        for part in [self.images(), self.nodes()] {
            if part.is_dir() {
                self.io(private::close(&part, 0o700))?;
            }
        }
        if marked {
            return Ok(());
        }
        let id = uuid::Uuid::new_v4().to_string();
        let mark = InstanceMarker {
            id,
            name: self.name.clone(),
        };
        let text =
            serde_json::to_vec(&mark).map_err(|error| PortError::bug(&self.doing(), &error))?;
        self.io(durable::write(
            &self.root.join(MARKER),
            &text,
            Access::PRIVATE,
        ))
    }

    /// Returns whether the root directory has the marker of this local host. Refuses a directory of
    /// another host, and one without a marker that has foreign content.
    pub(super) fn check_marker(&self) -> Result<bool, PortError> {
        match fs_err::read(self.root.join(MARKER)) {
            Ok(text) => {
                let mark: Option<InstanceMarker> = serde_json::from_slice(&text).ok();
                if mark.is_some_and(|mark| mark.name == self.name) {
                    return Ok(true);
                }
                Err(PortError::refused(
                    &self.doing(),
                    "it belongs to a local host at another path, whose nodes may still be running",
                    "move it back to its original path, or set HOMESTAK_LOCAL_ROOT to another directory",
                ))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                match self.find_foreign_entry() {
                    Ok(None) => Ok(false),
                    Ok(Some(path)) => Err(PortError::refused(
                        &self.doing(),
                        format!(
                            "it is not a directory of the local host: {} was not created by homestak",
                            path.display()
                        ),
                        "set HOMESTAK_LOCAL_ROOT to a separate directory, which may be a new one",
                    )),
                    Err(error) => self.io(Err(error)),
                }
            }
            Err(error) => self.io(Err(error)),
        }
    }

    /// Removes the marker if the directory has no other content, such as images.
    pub(super) fn remove_if_empty(&self) {
        let entries = fs_err::read_dir(&self.root).map(|entries| {
            let names = entries.flatten().map(|entry| entry.file_name());
            names.collect::<Vec<_>>()
        });
        let Ok(names) = entries else {
            return;
        };
        if names
            .iter()
            .all(|name| name == MARKER || fence::is_own(name))
        {
            for name in names.iter().filter(|name| fence::is_own(name)) {
                let _ = fs_err::remove_file(self.root.join(name));
            }
            let _ = fs_err::remove_file(self.root.join(MARKER));
            let _ = fs_err::remove_dir(&self.root);
        }
    }

    /// Returns an entry of the root directory that no local host creates.
    fn find_foreign_entry(&self) -> std::io::Result<Option<PathBuf>> {
        let Some(entries) = entries(&self.root)? else {
            return Ok(None);
        };
        for entry in entries {
            let (path, name) = (entry.path(), entry.file_name());
            let known = match name.to_str().unwrap_or_default() {
                // Users of images ignore entries without a record.
                "images"
                | "realm.lock"
                | "network.json"
                | "network.new"
                | "attached.json"
                | fence::FILE => None,
                "nodes" => Some(is_node as fn(&str) -> bool),
                "leases" => Some(is_lease as fn(&str) -> bool),
                "locks" => Some((|name| GuestUuid::new(name).is_some()) as fn(&str) -> bool),
                name if name.contains(durable::TEMPORARY) => None,
                _ => return Ok(Some(path)),
            };
            let Some(known) = known else { continue };
            for inner in entries_of(&path)? {
                if !inner.file_name().to_str().is_some_and(known) {
                    return Ok(Some(inner.path()));
                }
            }
        }
        Ok(None)
    }

    fn doing(&self) -> String {
        format!("use {}", self.root.display())
    }

    fn io<T>(&self, done: std::io::Result<T>) -> Result<T, PortError> {
        done.map_err(|error| error::io(&self.doing(), &error))
    }

    /// Returns the root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the short name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the directory of images.
    pub fn images(&self) -> PathBuf {
        self.root.join("images")
    }

    pub(super) fn nodes(&self) -> PathBuf {
        self.root.join("nodes")
    }

    /// Returns the directory of a node.
    pub fn node(&self, uuid: &GuestUuid) -> PathBuf {
        self.nodes().join(uuid.as_str())
    }

    pub(super) fn leases(&self) -> PathBuf {
        self.root.join("leases")
    }

    /// Returns the file that describes the network.
    pub(super) fn network(&self) -> PathBuf {
        self.root.join("network.json")
    }

    /// Returns the file that marks this host as inside a node of another.
    pub(super) fn attached(&self) -> PathBuf {
        self.root.join("attached.json")
    }

    /// Returns the network namespace of the bridge.
    pub(super) fn netns(&self) -> String {
        format!("homestak-{}", self.name)
    }

    /// Returns the machine's end of the pair that leads to the bridge.
    pub(super) fn uplink(&self) -> String {
        format!("hs-{}", self.name)
    }

    /// Returns the nft table.
    pub(super) fn table(&self) -> String {
        format!("homestak-{}", self.name)
    }

    /// Returns the name of a node's parts: network namespace, machine, unit.
    pub(super) fn part(&self, vmid: u32) -> String {
        format!("hs-{}-{vmid}", self.name)
    }

    /// Locks ids, addresses and the network.
    pub(super) fn lock(&self) -> Result<Lock, PortError> {
        self.take("realm.lock")
    }

    /// Locks one node.
    pub(super) fn lock_node(&self, uuid: &GuestUuid) -> Result<Lock, PortError> {
        self.take(&format!("locks/{uuid}"))
    }

    fn take(&self, file: &str) -> Result<Lock, PortError> {
        self.claim()?;
        let path = self.root.join(file);
        Lock::take(&path, self.patience)
            .map_err(|error| error::io(&format!("lock {}", path.display()), &error))
    }
}

/// Returns the canonical path of a directory, which need not exist.
fn canonical(path: &Path) -> PathBuf {
    let mut found = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::ParentDir => {
                found.pop();
            }
            Component::Normal(name) => {
                found.push(name);
                found = fs_err::canonicalize(&found).unwrap_or(found);
            }
            Component::Prefix(_) | Component::RootDir | Component::CurDir => {}
        }
    }
    found
}

/// Returns whether this is the name of a node's directory, also of one being created or removed.
pub(super) fn is_node(name: &str) -> bool {
    let half = name.strip_prefix(".new-");
    let half = half.or_else(|| name.strip_prefix(".gone-"));
    GuestUuid::new(half.unwrap_or(name)).is_some()
}

/// Returns whether this is the file name of an assigned address.
pub(super) fn is_lease(name: &str) -> bool {
    let name = name.strip_prefix('.').unwrap_or(name);
    name.parse::<std::net::Ipv4Addr>().is_ok() || name.contains(durable::TEMPORARY)
}

fn entries(path: &Path) -> std::io::Result<Option<Vec<fs_err::DirEntry>>> {
    match fs_err::read_dir(path) {
        Ok(entries) => entries.collect::<Result<Vec<_>, _>>().map(Some),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn entries_of(path: &Path) -> std::io::Result<Vec<fs_err::DirEntry>> {
    entries(path).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_names_are_short_enough_for_linux() {
        for root in ["/var/lib/homestak", "/tmp/some/where/else"] {
            let instance = Instance::at(Path::new(root)).expect("a realm");
            assert!(instance.uplink().len() <= 15, "{}", instance.uplink());
        }
    }

    #[test]
    fn another_root_has_other_names() {
        let at = |root: &str| Instance::at(Path::new(root)).expect("a realm").netns();
        assert_ne!(at("/tmp/a"), at("/tmp/b"));
        assert_eq!(at(ROOT), "homestak-local");
    }

    #[test]
    fn a_root_with_special_characters_is_refused() {
        for root in ["relative", "/tmp/a,b", "/tmp/a:b", "/tmp/with space"] {
            assert!(Instance::at(Path::new(root)).is_err(), "{root}");
        }
    }

    #[test]
    fn all_paths_of_a_directory_name_the_same_instance() {
        let place = tempfile::tempdir().expect("a directory");
        let root = place.path().join("root");
        fs_err::create_dir(&root).expect("created");
        std::os::unix::fs::symlink(&root, place.path().join("link")).expect("a link");
        let name = |path: PathBuf| Instance::at(&path).expect("a realm").name().to_owned();
        let own = name(root.clone());
        for other in [
            "root/",
            "./root",
            "root/../root",
            "link",
            "link/.",
            "none/../root",
        ] {
            assert_eq!(name(place.path().join(other)), own, "{other}");
        }
        assert_ne!(name(place.path().join("none")), own);
        assert_eq!(name("/var/lib/../lib/homestak/".into()), "local");
    }

    #[test]
    fn a_foreign_directory_is_neither_used_nor_cleaned() {
        let place = tempfile::tempdir().expect("a directory");
        let root = place.path().join("project");
        for file in ["nodes/a.txt", "locks/b.txt", "leases/c.txt", "main.rs"] {
            let path = root.join(file);
            fs_err::create_dir_all(path.parent().expect("a parent")).expect("created");
            fs_err::write(path, "mine").expect("written");
        }
        let instance = Instance::at(&root).expect("a realm");
        let local =
            crate::local::Local::open(instance.clone(), crate::local::LocalSettings::default());
        let refusals = [
            instance.claim().expect_err("not ours"),
            local.clean().expect_err("not ours"),
            local.leftovers().expect_err("not ours"),
        ];
        for refused in refusals {
            assert!(
                refused.detail.contains("was not created by homestak"),
                "{refused}"
            );
        }
        for file in ["nodes/a.txt", "locks/b.txt", "leases/c.txt", "main.rs"] {
            assert!(root.join(file).exists(), "{file} was deleted");
        }
        // Nothing but what the local host writes: one that is older than the mark.
        fs_err::remove_dir_all(&root).expect("removed");
        for file in [
            "nodes/5d1f2a3b-0000-4000-8000-000000000001/node.json",
            "locks/5d1f2a3b-0000-4000-8000-000000000001",
            "leases/10.77.0.5",
            "network.json",
            "images/debian-12-0/image.json",
        ] {
            let path = root.join(file);
            fs_err::create_dir_all(path.parent().expect("a parent")).expect("created");
            fs_err::write(path, "{}").expect("written");
        }
        instance.claim().expect("it is ours");
        assert!(instance.check_marker().expect("read"));
        // Moved away, it is not the one that its nodes are named after.
        let moved = place.path().join("moved");
        fs_err::rename(&root, &moved).expect("moved");
        let refused = Instance::at(&moved).expect("a realm").claim();
        let refused = refused.expect_err("another one");
        assert!(refused.detail.contains("at another path"), "{refused}");
    }
}
