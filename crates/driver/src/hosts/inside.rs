//! The way to a host inside a node of the host `local`: over SSH, with its pinned key.
//!
//! In: a node's address. Out: a carrier of calls.
//! Never: a connection without verification.

use std::time::Duration;

use async_trait::async_trait;
use homestak_api::runtime::leavable;
use homestak_engine::context::off;
use homestak_engine::ports::{Class, PortError, Sent};
use homestak_providers::local::RemoteTransport;
use homestak_providers::ssh::Ssh;

/// How long is still waited when a person has asked to stop.
const ROOM: Duration = Duration::from_millis(500);
/// What is run inside.
const PROGRAM: &str = "sudo -n /usr/local/bin/homestak local act";

/// Carries calls over SSH.
pub(super) struct OverSsh {
    node: String,
    ssh: Ssh,
}

impl OverSsh {
    /// Goes to a node.
    pub(super) fn new(node: &str, ssh: Ssh) -> Self {
        Self {
            node: node.to_owned(),
            ssh,
        }
    }
}

#[async_trait]
impl RemoteTransport for OverSsh {
    async fn exchange(&self, text: String) -> Result<String, PortError> {
        let doing = format!("ask the host inside `{}`", self.node);
        let ssh = self.ssh.clone();
        let at = doing.clone();
        let ran = off(&doing, move || {
            let ran = ssh.run(PROGRAM, text.as_bytes());
            ran.map_err(|error| error.to_port_error(&at))
        });
        // Cancel safety: what was sent is carried out there; the next who asks finds it done.
        let output = leavable(ROOM, ran).await?;
        if output.status == 0 {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().lines().last().unwrap_or("it said nothing");
        Err(PortError {
            class: Class::Unreachable { sent: Sent::Maybe },
            ..PortError::refused(
                &doing,
                format!("it ended with {}: {said}", output.status),
                "",
            )
        })
    }
}
