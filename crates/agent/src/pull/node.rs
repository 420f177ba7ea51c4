//! The machine as a pass uses it: reads its state, applies specs. Tests have a simulated one.

use std::time::Duration;

use homestak_api::publication::sha256;
use homestak_core::error::chain;

use super::confirm::{ConfirmOptions, ConfirmingObserver};
use crate::apply::ApplyObserver;
use crate::converge::{ConvergeReport, converge};
use crate::error::{AgentError, FetchError, PARTLY_REFUSED};
use crate::spec::{self, Spec};
use crate::state::job::Job;
use crate::state::{self, drift};
use crate::{clock, fetch, process, random, undo};

/// How long to wait for the lock of the package database, in seconds.
const LOCK_WAIT: u64 = 600;
/// How long to wait for another run, which may install packages.
const RUN_TIMEOUT: Duration = Duration::from_secs(1800);
/// The interval of checking whether it has ended, in milliseconds.
const RUN_PAUSE: u64 = 500;

/// What the machine is, compared with a spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodeState {
    /// The spec was not applied, or not completely.
    Pending,
    /// The spec was applied. What differs is handled by the watch.
    Applied { drift: Vec<String> },
    /// The spec was applied, and something cannot be corrected.
    Failed(String),
}

/// A machine that specs are applied to.
pub(super) trait Node {
    /// Returns a stored spec by its SHA-256.
    fn stored(&self, digest: &str) -> Option<String>;
    /// Compares the machine with a spec.
    fn state(&self, text: &str) -> NodeState;
    /// Stores a spec that was accepted.
    fn store(&mut self, text: &str) -> Result<(), AgentError>;
    /// Applies a spec to the node of a name, and writes the marker. Changes that could cut the machine
    /// off are confirmed or reverted.
    fn converge(
        &mut self,
        name: &str,
        text: String,
        observer: &mut dyn ApplyObserver,
        options: &ConfirmOptions,
    ) -> Result<ConvergeReport, AgentError>;
    /// Writes the marker of failure to obtain a spec, or removes it.
    fn mark(&mut self, error: Option<&AgentError>);
}

/// The machine that this program runs on.
pub(super) struct LocalNode;

fn read(name: &str) -> Option<String> {
    fs_err::read_to_string(state::file(name)).ok()
}

impl Node for LocalNode {
    fn stored(&self, digest: &str) -> Option<String> {
        let found = [state::FETCHED, state::SPEC].into_iter().filter_map(read);
        let mut found = found.filter(|text| sha256(text.as_bytes()) == digest);
        found.next()
    }

    fn state(&self, text: &str) -> NodeState {
        if read(state::SPEC).as_deref() != Some(text) || state::attempted().is_some() {
            return NodeState::Pending;
        }
        let applied = || NodeState::Applied {
            drift: drift::load().open.into_keys().collect(),
        };
        match state::markers() {
            // A server refused this machine after the spec was applied.
            (Some(_), Some(failed)) if failed["phase"] == state::FETCH => applied(),
            (_, Some(failed)) => {
                let applied = failed["phase"] == "run" || failed["error"] == PARTLY_REFUSED;
                let message = failed["message"].as_str().unwrap_or_default();
                match applied {
                    true => NodeState::Failed(message.to_owned()),
                    false => NodeState::Pending,
                }
            }
            (Some(_), None) => applied(),
            (None, None) => NodeState::Pending,
        }
    }

    fn store(&mut self, text: &str) -> Result<(), AgentError> {
        match read(state::SPEC).as_deref() == Some(text) {
            // Nothing is pending.
            true => state::remove(state::FETCHED),
            false => state::write(state::FETCHED, text),
        }
    }

    fn converge(
        &mut self,
        name: &str,
        text: String,
        observer: &mut dyn ApplyObserver,
        options: &ConfirmOptions,
    ) -> Result<ConvergeReport, AgentError> {
        let begun = clock::instant();
        let _lock = loop {
            match undo::lock() {
                Err(AgentError::Busy | AgentError::AwaitingConfirmation(_))
                    if begun.elapsed() < RUN_TIMEOUT && !process::is_exceeded() =>
                {
                    clock::sleep(RUN_PAUSE);
                }
                lock => break lock?,
            }
        };
        let job = Job::new(&format!("pull-{}", random::hex_id()));
        let mut confirming = ConfirmingObserver::new(&job, &text, options, observer);
        let done = converge(parse(name, text), LOCK_WAIT, &mut confirming);
        confirming.end();
        done
    }

    fn mark(&mut self, error: Option<&AgentError>) {
        fetch::mark(error, error.is_some_and(AgentError::is_permanent));
    }
}

/// Parses the spec of a node.
pub(super) fn parse(name: &str, text: String) -> Result<Spec, AgentError> {
    let spec = spec::parse("the spec of the server", text)?;
    if spec.name != name {
        let (name, identity) = (spec.name, name.to_owned());
        return Err(FetchError::WrongIdentity { name, identity }.into());
    }
    Ok(spec)
}

/// Returns the interval of asking for newer specs.
pub(super) fn interval(text: &str) -> Option<Duration> {
    match spec::parse("-", text.to_owned()) {
        Ok(spec) => Some(Duration::from_secs(spec.check_interval)),
        Err(error) => {
            tracing::debug!("{}", chain(&error));
            None
        }
    }
}
