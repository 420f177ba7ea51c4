//! `specs/*.yaml`, schema version 1: what a node becomes.
//!
//! In: a tree. Out: [`Spec`], everything optional as written.
//! Never: looking up postures or keys; references stay names.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::address::Address;
use super::code::Code;
use super::declare::{choice, document};
use super::decode::{Context, Decode, Spanned};
use super::node_config::{ConvergeConfig, KernelValue, ManagedFile};
use super::scalar::{
    Domain, Duration, Name, NodeName, Package, Port, TimeZone, Unit, UserName, Version,
};
use super::schema::Definitions;
use super::tree::{Entry, Value};

choice! {
    /// What starts the run phase again.
    Trigger {
        /// Every `interval`.
        Schedule = "schedule",
        /// A request to `path` on `port`.
        Webhook = "webhook",
        /// A change of `branch` in `repo`, looked for every `poll_interval`.
        Git = "git",
        /// A person.
        Manual = "manual",
    }
}

document! {
    /// A spec: what a node becomes.
    #[derive(Debug, PartialEq)]
    Spec as "the spec" {
        /// Always 1.
        schema_version: Version<1>,
        /// One line for people.
        description: String,
        /// Who the machine is.
        identity: Identity,
        /// A fixed address; a node's own wins.
        network: SpecNetwork,
        /// Who may log in, and how.
        access: Access,
        /// Packages and services.
        platform: Platform,
        /// System configuration.
        config: Config,
        /// How the machine is kept in shape.
        run: Run,
    }
}

document! {
    /// Who the machine is.
    #[derive(Debug, PartialEq)]
    Identity as "identity" {
        /// Host name, for a machine without a manifest; a node's name wins.
        hostname: NodeName,
        /// DNS domain; defaults to the site's.
        domain: Domain,
    }
}

document! {
    /// A fixed address.
    #[derive(Debug, PartialEq)]
    SpecNetwork as "network" {
        /// The address.
        ip = required: Address,
        /// The gateway.
        gateway = required: IpAddr,
        /// Name servers.
        dns: Vec<Spanned<IpAddr>>,
    }
}

document! {
    /// Who may log in, and how.
    #[derive(Debug, PartialEq)]
    Access as "access" {
        /// Security profile; a name from `postures/`.
        posture default "prod": Name,
        /// Users on the machine.
        users: Vec<Spanned<User>>,
    }
}

document! {
    /// A user on the machine.
    #[derive(Debug, PartialEq)]
    User as "the user" {
        /// Login name.
        name = required: UserName,
        /// Whether the user may become root.
        sudo default "false": bool,
        /// Keys that may log in, ids under `ssh_keys` in `secrets.yaml`; all of them when left out.
        ssh_keys: Vec<Spanned<SshKeyId>>,
    }
}

document! {
    /// Packages and services.
    #[derive(Debug, PartialEq)]
    Platform as "platform" {
        /// Debian packages.
        packages: Vec<Spanned<Package>>,
        /// systemd units.
        services: Services,
    }
}

document! {
    /// systemd units.
    #[derive(Debug, PartialEq)]
    Services as "services" {
        /// Enabled and started.
        enable: Vec<Spanned<Unit>>,
        /// Disabled and stopped.
        disable: Vec<Spanned<Unit>>,
    }
}

document! {
    /// What makes the machine a hypervisor.
    #[derive(Debug, PartialEq)]
    PveConfig as "config.pve" {
        /// Whether the subscription notice is removed.
        remove_subscription_nag default "true": bool,
    }
}

document! {
    /// How the machine is kept in shape.
    #[derive(Debug, PartialEq)]
    Run as "run" {
        /// What starts the run phase again.
        trigger default "manual": Trigger,
        /// Time between scheduled runs.
        interval: Duration,
        /// Time between looks at the repository.
        poll_interval: Duration,
        /// Port of the webhook.
        port: Port,
        /// Path of the webhook.
        path: String,
        /// Repository that is watched.
        repo: String,
        /// Branch that is watched.
        branch: String,
    }
}

/// How keys begin that hold data of one's own.
pub const OWN_DATA: &str = "x-";

/// System configuration: a few known keys, and data of one's own under names that begin with `x-`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// Time zone; defaults to the site's.
    pub timezone: Option<Spanned<TimeZone>>,
    /// What makes the machine a hypervisor.
    pub pve: Option<Spanned<PveConfig>>,
    /// Files of the machine.
    pub files: Option<Spanned<Vec<Spanned<ManagedFile>>>>,
    /// Settings of the kernel.
    pub sysctl: Option<Spanned<BTreeMap<String, Spanned<KernelValue>>>>,
    /// How the machine converges.
    pub converge: Option<Spanned<ConvergeConfig>>,
    /// Every valid key but the first two, kept as written.
    pub more: Vec<(String, Value)>,
}

impl Config {
    /// The keys of this mapping.
    pub const KEYS: &'static [&'static str] = &["timezone", "pve", "files", "sysctl", "converge"];
}

impl Decode for Config {
    fn decode(value: &Value, cx: &mut Context<'_>) -> Option<Self> {
        let entries = cx.keyed(value, Self::KEYS)?;
        let mut this = Self::default();
        for entry in entries {
            match entry.key.text.as_str() {
                "timezone" => this.timezone = cx.field(entry),
                "pve" => this.pve = pve(entry, cx),
                "files" => this.files = cx.field(entry),
                "sysctl" => this.sysctl = cx.field(entry),
                "converge" => this.converge = cx.field(entry),
                key if key.starts_with(OWN_DATA) => {}
                _ => {
                    cx.unknown_key(entry, Self::KEYS);
                    continue;
                }
            }
            let key = entry.key.text.as_str();
            if !matches!(key, "timezone" | "pve") {
                this.more.push((key.to_owned(), entry.value.clone()));
            }
        }
        Some(this)
    }

    fn schema(definitions: &mut Definitions) -> serde_json::Value {
        definitions.mapping(
            "Config",
            &["System configuration; keys that begin with `x-` are data of one's own, kept as written."],
            |definitions, mapping| {
                mapping.key(
                    "timezone",
                    TimeZone::schema(definitions),
                    &["Time zone; defaults to the site's."],
                    false,
                    None,
                );
                mapping.key(
                    "pve",
                    PveConfig::schema(definitions),
                    &["What makes the machine a hypervisor."],
                    false,
                    None,
                );
                mapping.key(
                    "files",
                    Vec::<ManagedFile>::schema(definitions),
                    &["Files of the machine."],
                    false,
                    None,
                );
                mapping.key(
                    "sysctl",
                    BTreeMap::<String, Spanned<KernelValue>>::schema(definitions),
                    &["Settings of the kernel."],
                    false,
                    None,
                );
                mapping.key(
                    "converge",
                    ConvergeConfig::schema(definitions),
                    &["How the machine converges."],
                    false,
                    None,
                );
                mapping.open("^x-");
            },
        )
    }
}

/// `pve:` with nothing behind it still says that the machine is a hypervisor.
fn pve(entry: &Entry, cx: &mut Context<'_>) -> Option<Spanned<PveConfig>> {
    Spanned::decode(&entry.value, cx)
}

/// An id under `ssh_keys` in `secrets.yaml`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SshKeyId(pub String);

impl Decode for SshKeyId {
    fn decode(value: &Value, cx: &mut Context<'_>) -> Option<Self> {
        let text = cx.text(value)?;
        let Some(id) = text.strip_prefix("ssh_keys.") else {
            return Some(Self(text.to_owned()));
        };
        cx.notice(
            Code::OldName,
            value.span,
            format!("`{text}` is the old form of `{id}`"),
            format!("write `{id}`; the old form still works"),
        );
        Some(Self(id.to_owned()))
    }
    fn schema(_: &mut Definitions) -> serde_json::Value {
        serde_json::json!({ "type": "string", "minLength": 1 })
    }
}
