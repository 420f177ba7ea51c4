//! Arguments of commands on running nodes.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use homestak_driver::runs::RunSelector;

use super::{NodeJobArgs, NodeUpdateArgs};

/// Commands on nodes that the server knows.
#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// List the nodes that fetch their specs from the server, and what they reported last
    ///
    /// Nodes of the mode `push` are not in the list: they have no contact with the server.
    /// `homestak manifest status` shows them.
    List,
    /// Show a node that fetches its spec from the server, its reports and its last jobs
    Show(NodeArgs),
    /// Run a job on a node and wait for its result
    ///
    /// Nodes of the mode `pull` take the job from the server, others are reached over SSH. Output of
    /// the job is printed on stderr, the result on stdout. An interrupt stops only the wait; the node
    /// continues.
    Job(Box<NodeJobArgs>),
    /// Update packages of the nodes of a manifest, in batches
    ///
    /// First asks each node what it would install. Then updates one batch after the other, children
    /// before their parents, and waits until its nodes are healthy: a check succeeds and finds no new
    /// difference from the spec. Stops at the first batch with an unhealthy node. Run the command
    /// again to continue. An interrupt completes the current batch.
    Update(Box<NodeUpdateArgs>),
    /// Re-enrol a node at the server, over SSH
    ///
    /// For a node that is no longer enrolled, or that does not have the current keys of the site.
    Enrol {
        /// Which node.
        #[command(flatten)]
        node: NodeArgs,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Revoke the certificate of a node: the server refuses it from now on
    Revoke {
        /// Which node.
        #[command(flatten)]
        node: NodeArgs,
        /// Reason, which is recorded
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

/// Selects one node.
#[derive(Debug, Clone, Args)]
pub struct NodeArgs {
    /// Name of the node
    #[arg(value_name = "NODE", value_parser = NonEmptyStringValueParser::new())]
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
    pub fn selector(&self) -> RunSelector {
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
    /// Command to run; a shell when omitted. A single argument is a command line for the node's shell;
    /// several arguments are passed unchanged
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Arguments of `exec`.
#[derive(Debug, Clone, Args)]
pub struct ExecArgs {
    /// Names of nodes, or patterns with `*` and `?`, separated by spaces or commas
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
    /// On how many nodes to run it at the same time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub parallel: u32,
    /// Command to run. A single argument is a command line for the node's shell; several arguments
    /// are passed unchanged
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Arguments of `logs`.
#[derive(Debug, Clone, Args)]
pub struct LogsArgs {
    /// Which node.
    #[command(flatten)]
    pub node: NodeArgs,
    /// Number of lines to show, each of the console and of the journal
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    pub lines: usize,
    /// Print new lines as they appear, until interrupted
    #[arg(short, long)]
    pub follow: bool,
}
