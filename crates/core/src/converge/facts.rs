//! What a node is like at one moment.
//!
//! In: what was gathered on it. Out: [`Facts`], which can be written down and carried.
//! Never: anything that was not asked for by a `Scope`.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// What a node is like. Everything is by name or path; what is not in a map is not on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The operating system.
    pub system: SystemFact,
    /// What `dpkg --audit` complains of.
    pub dpkg_faults: String,
    /// Installed packages.
    pub packages: BTreeMap<String, PackageFact>,
    /// The host name that the kernel has.
    pub hostname: String,
    /// Users.
    pub users: BTreeMap<String, UserFact>,
    /// Files, directories and links.
    pub files: BTreeMap<String, FileFact>,
    /// Paths that were not looked at, and why: an unprivileged user can change where they lead, or
    /// they cannot be read.
    #[serde(default)]
    pub refused: BTreeMap<String, String>,
    /// Paths in directories that not everyone may enter.
    #[serde(default)]
    pub closed: BTreeSet<String>,
    /// Files in directories of users that an access control list opens to others than their mode
    /// names.
    #[serde(default)]
    pub listed: BTreeSet<String>,
    /// systemd units that exist.
    pub units: BTreeMap<String, UnitFact>,
    /// Settings of the SSH server that are in effect, by lower-case name; `None` without a server.
    pub sshd: Option<BTreeMap<String, Vec<String>>>,
    /// What the SSH server says about a configuration that it cannot read.
    #[serde(default)]
    pub sshd_fault: String,
    /// Settings of the kernel.
    pub sysctl: BTreeMap<String, String>,
    /// Settings of the kernel that cannot be changed here, and why.
    #[serde(default)]
    pub fixed_sysctl: BTreeMap<String, String>,
    /// Users and groups that files are to belong to and that are not here: `user NAME`, `group NAME`.
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
    /// Whether systemd runs it.
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
    /// Number of the user.
    #[serde(default)]
    pub id: Option<u32>,
    /// Number of the main group.
    #[serde(default)]
    pub group_id: Option<u32>,
    /// Home directory.
    pub home: String,
    /// Name of the main group.
    pub group: String,
    /// Login shell.
    pub shell: String,
    /// Names of the other groups.
    pub groups: BTreeSet<String>,
    /// Whether the account has ended.
    pub expired: bool,
}

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FileFact {
    /// A file.
    Regular {
        /// Its text; `None` when it is no text, or too large to be one of ours.
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
        /// Where it leads.
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
    /// Units that start this one, such as its socket.
    pub triggered_by: Vec<String>,
}

/// The network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkFact {
    /// The card, or bridge, that leads outside.
    pub interface: String,
    /// Its addresses with prefixes, without those of the link alone.
    pub addresses: Vec<String>,
    /// The way out.
    pub gateway: Option<String>,
    /// Who sets it up.
    pub manager: NetworkManager,
}

/// Who sets up the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkManager {
    /// systemd-networkd.
    Networkd,
    /// Something that is left alone.
    #[default]
    Other,
}
