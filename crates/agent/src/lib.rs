//! The program `homestak-agent`: converges the machine it runs on with its spec, and reports
//! differences. What is to be done is decided by `core::converge`.

mod apply;
mod args;
mod clock;
mod command;
mod config_check;
mod converge;
mod error;
mod facts;
mod fetch;
mod files;
mod http;
mod job;
mod node_job;
mod packages;
mod path;
mod process;
mod pull;
mod random;
mod run;
mod service;
mod settings;
mod spec;
mod state;
mod step;
mod system;
mod systemctl;
mod ui;
mod undo;
mod watch;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser as _;

/// Runs the program and returns its exit code.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    // What packages and directories become does not depend on who started the agent. Private files
    // have a mode of their own.
    if rustix::process::geteuid().is_root() {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    }
    match args::Cli::try_parse_from(arguments) {
        Ok(cli) => command::run(cli),
        Err(error) => ui::usage(&error),
    }
}
