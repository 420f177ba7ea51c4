//! Applies the site's specs inside nodes, over SSH with the driver's keys.
//!
//! Specs are resolved when they are used, including secrets, and never stored.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use homestak_api::runtime::leavable;
use homestak_core::catalog::Catalog;
use homestak_core::converge::{Event, Handling};
use homestak_core::doc::Diagnostic;
use homestak_core::doc::manifest::{Mode, NodeType};
use homestak_core::doc::timeouts::Limit;
use homestak_core::plan::{
    AppliedSpec, ConfigPlan, DesiredGuest, NodePlan, OtherRecords, Plan, spec_digest, spec_json,
    ssh_port,
};
use homestak_core::resolve::ResolvedManifest;
use homestak_core::resolve::site::unknown_keys;
use homestak_engine::context::run_blocking;
use homestak_engine::planning::PlanContext;
use homestak_engine::ports::{
    ConfigTarget, Configurer, ErrorClass, NextAction, PortError, ProviderEvent, SpecComparison,
};
use homestak_providers::push::{AgentBinary, PushError, Pusher};
use homestak_providers::ssh::{Keyring, Ssh, SshError};

use crate::error::DriverError;
use crate::session::Session;
use crate::settings::DriverSettings;

/// Makes the error for a spec whose SSH keys are unknown.
fn keys_unknown(session: &Session, spec: &str, why: &Diagnostic) -> DriverError {
    let source = session.catalog.sources.source(why.span.file);
    let file = source.map_or("secrets.yaml", |source| &source.path);
    let error = DriverError::refused(format!(
        "The SSH keys of the users of the spec `{spec}` are not known: `{file}`: {}.",
        why.message
    ));
    let error = DriverError {
        code: Some(why.code),
        ..error
    };
    let error = why.hint.iter().fold(error, DriverError::hint);
    error.hint("nothing was changed: unknown keys would be removed from the nodes")
}

/// Applies the specs of a site.
#[derive(Clone)]
pub struct SiteConfigurer {
    session: Arc<Session>,
    keyring: Keyring,
    ssh_config: Option<PathBuf>,
    agent: PathBuf,
    /// File with the cached checksum of the agent.
    memory: PathBuf,
    pusher: Arc<OnceLock<Pusher>>,
}

impl SiteConfigurer {
    /// Uses the specs of a site and the keys of the driver.
    pub fn new(session: Arc<Session>, keyring: Keyring, settings: &DriverSettings) -> Self {
        Self {
            session,
            keyring,
            ssh_config: settings.ssh_config.clone(),
            agent: settings.agent.clone(),
            memory: settings.state.join("agent.json"),
            pusher: Arc::default(),
        }
    }

    /// Returns the client that applies specs; the agent program is read once.
    fn pusher(&self, doing: &str) -> Result<Pusher, PortError> {
        if let Some(pusher) = self.pusher.get() {
            return Ok(pusher.clone());
        }
        let agent = AgentBinary::read(&self.agent, &self.memory)
            .map_err(|error| error.to_port_error(doing))?;
        let pusher = || Pusher::new(agent, &self.session.timeouts());
        Ok(self.pusher.get_or_init(pusher).clone())
    }

    fn text(&self, spec: &str, node: (&str, &DesiredGuest), key: Option<&str>) -> Option<String> {
        spec_json(&self.session.catalog, spec, node, key?.trim())
    }

    /// Returns the spec of a node, which must be the planned one.
    fn planned_text(&self, doing: &str, node: &ConfigTarget) -> Result<String, PortError> {
        let spec = &node.config.spec;
        let key = self.keyring.driver_key().ok();
        let text = self.text(spec, (&node.node, &node.wanted), key.as_deref());
        let text = text.ok_or_else(|| {
            let detail = format!("the site no longer has a spec `{spec}`");
            PortError::refused(
                doing,
                detail,
                "homestak manifest plan shows the present state",
            )
        })?;
        if spec_digest(&text) != node.config.digest {
            let detail = format!(
                "the spec `{spec}`, or a document it refers to, was changed after the plan was made"
            );
            return Err(PortError {
                next: NextAction::NewPlan,
                ..PortError::refused(doing, detail, "")
            });
        }
        Ok(text)
    }

    fn way(&self, node: &ConfigTarget) -> Ssh {
        let (address, user) = (node.address, &node.wanted.user);
        Ssh::to(&self.keyring, address, user, node.guest.as_str())
            .with_connect_timeout(self.session.timeouts().of(Limit::Ssh))
            .with_config_file(self.ssh_config.clone())
    }
}

#[async_trait]
impl PlanContext for SiteConfigurer {
    type Error = DriverError;

    /// Reports nodes of the manifest that are recorded on hosts outside the plan.
    fn observing(&self, resolved: &ResolvedManifest, hosts: &[&str], elsewhere: &OtherRecords) {
        let (notices, manifest) = (&self.session.notices, &resolved.name);
        let mut others: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (_, record) in elsewhere.0.iter().filter(|(of, _)| of == manifest) {
            let nodes = others.entry(record.host.as_str()).or_default();
            nodes.push(record.name.as_str());
        }
        for (host, nodes) in others {
            let nodes = nodes.join("`, `");
            notices.notice(&format!(
                "notice: `{manifest}` is on `{host}` too, with `{nodes}`; this plan does not include `{host}`"
            ));
        }
        notices.detail(&format!("observing {}", hosts.join(", ")));
    }

    // Without the secrets the SSH keys of users are unknown, and would be removed from nodes.
    async fn configs(
        &self,
        resolved: &ResolvedManifest,
        plan: &Plan,
    ) -> Result<BTreeMap<String, ConfigPlan>, DriverError> {
        let mut key = None;
        let mut configs = BTreeMap::new();
        for node in &plan.nodes {
            let written = resolved.node(&node.name);
            let spec = written.and_then(|written| Some(written.spec.as_ref()?.value.clone()));
            let (Some(wanted), Some(spec)) = (&node.wanted, spec) else {
                continue;
            };
            if not_applied(&self.session.catalog, resolved, node).is_some() {
                continue;
            }
            if let Some(why) = unknown_keys(&self.session.catalog, &spec) {
                return Err(keys_unknown(&self.session, &spec, why));
            }
            if key.is_none() {
                let keyring = self.keyring.clone();
                let own =
                    run_blocking("create the driver's SSH key", move || keyring.driver_key()).await;
                key = own.ok();
            }
            if let Some(text) = self.text(&spec, (&node.name, wanted), key.as_deref()) {
                let config = ConfigPlan {
                    digest: spec_digest(&text),
                    port: ssh_port(&text),
                    spec,
                    found: None,
                    unseen: None,
                };
                configs.insert(node.name.clone(), config);
            }
        }
        Ok(configs)
    }

    fn not_applied(&self, resolved: &ResolvedManifest, node: &NodePlan) -> Option<String> {
        notice_not_applied(&self.session.catalog, resolved, node)
    }
}

/// Why the spec of a node is not applied from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotApplied {
    /// A simulated guest has no inside.
    Simulated,
    /// It fetches its spec from a server.
    Fetched,
    /// SSH is disabled for the manifest.
    NoSsh,
    /// On this machine a hypervisor is a homestak host, whatever its spec says about Proxmox VE.
    Hypervisor,
}

impl NotApplied {
    /// Returns the reason as text.
    pub fn why(self) -> &'static str {
        match self {
            Self::Simulated => "it is simulated",
            Self::Fetched => "it fetches its spec itself",
            Self::NoSsh => "`settings.verify_ssh` of the manifest is false",
            Self::Hypervisor => "nodes of type `pve` are not configured on this machine",
        }
    }
}

/// Returns why the spec of a node, if it has one, is not applied from here.
pub fn not_applied(
    catalog: &Catalog,
    resolved: &ResolvedManifest,
    node: &NodePlan,
) -> Option<NotApplied> {
    let traits = catalog.traits_of(&node.host);
    let written = resolved.node(&node.name)?;
    written.spec.as_ref()?;
    if traits.is_simulated {
        Some(NotApplied::Simulated)
    } else if written.mode.value == Mode::Pull {
        Some(NotApplied::Fetched)
    } else if !resolved.settings.verify_ssh.value {
        Some(NotApplied::NoSsh)
    } else if !traits.configures_hypervisors && written.kind.value == NodeType::Pve {
        Some(NotApplied::Hypervisor)
    } else {
        None
    }
}

/// Returns a notice for a spec that is, unexpectedly, not applied.
pub fn notice_not_applied(
    catalog: &Catalog,
    resolved: &ResolvedManifest,
    node: &NodePlan,
) -> Option<String> {
    let why = match not_applied(catalog, resolved, node)? {
        NotApplied::Simulated | NotApplied::Fetched => return None,
        why @ (NotApplied::NoSsh | NotApplied::Hypervisor) => why.why(),
    };
    let spec = &resolved.node(&node.name)?.spec.as_ref()?.value;
    Some(format!("its spec `{spec}` is not applied: {why}"))
}

impl SiteConfigurer {
    /// Runs work on the first port on which a node accepts connections.
    fn at_first<T>(
        &self,
        doing: &str,
        node: &ConfigTarget,
        ports: &[u16],
        mut work: impl FnMut(&Ssh) -> Result<T, PushError>,
    ) -> Result<T, PortError> {
        let ssh = self.way(node);
        let mut last = PushError::Lost { tries: 0 };
        for port in ports {
            match work(&ssh.clone().with_port(*port)) {
                Err(PushError::Ssh(SshError::Unreachable { said, sent }))
                    if said.contains("refused") =>
                {
                    last = PushError::Ssh(SshError::Unreachable { said, sent });
                }
                done => return done.map_err(|error| at_port(&error, doing, node)),
            }
        }
        Err(at_port(&last, doing, node))
    }
}

#[async_trait]
impl Configurer for SiteConfigurer {
    async fn check(&self, node: &ConfigTarget) -> Result<SpecComparison, PortError> {
        let doing = format!("look inside `{}`", node.node);
        let (own, node, at) = (self.clone(), node.clone(), doing.clone());
        // Cancel safety: looking changes nothing.
        run_blocking(&doing, move || {
            let (pusher, text) = (own.pusher(&at)?, own.planned_text(&at, &node)?);
            own.at_first(&at, &node, &node.ports, |ssh| pusher.check(ssh, &text))
        })
        .await
    }

    async fn converge(
        &self,
        node: &ConfigTarget,
        hear: Arc<dyn Fn(ProviderEvent) + Send + Sync>,
    ) -> Result<bool, PortError> {
        let doing = format!("configure `{}`", node.node);
        let (own, node, at) = (self.clone(), node.clone(), doing.clone());
        // Cancel safety: the node continues on its own; the flag ends the thread that follows it.
        let dropped = DropFlag::default();
        let is_dropped = dropped.0.clone();
        run_blocking(&doing, move || {
            let (pusher, text) = (own.pusher(&at)?, own.planned_text(&at, &node)?);
            let after = own.way(&node).with_port(node.config.port);
            let hear = |event: &Event| tell(event, hear.as_ref());
            let stop = || is_dropped.load(Ordering::Relaxed);
            own.at_first(&at, &node, &node.ports, |ssh| {
                pusher.converge(ssh, &after, &text, &hear, &stop)
            })
        })
        .await
    }

    async fn revert(
        &self,
        node: &ConfigTarget,
        before: &AppliedSpec,
        hear: Arc<dyn Fn(ProviderEvent) + Send + Sync>,
    ) -> Result<bool, PortError> {
        let doing = format!("undo the configuration of `{}`", node.node);
        let (own, node, before) = (self.clone(), node.clone(), before.clone());
        let at = doing.clone();
        let undone = run_blocking(&doing, move || {
            let pusher = own.pusher(&at)?;
            let after = own.way(&node).with_port(before.port);
            // It listens on the port of the spec to be reverted, or on the one before.
            let mut ports = node.ports.clone();
            ports.sort_by_key(|port| *port != node.config.port);
            let digests = (node.config.digest.as_str(), before.digest.as_str());
            let hear = |event: &Event| tell(event, hear.as_ref());
            own.at_first(&at, &node, &ports, |ssh| {
                pusher.revert(ssh, &after, digests, &hear)
            })
        });
        // Cancel safety: the node continues by itself; the next who asks finds what it became.
        leavable(Duration::ZERO, undone).await
    }
}

/// Converts an error. A node that denies access may still be creating its user on its first boot;
/// later, access is retried a few times only.
fn at_port(error: &PushError, doing: &str, node: &ConfigTarget) -> PortError {
    let mut worded = error.to_port_error(doing);
    if matches!(error, PushError::Ssh(SshError::Denied { .. })) && !node.is_new {
        worded.class = ErrorClass::Broken;
    }
    worded
}

/// Sets a flag when it is dropped.
#[derive(Default)]
struct DropFlag(Arc<AtomicBool>);

impl Drop for DropFlag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reports an event of a node.
fn tell(event: &Event, hear: &(dyn Fn(ProviderEvent) + Send + Sync)) {
    match event {
        Event::Changes { changes } => {
            hear(ProviderEvent::Began);
            for change in changes {
                if change.handling == Handling::Report {
                    let found = change.found.lines().next().unwrap_or_default();
                    let text = format!("{} is {found}, and is not changed", change.id);
                    hear(ProviderEvent::Warning(text));
                }
            }
        }
        Event::Step { description } => hear(ProviderEvent::Doing(description.to_string())),
        Event::Confirm { .. } => hear(ProviderEvent::Waiting("a new connection to it".to_owned())),
        Event::Reverted { reason } => hear(ProviderEvent::Warning(format!(
            "changes were reverted: {reason}"
        ))),
        Event::Heartbeat | Event::End { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use homestak_core::catalog::{Catalog, InputDocument};
    use homestak_core::doc::DocumentKind;
    use homestak_core::plan::SpecComparison;
    use homestak_core::resolve::{ResolveOptions, manifest};
    use serde_json::json;

    use super::*;
    use crate::hosts;
    use crate::hosts::local::LOCAL;
    use crate::hosts::sim::SIM;

    /// A running node.
    fn node(is_new: bool) -> ConfigTarget {
        let wanted = json!({
            "uuid": "11111111-1111-4111-8111-111111111111", "kind": "vm", "host": "father",
            "cores": 1, "memory": 1024, "disk": 10, "storage": "local", "image_storage": "local",
            "source": "debian-12", "mac": "", "bridge": "vmbr0", "dns": [],
            "unprivileged": true, "hosts_guests": false, "user": "ops", "packages": [],
        });
        ConfigTarget {
            node: "web".to_owned(),
            host: "father".to_owned(),
            guest: serde_json::from_value(wanted["uuid"].clone()).expect("an identity"),
            address: IpAddr::from([192, 0, 2, 7]),
            ports: vec![22],
            wanted: serde_json::from_value(wanted).expect("a node"),
            config: ConfigPlan {
                spec: "web".to_owned(),
                digest: String::new(),
                port: 22,
                found: Some(SpecComparison::default()),
                unseen: None,
            },
            is_new,
        }
    }

    #[test]
    fn a_spec_that_is_not_applied_is_named_with_its_reason() {
        let input = |kind, name: &str, text: &str| InputDocument {
            kind,
            name: name.to_owned(),
            path: format!("{name}.yaml"),
            text: Ok(text.to_owned()),
        };
        let notice = |host: &str, settings: &str, node: &str| {
            let text = format!("{settings}nodes:\n  - {{name: web, preset: small, {node}}}\n");
            let mut catalog = Catalog::read(vec![
                input(DocumentKind::Manifest, "m", &text),
                input(
                    DocumentKind::Preset,
                    "small",
                    "cores: 1\nmemory: 1024\ndisk: 10\n",
                ),
                input(
                    DocumentKind::Image,
                    "debian-12",
                    "source: https://example.org/d.qcow2\n",
                ),
                input(DocumentKind::Image, "pve-9", "recipe: {suite: trixie}\n"),
                input(
                    DocumentKind::Node,
                    "father",
                    "api_endpoint: https://127.0.0.1:8006\n",
                ),
                input(DocumentKind::Spec, "web", "schema_version: 1\n"),
            ]);
            catalog.kinds = hosts::known(hosts::KINDS);
            let request = ResolveOptions {
                host: Some("father".to_owned()),
                ..ResolveOptions::default()
            };
            let (resolved, faults) = manifest(&catalog, "m", &request);
            let resolved = resolved.unwrap_or_else(|| panic!("{faults:?}"));
            let node = json!({
                "name": "web", "host": host, "place": { "host": host }, "depth": 0,
                "action": "nothing", "reasons": [],
            });
            let node = serde_json::from_value(node).expect("a node");
            notice_not_applied(&catalog, &resolved, &node)
        };
        let no_ssh = "settings: {verify_ssh: false}\n";
        let why = |text: Option<String>| text.unwrap_or_default();
        assert!(why(notice("father", no_ssh, "spec: web")).contains("`settings.verify_ssh`"));
        assert!(why(notice(LOCAL, "", "spec: web, type: pve")).contains("type `pve`"));
        for (host, settings, node) in [
            ("father", "", "spec: web"),
            ("father", "", "spec: web, type: pve"),
            (LOCAL, "", "spec: web"),
            (SIM, no_ssh, "spec: web"),
            ("father", no_ssh, "image: debian-12"),
        ] {
            assert_eq!(
                notice(host, settings, node),
                None,
                "{host} {settings} {node}"
            );
        }
    }

    #[test]
    fn denied_access_is_waited_for_on_the_first_boot_only() {
        let said = "ops@192.0.2.7: Permission denied (publickey)".into();
        let denied = PushError::Ssh(SshError::Denied { said });
        let class = |is_new| at_port(&denied, "configure", &node(is_new)).class;
        assert!(matches!(class(true), ErrorClass::Unreachable { .. }));
        assert_eq!(class(false), ErrorClass::Broken);
    }
}
