//! The spec of this machine, read and checked.

use std::io::ErrorKind;
use std::path::Path;

use homestak_api::v1::node_job::UpdateScope;
use homestak_core::converge::{Policy, Resource, UNIT, check_interval, desired_resources};
use homestak_core::doc::node_spec::NodeSpec;
use homestak_core::doc::spec::{Trigger, Updates};
use homestak_core::doc::window::Windows;
use homestak_core::doc::{Severity, Sources, node_spec};

use crate::error::AgentError;
use crate::settings::require_root;
use crate::{state, ui};

/// A spec that was read.
pub(crate) struct Spec {
    pub(crate) path: String,
    pub(crate) text: String,
    pub(crate) wanted: Vec<Resource>,
    pub(crate) name: String,
    /// How the watch handles differences.
    pub(crate) policy: Policy,
    /// The interval of its periodic check, in seconds.
    pub(crate) check_interval: u64,
    pub(crate) run: RunSettings,
}

/// The settings of jobs in a spec.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RunSettings {
    /// What starts automatic runs.
    pub(crate) trigger: Trigger,
    /// Which packages updates install.
    pub(crate) updates: UpdateScope,
    /// When updates and restarts are allowed; `None` for any time.
    pub(crate) window: Option<Windows>,
}

impl Default for RunSettings {
    fn default() -> Self {
        Self {
            trigger: Trigger::Manual,
            updates: UpdateScope::None,
            window: None,
        }
    }
}

impl RunSettings {
    fn of(spec: &NodeSpec) -> Self {
        let run = spec.run.as_ref();
        let trigger = run.and_then(|run| run.trigger.as_ref());
        let updates = run.and_then(|run| run.updates.as_ref());
        let window = run.and_then(|run| run.window.as_ref());
        Self {
            trigger: trigger.map_or(Trigger::Manual, |trigger| trigger.value),
            updates: updates.map_or(UpdateScope::None, |updates| match updates.value {
                Updates::None => UpdateScope::None,
                Updates::Security => UpdateScope::Security,
                Updates::All => UpdateScope::All,
            }),
            window: window.map(|window| window.value.clone()),
        }
    }

    /// Returns whether the server may have this machine apply its spec again, without a statement.
    pub(crate) fn has_trigger(&self) -> bool {
        match self.trigger {
            Trigger::Webhook | Trigger::Git => true,
            Trigger::Schedule | Trigger::Manual => false,
        }
    }
}

/// Reads the spec at a path, `-` for standard input; by default the fetched one, else the current one.
pub(crate) fn read(path: Option<&Path>) -> Result<Spec, AgentError> {
    let is_own = path.is_none();
    let path = path.map_or_else(state::next_spec, Path::to_owned);
    read_at(&path, is_own)
}

/// Reads the current spec.
pub(crate) fn current() -> Result<Spec, AgentError> {
    read_at(&state::file(state::SPEC), true)
}

/// Reads a spec. `is_own`: whether the agent stored it.
fn read_at(path: &Path, is_own: bool) -> Result<Spec, AgentError> {
    let shown = path.display().to_string();
    let source = match ui::read(path) {
        Ok(text) => return parse(&shown, text),
        Err(source) => source,
    };
    Err(match source.kind() {
        ErrorKind::NotFound => AgentError::NoSpec {
            path: shown,
            is_own,
        },
        // Only root may read what the agent stored.
        ErrorKind::PermissionDenied if is_own && require_root().is_err() => AgentError::NotRoot,
        _ => AgentError::UnreadableSpec(source),
    })
}

/// Parses a spec.
pub(crate) fn parse(shown: &str, text: String) -> Result<Spec, AgentError> {
    let mut sources = Sources::default();
    let (spec, faults) = node_spec::read(shown, &text, &mut sources);
    let Some(spec) = spec else {
        let lines = faults.sorted(&sources).into_iter();
        let lines = lines.filter(|fault| fault.severity == Severity::Error);
        return Err(AgentError::WrongSpec(
            lines
                .map(|fault| {
                    let at = sources.locate(fault.span);
                    let hint = fault.hint.as_deref().unwrap_or_default();
                    format!("{at}: {} ({hint})", fault.message)
                })
                .collect(),
        ));
    };
    let name = spec
        .identity
        .as_ref()
        .and_then(|identity| identity.hostname.as_ref());
    Ok(Spec {
        name: name.map(ToString::to_string).unwrap_or_default(),
        path: shown.to_owned(),
        policy: Policy::of(&spec),
        check_interval: check_interval(&spec),
        run: RunSettings::of(&spec),
        wanted: desired_resources(&spec),
        text,
    })
}

impl Spec {
    /// Returns whether the spec requires the watch.
    pub(crate) fn wants_watch(&self) -> bool {
        let is_watch = |resource: &Resource| matches!(resource, Resource::Service { unit, .. } if unit == UNIT);
        self.wanted.iter().any(is_watch)
    }
}
