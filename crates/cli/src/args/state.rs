//! Arguments of `homestak state`.

use clap::{Args, Subcommand};

/// What can be done with the state directory.
#[derive(Debug, Subcommand)]
pub enum StateCommand {
    /// Record nodes again that the hosts have and the state directory does not know
    ///
    /// Guests are recorded only when they carry the identity of a node of the site, and nothing
    /// about them contradicts it. SSH keys are not restored: nodes that this driver cannot log in
    /// to are listed, with what to do about it. Nothing on hosts or nodes is changed.
    Rebuild(RebuildArgs),
}

/// What is looked for.
#[derive(Debug, Args)]
pub struct RebuildArgs {
    /// Manifest whose nodes are looked for; all of the site when left out
    #[arg(short = 'M', long, value_name = "NAME")]
    pub manifest: Option<String>,
    /// Host that is asked; all of the site when left out
    #[arg(short = 'H', long, value_name = "NAME")]
    pub host: Option<String>,
    /// Show what would be recorded, and record nothing
    #[arg(long)]
    pub dry_run: bool,
}
