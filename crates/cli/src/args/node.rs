//! Arguments of commands on running nodes.

use clap::Args;
use homestak_driver::runs::RunSelector;

/// Selects one node.
#[derive(Debug, Clone, Args)]
pub struct NodeArgs {
    /// Name of the node
    #[arg(value_name = "NODE")]
    pub node: String,
    /// Manifest of the node; needed when several have a node of that name
    #[arg(short = 'M', long, value_name = "NAME")]
    pub manifest: Option<String>,
    /// Host of the node; needed when it is on several
    #[arg(short = 'H', long, value_name = "HOST")]
    pub host: Option<String>,
}

impl NodeArgs {
    /// Returns the scope of the search.
    pub fn which(&self) -> RunSelector {
        RunSelector {
            manifest: self.manifest.clone(),
            host: self.host.clone(),
        }
    }
}

/// Arguments of `ssh`.
#[derive(Debug, Clone, Args)]
pub struct SshArgs {
    /// Which node.
    #[command(flatten)]
    pub node: NodeArgs,
    /// Command to run; a shell when omitted. A single argument is a line for the node's shell, several
    /// are passed as they are
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Arguments of `exec`.
#[derive(Debug, Clone, Args)]
pub struct ExecArgs {
    /// Names of nodes, or patterns with `*` and `?`; commas work too
    #[arg(value_name = "NODES", required_unless_present = "all")]
    pub nodes: Vec<String>,
    /// All nodes
    #[arg(long, conflicts_with = "nodes")]
    pub all: bool,
    /// Nodes of this manifest only
    #[arg(short = 'M', long, value_name = "NAME")]
    pub manifest: Option<String>,
    /// Nodes on this host only
    #[arg(short = 'H', long, value_name = "HOST")]
    pub host: Option<String>,
    /// How many nodes to run on in parallel
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub parallel: u32,
    /// Command to run. A single argument is a line for the node's shell, several are passed as they
    /// are
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Arguments of `logs`.
#[derive(Debug, Clone, Args)]
pub struct LogsArgs {
    /// Which node.
    #[command(flatten)]
    pub node: NodeArgs,
    /// Number of lines of the console and of the journal
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    pub lines: usize,
    /// Print new lines as they appear, until interrupted
    #[arg(short, long)]
    pub follow: bool,
}
