//! Arguments of commands that execute manifests, and of those that inspect runs.
//!
//! A value that a manifest can set has no default here.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use homestak_core::plan::OnError;
use homestak_driver::runs::RunSelector;
use homestak_driver::select::ManifestSelector;
use homestak_driver::settings::VmEngine;

use super::{ManifestArgs, ModeArg};

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

/// Arguments of `manifest configure`.
#[derive(Debug, Clone, Args)]
pub struct ConfigureArgs {
    /// Names of nodes; all nodes of the manifest when omitted
    #[arg(value_name = "NODE")]
    pub nodes: Vec<String>,
    /// Name of a manifest of the site
    #[arg(
        short = 'M',
        long,
        value_name = "NAME",
        required_unless_present = "manifest_file"
    )]
    pub manifest: Option<String>,
    /// File with a manifest
    #[arg(long, value_name = "FILE", conflicts_with = "manifest")]
    pub manifest_file: Option<PathBuf>,
    /// Host that nodes run on when they name none
    #[arg(short = 'H', long, value_name = "HOST")]
    pub host: Option<String>,
    /// Who starts configuration, for all nodes
    #[arg(long, value_enum)]
    pub mode: Option<ModeArg>,
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

impl ConfigureArgs {
    /// Returns the manifest that is chosen.
    pub fn choice(&self) -> ManifestSelector {
        ManifestSelector {
            name: self.manifest.clone(),
            file: self.manifest_file.clone(),
            json: None,
            host: self.host.clone(),
            mode: self.mode.map(ModeArg::mode),
        }
    }
}

/// Arguments of `manifest destroy`.
#[derive(Debug, Clone, Args)]
pub struct DestroyArgs {
    /// Which manifest.
    #[command(flatten)]
    pub manifest: ManifestArgs,
    /// What to do when a node fails
    #[arg(long, value_name = "ACTION", value_parser = on_error())]
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
    /// Do not destroy the nodes when something fails
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
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1000))]
    pub depth: Option<usize>,
    /// Destroy guests of nodes that were removed from the manifest
    #[arg(long)]
    pub prune: bool,
    /// What to do when a node fails
    #[arg(long, value_name = "ACTION", value_parser = on_error())]
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
    /// First install packages that the host `local` needs (Debian and Ubuntu); `manifest test` uses
    /// the simulator if this machine still cannot run nodes
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
    /// Virtual machines if KVM works, otherwise containers
    Auto,
    /// Virtual machines; without KVM they are emulated, which is slow
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
        PossibleValue::new(choice.name()).help(match choice {
            OnError::Stop => "Start no new steps; keep what was created",
            OnError::Rollback => "Revert the changes of this run",
            OnError::Continue => "Continue with nodes that do not depend on it",
        })
    };
    PossibleValuesParser::new(OnError::ALL.iter().map(value))
        .try_map(|name| OnError::from_name(&name).ok_or("it is not one of the choices"))
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
    /// Select runs of this manifest
    #[arg(value_name = "NAME", conflicts_with = "manifest")]
    pub name: Option<String>,
    /// Select runs of this manifest
    #[arg(short = 'M', long, value_name = "NAME")]
    pub manifest: Option<String>,
    /// Select runs on this host
    #[arg(short = 'H', long, value_name = "HOST")]
    pub host: Option<String>,
}

impl RunArgs {
    /// Returns the selection.
    pub fn selector(&self) -> RunSelector {
        RunSelector {
            manifest: self.manifest.clone().or_else(|| self.name.clone()),
            host: self.host.clone(),
        }
    }
}
