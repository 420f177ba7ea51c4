//! The observed state of a node: what a [`FactScope`](super::FactScope) asks for, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// The observed state of a node. Maps are by name or path; what is not in a map does not exist on
/// the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The operating system.
    pub system: SystemFact,
    /// Output of `dpkg --audit`.
    #[serde(rename = "dpkg_faults")]
    pub dpkg_errors: String,
    /// Installed packages.
    pub packages: BTreeMap<String, PackageFact>,
    /// The host name of the kernel.
    pub hostname: String,
    /// Users.
    pub users: BTreeMap<String, UserFact>,
    /// Files, directories and links.
    pub files: BTreeMap<String, FileFact>,
    /// Paths that were not read, and why: an unprivileged user can redirect them, or they are not
    /// readable.
    #[serde(default, rename = "refused")]
    pub refused_paths: BTreeMap<String, String>,
    /// Paths in directories that not every user may enter.
    #[serde(default, rename = "closed")]
    pub private_paths: BTreeSet<String>,
    /// Files below home directories whose access control list grants more than their mode.
    #[serde(default, rename = "listed")]
    pub acl_paths: BTreeSet<String>,
    /// systemd units.
    pub units: BTreeMap<String, UnitFact>,
    /// Effective settings of the SSH server, by lower-case name; `None` if it is not installed.
    pub sshd: Option<BTreeMap<String, Vec<String>>>,
    /// The error message of the SSH server about an invalid configuration.
    #[serde(default, rename = "sshd_fault")]
    pub sshd_error: String,
    /// Kernel settings.
    pub sysctl: BTreeMap<String, String>,
    /// Kernel settings that cannot be changed on this node, and why.
    #[serde(default, rename = "fixed_sysctl")]
    pub readonly_sysctl: BTreeMap<String, String>,
    /// Owners of desired files that do not exist: `user NAME`, `group NAME`.
    #[serde(default)]
    pub missing_owners: BTreeSet<String>,
    /// The network.
    pub network: NetworkFact,
}

/// The operating system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemFact {
    /// `ID` of `/etc/os-release`.
    pub id: String,
    /// `VERSION_ID` of `/etc/os-release`.
    pub version: String,
    /// Whether it was booted with systemd.
    pub systemd: bool,
}

/// An installed package.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageFact {
    /// Its version.
    pub version: String,
}

/// A user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserFact {
    /// User id.
    #[serde(default)]
    pub id: Option<u32>,
    /// Id of the primary group.
    #[serde(default)]
    pub group_id: Option<u32>,
    /// Home directory.
    pub home: String,
    /// Name of the primary group.
    pub group: String,
    /// Login shell.
    pub shell: String,
    /// Names of supplementary groups.
    pub groups: BTreeSet<String>,
    /// Whether the account has expired.
    pub expired: bool,
}

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FileFact {
    /// A file.
    Regular {
        /// Its text; `None` if it is not text or too large.
        content: Option<String>,
        /// Its mode.
        mode: u32,
        /// Its owner's name.
        owner: String,
        /// Its group's name.
        group: String,
    },
    /// A directory.
    Directory {
        /// Its mode.
        mode: u32,
        /// Its owner's name.
        owner: String,
        /// Its group's name.
        group: String,
    },
    /// A symbolic link.
    Link {
        /// Its target.
        target: String,
    },
    /// Anything else.
    Other,
}

impl FileFact {
    /// Returns the text of a file.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Regular { content, .. } => content.as_deref(),
            Self::Directory { .. } | Self::Link { .. } | Self::Other => None,
        }
    }
}

/// A systemd unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitFact {
    /// `UnitFileState`, such as `enabled`.
    pub file_state: String,
    /// `ActiveState`, such as `active`.
    pub active_state: String,
    /// Units that activate this one, such as its socket.
    pub triggered_by: Vec<String>,
}

/// The network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkFact {
    /// The interface of the default route.
    pub interface: String,
    /// Its addresses with prefixes, without link-local ones.
    pub addresses: Vec<String>,
    /// The default gateway.
    pub gateway: Option<String>,
    /// What configures it.
    pub manager: NetworkManager,
}

/// What configures the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkManager {
    /// systemd-networkd.
    Networkd,
    /// Anything else; its configuration is not changed.
    #[default]
    Other,
}
