//! Runs jobs on nodes over SSH: live output on stderr, the outcome as JSON on stdout.
//!
//! The node continues on its own when the connection is lost, and records the outcome under the id of
//! the job. The same id never runs twice, so a lost connection is followed by another call.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use homestak_api::limit::monotonic;
use homestak_api::v1::AgentFailure;
use homestak_api::v1::node_job::{JobKind, JobOptions, JobOutcome, JobState};
use homestak_core::foreign::ForeignText;

use super::agent::{AS_ROOT, MISSING};
use crate::ssh::{Ssh, SshError, Stream, quote};

/// The pause between two attempts to reach a node.
const PAUSE: Duration = Duration::from_secs(1);
/// How often the first connection is tried: a node that has just booted restarts its SSH server.
const FIRST_TRIES: u32 = 7;
/// An attempt that took longer than this was connected: no connection takes as long to be set up.
const CONNECTED: Duration = Duration::from_secs(60);
/// The exit code of `ssh` for a lost connection.
const LOST: i32 = 255;
/// How much an outcome may have, in bytes: as much as a server accepts of one.
const MAX_OUTCOME: usize = 64 << 10;
/// How much output is passed on in all, in bytes: as much as a server keeps of a job.
const MAX_OUTPUT: usize = 256 << 10;

/// A job for a node.
#[derive(Clone, Debug)]
pub struct NodeJobCall {
    /// What it does.
    pub kind: JobKind,
    /// How.
    pub options: JobOptions,
    /// Its id.
    pub id: String,
    /// Whether it was started earlier: its outcome is returned, and nothing is run.
    pub is_known: bool,
    /// How many seconds it may take.
    pub time_limit: u64,
    /// For how long the node may be unreachable once it was reached, such as while it restarts.
    pub away: Duration,
}

/// What happens while a job runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeJobEvent {
    /// A line of output.
    Line(String),
    /// The connection is lost, and tried again.
    Lost,
    /// The node is reached again.
    Back,
}

/// Why a job has no outcome.
#[derive(Debug, thiserror::Error)]
pub enum NodeJobError {
    /// The node cannot be reached, and was not reached before.
    #[error(transparent)]
    Ssh(#[from] SshError),
    /// The node has no agent.
    #[error("it has no agent")]
    NoAgent,
    /// The agent of the node is too old to run jobs.
    #[error("its agent is too old to run jobs")]
    OldAgent,
    /// The agent failed without an outcome.
    #[error("{0}")]
    Agent(ForeignText),
    /// The node was reached before, and cannot be reached any more.
    #[error("it has not been reachable for {seconds} s: {message}")]
    NoLongerReachable {
        /// How long.
        seconds: u64,
        /// The last error.
        message: ForeignText,
    },
    /// It takes much longer than its time limit.
    #[error("it has not ended after {seconds} s")]
    TooLong {
        /// How long.
        seconds: u64,
    },
    /// It is no longer followed.
    #[error("it is no longer followed")]
    Abandoned,
}

/// Receives what happens while a job runs.
type NodeJobObserver<'a> = &'a (dyn Fn(NodeJobEvent) + Sync);

/// How one connection ended.
enum Attempt {
    Ended(Box<JobOutcome>),
    /// It was lost.
    Lost(ForeignText),
}

/// Runs a job, and returns its outcome. It ends early when `stop` returns true; the node continues.
pub fn run_node_job(
    ssh: &Ssh,
    call: &NodeJobCall,
    observe: NodeJobObserver<'_>,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<JobOutcome, NodeJobError> {
    let line = command_line(call);
    let begun = monotonic();
    // The node itself ends the job at its time limit; this is for one that does not.
    let longest = Duration::from_secs(call.time_limit) + call.away;
    let (mut tries, mut was_reached) = (0_u32, false);
    // Since when it has not been reachable.
    let away: Mutex<Option<Duration>> = Mutex::new(None);
    let n_bytes = Mutex::new(0);
    let is_over = || stop() || monotonic().saturating_sub(begun) >= longest;
    let back = || {
        if locked(&away).take().is_some() {
            observe(NodeJobEvent::Back);
        }
    };
    loop {
        tries += 1;
        let tried = monotonic();
        let message = match attempt(ssh, &line, (observe, &n_bytes, &back), &is_over) {
            Ok(Attempt::Ended(outcome)) => return Ok(*outcome),
            Ok(Attempt::Lost(message)) => message,
            Err(NodeJobError::Abandoned) if !stop() => {
                let seconds = longest.as_secs();
                return Err(NodeJobError::TooLong { seconds });
            }
            Err(NodeJobError::Ssh(error))
                if tries <= FIRST_TRIES && !was_reached && !was_sent(&error) =>
            {
                if tries == FIRST_TRIES || !error.is_transient() {
                    return Err(error.into());
                }
                std::thread::sleep(PAUSE);
                continue;
            }
            Err(NodeJobError::Ssh(error)) if may_return(&error) => error.to_string().into(),
            Err(error) => return Err(error),
        };
        was_reached = true;
        let now = monotonic();
        // It was connected, and printed nothing.
        if now.saturating_sub(tried) >= CONNECTED {
            back();
        }
        let since = {
            let mut away = locked(&away);
            if away.is_none() {
                observe(NodeJobEvent::Lost);
            }
            *away.get_or_insert(now)
        };
        let passed = now.saturating_sub(since);
        if passed >= call.away {
            let seconds = passed.as_secs();
            return Err(NodeJobError::NoLongerReachable { seconds, message });
        }
        if stop() {
            return Err(NodeJobError::Abandoned);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Returns whether a command may have started before its connection failed.
fn was_sent(error: &SshError) -> bool {
    use homestak_engine::ports::Sent;
    matches!(error, SshError::Unreachable { sent, .. } if *sent == Sent::Maybe)
}

/// Returns whether a node with this error may be reachable again later: it restarts, or its users
/// are being changed.
fn may_return(error: &SshError) -> bool {
    match error {
        SshError::Unreachable { .. }
        | SshError::Denied { .. }
        | SshError::Failed { .. }
        | SshError::TimedOut { .. } => true,
        SshError::NotInstalled
        | SshError::HostKeyDiffers
        | SshError::HostKeyUnknown
        | SshError::OutputTooLarge { .. } => false,
    }
}

/// Returns the shell line that runs a job as root.
fn command_line(call: &NodeJobCall) -> String {
    let mut words = vec![
        "node-job".to_owned(),
        call.kind.name().to_owned(),
        "--id".to_owned(),
        call.id.clone(),
        "--time-limit".to_owned(),
        call.time_limit.to_string(),
    ];
    let flags = [
        (call.options.force, "--force"),
        (call.options.dry_run, "--dry-run"),
        (call.options.no_reboot, "--no-reboot"),
        (call.is_known, "--known"),
    ];
    let given = flags.iter().filter(|(is_given, _)| *is_given);
    words.extend(given.map(|(_, flag)| (*flag).to_owned()));
    if let Some(scope) = call.options.scope {
        words.extend(["--scope".to_owned(), scope.name().to_owned()]);
    }
    words.push("--json-output".to_owned());
    let words: Vec<String> = words.iter().map(|word| quote(word)).collect();
    // Whichever agent is installed: a job needs no certain version of it.
    format!(
        "agent=/usr/local/bin/homestak-agent; [ -x $agent ] || agent=/usr/bin/homestak-agent; \
         [ -x $agent ] || exit {MISSING}; {AS_ROOT} $agent {}",
        words.join(" ")
    )
}

/// Runs a job over one connection.
fn attempt(
    ssh: &Ssh,
    line: &str,
    (observe, n_bytes, back): (NodeJobObserver<'_>, &Mutex<usize>, &(dyn Fn() + Sync)),
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<Attempt, NodeJobError> {
    let out = Mutex::new(String::new());
    let last = Mutex::new(String::new());
    let is_back = Mutex::new(false);
    let on_line = |stream: Stream, text: &str| {
        if !std::mem::replace(&mut *locked(&is_back), true) {
            back();
        }
        match stream {
            Stream::Out => {
                let mut out = locked(&out);
                if out.len() <= MAX_OUTCOME {
                    out.push_str(text);
                    out.push('\n');
                }
            }
            Stream::Err => {
                text.clone_into(&mut locked(&last));
                let mut n_bytes = locked(n_bytes);
                *n_bytes = n_bytes.saturating_add(text.len() + 1);
                if *n_bytes <= MAX_OUTPUT {
                    observe(NodeJobEvent::Line(text.to_owned()));
                }
            }
        }
    };
    let status = ssh.follow_until(line, b"", &on_line, stop)?;
    let Some(status) = status else {
        return Err(NodeJobError::Abandoned);
    };
    let (out, last) = (locked(&out), locked(&last));
    if status == LOST {
        return Ok(Attempt::Lost("the connection was closed".into()));
    }
    if status == MISSING {
        return Err(NodeJobError::NoAgent);
    }
    read_outcome(&out, &last, status)
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads what the agent printed when it ended.
fn read_outcome(out: &str, last: &str, status: i32) -> Result<Attempt, NodeJobError> {
    if out.len() > MAX_OUTCOME {
        return Err(NodeJobError::Agent("its outcome is too large".into()));
    }
    if let Ok(outcome) = serde_json::from_str::<JobOutcome>(out) {
        return match outcome.state {
            JobState::Succeeded | JobState::Failed | JobState::Refused => {
                Ok(Attempt::Ended(Box::new(outcome)))
            }
            JobState::Queued
            | JobState::Taken
            | JobState::Cancelled
            | JobState::Expired
            | JobState::Lost => Err(NodeJobError::Agent("its outcome has no end".into())),
        };
    }
    if let Ok(failure) = serde_json::from_str::<AgentFailure>(out) {
        return Err(NodeJobError::Agent(ForeignText::lines(&failure.message)));
    }
    // One that does not know the command refuses its arguments, without JSON.
    if out.trim().is_empty() && status == 2 {
        return Err(NodeJobError::OldAgent);
    }
    // It was killed, such as by a restart: the next call returns what it recorded.
    if out.trim().is_empty() && status > 128 {
        return Ok(Attempt::Lost(
            format!("the agent exited with {status}").into(),
        ));
    }
    let message = match last.trim() {
        "" => format!("its agent exited with {status}"),
        last => format!("its agent exited with {status}: {last}"),
    };
    Err(NodeJobError::Agent(message.into()))
}

#[cfg(test)]
mod tests {
    use homestak_api::v1::node_job::UpdateScope;

    use super::*;

    #[test]
    fn a_job_is_run_by_the_agent_that_is_installed() {
        let call = NodeJobCall {
            kind: JobKind::Update,
            options: JobOptions {
                force: true,
                dry_run: false,
                no_reboot: true,
                scope: Some(UpdateScope::Security),
            },
            id: "ab".repeat(16),
            is_known: false,
            time_limit: 60,
            away: Duration::from_secs(1),
        };
        let line = command_line(&call);
        let id = "ab".repeat(16);
        let words = format!(
            "node-job update --id {id} --time-limit 60 --force --no-reboot --scope security --json-output"
        );
        assert!(line.replace('\'', "").ends_with(&words), "{line}");
    }

    #[test]
    fn an_outcome_is_distinguished_from_failures_of_the_agent() {
        let ended = r#"{"kind": "node-job", "version": 1, "state": "refused", "message": "no", "result": {}}"#;
        let of = |out: &str, last: &str, status| read_outcome(out, last, status);
        let Ok(Attempt::Ended(outcome)) = of(ended, "", 3) else {
            panic!("an outcome");
        };
        assert_eq!(outcome.state, JobState::Refused);
        let failed = r#"{"success": false, "error": "busy", "message": "another run"}"#;
        assert!(matches!(of(failed, "", 1), Err(NodeJobError::Agent(_))));
        assert!(matches!(
            of("", "Usage: ...", 2),
            Err(NodeJobError::OldAgent)
        ));
        assert!(matches!(of("", "", 143), Ok(Attempt::Lost(_))));
        let open = r#"{"state": "queued", "result": {}}"#;
        assert!(matches!(of(open, "", 0), Err(NodeJobError::Agent(_))));
        let large = format!(
            "{{\"state\": \"failed\", \"message\": \"{}\", \"result\": {{}}}}",
            "x".repeat(MAX_OUTCOME)
        );
        assert!(matches!(of(&large, "", 2), Err(NodeJobError::Agent(_))));
    }
}
