//! A configurer in memory: the simulated World has no operating systems inside its guests.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use homestak_core::converge::{Change, ChangeCause, Handling};
use homestak_core::doc::manifest::Mode;
use homestak_core::plan::{AppliedSpec, ConfigPlan, NodePlan, OtherRecords, Plan};
use homestak_core::resolve::ResolvedManifest;
use homestak_engine::planning::PlanContext;
use homestak_engine::ports::{
    ConfigTarget, Configurer, ErrorClass, GuestUuid, PortError, ProviderEvent, Sent, SpecComparison,
};

/// Records the applied spec of each node. All nodes have the same spec.
pub struct TestConfigurer {
    /// Who applies the spec.
    pub mode: Mutex<Mode>,
    /// The digest of the spec.
    pub digest: Mutex<String>,
    /// Guest and spec of each node.
    pub known: Mutex<BTreeMap<String, (GuestUuid, String)>>,
    /// How often each node was converged.
    pub converged: Mutex<Vec<String>>,
    /// Nodes that never finish.
    pub endless: Mutex<BTreeSet<String>>,
    /// Nodes that never report that they started.
    pub silent: Mutex<BTreeSet<String>>,
    /// Nodes that cannot be converged, and the class of the error.
    pub failing: Mutex<BTreeMap<String, ErrorClass>>,
}

impl Default for TestConfigurer {
    fn default() -> Self {
        Self {
            mode: Mutex::new(Mode::Push),
            digest: Mutex::new("one".to_owned()),
            known: Mutex::default(),
            converged: Mutex::default(),
            endless: Mutex::default(),
            silent: Mutex::default(),
            failing: Mutex::default(),
        }
    }
}

impl TestConfigurer {
    fn fails(&self, node: &ConfigTarget) -> Result<(), PortError> {
        match self.failing.lock().unwrap().get(&node.node) {
            Some(class) => Err(PortError {
                class: *class,
                ..PortError::refused("configure", "no such package", "")
            }),
            None => Ok(()),
        }
    }
}

fn compare(now: Option<&str>, wanted: &str) -> SpecComparison {
    if now == Some(wanted) {
        return SpecComparison {
            settled: true,
            ..SpecComparison::default()
        };
    }
    let change = Change {
        id: "hostname/name".to_owned(),
        resource: "hostname".to_owned(),
        field: "name".to_owned(),
        expected: wanted.into(),
        found: now.unwrap_or_default().into(),
        cause: ChangeCause::Spec,
        danger: None,
        handling: Handling::Enforce,
    };
    SpecComparison {
        changes: vec![change],
        ..SpecComparison::default()
    }
}

#[async_trait]
impl PlanContext for TestConfigurer {
    type Error = Infallible;

    fn observing(&self, _: &ResolvedManifest, _: &[&str], _: &OtherRecords) {}

    async fn configs(
        &self,
        resolved: &ResolvedManifest,
        _: &Plan,
    ) -> Result<BTreeMap<String, ConfigPlan>, Infallible> {
        let config = ConfigPlan {
            spec: "base".to_owned(),
            digest: self.digest.lock().unwrap().clone(),
            port: 22,
            mode: *self.mode.lock().unwrap(),
            found: None,
            unseen: None,
        };
        let names = resolved.nodes.iter().map(|node| node.name.to_string());
        Ok(names.map(|name| (name, config.clone())).collect())
    }

    fn not_applied(&self, _: &ResolvedManifest, _: &NodePlan) -> Option<String> {
        None
    }

    fn is_simulated(&self, _: &ResolvedManifest, _: &NodePlan) -> bool {
        false
    }
}

#[async_trait]
impl Configurer for TestConfigurer {
    async fn check(&self, node: &ConfigTarget) -> Result<SpecComparison, PortError> {
        self.fails(node)?;
        let known = self.known.lock().unwrap();
        let same = known
            .get(&node.node)
            .filter(|(guest, _)| *guest == node.guest);
        let now = same.map(|(_, digest)| digest.as_str());
        Ok(compare(now, &node.config.digest))
    }

    async fn converge(
        &self,
        node: &ConfigTarget,
        report: Arc<dyn Fn(ProviderEvent) + Send + Sync>,
    ) -> Result<bool, PortError> {
        self.fails(node)?;
        if !self.silent.lock().unwrap().contains(&node.node) {
            report(ProviderEvent::Began);
            report(ProviderEvent::Doing("set the host name".to_owned()));
        }
        let is_endless = self.endless.lock().unwrap().contains(&node.node);
        if is_endless {
            std::future::pending::<()>().await;
        }
        let became = (node.guest.clone(), node.config.digest.clone());
        let mut known = self.known.lock().unwrap();
        let before = known.insert(node.node.clone(), became.clone());
        self.converged.lock().unwrap().push(node.node.clone());
        Ok(before != Some(became))
    }

    async fn revert(
        &self,
        node: &ConfigTarget,
        before: &AppliedSpec,
        _: Arc<dyn Fn(ProviderEvent) + Send + Sync>,
    ) -> Result<bool, PortError> {
        self.fails(node)?;
        let became = (node.guest.clone(), before.digest.clone());
        let mut known = self.known.lock().unwrap();
        let now = known.insert(node.node.clone(), became.clone());
        Ok(now != Some(became))
    }
}

/// A transient error.
pub const UNREACHABLE: ErrorClass = ErrorClass::Unreachable { sent: Sent::Maybe };
