//! Lists the desired resources of a spec, each once, in an order that does not depend on the
//! spec's.

use std::collections::{BTreeMap, BTreeSet};

use super::change::Handling;
use super::policy::Policy;
use super::resource::{Resource, SudoRule};
use super::{AGENT, UNIT};
use crate::doc::Spanned;
use crate::doc::address::Address;
use crate::doc::node_config::{ForeignKeys, PublicKey};
use crate::doc::node_spec::{NodeNetwork, NodeSpec};
use crate::doc::posture::{PermitRootLogin, Posture, YesNo};
use crate::doc::spec::{Config, Trigger};

/// Prefix lengths (IPv4, IPv6) of addresses without one.
const DEFAULT_PREFIX: (u8, u8) = (24, 64);

/// Returns the desired resources of a spec.
pub fn desired_resources(spec: &NodeSpec) -> Vec<Resource> {
    let mut list = Vec::new();
    let posture = spec
        .access
        .as_ref()
        .and_then(|access| access.settings.as_ref())
        .map(|posture| posture.value.clone())
        .unwrap_or_default();
    let config = spec
        .config
        .as_ref()
        .map(|config| config.value.clone())
        .unwrap_or_default();
    identity(&mut list, spec, &config);
    access(&mut list, spec, &posture, &config);
    security(&mut list, spec, &posture);
    platform(&mut list, spec, &posture, &config);
    configuration(&mut list, config);
    drift_service(&mut list, spec);
    list.sort_by_key(Resource::id);
    list.dedup_by_key(|resource| resource.id());
    Policy::of(spec).enforced().attach_to(&list)
}

fn identity(list: &mut Vec<Resource>, spec: &NodeSpec, config: &Config) {
    let identity = spec.identity.as_ref();
    let domain = identity
        .and_then(|identity| identity.domain.as_ref())
        .map(ToString::to_string);
    let network = spec
        .network
        .as_ref()
        .and_then(|network| static_network(network));
    if let Some(name) = identity.and_then(|identity| identity.hostname.as_ref()) {
        let name = name.to_string();
        let mut names = vec![name.clone()];
        if let Some(domain) = &domain {
            names.insert(0, format!("{name}.{domain}"));
        }
        // A hypervisor's own name must resolve to an address that others can reach.
        let address = network
            .as_ref()
            .filter(|_| config.pve.is_some())
            .and_then(|network| network.0.split('/').next().map(str::to_owned))
            .unwrap_or_else(|| "127.0.1.1".to_owned());
        list.push(Resource::Hostname { name });
        list.push(Resource::Hosts { address, names });
    }
    if let Some((address, gateway, dns)) = network {
        list.push(Resource::Network {
            address,
            gateway,
            dns,
            domain,
        });
    }
}

type StaticNetwork = (String, Option<String>, Vec<String>);

fn static_network(network: &NodeNetwork) -> Option<StaticNetwork> {
    let Address::Static { ip, prefix } = network.ip.as_ref()?.value else {
        return None;
    };
    let usual = if ip.is_ipv4() {
        DEFAULT_PREFIX.0
    } else {
        DEFAULT_PREFIX.1
    };
    let gateway = network.gateway.as_ref().map(ToString::to_string);
    let dns = network.dns.iter().flat_map(|dns| &dns.value);
    Some((
        format!("{ip}/{}", prefix.unwrap_or(usual)),
        gateway,
        dns.map(ToString::to_string).collect(),
    ))
}

fn access(list: &mut Vec<Resource>, spec: &NodeSpec, posture: &Posture, config: &Config) {
    let nopasswd = posture
        .sudo
        .as_ref()
        .and_then(|sudo| sudo.nopasswd.as_ref())
        .is_some_and(|nopasswd| nopasswd.value);
    let removes = config
        .converge
        .as_ref()
        .and_then(|converge| converge.foreign_keys.as_ref())
        .is_some_and(|policy| policy.value == ForeignKeys::Remove);
    let foreign = match removes {
        true => Handling::Enforce,
        false => Handling::Report,
    };
    let users = spec
        .access
        .as_ref()
        .and_then(|access| access.users.as_ref());
    let driver = spec
        .access
        .as_ref()
        .and_then(|access| access.driver.as_ref())
        .map(|driver| &driver.value);
    let of_driver = driver.and_then(|driver| driver.ssh_keys.as_ref());
    let mut unlisted = driver.and_then(|driver| driver.user.as_ref().map(ToString::to_string));
    for user in users.iter().flat_map(|users| &users.value) {
        let Some(name) = user.name.as_ref().map(ToString::to_string) else {
            continue;
        };
        let is_driver = unlisted.take_if(|driver| *driver == name).is_some();
        let keys = user
            .ssh_keys
            .iter()
            .chain(of_driver.filter(|_| is_driver))
            .flat_map(|keys| &keys.value);
        let rule = match user.sudo.as_ref().is_some_and(|sudo| sudo.value) {
            _ if is_driver => SudoRule::NoPassword,
            false => SudoRule::None,
            true if nopasswd => SudoRule::NoPassword,
            true => SudoRule::Password,
        };
        user_account(list, name, keys, foreign, rule);
    }
    // The driver's user keeps its account, its key and sudo even if the spec does not list it. Other
    // keys that it has from the first boot are ignored then.
    if let Some(name) = unlisted {
        let keys = of_driver.into_iter().flat_map(|keys| &keys.value);
        user_account(list, name, keys, Handling::Ignore, SudoRule::NoPassword);
    }
    list.push(Resource::SudoGroups { allowed: nopasswd });
}

/// Adds a user account with keys and sudo rule.
fn user_account<'k>(
    list: &mut Vec<Resource>,
    name: String,
    keys: impl Iterator<Item = &'k Spanned<PublicKey>>,
    foreign: Handling,
    rule: SudoRule,
) {
    let keys: BTreeSet<String> = keys.map(|key| key.value.0.clone()).collect();
    list.push(Resource::User { name: name.clone() });
    list.push(Resource::Keys {
        user: name.clone(),
        keys: keys.into_iter().collect(),
        foreign,
    });
    // root needs no sudo rule.
    if name != "root" {
        list.push(Resource::Sudo { user: name, rule });
    }
}

fn security(list: &mut Vec<Resource>, spec: &NodeSpec, posture: &Posture) {
    let ssh = posture.ssh.as_ref();
    let port = ssh
        .and_then(|ssh| ssh.port.as_ref())
        .map_or(22, |port| port.0);
    let root = ssh
        .and_then(|ssh| ssh.permit_root_login.as_ref())
        .map_or(PermitRootLogin::ProhibitPassword, |root| root.value);
    let driver = spec
        .access
        .as_ref()
        .and_then(|access| access.driver.as_ref());
    let driver = driver.and_then(|driver| driver.user.as_ref());
    let root = match root {
        // A driver that logs in as root would be locked out.
        PermitRootLogin::No if driver.is_some_and(|user| user.as_str() == "root") => {
            PermitRootLogin::ProhibitPassword
        }
        PermitRootLogin::Yes | PermitRootLogin::No | PermitRootLogin::ProhibitPassword => root,
    };
    let passwords = ssh
        .and_then(|ssh| ssh.password_authentication.as_ref())
        .map_or(YesNo::No, |passwords| passwords.value)
        .to_string();
    let settings = [
        ("Port", port.to_string()),
        ("PermitRootLogin", root.to_string()),
        ("PasswordAuthentication", passwords),
        // Passwords could also be used this way; Debian disables it too.
        ("KbdInteractiveAuthentication", "no".to_owned()),
    ];
    list.push(Resource::Sshd {
        settings: settings
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
    });
    let enabled = posture
        .fail2ban
        .as_ref()
        .and_then(|fail2ban| fail2ban.enabled.as_ref())
        .is_some_and(|enabled| enabled.value);
    list.push(Resource::Fail2ban { enabled, port });
}

/// Adds packages of spec and posture, those that other resources need, and services.
fn platform(list: &mut Vec<Resource>, spec: &NodeSpec, posture: &Posture, config: &Config) {
    let platform = spec.platform.as_ref();
    let own = platform.and_then(|platform| platform.packages.as_ref());
    let mut packages: BTreeMap<String, Option<String>> = BTreeMap::new();
    for package in own
        .iter()
        .chain(posture.packages.as_ref().iter())
        .flat_map(|packages| &packages.value)
    {
        let text = package.to_string();
        let (name, version) = match text.split_once('=') {
            Some((name, version)) => (name.to_owned(), Some(version.to_owned())),
            None => (text, None),
        };
        let known = packages.entry(name).or_default();
        *known = known.take().or(version);
    }
    let mut needed = vec!["openssh-server", "sudo"];
    if config.timezone.is_some() {
        needed.push("tzdata");
    }
    let banning = list
        .iter()
        .any(|resource| matches!(resource, Resource::Fail2ban { enabled: true, .. }));
    if banning {
        // fail2ban needs the reader of the journal where there is no log file.
        needed.extend(["fail2ban", "python3-systemd"]);
    }
    for name in needed {
        packages.entry(name.to_owned()).or_default();
    }
    for (name, version) in packages {
        list.push(Resource::Package { name, version });
    }
    let services = platform.and_then(|platform| platform.services.as_ref());
    let lists = [
        (services.and_then(|services| services.enable.as_ref()), true),
        (
            services.and_then(|services| services.disable.as_ref()),
            false,
        ),
    ];
    for (units, enabled) in lists {
        for unit in units.iter().flat_map(|units| &units.value) {
            let unit = full_unit(&unit.to_string());
            list.push(Resource::Service { unit, enabled });
        }
    }
}

/// Adds the unit that corrects drift, if the spec runs on a schedule.
fn drift_service(list: &mut Vec<Resource>, spec: &NodeSpec) {
    let run = spec.run.as_ref();
    let trigger = run.and_then(|run| run.trigger.as_ref());
    if trigger.is_none_or(|trigger| trigger.value != Trigger::Schedule) {
        return;
    }
    list.push(Resource::File {
        path: format!("/etc/systemd/system/{UNIT}"),
        content: unit_text(),
        mode: 0o644,
        owner: "root".to_owned(),
        group: "root".to_owned(),
        restart: Vec::new(),
    });
    list.push(Resource::Service {
        unit: UNIT.to_owned(),
        enabled: true,
    });
}

/// Returns the unit that corrects drift. Stopping it ends only its main process, so that a running
/// package installation is not interrupted. It never restarts itself during a run.
fn unit_text() -> String {
    format!(
        "# Written by homestak.\n[Unit]\nDescription=Keep this machine as its spec says\n\
         After=dbus.service network.target\n\
         StartLimitIntervalSec=0\n\n[Service]\nType=notify\nExecStart={AGENT} run --daemon\n\
         Restart=always\nRestartSec=1\nWatchdogSec=120\nKillMode=process\nOOMScoreAdjust=-900\n\n\
         [Install]\nWantedBy=multi-user.target\n"
    )
}

/// Completes the name of a unit.
pub(super) fn full_unit(name: &str) -> String {
    const KINDS: &[&str] = &[
        "service",
        "socket",
        "timer",
        "target",
        "mount",
        "automount",
        "path",
        "slice",
        "swap",
        "device",
        "scope",
    ];
    let known = name
        .rsplit_once('.')
        .is_some_and(|(_, kind)| KINDS.contains(&kind));
    if known {
        name.to_owned()
    } else {
        format!("{name}.service")
    }
}

fn configuration(list: &mut Vec<Resource>, config: Config) {
    if let Some(zone) = config.timezone {
        list.push(Resource::Timezone {
            zone: zone.to_string(),
        });
    }
    for file in config.files.into_iter().flat_map(|files| files.value) {
        let file = file.value;
        let (Some(path), Some(content)) = (file.path, file.content) else {
            continue;
        };
        let name = |name: Option<crate::doc::Spanned<crate::doc::scalar::UserName>>| {
            name.map_or_else(|| "root".to_owned(), |name| name.to_string())
        };
        let restart: BTreeSet<String> = file
            .restart
            .iter()
            .flat_map(|units| &units.value)
            .map(|unit| full_unit(&unit.to_string()))
            .collect();
        list.push(Resource::File {
            path: path.value.0,
            content: content.value,
            mode: file.mode.map_or(0o644, |mode| mode.value.0),
            owner: name(file.owner),
            group: name(file.group),
            restart: restart.into_iter().collect(),
        });
    }
    if let Some(settings) = config.sysctl {
        let settings = settings.value.into_iter();
        list.push(Resource::Sysctl {
            settings: settings.map(|(key, value)| (key, value.value.0)).collect(),
        });
    }
    if let Some(pve) = config.pve {
        let removed = pve
            .value
            .remove_subscription_nag
            .is_none_or(|nag| nag.value);
        list.push(Resource::SubscriptionNotice { removed });
    }
    for (name, value) in config.more {
        if !matches!(name.as_str(), "files" | "sysctl" | "converge") {
            let mut value = value.to_json();
            value.sort_all_objects();
            list.push(Resource::Data { name, value });
        }
    }
}
