//! Nodes that fetch their specs: starts their agent over SSH, and installs or removes the service
//! that does so without a driver.

use homestak_api::v1::AgentFailure;
use homestak_core::firstboot::{
    ENROLMENT_DIRECTORY, NodeFile, PULL_FILES, PULL_UNIT, PULL_UNIT_LINK,
};
use homestak_core::foreign::ForeignText;

use super::{PushError, Pusher, agent};
use crate::ssh::{Ssh, quote};

/// Starts the agent in a service of its own, and prints the id of this run. The enrolment has a token:
/// it is in a file that only root reads, until the agent has it as its standard input. Afterwards it
/// starts the service of a node that fetches its spec itself: it does not run on a new node, and it has
/// ended if a server refused the node before it enrolled.
const START_PULL: &str = "set -e; umask 077; mkdir -p /run/homestak; rm -f /run/homestak/pull.*; \
    file=$(mktemp -p /run/homestak); trap 'rm -f \"$file\"' EXIT; cat >\"$file\"; \
    id=${file##*.}; \
    systemd-run --quiet --collect --service-type=exec --unit=\"homestak-pull-once-$id\" \
    /bin/sh -c 'umask 077; exec <\"$1\"; rm -f \"$1\"; result=/run/homestak/pull.$2; \
    AGENT pull --once --enrolment - --json-output >\"$result.part\"; code=$?; \
    mv \"$result.part\" \"$result\"; \
    if [ -e LINK ]; then systemctl start UNIT; fi; exit $code' sh \"$file\" \"$id\"; \
    trap - EXIT; echo \"$id\"";

/// Prints the result of a run that [`START_PULL`] started, or the state of its unit. In this order:
/// a run that ends in between is not missed.
const PULL_RESULT: &str = "state=$(systemctl is-active homestak-pull-once-ID); \
    cat /run/homestak/pull.ID 2>/dev/null || echo \"$state\"";

/// Stops the service while its agent waits: one that applies its spec is not interrupted.
const STOP_SERVICE: &str = "set -e; umask 077; if [ -e FILE ] || [ -L LINK ]; then \
    install -d -m 755 HOME; install -d -m 700 STATE; \
    flock --wait 45 --conflict-exit-code BUSY STATE/pull.lock systemctl stop UNIT; \
    systemctl disable --quiet UNIT; rm -f FILE LINK; systemctl daemon-reload; \
    systemctl reset-failed UNIT 2>/dev/null || true; fi; rm -f SCRIPT";
/// The directory of the agent on nodes, and the one of its state, which only root may enter.
const HOME: &str = "/usr/local/etc/homestak";
const STATE: &str = "/usr/local/etc/homestak/state";
/// The exit code for an agent that is applying its spec.
const BUSY: i32 = 98;

/// What becomes of the service of a node that fetches its spec itself.
pub enum PullService {
    /// It stays as it is. If there is one, it is started.
    Keep,
    /// It is installed from these files, and enabled.
    Install(Vec<NodeFile>),
}

/// What becomes of the certificate of a node whose service is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeCertificate {
    /// It stays: a driver starts the agent, which needs it.
    Keep,
    /// It is deleted.
    Delete,
}

/// A run of the agent that fetches its spec.
#[derive(Clone, Debug)]
pub struct PullRun {
    id: String,
}

/// How far such a run is.
#[derive(Debug)]
pub enum PullProgress {
    /// It runs.
    Running,
    /// The spec was applied.
    Applied,
    /// It failed.
    Failed(PushError),
}

impl Pusher {
    /// Has the agent of a node fetch its spec and apply it, in a service that does not end with this
    /// connection. `enrolment` is what it needs for that, in JSON.
    pub fn start_pull(
        &self,
        ssh: &Ssh,
        enrolment: &str,
        service: &PullService,
    ) -> Result<PullRun, PushError> {
        // First: a node that has reported fetches its next spec itself.
        match service {
            PullService::Keep => {}
            PullService::Install(files) => self.install_service(ssh, files)?,
        }
        let (path, root) = (self.agent.path(), agent::AS_ROOT);
        let script = START_PULL
            .replace("AGENT", &path)
            .replace("LINK", PULL_UNIT_LINK.0)
            .replace("UNIT", PULL_UNIT);
        let missing = agent::MISSING;
        let line = format!(
            "[ -x {path} ] || exit {missing}; {root} sh -c {}",
            quote(&script)
        );
        let output = self.run_line(ssh, &line, enrolment)?;
        let id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        match output.status {
            0 if is_id => Ok(PullRun { id }),
            _ => Err(PushError::from_output(&output)),
        }
    }

    /// Returns whether a run has ended, and how.
    pub fn pull_progress(&self, ssh: &Ssh, run: &PullRun) -> Result<PullProgress, PushError> {
        let script = quote(&PULL_RESULT.replace("ID", &run.id));
        let line = format!("{} sh -c {script}", agent::AS_ROOT);
        let output = self.run_line(ssh, &line, "")?;
        if output.status != 0 {
            return Err(PushError::from_output(&output));
        }
        Ok(pull_progress(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Logs in to a node and becomes root there; does nothing else.
    pub fn reach(&self, ssh: &Ssh) -> Result<(), PushError> {
        self.run_as_root(ssh, "true", "")
    }

    /// Installs and enables the service that fetches specs; it is not started.
    fn install_service(&self, ssh: &Ssh, files: &[NodeFile]) -> Result<(), PushError> {
        for NodeFile {
            path,
            mode,
            content,
        } in files
        {
            let script = format!(
                "set -e; umask 022; mkdir -p \"${{0%/*}}\"; cat >\"$0.new\"; chmod {mode:o} \
                 \"$0.new\"; mv -f \"$0.new\" \"$0\""
            );
            self.run_as_root(ssh, &format!("{} {path}", quote(&script)), content)?;
        }
        let enable = format!("systemctl daemon-reload; systemctl enable --quiet {PULL_UNIT}");
        self.run_as_root(ssh, &quote(&enable), "")
    }

    /// Stops the service that fetches specs, and removes it. A node without one is no error.
    pub fn remove_service(&self, ssh: &Ssh, certificate: NodeCertificate) -> Result<(), PushError> {
        let [script, file, profile] = PULL_FILES;
        let mut lines = STOP_SERVICE
            .replace("HOME", HOME)
            .replace("STATE", STATE)
            .replace("FILE", file)
            .replace("LINK", PULL_UNIT_LINK.0)
            .replace("UNIT", PULL_UNIT)
            .replace("SCRIPT", script)
            .replace("BUSY", &BUSY.to_string());
        match certificate {
            NodeCertificate::Keep => {}
            NodeCertificate::Delete => {
                lines += &format!(
                    "; rm -f {profile} {STATE}/registration.json {STATE}/registration.key; \
                     rm -rf {ENROLMENT_DIRECTORY}"
                );
            }
        }
        self.run_as_root(ssh, &quote(&lines), "")
    }

    /// Runs a quoted shell script, with its arguments, as root.
    fn run_as_root(&self, ssh: &Ssh, script: &str, stdin: &str) -> Result<(), PushError> {
        let output = self.run_line(ssh, &format!("{} sh -c {script}", agent::AS_ROOT), stdin)?;
        match output.status {
            0 => Ok(()),
            BUSY => Err(PushError::Agent {
                word: "busy".to_owned(),
                message: "it is applying its spec".into(),
            }),
            _ => Err(PushError::from_output(&output)),
        }
    }
}

/// Reads the output of [`PULL_RESULT`].
fn pull_progress(text: &str) -> PullProgress {
    let failed = |word: &str, message: &str| {
        PullProgress::Failed(PushError::Agent {
            word: word.to_owned(),
            message: ForeignText::lines(message),
        })
    };
    match text.trim() {
        "active" | "activating" | "reloading" => PullProgress::Running,
        // It was killed, or the node was restarted.
        "inactive" | "failed" | "deactivating" | "unknown" => {
            failed("unreachable", "its agent ended without a result")
        }
        text => match serde_json::from_str::<AgentFailure>(text) {
            Ok(failure) => failed(&failure.error, &failure.message),
            Err(_) => PullProgress::Applied,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_of_a_run_is_distinguished_from_the_state_of_its_unit() {
        assert!(matches!(pull_progress("active\n"), PullProgress::Running));
        let applied = "{\"success\": true, \"spec\": \"web\", \"generation\": 7}";
        assert!(matches!(pull_progress(applied), PullProgress::Applied));
        let refused = "{\"success\": false, \"error\": \"refused_by_server\", \"message\": \"no\"}";
        for (text, expected) in [
            (refused, "refused_by_server"),
            ("inactive\n", "unreachable"),
        ] {
            let progress = pull_progress(text);
            assert!(
                matches!(&progress, PullProgress::Failed(PushError::Agent { word, .. }) if word == expected),
                "{progress:?}"
            );
        }
    }
}
