//! The steps that correct changes, as data. Steps are idempotent, and their order as values is the
//! order in which they run.

use serde::{Deserialize, Serialize};

use crate::foreign::ForeignText;

/// A step on a node. Packages come first, in one transaction; units stop while their files still
/// exist; files are written together; services follow their files; what removes access comes last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum ConvergeStep {
    /// Installs and removes packages in one transaction.
    Packages {
        /// Names, some with `=version`.
        install: Vec<String>,
        /// Names.
        remove: Vec<String>,
    },
    /// Creates a user with a home directory and no password.
    CreateUser {
        /// Login name.
        name: String,
        /// Login shell.
        shell: String,
    },
    /// Lets a user log in again.
    #[serde(rename = "open_user")]
    EnableLogin {
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
    /// Creates a directory, or sets its owner and mode.
    Directory {
        /// Its path.
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
        /// Its path.
        path: String,
        /// Its content.
        content: String,
        /// Its mode.
        mode: u32,
        /// Its owner.
        owner: String,
        /// Its group; the owner's primary group when empty.
        group: String,
    },
    /// Creates a symbolic link.
    Link {
        /// Its path.
        path: String,
        /// Its target.
        target: String,
    },
    /// Deletes a file.
    Delete {
        /// Its path.
        path: String,
    },
    /// Sets the host name of the kernel.
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
    /// Applies the new configuration of a network interface.
    Network {
        /// The interface.
        interface: String,
    },
    /// Makes systemd reload its unit files.
    #[serde(rename = "read_units")]
    DaemonReload,
    /// Enables a unit.
    Enable {
        /// The unit.
        unit: String,
        /// Whether it is masked and must be unmasked first.
        masked: bool,
    },
    /// Reloads the configuration of a unit.
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
    /// Removes a user from a group.
    #[serde(rename = "leave_group")]
    RemoveFromGroup {
        /// Login name.
        user: String,
        /// The group.
        group: String,
    },
    /// Prevents a user from logging in; files are kept.
    #[serde(rename = "close_user")]
    DisableLogin {
        /// Login name.
        name: String,
    },
}

impl ConvergeStep {
    /// Returns whether it follows the write of a file. If the write succeeded and this step did not
    /// run, nothing on the node shows that it is missing.
    pub fn follows_files(&self) -> bool {
        match self {
            Self::Reload { .. }
            | Self::Restart { .. }
            | Self::Network { .. }
            | Self::DaemonReload => true,
            Self::Packages { .. }
            | Self::CreateUser { .. }
            | Self::EnableLogin { .. }
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
            | Self::RemoveFromGroup { .. }
            | Self::DisableLogin { .. } => false,
        }
    }

    /// Describes it in one line, escaped: it may contain names of files that users chose.
    pub fn description(&self) -> String {
        let text = match self {
            Self::Packages { install, remove } => {
                let mut parts = Vec::new();
                if !install.is_empty() {
                    parts.push(format!("install {}", install.join(", ")));
                }
                if !remove.is_empty() {
                    parts.push(format!("remove {}", remove.join(", ")));
                }
                parts.join("; ")
            }
            Self::CreateUser { name, .. } => format!("create user {name}"),
            Self::EnableLogin { name, .. } => format!("enable login of {name}"),
            Self::Directory { path, .. } => format!("create directory {path}"),
            Self::Write { path, .. } => format!("write {path}"),
            Self::Link { path, target } => format!("link {path} to {target}"),
            Self::Delete { path } => format!("delete {path}"),
            Self::Hostname { name } => format!("set hostname {name}"),
            Self::Sysctl { key, value } => format!("set {key} = {value}"),
            Self::Network { interface } => format!("reconfigure {interface}"),
            Self::DaemonReload => "reload unit files".to_owned(),
            Self::Stop { unit } => format!("stop {unit}"),
            Self::Disable { unit } => format!("disable {unit}"),
            Self::Enable { unit, .. } => format!("enable {unit}"),
            Self::Reload { unit } => format!("reload {unit}"),
            Self::Restart { unit } => format!("restart {unit}"),
            Self::Start { unit } => format!("start {unit}"),
            Self::RemoveFromGroup { user, group } => format!("remove {user} from group {group}"),
            Self::DisableLogin { name } => format!("disable login of {name}"),
        };
        ForeignText::line(&text).into()
    }
}

#[cfg(test)]
mod tests {
    use super::ConvergeStep;

    #[test]
    fn the_stored_names_are_stable() {
        let text = String::new;
        let (name, shell) = (text(), text());
        let enable = ConvergeStep::EnableLogin { name, shell };
        let (name, user, group) = (text(), text(), text());
        for (step, stored) in [
            (enable, "open_user"),
            (ConvergeStep::DisableLogin { name }, "close_user"),
            (ConvergeStep::RemoveFromGroup { user, group }, "leave_group"),
            (ConvergeStep::DaemonReload, "read_units"),
        ] {
            assert_eq!(serde_json::to_value(step).unwrap()["step"], stored);
        }
    }
}
