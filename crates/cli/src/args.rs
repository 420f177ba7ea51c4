//! The command tree.
//!
//! In: arguments. Out: typed commands; help, completions and man pages are made from here.
//! Never: defaults that depend on the environment; those are in `settings`.

mod image;
mod manifest;
mod node;
mod operate;
mod sim;
mod site;
mod state;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use homestak_core::doc::timeouts::Timeouts;

pub use image::ImageCommand;
pub use manifest::{ManifestArgs, ModeArg};
pub use node::{ExecArgs, LogsArgs, NodeArgs, SshArgs};
pub use operate::{
    ApplyArgs, CarryArgs, DestroyArgs, PlanArgs, RollbackArgs, RunArgs, TestArgs, VmEngineArg,
    WishArgs,
};
pub use sim::{PaceArg, SimCommand, SimPlaceArgs, SimServeArgs};
pub use site::{HostCommand, SiteCommand};
pub use state::{RebuildArgs, StateCommand};

/// Turn a written manifest into running, configured, watched machines
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

const AFTER_HELP: &str = "\
Exit codes:
  0    done, or nothing to do
  1    failed; a bad document included
  2    bad usage
  3    refused by a guard
  4    stopped half-way, can be resumed
  5    stuck, a person is needed
  130  interrupted";

/// Flags of every command, before or after its words.
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

/// The nouns.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Look at manifests, carry them out, and look at what became of that
    #[command(subcommand)]
    Manifest(ManifestCommand),
    /// Look at specs: what a machine becomes
    #[command(subcommand)]
    Spec(SpecCommand),
    /// Look at the site: where it is, what is in it, what is wrong with it
    #[command(subcommand)]
    Site(SiteCommand),
    /// Look at hosts: what they are, whom to trust, what a token needs
    #[command(subcommand)]
    Host(HostCommand),
    /// Restore what the state directory knows of nodes
    #[command(subcommand)]
    State(StateCommand),
    /// A simulated Proxmox VE, to try things without hardware
    #[command(subcommand)]
    Sim(SimCommand),
    /// Real nodes on this machine: set it up, look at it, clean it
    #[command(subcommand)]
    Local(LocalCommand),
    /// Build and look at root file systems for nodes on this machine
    #[command(subcommand)]
    Image(ImageCommand),
    /// Open a shell on a node, or run one command there
    Ssh(SshArgs),
    /// Run a command on many nodes at once
    ///
    /// Control characters in the output of nodes are escaped on a terminal and unchanged in a pipe
    /// or file.
    Exec(ExecArgs),
    /// Open a shell in a node that works when SSH does not
    Console(NodeArgs),
    /// Show what a node said: its console and its journal
    ///
    /// Control characters are escaped on a terminal and unchanged in a pipe or file.
    Logs(LogsArgs),
    /// Export resolved values for other tools
    #[command(subcommand)]
    Resolve(ResolveCommand),
    /// Seal, open and change secrets
    #[command(subcommand)]
    Secrets(SecretsCommand),
    /// Mint and check provisioning tokens
    #[command(subcommand)]
    Token(TokenCommand),
    /// Make this very machine what its spec says; as `homestak-agent config`
    #[command(disable_help_flag = true)]
    Config(OwnArgs),
    /// Keep this very machine as its spec says; as `homestak-agent run`
    #[command(disable_help_flag = true)]
    Run(OwnArgs),
    /// Show what this very machine last became; as `homestak-agent status`
    #[command(disable_help_flag = true)]
    Status(OwnArgs),
    /// Explain a code such as SK0301
    Explain {
        /// The code; all of them when left out
        code: Option<String>,
    },
    /// Print the JSON Schema of a kind of document
    Schema {
        /// The kind; all of them when left out
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
        /// Print the names that can be written here; completions ask for them
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

/// What can be done with manifests.
#[derive(Debug, Subcommand)]
pub enum ManifestCommand {
    /// List the manifests of the site
    List,
    /// Show what each node of a manifest would become
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
    /// Check a manifest and everything it uses; all manifests when none is named
    Validate {
        /// Which manifest.
        #[command(flatten)]
        manifest: ManifestArgs,
    },
    /// Show what `apply` would do, and why
    Plan(Box<PlanArgs>),
    /// Make the world what the manifest says
    Apply(Box<ApplyArgs>),
    /// Remove what the manifest made
    Destroy(Box<DestroyArgs>),
    /// Apply, verify and destroy, with a report
    Test(Box<TestArgs>),
    /// Show how nodes are doing, and whether a run can be resumed
    ///
    /// Hosts are asked whether guests run, and nodes what differs from their specs. What does not
    /// answer is shown as unknown.
    Status {
        /// Which runs.
        #[command(flatten)]
        which: RunArgs,
        /// Show what the journal knows, and ask nobody
        #[arg(long)]
        offline: bool,
    },
    /// Go on with a run that failed, was interrupted, or died
    Resume {
        /// Which run.
        #[command(flatten)]
        which: RunArgs,
        /// Take what failed at this node as settled by hand; repeat for more
        #[arg(long = "from", value_name = "NODE")]
        settled: Vec<String>,
        /// Print every event as a line of JSON on stdout
        #[arg(long)]
        events: bool,
    },
    /// Undo what the last run did
    ///
    /// Guests that it created are destroyed, changes of hardware and configuration are reverted. What
    /// cannot be undone is listed first, and makes the exit code 1.
    Rollback(RollbackArgs),
    /// List runs, newest first
    History {
        /// Which runs.
        #[command(flatten)]
        which: RunArgs,
        /// How many runs are listed
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
        /// Only runs before this one
        #[arg(long, value_name = "RUN")]
        before: Option<i64>,
    },
    /// Unlock a manifest on a host whose run was lost with its machine
    ///
    /// Shows who holds it. A run that lives on this machine is never unlocked, and one on another
    /// machine or in another container only after it has been silent for a minute.
    Unlock {
        /// Name of the manifest
        #[arg(short = 'M', long, value_name = "NAME")]
        manifest: String,
        /// Host it is locked on
        #[arg(short = 'H', long, value_name = "HOST")]
        host: String,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
    /// Report what happened in a run
    Report {
        /// Number of the run; the newest when left out
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
    },
    /// Give guests that were created before sites had an id an identity of this site
    ///
    /// Which guests these are is known from the driver's journal alone. Nothing is restarted: id,
    /// MAC address, IP address and host key stay as they are.
    Reidentify {
        /// Which manifest.
        #[command(flatten)]
        manifest: ManifestArgs,
        /// How it is carried out.
        #[command(flatten)]
        carry: CarryArgs,
    },
    /// Forget what is remembered of a node; its guest is left alone
    Forget {
        /// Name of the node
        node: String,
        /// Name of the manifest it is of
        #[arg(short = 'M', long, value_name = "NAME")]
        manifest: Option<String>,
        /// Host it is on
        #[arg(short = 'H', long, value_name = "HOST")]
        host: Option<String>,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
    /// Draw the topology of a manifest
    Graph {
        /// Which manifest.
        #[command(flatten)]
        manifest: ManifestArgs,
        /// What to draw
        #[arg(long, value_enum, default_value_t = GraphFormat::Tree)]
        format: GraphFormat,
        /// Write to this file instead of stdout
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Draw the tree with plain characters
        #[arg(long)]
        ascii: bool,
    },
    /// Write a manifest of schema version 1 as version 2
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

/// What can be done with specs.
#[derive(Debug, Subcommand)]
pub enum SpecCommand {
    /// List the specs of the site
    List,
    /// Show a spec with everything resolved
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
    /// Check specs and what they name
    Validate {
        /// Names of specs, or paths of files; all specs of the site when left out
        specs: Vec<String>,
    },
    /// Say field by field in what a node differs from its spec
    ///
    /// Exit code: 0 in nothing, 3 in something.
    Diff(NodeArgs),
    /// Fetch the spec of the machine this runs on from a server
    #[command(disable_help_flag = true)]
    Get(OwnArgs),
}

/// What is done to the machine the program runs on.
#[derive(Debug, Args)]
pub struct OwnArgs {
    /// Words for `homestak-agent`; `--help` lists them
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "WORD"
    )]
    pub words: Vec<OsString>,
}

/// The host `local`.
#[derive(Debug, Subcommand)]
pub enum LocalCommand {
    /// Check whether this machine can have nodes
    Check,
    /// Install what is missing (Debian and Ubuntu)
    Setup,
    /// Show the nodes on this machine, with their addresses
    Show,
    /// Remove what someone who was killed left behind
    Clean {
        /// Remove every node of this machine as well, of whatever manifest
        #[arg(long)]
        all: bool,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
    /// Carry out one call of a driver outside of this node, read from stdin
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
    /// Which set of keys
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
    /// Today's
    Current,
    /// Those of the first driver
    Seed,
}

/// What can be done with secrets.
#[derive(Debug, Subcommand)]
pub enum SecretsCommand {
    /// Make an age key, and show its recipient
    Keygen {
        /// Write the key to this file instead of the standard place
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Seal a file with SOPS and age
    Encrypt {
        /// The plain file; the site's secrets.yaml when left out
        file: Option<PathBuf>,
        /// Recipient; repeat for more. From .sops.yaml, or your own key, when left out
        #[arg(short = 'r', long = "recipient", value_name = "AGE")]
        recipients: Vec<String>,
        /// Write to this file; FILE.enc when left out
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Write to the file itself
        #[arg(long, conflicts_with = "out")]
        in_place: bool,
    },
    /// Open a sealed file into a private one
    Decrypt {
        /// The sealed file; the site's when left out
        file: Option<PathBuf>,
        /// Write to this file; FILE without .enc when left out
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Print on stdout
        #[arg(long, conflicts_with = "out")]
        stdout: bool,
        /// Overwrite a file that has something else in it
        #[arg(long)]
        force: bool,
    },
    /// Check that secrets are sealed, whole, and can be opened
    Check {
        /// The file; the site's when left out
        file: Option<PathBuf>,
    },
    /// Change sealed secrets in an editor
    Edit {
        /// The sealed file; the site's when left out
        file: Option<PathBuf>,
    },
    /// Print one secret
    Get {
        /// Which one, such as `auth.signing_key` or `ssh_keys.ops@desk`
        id: String,
    },
}

/// What can be done with tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token for a node and its spec
    Mint {
        /// Name of the node
        #[arg(value_name = "NODE")]
        node: String,
        /// Name of the spec
        #[arg(value_name = "SPEC")]
        spec: String,
    },
    /// Show what a token says
    Inspect {
        /// The token; `-` reads it from stdin
        token: String,
        /// Check the signature too
        #[arg(long)]
        verify: bool,
    },
    /// Check that a token was made by this site
    Verify {
        /// The token; `-` reads it from stdin
        token: String,
        /// The node that shows it
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
    },
}
