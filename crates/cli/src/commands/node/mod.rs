//! Commands on nodes that run.

pub(super) mod console;
pub(super) mod exec;
mod inside;
pub(super) mod logs;
mod serial;
pub(super) mod ssh;

use std::ffi::OsString;
use std::io::IsTerminal as _;

use homestak_driver::DriverError;
use homestak_driver::nodes::{self, NodeConnection, RecordedNode, shell_line};

use super::Outcome;
use crate::process;
use crate::settings::Settings;

/// This program inside a node that others run on.
const PROGRAM: [&str; 3] = ["sudo", "-n", "/usr/local/bin/homestak"];

/// Becomes `ssh` to a node, with a command or a shell; returns only when that fails.
fn become_ssh(way: &NodeConnection, command: &[String]) -> Outcome {
    let mut arguments: Vec<OsString> = Vec::new();
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if !command.is_empty() && terminal {
        arguments.push("-t".into());
    }
    arguments.extend(way.ssh.arguments());
    if !command.is_empty() {
        arguments.extend(["--".into(), shell_line(command).into()]);
    }
    let error = process::become_program("ssh", &arguments);
    Err(DriverError::failed(format!("Cannot start ssh: {error}.")))
}

/// Lets this program do it inside a node that the one meant runs on.
fn through(parent: &RecordedNode, words: &[&str], settings: &Settings) -> Outcome {
    let way = nodes::connection(parent, &settings.session()?, &settings.driver)?;
    way.with_retries(|ssh| ssh.run("true", b""))?;
    let command = PROGRAM.iter().chain(words).map(|&word| word.to_owned());
    become_ssh(&way, &command.collect::<Vec<_>>())
}
