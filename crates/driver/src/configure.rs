//! Applies the site's specs inside nodes: over SSH with the driver's keys, or by nodes that fetch them
//! from the server and report.
//!
//! Specs are resolved when they are used, including secrets, and never stored.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use homestak_api::runtime::interruptible;
use homestak_core::catalog::Catalog;
use homestak_core::converge::{Event, Handling};
use homestak_core::doc::Diagnostic;
use homestak_core::doc::manifest::{Mode, NodeType};
use homestak_core::doc::timeouts::Limit;
use homestak_core::plan::{
    AppliedSpec, ConfigPlan, DesiredGuest, NodePlan, NodeRecord, OtherRecords, Plan, spec_digest,
    spec_json, ssh_port,
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
use crate::server::{Progress, ServerLease};
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
    /// The server that nodes fetch their specs from.
    pub(crate) server: Arc<ServerLease>,
    /// Whether nodes on hosts outside a plan are reported.
    announces: bool,
}

impl SiteConfigurer {
    /// Uses the specs of a site and the keys of the driver.
    pub fn new(session: Arc<Session>, keyring: Keyring, settings: &DriverSettings) -> Self {
        Self {
            keyring,
            ssh_config: settings.ssh_config.clone(),
            agent: settings.agent.clone(),
            memory: settings.state.join("agent.json"),
            pusher: Arc::default(),
            server: Arc::new(ServerLease::new(session.clone(), settings)),
            session,
            announces: false,
        }
    }

    /// Reports nodes of a manifest that are recorded on hosts outside its plan.
    pub(crate) fn announcing(self) -> Self {
        Self {
            announces: true,
            ..self
        }
    }

    /// Returns the client that applies specs; the agent program is read once.
    pub(crate) fn pusher(&self, doing: &str) -> Result<Pusher, PortError> {
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
    pub(crate) fn planned_text(
        &self,
        doing: &str,
        node: (&str, &DesiredGuest),
        config: &ConfigPlan,
    ) -> Result<String, PortError> {
        let spec = &config.spec;
        let key = self.keyring.driver_key().ok();
        let text = self.text(spec, node, key.as_deref());
        let text = text.ok_or_else(|| {
            let detail = format!("the site no longer has a spec `{spec}`");
            PortError::refused(
                doing,
                detail,
                "homestak manifest plan shows the present state",
            )
        })?;
        if spec_digest(&text) != config.digest {
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

    fn ssh(&self, node: &ConfigTarget) -> Ssh {
        let (address, user) = (node.address, &node.wanted.user);
        Ssh::to(&self.keyring, address, user, node.guest.as_str())
            .with_connect_timeout(self.session.timeouts().of(Limit::Ssh))
            .with_config_file(self.ssh_config.clone())
    }
}

#[async_trait]
impl PlanContext for SiteConfigurer {
    type Error = DriverError;

    /// Reports nodes of the manifest that are recorded on hosts outside the plan, when asked to.
    fn observing(&self, resolved: &ResolvedManifest, hosts: &[&str], elsewhere: &OtherRecords) {
        let (notices, manifest) = (&self.session.notices, &resolved.name);
        let mut others: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let of_manifest = |(of, _): &&(String, NodeRecord)| self.announces && of == manifest;
        for (_, record) in elsewhere.0.iter().filter(of_manifest) {
            let nodes = others.entry(record.host.as_str()).or_default();
            nodes.push(record.name.as_str());
        }
        for (host, nodes) in others {
            let nodes = nodes.join("`, `");
            notices.notice(&format!(
                "notice: `{manifest}` has nodes on `{host}`, which this plan does not include: `{nodes}`"
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
                    mode: written.map_or(Mode::Push, |written| written.mode.value),
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

    fn is_simulated(&self, resolved: &ResolvedManifest, node: &NodePlan) -> bool {
        not_applied(&self.session.catalog, resolved, node) == Some(NotApplied::Simulated)
    }
}

/// Why the spec of a node is not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotApplied {
    /// A simulated guest has no inside.
    Simulated,
    /// SSH is disabled for the manifest.
    NoSsh,
    /// On this machine a hypervisor is a homestak host; Proxmox VE in its spec is ignored.
    Hypervisor,
}

impl NotApplied {
    /// Returns the reason as text.
    pub fn why(self) -> &'static str {
        match self {
            Self::Simulated => "the host is simulated",
            Self::NoSsh => "`settings.verify_ssh` of the manifest is false",
            Self::Hypervisor => "nodes of type `pve` are not configured on this machine",
        }
    }
}

/// Returns why the spec of a node, if it has one, is not applied.
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
    } else if written.mode.value != Mode::Pull && !resolved.settings.verify_ssh.value {
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
    let written = resolved.node(&node.name)?;
    let why = match not_applied(catalog, resolved, node)? {
        // No notice for push nodes: that they are simulated is clear from the plan.
        NotApplied::Simulated if written.mode.value == Mode::Push => return None,
        why @ (NotApplied::Simulated | NotApplied::NoSsh | NotApplied::Hypervisor) => why.why(),
    };
    let spec = &written.spec.as_ref()?.value;
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
        let ssh = self.ssh(node);
        let mut last = PushError::Lost { tries: 0 };
        for port in ports {
            match work(&ssh.clone().with_port(*port)) {
                Err(PushError::Ssh(error)) if error.is_refused() => last = PushError::Ssh(error),
                done => return done.map_err(|error| at_port(&error, doing, node)),
            }
        }
        Err(at_port(&last, doing, node))
    }
}

#[async_trait]
impl Configurer for SiteConfigurer {
    async fn check(&self, node: &ConfigTarget) -> Result<SpecComparison, PortError> {
        let doing = format!("check the configuration of `{}`", node.node);
        if node.config.mode == Mode::Pull {
            let text = self.text_of(&doing, node).await?;
            let checked = self.server.check(node, &text).await;
            return checked.map_err(|error| error.at_port(&doing));
        }
        let (own, to, at) = (self.clone(), node.clone(), doing.clone());
        // Cancel safety: changes nothing.
        let found = run_blocking(&doing, move || {
            let guest = (to.node.as_str(), &to.wanted);
            let (pusher, text) = (own.pusher(&at)?, own.planned_text(&at, guest, &to.config)?);
            own.at_first(&at, &to, &to.ports, |ssh| pusher.check(ssh, &text))
        });
        let mut found = found.await?;
        found.settled &= self.is_in_mode(&doing, node).await?;
        Ok(found)
    }

    async fn converge(&self, node: &ConfigTarget, report: Progress) -> Result<bool, PortError> {
        let doing = format!("configure `{}`", node.node);
        match node.config.mode {
            Mode::Push => self.push(&doing, node, report).await,
            Mode::Pull => self.pull(&doing, node, report).await,
            Mode::Hybrid => self.hybrid(&doing, node, report).await,
        }
    }

    async fn revert(
        &self,
        node: &ConfigTarget,
        before: &AppliedSpec,
        report: Progress,
    ) -> Result<bool, PortError> {
        let doing = format!("undo the configuration of `{}`", node.node);
        if node.config.mode == Mode::Pull {
            return Err(PortError::refused(
                &doing,
                "it applies the spec that is published, and the driver does not log in to it",
                "restore the earlier spec in the site, then apply again",
            ));
        }
        let (own, node, before) = (self.clone(), node.clone(), before.clone());
        let at = doing.clone();
        let undone = run_blocking(&doing, move || {
            let pusher = own.pusher(&at)?;
            let after = own.ssh(&node).with_port(before.port);
            // It listens on the port of the spec to be reverted, or on the one before.
            let mut ports = node.ports.clone();
            ports.sort_by_key(|port| *port != node.config.port);
            let digests = (node.config.digest.as_str(), before.digest.as_str());
            let report = |event: &Event| report_event(event, report.as_ref());
            own.at_first(&at, &node, &ports, |ssh| {
                pusher.revert(ssh, &after, digests, &report)
            })
        });
        // Cancel safety: the node continues by itself; the next check finds the result.
        interruptible(Duration::ZERO, undone).await
    }
}

/// Converts an error. A node that denies access may still be creating its user on its first boot;
/// later, access is retried a few times only.
fn at_port(error: &PushError, doing: &str, node: &ConfigTarget) -> PortError {
    let mut port_error = error.to_port_error(doing);
    if matches!(error, PushError::Ssh(SshError::Denied { .. })) && !node.is_new {
        port_error.class = ErrorClass::Broken;
    }
    port_error
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
fn report_event(event: &Event, report: &(dyn Fn(ProviderEvent) + Send + Sync)) {
    match event {
        Event::Changes { changes } => {
            report(ProviderEvent::Began);
            for change in changes {
                if change.handling == Handling::Report {
                    let found = change.found.lines().next().unwrap_or_default();
                    let text = format!("{} is {found}, and is not changed", change.id);
                    report(ProviderEvent::Warning(text));
                }
            }
        }
        Event::Step { description } => report(ProviderEvent::Doing(description.to_string())),
        Event::Confirm { .. } => {
            report(ProviderEvent::Waiting("a new connection to it".to_owned()));
        }
        Event::Reverted { reason } => report(ProviderEvent::Warning(format!(
            "changes were reverted: {reason}"
        ))),
        Event::Heartbeat | Event::End { .. } => {}
    }
}

mod modes;
#[cfg(test)]
mod tests;
