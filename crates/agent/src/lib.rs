//! CONVERGES: makes the machine it runs on what its spec says, and reports where it differs.
//!
//! `core::converge` decides what is done; no file is written that was not checked first.

mod act;
mod apply;
mod args;
mod clock;
mod command;
mod converge;
mod error;
mod fetch;
mod files;
mod gather;
mod job;
mod packages;
mod path;
mod process;
mod run;
mod service;
mod settings;
mod sound;
mod spec;
mod state;
mod system;
mod ui;
mod undo;
mod watch;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser as _;

/// Runs the program and returns its exit code.
pub fn main(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    match args::Cli::try_parse_from(words) {
        Ok(cli) => command::run(cli),
        Err(error) => ui::usage(&error),
    }
}
