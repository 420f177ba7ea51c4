//! One instance of the local host: where it keeps things, and what its parts are called.
//!
//! In: a root directory. Out: paths, names, locks.
//! Never: two instances that share a name; a name longer than Linux allows for links.

use std::path::{Path, PathBuf};

use homestak_engine::ports::{GuestUuid, PortError};
use sha2::{Digest as _, Sha256};

use super::fault;
use super::lock::Lock;

/// Where the local host is when nothing else is said.
pub const ROOT: &str = "/var/lib/homestak";
/// The bridge that nodes are on.
pub(super) const BRIDGE: &str = "vmbr0";

/// One instance of the local host.
#[derive(Clone, Debug)]
pub struct Realm {
    root: PathBuf,
    name: String,
}

impl Realm {
    /// Takes a root directory. Everything made on the machine is named after it.
    pub fn at(root: &Path) -> Result<Self, PortError> {
        let doing = format!("use {}", root.display());
        let text = root.to_str().unwrap_or_default();
        // The kernel's mount options and nspawn's arguments have their own meaning for these.
        let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        if !root.is_absolute() || !text.chars().all(plain) {
            return Err(PortError::refused(
                &doing,
                "the root of the local host must be an absolute path of letters, digits, `.`, `_`, `-`",
                "set HOMESTAK_LOCAL_ROOT to another path, or leave it out",
            ));
        }
        let name = if text == ROOT {
            "local".to_owned()
        } else {
            let hash = Sha256::digest(text.as_bytes());
            format!("r{:02x}{:02x}{:02x}", hash[0], hash[1], hash[2])
        };
        Ok(Self {
            root: root.to_owned(),
            name,
        })
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

    /// Returns the file that says that this host is inside a node of another.
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

    /// Returns what a node's parts are called: network namespace, machine, unit.
    pub(super) fn part(&self, vmid: u32) -> String {
        format!("hs-{}-{vmid}", self.name)
    }

    /// Waits for the right to give out ids and addresses and to change the network.
    pub(super) fn lock(&self) -> Result<Lock, PortError> {
        self.take("realm.lock")
    }

    /// Waits for the right to change one node.
    pub(super) fn lock_node(&self, uuid: &GuestUuid) -> Result<Lock, PortError> {
        self.take(&format!("locks/{uuid}"))
    }

    fn take(&self, file: &str) -> Result<Lock, PortError> {
        let path = self.root.join(file);
        Lock::take(&path).map_err(|error| fault::io(&format!("lock {}", path.display()), &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_into_what_linux_allows_for_links() {
        for root in ["/var/lib/homestak", "/tmp/some/where/else"] {
            let realm = Realm::at(Path::new(root)).expect("a realm");
            assert!(realm.uplink().len() <= 15, "{}", realm.uplink());
        }
    }

    #[test]
    fn another_root_has_other_names() {
        let at = |root: &str| Realm::at(Path::new(root)).expect("a realm").netns();
        assert_ne!(at("/tmp/a"), at("/tmp/b"));
        assert_eq!(at(ROOT), "homestak-local");
    }

    #[test]
    fn a_root_that_mount_options_would_misread_is_refused() {
        for root in ["relative", "/tmp/a,b", "/tmp/a:b", "/tmp/with space"] {
            assert!(Realm::at(Path::new(root)).is_err(), "{root}");
        }
    }
}
