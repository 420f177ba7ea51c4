//! `homestak ssh`: a shell on a node, or one command.

use homestak_driver::nodes::HostKeyPolicy;
use homestak_driver::{journal, nodes};

use super::become_ssh;
use crate::args::SshArgs;
use crate::commands::Outcome;
use crate::runtime::block_on;
use crate::settings::Settings;

/// Becomes `ssh` to a node; returns only when that fails.
pub(in crate::commands) fn run(args: &SshArgs, settings: &Settings) -> Outcome {
    let (journal, session) = (journal(&settings.driver)?, settings.session()?);
    let which = args.node.selector();
    let node = block_on(nodes::one(&*journal, &session, &args.node.node, &which))??;
    let connection = nodes::connection(&node, &session, &settings.driver)?;
    if connection.trust == HostKeyPolicy::Pinned {
        // The connection is kept and used again below. Errors are reported here, because this process
        // is replaced by `ssh` then.
        connection.with_retries(|ssh| ssh.run("true", b""))?;
    }
    become_ssh(&connection, &args.command)
}
