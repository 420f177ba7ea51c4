//! Makes nodes what their specs say: carries the agent and the spec over SSH, and follows the work.
//!
//! In: a way to a node, a spec. Out: what differs, or what came of converging, as it happens.
//! Never: the spec in an argument or a file of ours; an end that is guessed when a line broke.

mod agent;
mod converge;
mod fault;

pub use agent::Agent;
pub use fault::PushError;

use homestak_core::converge::Change;
use homestak_core::foreign::ForeignText;
use homestak_core::plan::Comparison;
use serde::Deserialize;

use crate::ssh::{Output, Ssh, quote};

/// Someone who carries specs to nodes.
#[derive(Clone, Debug)]
pub struct Pusher {
    agent: Agent,
    confirm_within: u64,
}

/// What a node said when it was asked what differs.
#[derive(Debug, Deserialize)]
struct Checked {
    #[serde(default)]
    settled: bool,
    #[serde(default)]
    changes: Vec<Change>,
    /// The job whose changes nobody has confirmed yet.
    #[serde(default)]
    unconfirmed: Option<String>,
    #[serde(default)]
    refusals: Vec<ForeignText>,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    message: ForeignText,
}

impl Pusher {
    /// Uses an agent. A change that could cut a node off waits so many seconds for a new
    /// connection.
    pub fn new(agent: Agent, confirm_within: u64) -> Self {
        Self {
            agent,
            confirm_within,
        }
    }

    /// Asks a node what differs from a spec.
    pub fn check(&self, ssh: &Ssh, spec: &str) -> Result<Comparison, PushError> {
        let words = ["config", "check", "--spec", "-", "--json-output"];
        let output = self.run(ssh, &words, spec)?;
        let Ok(checked) = serde_json::from_slice::<Checked>(&output.stdout) else {
            return Err(PushError::of_output(&output));
        };
        if let Some(word) = checked.error {
            let message = checked.message;
            return Err(PushError::Agent { word, message });
        }
        if checked.unconfirmed.is_some() {
            self.confirm_last(ssh)?;
        }
        Ok(Comparison {
            settled: checked.settled,
            changes: checked.changes,
            refusals: checked.refusals,
        })
    }

    /// Confirms what a driver left that is gone: the node is reached on a new connection, and that is
    /// all that is to be shown.
    fn confirm_last(&self, ssh: &Ssh) -> Result<(), PushError> {
        self.run(&ssh.clone().anew(), &["config", "confirm"], "")?;
        Ok(())
    }

    /// Runs the agent on a node, which gets it first when it has not.
    fn run(&self, ssh: &Ssh, words: &[&str], stdin: &str) -> Result<Output, PushError> {
        let line = self.line(words);
        let output = ssh.run(&line, stdin.as_bytes())?;
        if output.status != agent::MISSING {
            return Ok(output);
        }
        self.agent.install(ssh)?;
        Ok(ssh.run(&line, stdin.as_bytes())?)
    }

    /// Returns the line that runs the agent as root, and ends with a code of its own when it is not
    /// there.
    fn line(&self, words: &[&str]) -> String {
        let path = self.agent.path();
        let words: Vec<String> = words.iter().map(|word| quote(word)).collect();
        let (root, missing) = (agent::AS_ROOT, agent::MISSING);
        format!(
            "[ -x {path} ] || exit {missing}; {root} {path} {}",
            words.join(" ")
        )
    }
}
