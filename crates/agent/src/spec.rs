//! The spec of this machine, read and checked.

use std::path::Path;

use homestak_core::converge::{Policy, Resource, UNIT, check_interval, desired_resources};
use homestak_core::doc::{Severity, Sources, node_spec};

use crate::error::AgentError;
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
}

/// Reads the spec at a path, `-` for standard input; by default the fetched one, else the current one.
pub(crate) fn read(path: Option<&Path>) -> Result<Spec, AgentError> {
    let path = path.map_or_else(state::next_spec, Path::to_owned);
    let shown = path.display().to_string();
    match ui::read(&path) {
        Ok(text) => parse(&shown, text),
        Err(source) => Err(AgentError::NoSpec {
            path: shown,
            source,
        }),
    }
}

/// Reads the current spec.
pub(crate) fn current() -> Result<Spec, AgentError> {
    read(Some(&state::file(state::SPEC)))
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
        wanted: desired_resources(&spec),
        text,
    })
}

impl Spec {
    /// Tells whether the spec requires the watch.
    pub(crate) fn wants_watch(&self) -> bool {
        let is_watch = |resource: &Resource| matches!(resource, Resource::Service { unit, .. } if unit == UNIT);
        self.wanted.iter().any(is_watch)
    }
}
