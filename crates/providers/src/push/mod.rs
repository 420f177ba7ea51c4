//! Converges nodes: transfers the agent and the spec over SSH and follows the job.
//!
//! The spec is passed on stdin, never in an argument or a file.

mod agent;
mod converge;
mod error;
mod node_job;
mod pull;

pub use agent::AgentBinary;
pub use error::PushError;
pub use node_job::{NodeJobCall, NodeJobError, NodeJobEvent, run_node_job};
pub use pull::{NodeCertificate, PullProgress, PullRun, PullService};

use std::collections::BTreeSet;
use std::time::Duration;

use homestak_core::converge::{Change, Handling};
use homestak_core::doc::timeouts::{Limit, Timeouts};
use homestak_core::foreign::ForeignText;
use homestak_core::plan::SpecComparison;
use serde::Deserialize;

use crate::ssh::{MAX_OUTPUT, Output, Ssh, quote};

/// Timeout of a check. It takes a node less than a second.
const ANSWER: Duration = Duration::from_secs(60);

/// How long a job is followed: a node that misbehaves must not keep its driver for ever.
#[derive(Clone, Copy, Debug)]
pub struct PushLimits {
    /// How often in a row a reconnect may fail; each try takes up to 10 s.
    pub tries: u32,
    /// How often in all, whatever it reports in between.
    pub tries_in_all: u32,
    /// How many lines it may print in all, heartbeats included.
    pub lines: usize,
    /// How many bytes it may print in all.
    pub bytes: usize,
    /// How long it may be silent once it has sent a heartbeat.
    pub silent: Duration,
    /// How long it may be silent otherwise: an agent of an older driver sends nothing while packages
    /// are installed.
    pub silent_without_beats: Duration,
    /// How long a job may take.
    pub longest: Duration,
}

impl From<&Timeouts> for PushLimits {
    /// Limits without a setting are far above what any job has needed.
    fn from(timeouts: &Timeouts) -> Self {
        Self {
            tries: 60,
            tries_in_all: 300,
            lines: 50_000,
            bytes: MAX_OUTPUT,
            silent: timeouts.of(Limit::Silence),
            silent_without_beats: Duration::from_secs(3_600),
            longest: timeouts.of(Limit::Config),
        }
    }
}

/// Converges nodes over SSH.
#[derive(Clone, Debug)]
pub struct Pusher {
    agent: AgentBinary,
    confirm_within: u64,
    limits: PushLimits,
}

/// The result of a check on a node.
#[derive(Debug, Deserialize)]
struct CheckReport {
    #[serde(default)]
    settled: bool,
    #[serde(default)]
    changes: Vec<Change>,
    /// Ids of differences that applying the spec does not change; missing from older agents.
    #[serde(default)]
    left: Option<BTreeSet<String>>,
    /// The job whose changes are not confirmed yet.
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
    /// Uses an agent, within time limits.
    pub fn new(agent: AgentBinary, timeouts: &Timeouts) -> Self {
        Self {
            agent,
            confirm_within: timeouts.of(Limit::Confirm).as_secs(),
            limits: PushLimits::from(timeouts),
        }
    }

    /// Follows jobs within other limits. Only tests need it: the usual ones take minutes to expire.
    #[must_use]
    pub fn with_limits(mut self, limits: PushLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Compares a node with a spec.
    pub fn check(&self, ssh: &Ssh, spec: &str) -> Result<SpecComparison, PushError> {
        let words = ["config", "check", "--spec", "-", "--json-output"];
        let output = self.run(ssh, &words, spec)?;
        let Ok(checked) = serde_json::from_slice::<CheckReport>(&output.stdout) else {
            return Err(PushError::from_output(&output));
        };
        if let Some(word) = checked.error {
            let message = checked.message;
            return Err(PushError::Agent { word, message });
        }
        if checked.unconfirmed.is_some() {
            self.confirm_last(ssh)?;
        }
        let mut changes = checked.changes;
        if let Some(left) = checked.left {
            // Differences that the node only reports are corrected by apply.
            for change in &mut changes {
                change.handling = match left.contains(&change.id) {
                    true => Handling::Report,
                    false => Handling::Enforce,
                };
            }
        }
        Ok(SpecComparison {
            settled: checked.settled,
            changes,
            refusals: checked.refusals,
        })
    }

    /// Confirms the job of a killed driver over a new connection.
    fn confirm_last(&self, ssh: &Ssh) -> Result<(), PushError> {
        self.run(&ssh.clone().unshared(), &["config", "confirm"], "")?;
        Ok(())
    }

    /// Runs the agent on a node; installs it first if it is missing.
    fn run(&self, ssh: &Ssh, words: &[&str], stdin: &str) -> Result<Output, PushError> {
        self.run_line(ssh, &self.line(words), stdin)
    }

    /// Runs a line that ends with a code of its own when the agent is missing.
    fn run_line(&self, ssh: &Ssh, line: &str, stdin: &str) -> Result<Output, PushError> {
        let asked = ssh.clone().with_timeout(ANSWER);
        let output = asked.run(line, stdin.as_bytes())?;
        if output.status != agent::MISSING {
            return Ok(output);
        }
        self.agent.install(ssh)?;
        Ok(asked.run(line, stdin.as_bytes())?)
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
