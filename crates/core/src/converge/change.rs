//! One difference between what should be and what is.
//!
//! In: what was compared. Out: [`Change`], with an id that stays the same from run to run.
//! Never: how it is mended; steps say that.

use serde::{Deserialize, Serialize};

use super::access::KEY_FILES;
use crate::foreign::{ForeignText, read_line};

/// One field of one resource that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Change {
    /// Resource and field: the same in every run and on every node.
    #[serde(deserialize_with = "read_line")]
    pub id: String,
    /// What it belongs to, such as `user:ops`.
    #[serde(deserialize_with = "read_line")]
    pub resource: String,
    /// Which of its properties differs.
    #[serde(deserialize_with = "read_line")]
    pub field: String,
    /// What should be. The same as `found` where neither is shown.
    #[serde(deserialize_with = "ForeignText::read_lines")]
    pub expected: ForeignText,
    /// What is.
    #[serde(deserialize_with = "ForeignText::read_lines")]
    pub found: ForeignText,
    /// What has changed since the node last converged.
    pub since: Since,
    /// Whether a mistake here could cut the node off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub danger: Option<Danger>,
    /// Whether it is mended.
    pub handling: Handling,
}

impl Change {
    /// Tells whether correcting it takes an account, a key, a package or a file away.
    pub fn is_removal(&self) -> bool {
        let kind = self.resource.split(':').next().unwrap_or_default();
        let is_data = matches!(kind, "user" | "keys" | "package" | "file");
        let goes = &*self.expected == "absent" && &*self.found != "absent";
        let closes = self.field == "login" && &*self.expected == "closed";
        self.handling == Handling::Enforce && is_data && (goes || closes)
    }
}

/// What has changed since the node last converged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Since {
    /// Nothing is known of an earlier time.
    First,
    /// The spec.
    Spec,
    /// The node: someone or something changed it.
    Node,
}

/// How a node could be cut off. Such changes are confirmed by whoever can still reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Danger {
    /// Its address, gateway or name servers.
    Network,
    /// The SSH server.
    Sshd,
    /// Becoming root.
    Sudo,
    /// Who may log in.
    Users,
}

impl Danger {
    /// Tells whether a difference is corrected however often it comes back: whoever changes it
    /// again and again may want just that it stays.
    pub fn is_protected(self) -> bool {
        match self {
            Self::Sshd | Self::Sudo | Self::Users => true,
            Self::Network => false,
        }
    }

    /// Returns what it is about, in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Network => "the network",
            Self::Sshd => "the SSH server",
            Self::Sudo => "who may become root",
            Self::Users => "who may log in",
        }
    }

    /// Returns the danger of changing a file.
    pub fn of_path(path: &str) -> Option<Self> {
        let under = |start: &str| path.starts_with(start);
        if under("/etc/sudoers") {
            Some(Self::Sudo)
        } else if under("/etc/ssh/") {
            Some(Self::Sshd)
        } else if under("/etc/systemd/network/")
            || under("/etc/network/")
            || path == "/etc/resolv.conf"
        {
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
}

/// Whether a difference is mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Handling {
    /// It is mended.
    Enforce,
    /// It is only named.
    Report,
    /// It is not looked at, and not among changes.
    Ignore,
}

#[cfg(test)]
mod tests {
    use super::{Change, Handling, Since};

    #[test]
    fn accounts_packages_and_files_that_go_are_removals() {
        let change = |resource: &str, field: &str, expected: &str, found: &str| Change {
            id: format!("{resource}/{field}"),
            resource: resource.to_owned(),
            field: field.to_owned(),
            expected: expected.into(),
            found: found.into(),
            since: Since::Spec,
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
            let left = Change {
                handling: Handling::Report,
                ..one
            };
            assert!(!left.is_removal());
        }
    }
}
