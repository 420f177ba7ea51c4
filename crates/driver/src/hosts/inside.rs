//! The connection to a host inside a node of the host `local`: SSH with its pinned key.

use std::time::Duration;

use async_trait::async_trait;
use homestak_api::runtime::interruptible;
use homestak_engine::context::run_blocking;
use homestak_engine::ports::{ErrorClass, PortError, Sent};
use homestak_providers::local::RemoteTransport;
use homestak_providers::ssh::Ssh;

/// How long to wait for an answer after a stop was requested.
const ROOM: Duration = Duration::from_millis(500);
/// The command that is run inside the node.
const PROGRAM: &str = "sudo -n /usr/local/bin/homestak local act";

/// Sends calls over SSH.
pub(super) struct SshCarrier {
    node: String,
    ssh: Ssh,
}

impl SshCarrier {
    /// Connects to a node.
    pub(super) fn new(node: &str, ssh: Ssh) -> Self {
        Self {
            node: node.to_owned(),
            ssh,
        }
    }
}

#[async_trait]
impl RemoteTransport for SshCarrier {
    async fn exchange(&self, text: String) -> Result<String, PortError> {
        let doing = format!("ask the host inside `{}`", self.node);
        let ssh = self.ssh.clone();
        let at = doing.clone();
        let ran = run_blocking(&doing, move || {
            let ran = ssh.run(PROGRAM, text.as_bytes());
            ran.map_err(|error| error.to_port_error(&at))
        });
        // Cancel safety: the call completes there; the next caller finds its result.
        let output = interruptible(ROOM, ran).await?;
        if output.status == 0 {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let message = String::from_utf8_lossy(&output.stderr);
        let message = message.trim().lines().last().unwrap_or("no output");
        Err(PortError {
            class: ErrorClass::Unreachable { sent: Sent::Maybe },
            ..PortError::refused(
                &doing,
                format!("exit status {}: {message}", output.status),
                "",
            )
        })
    }
}
