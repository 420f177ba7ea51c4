//! Arguments of `homestak state`.

use clap::{Args, Subcommand};

/// Commands on the state directory.
#[derive(Debug, Subcommand)]
pub enum StateCommand {
    /// Record nodes that exist on the hosts but not in the state directory
    ///
    /// Records a guest only when it has the identity of a node of the site and nothing contradicts
    /// it. SSH keys are not restored: nodes that this driver cannot log in to are listed, with the
    /// commands to run on them. Nothing on hosts or nodes is changed.
    Rebuild(RebuildArgs),
}

/// Selects nodes.
#[derive(Debug, Args)]
pub struct RebuildArgs {
    /// Nodes of this manifest only
    #[arg(short = 'M', long, value_name = "NAME")]
    pub manifest: Option<String>,
    /// Nodes on this host only
    #[arg(short = 'H', long, value_name = "NAME")]
    pub host: Option<String>,
    /// Show what would be recorded, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}
