//! Arguments of `homestak server`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Commands of the server.
#[derive(Debug, Subcommand)]
pub enum ServerCommand {
    /// Start the server of the site in the background, and wait until it answers
    ///
    /// A server that runs already is kept; one that does not answer is replaced.
    ///
    /// Exit code: 0 running, 1 failed, 3 refused.
    Start(Box<ServerStartArgs>),
    /// Stop the server; requests in progress are answered first
    ///
    /// Exit code: 0 stopped, or none was running; 1 failed; 3 the server belongs to another site or state
    /// directory, or its process id is unknown.
    Stop {
        /// Which server.
        #[command(flatten)]
        which: ServerArgs,
    },
    /// Show whether the server runs
    ///
    /// Exit code: 0 running and healthy, 1 not running, 2 running but not healthy.
    Status {
        /// Which server.
        #[command(flatten)]
        which: ServerArgs,
        /// Print the result as JSON, as `--json-output` does
        #[arg(long)]
        json: bool,
    },
    /// Publish the site and its repositories again, and have the running server read them and its settings
    ///
    /// Lists what changed. If the server cannot read something, it keeps everything as it was.
    Reload {
        /// Which server.
        #[command(flatten)]
        which: ServerArgs,
    },
    /// Check the settings and what was published, without starting anything
    Check {
        /// Settings file (TOML)
        #[arg(long, value_name = "FILE")]
        settings: Option<PathBuf>,
    },
    /// Sign and publish the specs of all nodes that fetch them
    ///
    /// `manifest apply` does this for the nodes of its manifest. With `--repos`, a permanent server
    /// serves repositories from then on.
    Publish {
        /// Which repositories are served.
        #[command(flatten)]
        repos: RepoArgs,
        /// Serve no repositories any more
        #[arg(long, conflicts_with = "repos")]
        no_repos: bool,
        /// Publish what the server needs besides specs, and reload no server.
        #[arg(long, hide = true, conflicts_with_all = ["repos", "no_repos"])]
        without_specs: bool,
    },
    /// Replace the key that signs specs, or the key of provisioning tokens
    ///
    /// Without `--retire` it publishes a new key; the old one stays valid. Once all nodes have the new
    /// key, repeat the command with `--retire`.
    RotateKey {
        /// Which key
        #[arg(value_enum, value_name = "KEY")]
        key: RotatedKey,
        /// Retire the old key
        #[arg(long)]
        retire: bool,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// List the certificates that nodes accept from servers, or add your own
    ///
    /// Nodes receive the list with their next spec. Add a new certificate before a server uses it.
    Trust {
        /// File with certificates of servers, or of an authority of your own (PEM)
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        /// Remove the certificate with this SHA-256 fingerprint
        #[arg(long, value_name = "FINGERPRINT", conflicts_with = "file")]
        remove: Option<String>,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

impl ServerCommand {
    /// Returns whether `--json` is set.
    pub(super) fn has_json_flag(&self) -> bool {
        match self {
            Self::Start(args) => args.json,
            Self::Status { json, .. } => *json,
            Self::Stop { .. }
            | Self::Reload { .. }
            | Self::Check { .. }
            | Self::Publish { .. }
            | Self::RotateKey { .. }
            | Self::Trust { .. } => false,
        }
    }
}

/// A key that can be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum RotatedKey {
    /// The key that signs specs
    Site,
    /// The key of provisioning tokens
    Token,
}

/// Which server.
#[derive(Debug, Clone, Args)]
pub struct ServerArgs {
    /// Port of a server on this machine [default: that of the site's server, or 44443]
    #[arg(long, short, value_name = "PORT")]
    pub port: Option<u16>,
}

/// Which repositories are served, and to whom.
#[derive(Debug, Clone, Default, Args)]
pub struct RepoArgs {
    /// Serve git repositories, with uncommitted changes in the branch `_working`
    #[arg(long, short)]
    pub repos: bool,
    /// Directory that the known repositories are in [default: `$HOMESTAK_ROOT/iac` and
    /// `$HOMESTAK_ROOT`]
    #[arg(long, value_name = "DIR")]
    pub repos_dir: Option<PathBuf>,
    /// File with the token that clients of repositories need, of 16 characters or more [default: a
    /// random token is stored]
    #[arg(long, value_name = "FILE", conflicts_with = "repo_token")]
    pub repo_token_file: Option<PathBuf>,
    /// The token itself, visible in the process list: prefer `--repo-token-file`
    #[arg(long, value_name = "TOKEN")]
    pub repo_token: Option<String>,
    /// Do not serve this repository; repeatable
    #[arg(long, value_name = "NAME")]
    pub exclude: Vec<String>,
}

/// How the server is started.
#[derive(Debug, Clone, Args)]
pub struct ServerStartArgs {
    /// Port to listen on [default: that of `HOMESTAK_SERVER` or `server_url` if it is of this machine,
    /// or 44443]
    #[arg(long, short, value_name = "PORT")]
    pub port: Option<u16>,
    /// Address to listen on [default: 0.0.0.0]
    #[arg(long, short, value_name = "ADDRESS")]
    pub bind: Option<IpAddr>,
    /// Certificate chain to use instead of one issued by the site (PEM)
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// Private key of `--cert` (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Settings file (TOML); flags take precedence
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// Which repositories are served.
    #[command(flatten)]
    pub repos: RepoArgs,
    /// Log file of the server in the background [default: `server.log` in `/var/log/homestak` for
    /// root, otherwise in the state directory]
    #[arg(long, value_name = "FILE", conflicts_with = "foreground")]
    pub log: Option<PathBuf>,
    /// Stay in the foreground and log to stderr
    #[arg(long)]
    pub foreground: bool,
    /// Print the result as JSON, as `--json-output` does
    #[arg(long)]
    pub json: bool,
    /// Serve what was published to this directory, without opening a site (for systemd)
    #[arg(long, value_name = "DIR", requires_all = ["foreground", "state"])]
    pub published: Option<PathBuf>,
    /// Directory of the server's own state, with `--published`
    #[arg(long, value_name = "DIR", requires = "published")]
    pub state: Option<PathBuf>,
    /// File that gets the process id and is locked while the server runs.
    #[arg(long, value_name = "FILE", hide = true, requires = "foreground")]
    pub pid_file: Option<PathBuf>,
    /// Publish the site again at SIGHUP, in a process of its own.
    #[arg(long, hide = true, requires = "published")]
    pub publish_on_hangup: bool,
    /// Read from stdin what is printed once the server listens.
    #[arg(long, hide = true, requires = "published")]
    pub announce: bool,
    /// End once nobody else holds a lock on this file.
    #[arg(long, value_name = "FILE", hide = true, requires = "foreground")]
    pub until_unused: Option<PathBuf>,
}
