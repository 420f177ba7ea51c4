//! Commands on nodes that run.

pub(super) mod console;
mod entry_point;
pub(super) mod exec;
mod job;
pub(super) mod logs;
pub(super) mod registered;
mod serial;
pub(super) mod ssh;
mod update;

use std::ffi::OsString;
use std::io::IsTerminal as _;

use homestak_driver::DriverError;
use homestak_driver::nodes::{self, NodeConnection, RecordedNode, shell_line};

use super::Outcome;
use crate::process;
use crate::settings::Settings;

/// The command of this program inside a node that hosts others.
const PROGRAM: [&str; 3] = ["sudo", "-n", "/usr/local/bin/homestak"];

/// Becomes `ssh` to a node, with a command or a shell; returns only when that fails.
fn become_ssh(connection: &NodeConnection, command: &[String]) -> Outcome {
    let mut arguments: Vec<OsString> = Vec::new();
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if !command.is_empty() && terminal {
        arguments.push("-t".into());
    }
    arguments.extend(connection.ssh.arguments());
    if !command.is_empty() {
        arguments.extend(["--".into(), shell_line(command).into()]);
    }
    let error = process::become_program("ssh", &arguments);
    Err(DriverError::failed(format!("Cannot start ssh: {error}.")))
}

/// Runs this program in the node that hosts the requested one.
fn through(parent: &RecordedNode, words: &[&str], settings: &Settings) -> Outcome {
    let connection = nodes::connection(parent, &settings.session()?, &settings.driver)?;
    connection.with_retries(|ssh| ssh.run("true", b""))?;
    let command = PROGRAM.iter().chain(words).map(|&word| word.to_owned());
    become_ssh(&connection, &command.collect::<Vec<_>>())
}
