//! The command tree of `cargo xtask`. Exit codes: 0 no faults, 1 faults, 2 bad usage.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::generate::Goal;
use crate::tree::Tree;
use crate::{generate, tidy, tree, ui};

/// Maintenance commands of the source tree
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write the generated files: JSON Schemas and reference pages
    Gen {
        /// Compare instead of writing; fail when a file is out of date
        #[arg(long)]
        check: bool,
    },
    /// Check rules that neither the compiler nor clippy checks
    Tidy,
}

/// Runs a command and returns its exit code.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => return ui::usage(&error),
    };
    let done = match cli.command {
        Command::Gen { check } => run_generate(if check { Goal::Compare } else { Goal::Write }),
        Command::Tidy => run_tidy(),
    };
    done.unwrap_or_else(|error| ui::fail(&error))
}

fn run_generate(goal: Goal) -> Result<ExitCode> {
    let report = generate::run(&tree::root(), goal)?;
    Ok(match goal {
        Goal::Write => ui::written(&report),
        Goal::Compare => ui::faults(&report, "generated files"),
    })
}

fn run_tidy() -> Result<ExitCode> {
    let tree = Tree::read(&tree::root())?;
    let faults = tidy::check(&tree)?;
    let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
    Ok(ui::faults(&lines, "tree"))
}
