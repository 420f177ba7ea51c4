//! The desired resources of a node, as typed data that can be listed and compared.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::change::Handling;
use super::policy::Policy;

/// A desired resource of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Resource {
    /// An installed package.
    Package {
        /// Its name.
        name: String,
        /// The exact version, if one is required.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<String>,
    },
    /// The host name.
    Hostname {
        /// The name.
        name: String,
    },
    /// The machine's own entry in `/etc/hosts`.
    Hosts {
        /// The address.
        address: String,
        /// Names, the fully qualified one first.
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
        /// The default gateway.
        gateway: Option<String>,
        /// Name servers.
        dns: Vec<String>,
        /// The search domain.
        domain: Option<String>,
    },
    /// A user account that can log in.
    User {
        /// Login name.
        name: String,
    },
    /// A user's SSH keys.
    Keys {
        /// Login name.
        user: String,
        /// Public keys, one line each, sorted.
        keys: Vec<String>,
        /// What is done about other keys.
        foreign: Handling,
    },
    /// The sudo rule of a user.
    Sudo {
        /// Login name.
        user: String,
        /// The rule.
        rule: SudoRule,
    },
    /// Sudo rules for whole groups without a password.
    SudoGroups {
        /// Whether such rules are allowed.
        allowed: bool,
    },
    /// The SSH server.
    Sshd {
        /// Settings, by name in `sshd_config`.
        settings: BTreeMap<String, String>,
    },
    /// fail2ban for the SSH server.
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
        /// Its path.
        path: String,
        /// Its content.
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
    /// Kernel settings.
    Sysctl {
        /// By name.
        settings: BTreeMap<String, String>,
    },
    /// The notice about a missing subscription in the web interface of Proxmox VE.
    SubscriptionNotice {
        /// Whether it is removed.
        removed: bool,
    },
    /// How differences are handled.
    Drift {
        /// The policy.
        policy: Policy,
    },
    /// Configuration data that nothing acts on.
    Data {
        /// Its key in the spec's `config`.
        name: String,
        /// Its value.
        value: serde_json::Value,
    },
}

/// How a user may use sudo.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
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
    /// Returns the name used in changes.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Password => "password",
            Self::NoPassword => "no password",
        }
    }
}

impl Resource {
    /// Returns the id of the resource, such as `user:ops`.
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
