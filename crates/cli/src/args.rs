//! The command tree, from which help, completions and manual pages are generated.
//!
//! No default here depends on the environment; those are in `settings`.

mod image;
mod job;
mod manifest;
mod node;
mod operate;
mod server;
mod sim;
mod site;
mod state;
mod token;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use homestak_core::doc::timeouts::Timeouts;

pub use image::ImageCommand;
pub use job::{JobCommand, JobKindArg, NodeJobArgs, NodeUpdateArgs, UpdatesArg};
pub use manifest::{ManifestArgs, ModeArg};
pub use node::{ExecArgs, LogsArgs, NodeArgs, NodeCommand, SshArgs};
pub use operate::{
    ApplyArgs, ConfigureArgs, DestroyArgs, ExecuteArgs, PlanArgs, PlanOptionArgs, RollbackArgs,
    RunArgs, TestArgs, VmEngineArg,
};
pub use server::{RepoArgs, RotatedKey, ServerArgs, ServerCommand, ServerStartArgs};
pub use sim::{PaceArg, SimCommand, SimServeArgs, SimStateArgs};
pub use site::{HostCommand, SiteCommand};
pub use state::{RebuildArgs, StateCommand};
pub use token::TokenCommand;

/// Create and configure machines from a manifest
#[derive(Debug, Parser)]
#[command(
    name = "homestak",
    version,
    propagate_version = true,
    subcommand_required = true
)]
#[command(after_help = AFTER_HELP)]
pub struct Cli {
    /// Flags of every command.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Makes `--json` of a command the same as `--json-output`, also for errors.
    #[must_use]
    pub fn with_json_flag(mut self) -> Self {
        if let Command::Server(command) = &self.command {
            self.global.json_output |= command.has_json_flag();
        }
        self
    }
}

const AFTER_HELP: &str = "\
Exit codes:
  0    done, or nothing to do
  1    failed, invalid documents included
  2    usage error
  3    refused by a safety check
  4    stopped before it was complete; can be resumed
  5    rollback failed; manual intervention needed
  130  interrupted";

/// Global flags, before or after the subcommand.
#[derive(Debug, Clone, Default, Args)]
pub struct GlobalArgs {
    /// Use the site in this directory
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        help_heading = "Global options"
    )]
    pub site: Option<PathBuf>,
    /// Print the result as JSON on stdout
    #[arg(long, global = true, help_heading = "Global options")]
    pub json_output: bool,
    /// Log to stderr: -v info, -vv debug, -vvv trace
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Global options")]
    pub verbose: u8,
    /// Append the log to this file instead; -v sets its level, info by default
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        help_heading = "Global options"
    )]
    pub log_file: Option<PathBuf>,
    /// Print without colour
    #[arg(long, global = true, help_heading = "Global options")]
    pub no_color: bool,
    /// Set a time limit, such as `boot=600`; repeat for more
    #[arg(
        long,
        global = true,
        value_name = "NAME=SECONDS",
        value_parser = Timeouts::parse,
        help_heading = "Global options"
    )]
    pub timeout: Vec<Timeouts>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show, plan and apply manifests, and inspect their runs
    #[command(subcommand)]
    Manifest(ManifestCommand),
    /// Show, check and compare specs: the configuration of a machine
    #[command(subcommand)]
    Spec(SpecCommand),
    /// Create, show and check the site
    #[command(subcommand)]
    Site(SiteCommand),
    /// Show, check and prepare hosts
    #[command(subcommand)]
    Host(HostCommand),
    /// Run the server that nodes fetch their specs from
    #[command(subcommand)]
    Server(ServerCommand),
    /// Run jobs on nodes, update them, and show and revoke nodes enrolled at the server
    #[command(subcommand)]
    Node(NodeCommand),
    /// List, show and cancel jobs of nodes
    #[command(subcommand)]
    Job(JobCommand),
    /// Rebuild the records of nodes in the state directory
    #[command(subcommand)]
    State(StateCommand),
    /// Run a simulated Proxmox VE, for use without hardware
    #[command(subcommand)]
    Sim(SimCommand),
    /// Prepare and clean this machine as a host (`-H local`), and list its nodes
    #[command(subcommand)]
    Local(LocalCommand),
    /// Build and check root file systems for nodes on this machine
    #[command(subcommand)]
    Image(ImageCommand),
    /// Open a shell on a node, or run a command on it
    Ssh(SshArgs),
    /// Run a command on several nodes in parallel
    ///
    /// Control characters in the output of nodes are escaped on a terminal and unchanged in a pipe
    /// or file.
    Exec(ExecArgs),
    /// Open a shell in a node without SSH
    Console(NodeArgs),
    /// Show the console output and the journal of a node
    ///
    /// Control characters are escaped on a terminal and unchanged in a pipe or file.
    Logs(LogsArgs),
    /// Export resolved values for other tools
    #[command(subcommand)]
    Resolve(ResolveCommand),
    /// Encrypt, decrypt and edit secrets
    #[command(subcommand)]
    Secrets(SecretsCommand),
    /// Create, check and revoke provisioning tokens
    #[command(subcommand)]
    Token(TokenCommand),
    /// Apply the spec of this machine; same as `homestak-agent config`
    ///
    /// With `-M`, `config apply` configures the nodes of a manifest; same as `manifest configure`.
    #[command(disable_help_flag = true)]
    Config(AgentArgs),
    /// Detect and correct drift of this machine; same as `homestak-agent run`
    #[command(disable_help_flag = true)]
    Run(AgentArgs),
    /// Show the state of this machine; same as `homestak-agent status`
    #[command(disable_help_flag = true)]
    Status(AgentArgs),
    /// Explain an error code, such as SK0301
    Explain {
        /// The code; lists all when omitted
        code: Option<String>,
    },
    /// Print the JSON Schema of a kind of document
    Schema {
        /// Kind of document, such as `manifest`; all kinds when omitted
        kind: Option<String>,
        /// Write the schemas into this directory instead
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Print completions for a shell
    Completions {
        /// The shell
        #[arg(required_unless_present = "names")]
        shell: Option<clap_complete::Shell>,
        /// Print the names that completions offer
        #[arg(long, hide = true, value_name = "KIND", conflicts_with = "shell")]
        names: Option<NamesArg>,
    },
    /// Print the manual page
    Man {
        /// Write one page per command into this directory instead
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
}

/// Names that completions offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NamesArg {
    /// Manifests of the site.
    Manifests,
    /// Hosts that nodes can run on.
    Hosts,
    /// Nodes that runs have created.
    Nodes,
}

/// Commands on manifests.
#[derive(Debug, Subcommand)]
pub enum ManifestCommand {
    /// List the manifests of the site
    List,
    /// Show the resolved nodes of a manifest
    Show {
        /// Which manifest.
        #[command(flatten)]
        manifest: ManifestArgs,
        /// Show this node only, with its whole spec
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
        /// Show where each value comes from
        #[arg(long)]
        origin: bool,
        /// Show the values of secrets
        #[arg(long)]
        show_secrets: bool,
    },
    /// Check a manifest and everything it references; all manifests when none is named
    Validate {
        /// Which manifest.
        #[command(flatten)]
        manifest: ManifestArgs,
    },
    /// Show what `apply` would change, and why
    Plan(Box<PlanArgs>),
    /// Apply a manifest: create, change and configure its nodes
    ///
    /// NAME can also be a file that `manifest plan --out` wrote.
    Apply(Box<ApplyArgs>),
    /// Configure the nodes of a manifest that run, and do nothing else; same as `config apply -M`
    Configure(Box<ConfigureArgs>),
    /// Destroy the nodes of a manifest
    Destroy(Box<DestroyArgs>),
    /// Test a manifest: create its nodes, verify them, destroy them, and write a report
    Test(Box<TestArgs>),
    /// Show the state of nodes, and whether a run can be resumed
    ///
    /// Queries hosts for the power state of guests, and nodes for drift. What does not answer is
    /// shown as unknown.
    Status {
        /// Which runs.
        #[command(flatten)]
        which: RunArgs,
        /// Use the journal only; query neither hosts nor nodes
        #[arg(long)]
        offline: bool,
    },
    /// Resume a run that failed or was interrupted
    ///
    /// Without a manifest, the only unfinished run is resumed.
    Resume {
        /// Which run.
        #[command(flatten)]
        which: RunArgs,
        /// Treat the failed steps of this node as resolved manually; repeat for more
        #[arg(long, value_name = "NODE")]
        mark_resolved: Vec<String>,
        /// Earlier spelling of `--mark-resolved`.
        #[arg(long, value_name = "NODE", hide = true)]
        from: Vec<String>,
        /// Print every event as a line of JSON on stdout
        #[arg(long)]
        events: bool,
    },
    /// Revert the changes of the last run
    ///
    /// Without a manifest, the only unfinished run is reverted. Destroys the guests that
    /// the run created, and reverts its changes of hardware and configuration. What cannot be
    /// reverted is listed first, and the exit code is 1.
    Rollback(RollbackArgs),
    /// List runs, newest first
    History {
        /// Which runs.
        #[command(flatten)]
        which: RunArgs,
        /// Maximum number of runs
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
        /// List only runs before this one
        #[arg(long, value_name = "RUN")]
        before: Option<i64>,
    },
    /// Release the lock of a run whose machine was lost
    ///
    /// Shows the holder of the lock. The lock of a process that runs on this machine is never
    /// released; one of another machine or container only after a minute without heartbeat.
    Unlock {
        /// Name of the manifest
        #[arg(short = 'M', long, value_name = "NAME")]
        manifest: String,
        /// Host it is locked on
        #[arg(short = 'H', long, value_name = "HOST")]
        host: String,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Print a report of a run
    ///
    /// With `--follow`, the steps of a run that another process executes are printed as they are
    /// recorded, then the report once the run has ended. The exit code is that of the run, and 4 if
    /// the process that executed it has ended without completing it.
    Report {
        /// Number of the run; the newest when omitted
        run: Option<i64>,
        /// Name of a manifest
        #[arg(short = 'M', long, value_name = "NAME")]
        manifest: Option<String>,
        /// Runs on this host only
        #[arg(short = 'H', long, value_name = "HOST")]
        host: Option<String>,
        /// Write to this file instead of stdout; JSON when it ends in `.json`
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Print its steps as they are recorded, until it ends
        #[arg(short, long)]
        follow: bool,
    },
    /// Adopt guests that were created before sites had an id: tag them with the id of this site
    ///
    /// Only guests in the driver's journal are changed. Nothing is restarted: id, MAC address, IP
    /// address and host key stay the same.
    Reidentify {
        /// Which manifest.
        #[command(flatten)]
        manifest: ManifestArgs,
        /// How it is executed.
        #[command(flatten)]
        execute: ExecuteArgs,
    },
    /// Delete the record of a node; its guest is unchanged
    Forget {
        /// Name of the node
        node: String,
        /// Manifest of the node
        #[arg(short = 'M', long, value_name = "NAME")]
        manifest: Option<String>,
        /// Host of the node
        #[arg(short = 'H', long, value_name = "HOST")]
        host: Option<String>,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Draw the topology of a manifest
    Graph {
        /// Which manifest.
        #[command(flatten)]
        manifest: ManifestArgs,
        /// Output format
        #[arg(long, value_enum, default_value_t = GraphFormat::Tree)]
        format: GraphFormat,
        /// Write to this file instead of stdout
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Draw the tree with ASCII characters only
        #[arg(long)]
        ascii: bool,
    },
    /// Convert a manifest of schema version 1 to version 2
    Migrate {
        /// File with the manifest of version 1
        file: Option<PathBuf>,
        /// Name of a manifest of the site
        #[arg(short = 'M', long, value_name = "NAME", conflicts_with = "file")]
        manifest: Option<String>,
        /// Write to this file instead of stdout
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
}

/// What to draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GraphFormat {
    /// A tree for the terminal
    Tree,
    /// A picture
    Svg,
    /// Input for Graphviz
    Dot,
    /// Input for Mermaid
    Mermaid,
}

/// Commands on specs.
#[derive(Debug, Subcommand)]
pub enum SpecCommand {
    /// List the specs of the site
    List,
    /// Show a resolved spec: all references replaced by values
    Show {
        /// Name of the spec
        name: String,
        /// Show where each value comes from
        #[arg(long)]
        origin: bool,
        /// Show the values of secrets
        #[arg(long)]
        show_secrets: bool,
    },
    /// Check specs and what they reference
    Validate {
        /// Names of specs, or paths of files; all specs of the site when omitted
        specs: Vec<String>,
    },
    /// Show how a node differs from its spec (exit code 0: no differences, 3: differences)
    Diff(NodeArgs),
    /// Fetch the spec of this machine from a server
    #[command(disable_help_flag = true)]
    Get(AgentArgs),
}

/// Arguments that are passed to `homestak-agent`, for the machine the program runs on.
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// Arguments for `homestak-agent`; `--help` lists them
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENT"
    )]
    pub words: Vec<OsString>,
}

/// The host `local`.
#[derive(Debug, Subcommand)]
pub enum LocalCommand {
    /// Check whether this machine can run nodes
    Check,
    /// Install missing packages (Debian and Ubuntu)
    Setup,
    /// List the nodes on this machine, with their addresses
    Show,
    /// Remove leftovers of interrupted runs
    Clean {
        /// Also remove all nodes of this machine, of every manifest
        #[arg(long)]
        all: bool,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Execute one call of the driver outside of this node, read from stdin
    #[command(hide = true)]
    Act,
}

/// What can be exported.
#[derive(Debug, Subcommand)]
pub enum ResolveCommand {
    /// Print variables for OpenTofu: the guests of one host
    Tofu {
        /// Which manifest.
        #[command(flatten)]
        manifest: ManifestArgs,
        /// Only this node
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
        /// How it is written.
        #[command(flatten)]
        export: ExportArgs,
    },
    /// Print variables for Ansible: a posture and the site's defaults
    Ansible {
        /// Name of the posture
        #[arg(default_value = "dev")]
        posture: String,
        /// How it is written.
        #[command(flatten)]
        export: ExportArgs,
    },
}

/// How an export is written.
#[derive(Debug, Clone, Args)]
pub struct ExportArgs {
    /// Which keys the export has
    #[arg(long, value_enum, default_value_t = CompatArg::Current)]
    pub compat: CompatArg,
    /// Write to this file, readable by its owner only, with the values of secrets
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print the values of secrets on stdout
    #[arg(long, conflicts_with = "out")]
    pub show_secrets: bool,
}

/// Which set of keys an export has.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum CompatArg {
    /// Current keys
    Current,
    /// Keys of earlier homestak tools
    Legacy,
    /// Earlier spelling of `legacy`
    #[value(hide = true)]
    Seed,
}

/// Commands on secrets.
#[derive(Debug, Subcommand)]
pub enum SecretsCommand {
    /// Generate an age key, and print its recipient
    Keygen {
        /// Write the key to this file instead of the default path
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Encrypt a file with SOPS and age
    Encrypt {
        /// Plain file; the site's secrets.yaml when omitted
        file: Option<PathBuf>,
        /// Recipient; repeat for more. When omitted, those in .sops.yaml, otherwise your own keys
        #[arg(short = 'r', long = "recipient", value_name = "AGE")]
        recipients: Vec<String>,
        /// Write to this file; FILE.enc when omitted
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Overwrite the file itself
        #[arg(long, conflicts_with = "out")]
        in_place: bool,
    },
    /// Decrypt a file into one that only you can read
    Decrypt {
        /// Encrypted file; the site's secrets.yaml.enc when omitted
        file: Option<PathBuf>,
        /// Write to this file; FILE without .enc when omitted
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Print on stdout
        #[arg(long, conflicts_with = "out")]
        stdout: bool,
        /// Overwrite a file with other content
        #[arg(long)]
        force: bool,
    },
    /// Check that secrets are encrypted, intact, and can be decrypted
    Check {
        /// Encrypted file; the site's secrets when omitted
        file: Option<PathBuf>,
    },
    /// Edit secrets in an editor, and encrypt them again
    Edit {
        /// File; the site's secrets when omitted
        file: Option<PathBuf>,
    },
    /// Print one secret
    Get {
        /// Path of the secret, such as `auth.signing_key` or `ssh_keys.ops@desk`
        id: String,
    },
}
