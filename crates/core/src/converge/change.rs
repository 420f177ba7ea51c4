//! One difference between a node and its spec, with an id that is the same in every run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::access::KEY_FILES;
use crate::foreign::{ForeignText, read_line};

/// A field of a resource whose value differs from the spec.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// Resource and field: the same in every run and on every node.
    #[serde(deserialize_with = "read_line")]
    pub id: String,
    /// The resource, such as `user:ops`.
    #[serde(deserialize_with = "read_line")]
    pub resource: String,
    /// The property that differs.
    #[serde(deserialize_with = "read_line")]
    pub field: String,
    /// The value of the spec. Equal to `found` where neither is shown.
    #[serde(deserialize_with = "ForeignText::read_lines")]
    pub expected: ForeignText,
    /// The value on the node.
    #[serde(deserialize_with = "ForeignText::read_lines")]
    pub found: ForeignText,
    /// What caused the difference.
    #[serde(rename = "since")]
    pub cause: ChangeCause,
    /// Whether a mistake here could lock the operator out of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub danger: Option<Danger>,
    /// Whether it is corrected.
    pub handling: Handling,
}

impl Change {
    /// Returns whether correcting it removes an account, a key, a package or a file.
    pub fn is_removal(&self) -> bool {
        let kind = self.resource.split(':').next().unwrap_or_default();
        let is_data = matches!(kind, "user" | "keys" | "package" | "file");
        let is_deleted = &*self.expected == "absent" && &*self.found != "absent";
        let is_disabled = self.field == "login" && &*self.expected == "closed";
        self.handling == Handling::Enforce && is_data && (is_deleted || is_disabled)
    }
}

/// What caused a difference: what has changed since the node last converged.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ChangeCause {
    /// Unknown: the node has not converged before.
    #[serde(rename = "first")]
    FirstRun,
    /// The spec was changed.
    Spec,
    /// The node was changed.
    Node,
}

/// How a change could lock the operator out of a node. Such changes must be confirmed over a new
/// connection, or they are reverted.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Danger {
    /// Its address, gateway, name servers or firewall.
    Network,
    /// The SSH server.
    Sshd,
    /// sudo.
    Sudo,
    /// User accounts and keys.
    Users,
}

impl Danger {
    /// Returns whether a difference is corrected however often it recurs. Otherwise an attacker
    /// could keep it by changing it often.
    pub fn is_protected(self) -> bool {
        match self {
            Self::Sshd | Self::Sudo | Self::Users => true,
            Self::Network => false,
        }
    }

    /// Describes it for messages.
    pub fn description(self) -> &'static str {
        match self {
            Self::Network => "the network",
            Self::Sshd => "the SSH server",
            Self::Sudo => "sudo rules",
            Self::Users => "user accounts and keys",
        }
    }

    /// Returns the danger of changing a file.
    pub fn of_path(path: &str) -> Option<Self> {
        let under = |start: &str| path.starts_with(start);
        if under("/etc/sudoers") {
            Some(Self::Sudo)
        } else if under("/etc/ssh/") {
            Some(Self::Sshd)
        } else if NETWORK_PATHS.iter().any(|start| under(start)) {
            Some(Self::Network)
        } else if KEY_FILES.iter().any(|name| {
            path.strip_suffix(name)
                .is_some_and(|home| home.ends_with('/'))
        }) {
            Some(Self::Users)
        } else {
            None
        }
    }

    /// Returns the danger of starting, stopping, enabling or disabling a unit.
    pub fn of_unit(unit: &str) -> Option<Self> {
        let (name, _) = unit.rsplit_once('.').unwrap_or((unit, ""));
        if NETWORK_UNITS.contains(&name) {
            Some(Self::Network)
        } else if matches!(name, "ssh" | "sshd") {
            Some(Self::Sshd)
        } else {
            None
        }
    }
}

/// How paths begin that configure the network and firewalls.
const NETWORK_PATHS: &[&str] = &[
    "/etc/systemd/network/",
    "/etc/network/",
    "/etc/resolv.conf",
    "/etc/nftables",
    "/etc/iptables/",
    "/etc/ufw/",
    "/etc/firewalld/",
];

/// Units of networks and firewalls, without their types.
const NETWORK_UNITS: &[&str] = &[
    "systemd-networkd",
    "systemd-resolved",
    "networking",
    "NetworkManager",
    "nftables",
    "netfilter-persistent",
    "ufw",
    "firewalld",
];

/// What is done about a difference.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Handling {
    /// It is corrected.
    Enforce,
    /// It is only reported.
    Report,
    /// It is not checked.
    Ignore,
}

#[cfg(test)]
mod tests {
    use super::{Change, ChangeCause, Danger, Handling};

    #[test]
    fn files_and_units_of_the_network_firewalls_and_ssh_can_cut_a_node_off() {
        for path in [
            "/etc/nftables.conf",
            "/etc/resolv.conf",
            "/etc/ufw/ufw.conf",
        ] {
            assert_eq!(Danger::of_path(path), Some(Danger::Network), "{path}");
        }
        for unit in ["nftables.service", "systemd-networkd.socket", "ufw"] {
            assert_eq!(Danger::of_unit(unit), Some(Danger::Network), "{unit}");
        }
        assert_eq!(Danger::of_unit("ssh.socket"), Some(Danger::Sshd));
        for unit in ["cron.service", "nginx", "ssh-agent.service"] {
            assert_eq!(Danger::of_unit(unit), None, "{unit}");
        }
    }

    #[test]
    fn closing_accounts_and_deleting_files_or_packages_is_a_removal() {
        let change = |resource: &str, field: &str, expected: &str, found: &str| Change {
            id: format!("{resource}/{field}"),
            resource: resource.to_owned(),
            field: field.to_owned(),
            expected: expected.into(),
            found: found.into(),
            cause: ChangeCause::Spec,
            danger: None,
            handling: Handling::Enforce,
        };
        for (resource, field, expected, found, is_removal) in [
            ("user:alice", "login", "closed", "open", true),
            ("file:/etc/note", "state", "absent", "present", true),
            ("package:tree", "state", "absent", "installed", true),
            ("package:tree", "state", "installed", "absent", false),
            ("user:alice", "login", "open", "closed", false),
            (
                "service:cron.service",
                "active",
                "inactive",
                "active",
                false,
            ),
        ] {
            let one = change(resource, field, expected, found);
            assert_eq!(one.is_removal(), is_removal, "{one:?}");
            let reported = Change {
                handling: Handling::Report,
                ..one
            };
            assert!(!reported.is_removal());
        }
    }
}
