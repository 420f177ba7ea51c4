//! What is done about changes, as data.
//!
//! In: nothing. Out: [`Step`]s; their order as values is the order in which they are done.
//! Never: a step that does harm when it is done twice.

use serde::{Deserialize, Serialize};

use crate::foreign::ForeignText;

/// One act on a node. Packages come first, in one transaction; what no longer runs ends while its
/// files are there; files are written together; services follow their files; what closes doors
/// comes last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// Installs and removes packages in one transaction.
    Packages {
        /// Names, some with `=version`.
        install: Vec<String>,
        /// Names.
        remove: Vec<String>,
    },
    /// Makes a user with a home directory and no password.
    CreateUser {
        /// Login name.
        name: String,
        /// Login shell.
        shell: String,
    },
    /// Lets a user log in again.
    OpenUser {
        /// Login name.
        name: String,
        /// Login shell.
        shell: String,
    },
    /// Stops a unit.
    Stop {
        /// The unit.
        unit: String,
    },
    /// Disables a unit.
    Disable {
        /// The unit.
        unit: String,
    },
    /// Makes a directory, or gives it owner and mode.
    Directory {
        /// Where.
        path: String,
        /// Its mode.
        mode: u32,
        /// Its owner.
        owner: String,
        /// Its group.
        group: String,
    },
    /// Writes a file.
    Write {
        /// Where.
        path: String,
        /// What.
        content: String,
        /// Its mode.
        mode: u32,
        /// Its owner.
        owner: String,
        /// Its group; the owner's own when empty.
        group: String,
    },
    /// Makes a symbolic link.
    Link {
        /// Where.
        path: String,
        /// Where it leads.
        target: String,
    },
    /// Removes a file.
    Delete {
        /// Where.
        path: String,
    },
    /// Tells the kernel its host name.
    Hostname {
        /// The name.
        name: String,
    },
    /// Sets a kernel setting.
    Sysctl {
        /// Its name.
        key: String,
        /// Its value.
        value: String,
    },
    /// Takes a network card's new configuration over.
    Network {
        /// The card.
        interface: String,
    },
    /// Lets systemd read unit files again.
    ReadUnits,
    /// Enables a unit.
    Enable {
        /// The unit.
        unit: String,
        /// Whether it is masked, which must end first.
        masked: bool,
    },
    /// Lets a unit read its configuration again.
    Reload {
        /// The unit.
        unit: String,
    },
    /// Restarts a unit, if it runs.
    Restart {
        /// The unit.
        unit: String,
    },
    /// Starts a unit.
    Start {
        /// The unit.
        unit: String,
    },
    /// Takes a user out of a group.
    LeaveGroup {
        /// Login name.
        user: String,
        /// The group.
        group: String,
    },
    /// Lets a user no longer log in; files stay.
    CloseUser {
        /// Login name.
        name: String,
    },
}

impl Step {
    /// Tells whether it follows from a file: when the file is written and this is not done, nothing
    /// on the node shows it.
    pub fn follows_files(&self) -> bool {
        match self {
            Self::Reload { .. } | Self::Restart { .. } | Self::Network { .. } | Self::ReadUnits => {
                true
            }
            Self::Packages { .. }
            | Self::CreateUser { .. }
            | Self::OpenUser { .. }
            | Self::Directory { .. }
            | Self::Write { .. }
            | Self::Link { .. }
            | Self::Delete { .. }
            | Self::Hostname { .. }
            | Self::Sysctl { .. }
            | Self::Stop { .. }
            | Self::Disable { .. }
            | Self::Enable { .. }
            | Self::Start { .. }
            | Self::LeaveGroup { .. }
            | Self::CloseUser { .. } => false,
        }
    }

    /// Returns what it does in a few words. Names of files are in it, which anyone may choose.
    pub fn words(&self) -> String {
        let words = match self {
            Self::Packages { install, remove } => {
                let mut words = Vec::new();
                if !install.is_empty() {
                    words.push(format!("install {}", install.join(", ")));
                }
                if !remove.is_empty() {
                    words.push(format!("remove {}", remove.join(", ")));
                }
                words.join("; ")
            }
            Self::CreateUser { name, .. } => format!("make the user {name}"),
            Self::OpenUser { name, .. } => format!("let {name} log in"),
            Self::Directory { path, .. } => format!("set up {path}"),
            Self::Write { path, .. } => format!("write {path}"),
            Self::Link { path, target } => format!("link {path} to {target}"),
            Self::Delete { path } => format!("remove {path}"),
            Self::Hostname { name } => format!("set the host name {name}"),
            Self::Sysctl { key, value } => format!("set {key} = {value}"),
            Self::Network { interface } => format!("set up {interface}"),
            Self::ReadUnits => "read unit files".to_owned(),
            Self::Stop { unit } => format!("stop {unit}"),
            Self::Disable { unit } => format!("disable {unit}"),
            Self::Enable { unit, .. } => format!("enable {unit}"),
            Self::Reload { unit } => format!("reload {unit}"),
            Self::Restart { unit } => format!("restart {unit}"),
            Self::Start { unit } => format!("start {unit}"),
            Self::LeaveGroup { user, group } => format!("take {user} out of {group}"),
            Self::CloseUser { name } => format!("close the account of {name}"),
        };
        ForeignText::line(&words).into()
    }
}
