//! `specs/*.yaml`, schema version 1: the configuration of a node.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::address::Address;
use super::code::Code;
use super::declare::{choice, document};
use super::decode::{Context, Decode, Spanned};
use super::git::{GitBranch, GitUrl, Signer};
use super::node_config::{ConvergeConfig, KernelValue, ManagedFile};
use super::scalar::{
    Domain, Duration, Name, NodeName, Package, Port, TimeZone, Unit, UserName, Version,
};
use super::schema::Definitions;
use super::tree::{Entry, Value};
use super::window::Windows;

choice! {
    /// What starts automatic runs.
    Trigger {
        /// Every `interval`.
        Schedule = "schedule",
        /// A signed request to the server, for the name in `webhook`.
        Webhook = "webhook",
        /// A new commit on `branch` of `repo`, checked by the server every `poll_interval`.
        Git = "git",
        /// Only manual runs.
        Manual = "manual",
    }
}

document! {
    /// A spec: the configuration of a node.
    #[derive(Debug, PartialEq)]
    Spec as "the spec" {
        /// Always 1.
        schema_version: Version<1>,
        /// One-line description.
        description: String,
        /// Host name and domain.
        identity: Identity,
        /// Static address; overridden by that of the node.
        network: SpecNetwork,
        /// User accounts and posture.
        access: Access,
        /// Packages and services.
        platform: Platform,
        /// System configuration.
        config: Config,
        /// Automatic runs.
        run: Run,
    }
}

document! {
    /// Host name and domain.
    #[derive(Debug, PartialEq)]
    Identity as "identity" {
        /// Host name of a machine without a manifest; otherwise the name of the node is used.
        hostname: NodeName,
        /// DNS domain; defaults to that of the site.
        domain: Domain,
    }
}

document! {
    /// Static address.
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
    /// User accounts and posture.
    #[derive(Debug, PartialEq)]
    Access as "access" {
        /// Posture; a name from `postures/`.
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
        /// Whether the user may use sudo.
        sudo default "false": bool,
        /// Authorized keys: ids under `ssh_keys` in `secrets.yaml`. Defaults to all of them.
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
        /// Units to enable and start.
        enable: Vec<Spanned<Unit>>,
        /// Units to disable and stop.
        disable: Vec<Spanned<Unit>>,
    }
}

document! {
    /// Settings of a Proxmox VE hypervisor.
    #[derive(Debug, PartialEq)]
    PveConfig as "config.pve" {
        /// Whether the subscription notice is removed.
        remove_subscription_nag default "true": bool,
    }
}

choice! {
    /// Which packages an update installs.
    Updates {
        /// None: updates are refused.
        None = "none",
        /// Those of security suites.
        Security = "security",
        /// All that have a newer version.
        All = "all",
    }
}

document! {
    /// Automatic runs, and updates.
    #[derive(Debug, PartialEq)]
    Run as "run" {
        /// What starts a run.
        trigger default "manual": Trigger,
        /// Time between checks for drift (`trigger: schedule`), and between requests for newer specs (mode `pull`).
        interval: Duration,
        /// Name of the webhook; an id under `auth.webhooks` in `secrets.yaml`.
        webhook: Name,
        /// Git repository: an `https://` or `ssh://` URL, or an absolute path on the server's machine.
        repo: GitUrl,
        /// Branch of the repository; the one that is its default if omitted.
        branch: GitBranch,
        /// Time between checks of the repository, at least `30s`.
        poll_interval default "5m": Duration,
        /// Who must have signed the newest commit: public SSH keys, or ids under `ssh_keys` in `secrets.yaml`. Without it, any commit starts a run.
        signed_by: Vec<Spanned<Signer>>,
        /// Which packages `node update` and update jobs install.
        updates default "none": Updates,
        /// When updates and restarts are allowed, in the time zone of the node: `[DAYS ]HH:MM-HH:MM`, or a list. At any time if omitted.
        window: Windows,
        /// Has no effect, and is refused: the server listens on a port of its own.
        port: Port,
        /// Has no effect, and is refused: the path of a webhook is `/v1/hooks/NAME`.
        path: String,
    }
}

/// Prefix of keys with custom data.
pub const CUSTOM_PREFIX: &str = "x-";

/// System configuration: known keys, and custom data under keys that start with `x-`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// Time zone; defaults to that of the site.
    pub timezone: Option<Spanned<TimeZone>>,
    /// Settings of a Proxmox VE hypervisor.
    pub pve: Option<Spanned<PveConfig>>,
    /// Managed files.
    pub files: Option<Spanned<Vec<Spanned<ManagedFile>>>>,
    /// Kernel settings.
    pub sysctl: Option<Spanned<BTreeMap<String, Spanned<KernelValue>>>>,
    /// Drift policy.
    pub converge: Option<Spanned<ConvergeConfig>>,
    /// Every valid key but `timezone` and `pve`, unchanged.
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
                key if key.starts_with(CUSTOM_PREFIX) => {}
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
            &["System configuration; keys that start with `x-` are custom data."],
            |definitions, mapping| {
                mapping.key(
                    "timezone",
                    TimeZone::schema(definitions),
                    &["Time zone; defaults to that of the site."],
                    false,
                    None,
                );
                mapping.key(
                    "pve",
                    PveConfig::schema(definitions),
                    &["Settings of a Proxmox VE hypervisor; makes the machine one."],
                    false,
                    None,
                );
                mapping.key(
                    "files",
                    Vec::<ManagedFile>::schema(definitions),
                    &["Managed files."],
                    false,
                    None,
                );
                mapping.key(
                    "sysctl",
                    BTreeMap::<String, Spanned<KernelValue>>::schema(definitions),
                    &["Kernel settings."],
                    false,
                    None,
                );
                mapping.key(
                    "converge",
                    ConvergeConfig::schema(definitions),
                    &["Drift policy."],
                    false,
                    None,
                );
                mapping.open("^x-");
            },
        )
    }
}

/// `pve:` without a value still makes the machine a hypervisor.
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
            format!("`{text}` is deprecated; use `{id}`"),
            format!("write `{id}`; the deprecated form is still accepted"),
        );
        Some(Self(id.to_owned()))
    }
    fn schema(_: &mut Definitions) -> serde_json::Value {
        serde_json::json!({ "type": "string", "minLength": 1 })
    }
}
