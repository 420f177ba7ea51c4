//! Resources: what a spec asks of a machine.

use std::collections::{BTreeMap, BTreeSet};

use homestak_core::converge;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::change::Handling;
use super::words::words;

/// One thing that a machine should have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Resource {
    /// An installed package.
    Package {
        /// Its name.
        name: String,
        /// The version, when only one will do.
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
        /// The address.
        address: String,
        /// The names, the full one first.
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
        /// The gateway.
        gateway: Option<String>,
        /// Name servers.
        dns: Vec<String>,
        /// The search domain.
        domain: Option<String>,
    },
    /// A user who may log in.
    User {
        /// The login name.
        name: String,
    },
    /// The SSH keys of a user.
    Keys {
        /// The login name.
        user: String,
        /// One per line, sorted.
        keys: Vec<String>,
        /// What is done about other keys.
        foreign: Handling,
    },
    /// Whether a user may become root.
    Sudo {
        /// The login name.
        user: String,
        /// How.
        rule: SudoRule,
    },
    /// Rules that let groups become root without a password.
    SudoGroups {
        /// Whether such rules are allowed.
        allowed: bool,
    },
    /// The SSH server.
    Sshd {
        /// Settings by their names in its configuration.
        settings: BTreeMap<String, String>,
    },
    /// fail2ban.
    Fail2ban {
        /// Whether it runs.
        enabled: bool,
        /// The port of the SSH server.
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
        /// The units that are restarted when it changes.
        restart: Vec<String>,
    },
    /// Settings of the kernel.
    Sysctl {
        /// By name.
        settings: BTreeMap<String, String>,
    },
    /// The notice about a missing subscription in the web interface of Proxmox VE.
    SubscriptionNotice {
        /// Whether it is removed.
        removed: bool,
    },
    /// What is done about drift.
    Drift {
        /// Field by field.
        policy: DriftPolicy,
    },
    /// Configuration that is stored for others to read.
    Data {
        /// Its key in the spec's `config`.
        name: String,
        /// Its value.
        value: serde_json::Value,
    },
}

/// What is done about drift.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DriftPolicy {
    /// What is done about fields that no pattern matches.
    pub drift: Handling,
    /// What is done, by pattern.
    pub fields: BTreeMap<String, Handling>,
    /// Fields that are only reported for now.
    pub held: BTreeSet<String>,
    /// Fields that are only reported because they were before.
    pub frozen: BTreeSet<String>,
}

words! {
    /// How a user may become root.
    SudoRule from converge::SudoRule {
        /// Not at all.
        None = "none",
        /// With a password.
        Password = "password",
        /// Without a password.
        NoPassword = "no_password",
    }
}

impl From<&converge::Resource> for Resource {
    fn from(resource: &converge::Resource) -> Self {
        use converge::Resource as Core;
        match resource.clone() {
            Core::Package { name, version } => Self::Package { name, version },
            Core::Hostname { name } => Self::Hostname { name },
            Core::Hosts { address, names } => Self::Hosts { address, names },
            Core::Timezone { zone } => Self::Timezone { zone },
            Core::Network {
                address,
                gateway,
                dns,
                domain,
            } => Self::Network {
                address,
                gateway,
                dns,
                domain,
            },
            Core::User { name } => Self::User { name },
            Core::Keys {
                user,
                keys,
                foreign,
            } => Self::Keys {
                user,
                keys,
                foreign: foreign.into(),
            },
            Core::Sudo { user, rule } => Self::Sudo {
                user,
                rule: rule.into(),
            },
            Core::SudoGroups { allowed } => Self::SudoGroups { allowed },
            Core::Sshd { settings } => Self::Sshd { settings },
            Core::Fail2ban { enabled, port } => Self::Fail2ban { enabled, port },
            Core::Service { unit, enabled } => Self::Service { unit, enabled },
            Core::File {
                path,
                content,
                mode,
                owner,
                group,
                restart,
            } => Self::File {
                path,
                content,
                mode,
                owner,
                group,
                restart,
            },
            Core::Sysctl { settings } => Self::Sysctl { settings },
            Core::SubscriptionNotice { removed } => Self::SubscriptionNotice { removed },
            Core::Drift { policy } => Self::Drift {
                policy: policy.into(),
            },
            Core::Data { name, value } => Self::Data { name, value },
        }
    }
}

impl From<converge::Policy> for DriftPolicy {
    fn from(policy: converge::Policy) -> Self {
        let fields = policy.fields.into_iter();
        Self {
            drift: policy.drift.into(),
            fields: fields
                .map(|(field, handling)| (field, handling.into()))
                .collect(),
            held: policy.held,
            frozen: policy.frozen,
        }
    }
}
