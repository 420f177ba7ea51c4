//! `homestak ssh`: a shell on a node, or one command.

use std::ffi::OsString;
use std::io::IsTerminal as _;

use homestak_providers::ssh::{Trust, shell_line};

use crate::args::SshArgs;
use crate::commands::Outcome;
use crate::connect::block_on;
use crate::error::CommandError;
use crate::nodes;
use crate::operator::journal;
use crate::process;
use crate::settings::Settings;

/// Becomes `ssh` to a node; returns only when that fails.
pub(in crate::commands) fn run(args: &SshArgs, settings: &Settings) -> Outcome {
    let journal = journal(settings)?;
    let node = block_on(nodes::one(&*journal, &args.node))??;
    let way = nodes::way(&node, settings)?;
    if way.trust == Trust::Pinned {
        // The connection is kept and used again below. What goes wrong is worded here, because
        // nobody is left to do so later.
        way.ssh.run("true", b"").map_err(|error| way.word(&error))?;
    }
    let mut arguments: Vec<OsString> = Vec::new();
    if !args.command.is_empty() && std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
    {
        arguments.push("-t".into());
    }
    arguments.extend(way.ssh.arguments());
    if !args.command.is_empty() {
        arguments.extend(["--".into(), shell_line(&args.command).into()]);
    }
    let error = process::become_program("ssh", &arguments);
    Err(CommandError::failed(format!("Cannot start ssh: {error}.")))
}
