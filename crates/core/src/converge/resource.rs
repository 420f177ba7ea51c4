//! What a node should have, as typed data.
//!
//! In: nothing. Out: [`Resource`], which can be listed and compared between nodes.
//! Never: paths of the node that are not part of what was asked for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::change::Handling;
use super::policy::Policy;

/// One thing that a node should have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Resource {
    /// An installed package.
    Package {
        /// Its name.
        name: String,
        /// The one version that will do.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<String>,
    },
    /// The host name.
    Hostname {
        /// The name.
        name: String,
    },
    /// The machine's own line in `/etc/hosts`.
    Hosts {
        /// The address it stands for.
        address: String,
        /// Full name first.
        names: Vec<String>,
    },
    /// The time zone.
    Timezone {
        /// Its name in the tz database.
        zone: String,
    },
    /// A fixed address.
    Network {
        /// With prefix.
        address: String,
        /// The way out.
        gateway: Option<String>,
        /// Name servers.
        dns: Vec<String>,
        /// The domain that is searched.
        domain: Option<String>,
    },
    /// A user who may log in.
    User {
        /// Login name.
        name: String,
    },
    /// A user's SSH keys.
    Keys {
        /// Login name.
        user: String,
        /// Each in one line, sorted.
        keys: Vec<String>,
        /// What is done about others.
        foreign: Handling,
    },
    /// Whether a user may become root.
    Sudo {
        /// Login name.
        user: String,
        /// How.
        rule: SudoRule,
    },
    /// Rules that let whole groups become root without a password.
    SudoGroups {
        /// Whether there may be such rules.
        allowed: bool,
    },
    /// The SSH server.
    Sshd {
        /// Settings by their names in its configuration.
        settings: BTreeMap<String, String>,
    },
    /// Banning addresses that guess passwords.
    Fail2ban {
        /// Whether it runs.
        enabled: bool,
        /// The SSH server's port.
        port: i64,
    },
    /// A systemd unit.
    Service {
        /// Its name, with suffix.
        unit: String,
        /// Enabled and started, or disabled and stopped.
        enabled: bool,
    },
    /// A file.
    File {
        /// Where it is.
        path: String,
        /// What is in it.
        content: String,
        /// Its mode.
        mode: u32,
        /// Its owner.
        owner: String,
        /// Its group.
        group: String,
        /// Units that are restarted when it changes.
        restart: Vec<String>,
    },
    /// Settings of the kernel.
    Sysctl {
        /// By name.
        settings: BTreeMap<String, String>,
    },
    /// No notice about a missing subscription in the pages of Proxmox VE.
    SubscriptionNotice {
        /// Whether it is removed.
        removed: bool,
    },
    /// What is done about differences.
    Drift {
        /// Field by field.
        policy: Policy,
    },
    /// Configuration that is kept for others to read.
    Data {
        /// Its key in the spec's `config`.
        name: String,
        /// What stands there.
        value: serde_json::Value,
    },
}

/// How a user may become root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SudoRule {
    /// Not at all.
    None,
    /// With a password.
    Password,
    /// Without a password.
    NoPassword,
}

impl SudoRule {
    /// Returns the word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Password => "password",
            Self::NoPassword => "no password",
        }
    }
}

impl Resource {
    /// Returns what it is called, such as `user:ops`.
    pub fn id(&self) -> String {
        match self {
            Self::Package { name, .. } => format!("package:{name}"),
            Self::Hostname { .. } => "hostname".to_owned(),
            Self::Hosts { .. } => "hosts".to_owned(),
            Self::Timezone { .. } => "timezone".to_owned(),
            Self::Network { .. } => "network".to_owned(),
            Self::User { name } => format!("user:{name}"),
            Self::Keys { user, .. } => format!("keys:{user}"),
            Self::Sudo { user, .. } => format!("sudo:{user}"),
            Self::SudoGroups { .. } => "sudo-groups".to_owned(),
            Self::Sshd { .. } => "sshd".to_owned(),
            Self::Fail2ban { .. } => "fail2ban".to_owned(),
            Self::Service { unit, .. } => format!("service:{unit}"),
            Self::File { path, .. } => format!("file:{path}"),
            Self::Sysctl { .. } => "sysctl".to_owned(),
            Self::SubscriptionNotice { .. } => "subscription-notice".to_owned(),
            Self::Drift { .. } => "drift".to_owned(),
            Self::Data { name, .. } => format!("data:{name}"),
        }
    }
}
