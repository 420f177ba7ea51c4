//! A simulated machine, in memory, and its files, in a temporary directory.

use std::path::Path;

use homestak_api::publication::sha256;
use homestak_api::v1::{ConfigApplied, ResourceCounts};

use crate::apply::ApplyObserver;
use crate::converge::ConvergeReport;
use crate::error::{AgentError, PullError};
use crate::pull::confirm::ConfirmOptions;
use crate::pull::node::{Node, NodeState, parse};
use crate::pull::store::Store;

/// Files in a directory, in place of those of the machine.
pub(crate) fn store(root: &Path) -> Store {
    for name in ["state", "first-boot", "cloud"] {
        fs_err::create_dir_all(root.join(name)).expect("created");
    }
    Store {
        state: root.join("state"),
        enrolment: root.join("first-boot/enrolment.json"),
        copies: vec![root.join("cloud"), root.join("none")],
    }
}

/// A machine in memory.
#[derive(Default)]
pub(crate) struct FakeNode {
    /// The spec that was stored.
    pub(crate) stored: Option<String>,
    /// The spec that was applied.
    pub(crate) applied: Option<String>,
    /// Every spec that was tried.
    pub(crate) tried: Vec<String>,
    /// Whether applying fails.
    pub(crate) is_broken: bool,
    /// The marker of failure to obtain a spec.
    pub(crate) marked: Option<String>,
    /// Makes changes that could cut the machine off, and returns whether they do.
    pub(crate) risky_change: Option<Box<dyn FnMut() -> bool>>,
}

impl FakeNode {
    /// Makes changes that could cut the machine off, and reverts them if they do.
    fn make_risky_change(&mut self, options: &ConfirmOptions) -> Result<(), AgentError> {
        let Some(change) = &mut self.risky_change else {
            return Ok(());
        };
        let was_reached = (options.probe)();
        if !was_reached && options.needs_server {
            return Err(PullError::Postponed.into());
        }
        let is_cut = change();
        if was_reached && (is_cut || !(options.probe)()) {
            return Err(AgentError::Reverted {
                first: Box::new(PullError::CutOff { within: 0 }.into()),
                steps: Vec::new(),
                failures: Vec::new(),
            });
        }
        Ok(())
    }
}

impl Node for FakeNode {
    fn stored(&self, digest: &str) -> Option<String> {
        let found = [&self.stored, &self.applied].into_iter().flatten();
        let mut found = found.filter(|text| sha256(text.as_bytes()) == digest);
        found.next().cloned()
    }

    fn state(&self, text: &str) -> NodeState {
        match self.applied.as_deref() == Some(text) {
            true => NodeState::Applied { drift: Vec::new() },
            false => NodeState::Pending,
        }
    }

    fn store(&mut self, text: &str) -> Result<(), AgentError> {
        self.stored = Some(text.to_owned());
        Ok(())
    }

    fn converge(
        &mut self,
        name: &str,
        text: String,
        observer: &mut dyn ApplyObserver,
        options: &ConfirmOptions,
    ) -> Result<ConvergeReport, AgentError> {
        self.tried.push(text.clone());
        let spec = parse(name, text)?;
        observer.started(&[]);
        if self.is_broken {
            return Err(AgentError::Packages("no such package".to_owned()));
        }
        self.make_risky_change(options)?;
        let n_steps = usize::from(self.applied.as_ref() != Some(&spec.text));
        self.applied = Some(spec.text);
        Ok(ConvergeReport {
            name: name.to_owned(),
            n_steps,
            body: ConfigApplied {
                phase: "config".to_owned(),
                success: true,
                spec: name.to_owned(),
                duration_seconds: 0.0,
                changes: Vec::new(),
                steps: Vec::new(),
                counts: ResourceCounts {
                    packages: 0,
                    services_enabled: 0,
                    services_disabled: 0,
                    users: 0,
                },
            },
        })
    }

    fn mark(&mut self, error: Option<&AgentError>) {
        self.marked = error.map(AgentError::message);
    }
}
