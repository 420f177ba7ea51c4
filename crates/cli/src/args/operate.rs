//! The arguments of commands that carry manifests out, and of those that look at runs.
//!
//! In: arguments. Out: typed values.
//! Never: defaults that a manifest has a say in.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use homestak_core::plan::OnError;
use homestak_driver::runs::RunSelector;
use homestak_driver::settings::VmEngine;

use super::ManifestArgs;

/// What `manifest plan` takes.
#[derive(Debug, Clone, Args)]
pub struct PlanArgs {
    /// Which manifest.
    #[command(flatten)]
    pub manifest: ManifestArgs,
    /// What is planned.
    #[command(flatten)]
    pub wish: WishArgs,
    /// Write the plan to this file, for `manifest apply FILE`
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// What `manifest apply` takes.
#[derive(Debug, Clone, Args)]
pub struct ApplyArgs {
    /// Which manifest; a file that `manifest plan --out` wrote works as NAME too.
    #[command(flatten)]
    pub manifest: ManifestArgs,
    /// What is planned.
    #[command(flatten)]
    pub wish: WishArgs,
    /// How it is carried out.
    #[command(flatten)]
    pub carry: CarryArgs,
    /// Carry out the plan in this file, if it still fits
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Leave what was made when something fails, whatever `on_error` says
    #[arg(long)]
    pub keep_on_failure: bool,
}

/// What `manifest destroy` takes.
#[derive(Debug, Clone, Args)]
pub struct DestroyArgs {
    /// Which manifest.
    #[command(flatten)]
    pub manifest: ManifestArgs,
    /// What happens to the rest when a node fails
    #[arg(long, value_parser = on_error())]
    pub on_error: Option<OnError>,
    /// How many nodes are worked on at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub parallel: Option<u32>,
    /// How it is carried out.
    #[command(flatten)]
    pub carry: CarryArgs,
}

/// What `manifest test` takes.
#[derive(Debug, Clone, Args)]
pub struct TestArgs {
    /// Which manifest.
    #[command(flatten)]
    pub manifest: ManifestArgs,
    /// What is planned.
    #[command(flatten)]
    pub wish: WishArgs,
    /// How it is carried out.
    #[command(flatten)]
    pub carry: CarryArgs,
    /// Leave everything as it is when something fails
    #[arg(long)]
    pub keep_on_failure: bool,
    /// Directory of the reports; `reports` in the state directory when left out
    #[arg(long, short = 'r', value_name = "DIR")]
    pub report_dir: Option<PathBuf>,
}

/// What is planned.
#[derive(Debug, Clone, Default, Args)]
pub struct WishArgs {
    /// Make so many levels of nodes only
    #[arg(long, value_name = "N")]
    pub depth: Option<usize>,
    /// Remove guests of the manifest that it does not name any more
    #[arg(long)]
    pub prune: bool,
    /// What happens to the rest when a node fails
    #[arg(long, value_parser = on_error())]
    pub on_error: Option<OnError>,
    /// How many nodes are worked on at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub parallel: Option<u32>,
}

/// How something is carried out.
#[derive(Debug, Clone, Default, Args)]
pub struct CarryArgs {
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Show what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not check the hosts first
    #[arg(long)]
    pub skip_preflight: bool,
    /// Install first what this machine lacks for the host `local` (Debian and Ubuntu); `test` runs on
    /// the simulator when that is not enough
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
    /// Virtual machines where the processor can, containers otherwise
    Auto,
    /// Virtual machines, emulated where the processor cannot
    Qemu,
    /// Containers
    Container,
}

impl VmEngineArg {
    /// Returns what the local host understands.
    pub(crate) fn engine(self) -> VmEngine {
        match self {
            Self::Auto => VmEngine::Auto,
            Self::Qemu => VmEngine::Qemu,
            Self::Container => VmEngine::Container,
        }
    }
}

/// Reads what happens to the rest when a node fails.
fn on_error() -> impl TypedValueParser<Value = OnError> {
    let value = |choice: &OnError| {
        PossibleValue::new(choice.word()).help(match choice {
            OnError::Stop => "Begin nothing new; what is there stays",
            OnError::Rollback => "Remove again what this run made",
            OnError::Continue => "Go on with nodes that do not depend on it",
        })
    };
    PossibleValuesParser::new(OnError::ALL.iter().map(value))
        .try_map(|word| OnError::from_word(&word).ok_or("it is not one of the choices"))
}

/// What `manifest rollback` takes.
#[derive(Debug, Clone, Args)]
pub struct RollbackArgs {
    /// Which run.
    #[command(flatten)]
    pub which: RunArgs,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Show what would be undone, and what cannot be, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print every event as a line of JSON on stdout
    #[arg(long)]
    pub events: bool,
}

/// Which runs are meant.
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
    /// Returns which runs are meant.
    pub fn which(&self) -> RunSelector {
        RunSelector {
            manifest: self.manifest.clone().or_else(|| self.name.clone()),
            host: self.host.clone(),
        }
    }
}
