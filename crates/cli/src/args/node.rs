//! The arguments of commands on nodes that run.
//!
//! In: arguments. Out: typed values.
//! Never: names looked up; that is `nodes`.

use clap::Args;
use homestak_driver::runs::RunSelector;

/// Which node is meant.
#[derive(Debug, Clone, Args)]
pub struct NodeArgs {
    /// Name of the node
    #[arg(value_name = "NODE")]
    pub node: String,
    /// Manifest it is of; needed when several have a node of that name
    #[arg(short = 'M', long, value_name = "NAME")]
    pub manifest: Option<String>,
    /// Host it is on; needed when it is on several
    #[arg(short = 'H', long, value_name = "HOST")]
    pub host: Option<String>,
}

impl NodeArgs {
    /// Returns where it is looked for.
    pub fn which(&self) -> RunSelector {
        RunSelector {
            manifest: self.manifest.clone(),
            host: self.host.clone(),
        }
    }
}

/// What `ssh` takes.
#[derive(Debug, Clone, Args)]
pub struct SshArgs {
    /// Which node.
    #[command(flatten)]
    pub node: NodeArgs,
    /// Command to run there; a shell when left out. One word is a line for its shell, several are
    /// handed over as they are
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// What `exec` takes.
#[derive(Debug, Clone, Args)]
pub struct ExecArgs {
    /// Names of nodes, or patterns with `*` and `?`; commas work too
    #[arg(value_name = "NODES", required_unless_present = "all")]
    pub nodes: Vec<String>,
    /// Every node there is
    #[arg(long, conflicts_with = "nodes")]
    pub all: bool,
    /// Nodes of this manifest only
    #[arg(short = 'M', long, value_name = "NAME")]
    pub manifest: Option<String>,
    /// Nodes on this host only
    #[arg(short = 'H', long, value_name = "HOST")]
    pub host: Option<String>,
    /// On how many nodes it runs at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub parallel: u32,
    /// Command to run. One word is a line for the node's shell, several are handed over as they are
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// What `logs` takes.
#[derive(Debug, Clone, Args)]
pub struct LogsArgs {
    /// Which node.
    #[command(flatten)]
    pub node: NodeArgs,
    /// How many lines of console and journal are shown, each
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    pub lines: usize,
    /// Go on with what comes, until interrupted
    #[arg(short, long)]
    pub follow: bool,
}
