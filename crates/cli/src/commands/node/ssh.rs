//! `homestak ssh`: a shell on a node, or one command.

use homestak_providers::ssh::Trust;

use super::become_ssh;
use crate::args::SshArgs;
use crate::commands::Outcome;
use crate::connect::block_on;
use crate::nodes;
use crate::operator::journal;
use crate::settings::Settings;

/// Becomes `ssh` to a node; returns only when that fails.
pub(in crate::commands) fn run(args: &SshArgs, settings: &Settings) -> Outcome {
    let journal = journal(settings)?;
    let node = block_on(nodes::one(&*journal, settings, &args.node))??;
    let way = nodes::way(&node, settings)?;
    if way.trust == Trust::Pinned {
        // The connection is kept and used again below. What goes wrong is worded here, because
        // nobody is left to do so later.
        way.patiently(|ssh| ssh.run("true", b""))?;
    }
    become_ssh(&way, &args.command)
}
