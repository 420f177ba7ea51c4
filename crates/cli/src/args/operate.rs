//! Arguments of commands that execute manifests, and of those that inspect runs.
//!
//! A value that a manifest can set has no default here.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use homestak_core::plan::OnError;
use homestak_driver::runs::RunSelector;
use homestak_driver::settings::VmEngine;

use super::ManifestArgs;

/// Arguments of `manifest plan`.
#[derive(Debug, Clone, Args)]
pub struct PlanArgs {
    /// Which manifest.
    #[command(flatten)]
    pub manifest: ManifestArgs,
    /// What is planned.
    #[command(flatten)]
    pub options: PlanOptionArgs,
    /// Write the plan to this file, for `manifest apply FILE`
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// Arguments of `manifest apply`.
#[derive(Debug, Clone, Args)]
pub struct ApplyArgs {
    /// Which manifest; a file that `manifest plan --out` wrote works as NAME too.
    #[command(flatten)]
    pub manifest: ManifestArgs,
    /// What is planned.
    #[command(flatten)]
    pub options: PlanOptionArgs,
    /// How it is executed.
    #[command(flatten)]
    pub execute: ExecuteArgs,
    /// Execute the plan in this file, if it is still current
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Keep what was created when something fails, regardless of `on_error`
    #[arg(long)]
    pub keep_on_failure: bool,
}

/// Arguments of `manifest destroy`.
#[derive(Debug, Clone, Args)]
pub struct DestroyArgs {
    /// Which manifest.
    #[command(flatten)]
    pub manifest: ManifestArgs,
    /// What to do when a node fails
    #[arg(long, value_parser = on_error())]
    pub on_error: Option<OnError>,
    /// How many nodes to process in parallel
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub parallel: Option<u32>,
    /// How it is executed.
    #[command(flatten)]
    pub execute: ExecuteArgs,
}

/// Arguments of `manifest test`.
#[derive(Debug, Clone, Args)]
pub struct TestArgs {
    /// Which manifest.
    #[command(flatten)]
    pub manifest: ManifestArgs,
    /// What is planned.
    #[command(flatten)]
    pub options: PlanOptionArgs,
    /// How it is executed.
    #[command(flatten)]
    pub execute: ExecuteArgs,
    /// Keep everything when something fails
    #[arg(long)]
    pub keep_on_failure: bool,
    /// Directory of the reports; `reports` in the state directory when omitted
    #[arg(long, short = 'r', value_name = "DIR")]
    pub report_dir: Option<PathBuf>,
}

/// What is planned.
#[derive(Debug, Clone, Default, Args)]
pub struct PlanOptionArgs {
    /// Apply only the first N levels of nodes
    #[arg(long, value_name = "N")]
    pub depth: Option<usize>,
    /// Destroy guests of the manifest that it no longer contains
    #[arg(long)]
    pub prune: bool,
    /// What to do when a node fails
    #[arg(long, value_parser = on_error())]
    pub on_error: Option<OnError>,
    /// How many nodes to process in parallel
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub parallel: Option<u32>,
}

/// How a command is executed.
#[derive(Debug, Clone, Default, Args)]
pub struct ExecuteArgs {
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Show the plan, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Skip the checks of the hosts
    #[arg(long)]
    pub skip_preflight: bool,
    /// Install missing packages for the host `local` first (Debian and Ubuntu); `test` falls back to
    /// the simulator when this machine cannot run nodes
    #[arg(long)]
    pub setup: bool,
    /// What `vm` nodes on the host `local` run in
    #[arg(long, value_enum, value_name = "ENGINE")]
    pub vm_engine: Option<VmEngineArg>,
    /// Print every event as a line of JSON on stdout
    #[arg(long)]
    pub events: bool,
}

/// What `vm` nodes on the host `local` run in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum VmEngineArg {
    /// Virtual machines if the processor supports it, else containers
    Auto,
    /// Virtual machines, emulated if the processor does not support it
    Qemu,
    /// Containers
    Container,
}

impl VmEngineArg {
    /// Returns the setting of the local host.
    pub(crate) fn engine(self) -> VmEngine {
        match self {
            Self::Auto => VmEngine::Auto,
            Self::Qemu => VmEngine::Qemu,
            Self::Container => VmEngine::Container,
        }
    }
}

/// Parses `--on-error`.
fn on_error() -> impl TypedValueParser<Value = OnError> {
    let value = |choice: &OnError| {
        PossibleValue::new(choice.word()).help(match choice {
            OnError::Stop => "Start no new steps; keep what was created",
            OnError::Rollback => "Revert the changes of this run",
            OnError::Continue => "Continue with nodes that do not depend on it",
        })
    };
    PossibleValuesParser::new(OnError::ALL.iter().map(value))
        .try_map(|word| OnError::from_word(&word).ok_or("it is not one of the choices"))
}

/// Arguments of `manifest rollback`.
#[derive(Debug, Clone, Args)]
pub struct RollbackArgs {
    /// Which run.
    #[command(flatten)]
    pub which: RunArgs,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Show what would be reverted and what cannot be, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print every event as a line of JSON on stdout
    #[arg(long)]
    pub events: bool,
}

/// Selects runs.
#[derive(Debug, Clone, Default, Args)]
pub struct RunArgs {
    /// Name of a manifest; not needed when only one has an unfinished run
    #[arg(value_name = "NAME", conflicts_with = "manifest")]
    pub name: Option<String>,
    /// Name of a manifest; not needed when only one has an unfinished run
    #[arg(short = 'M', long, value_name = "NAME")]
    pub manifest: Option<String>,
    /// Runs on this host only
    #[arg(short = 'H', long, value_name = "HOST")]
    pub host: Option<String>,
}

impl RunArgs {
    /// Returns the selection.
    pub fn which(&self) -> RunSelector {
        RunSelector {
            manifest: self.manifest.clone().or_else(|| self.name.clone()),
            host: self.host.clone(),
        }
    }
}
