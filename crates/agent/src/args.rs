//! Arguments of the program.
//!
//! In: words. Out: [`Cli`].
//! Never: defaults that depend on the machine.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Make this machine what its spec says
#[derive(Debug, Parser)]
#[command(name = "homestak-agent", version, about)]
pub(crate) struct Cli {
    /// Print the result as JSON
    #[arg(long, global = true)]
    pub(crate) json_output: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Converge this machine
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Look at specs
    #[command(subcommand)]
    Spec(SpecCommand),
    /// Look after this machine: find what has changed, and mend what its spec says
    ///
    /// Exit code: 0 all is as it should be, 1 the spec is missing or wrong, 2 it failed,
    /// 3 something differs that the spec leaves to a person.
    Run(RunArgs),
    /// Show what this machine last became, whether that failed, and what differs since
    Status,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Say field by field what is not as it should be
    ///
    /// Exit code: 0 all is as it should be, 1 the spec is missing or wrong, 2 it could not be
    /// found out, 3 something differs.
    Check(SpecArgs),
    /// Make this machine what the spec says
    ///
    /// Exit code: 0 done, 1 the spec is missing or wrong, 2 it failed.
    Apply {
        #[command(flatten)]
        spec: SpecArgs,
        /// Show what would be done, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// List what is managed here, as it was when the machine last converged
    Show,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SpecCommand {
    /// Check a resolved spec
    Validate(SpecArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Look once
    #[arg(long, required_unless_present = "daemon", conflicts_with = "daemon")]
    pub(crate) once: bool,
    /// Look whenever something changes, and from time to time
    #[arg(long)]
    pub(crate) daemon: bool,
    /// Show what would be done, and change nothing
    #[arg(long, conflicts_with = "daemon")]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SpecArgs {
    /// The resolved spec; `-` reads it from standard input [default: the spec of the last time]
    #[arg(long, value_name = "FILE")]
    pub(crate) spec: Option<PathBuf>,
}
