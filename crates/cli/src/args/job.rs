//! Arguments of commands on jobs of nodes.

use clap::builder::{NonEmptyStringValueParser, RangedU64ValueParser};
use clap::{Args, Subcommand, ValueEnum};
use homestak_api::v1::node_job::{JobKind, JobOptions, UpdateScope};
use homestak_driver::DriverError;
use homestak_driver::node_job::{DEFAULT_EXPIRES, JobRequest, default_time_limit, parse_id};
use homestak_driver::node_update::UpdateRequest;
use homestak_driver::select::ManifestSelector;

use super::NodeArgs;

/// Exit codes of commands that wait for a job.
const JOB_CODES: &str = "\
Exit codes:
  0    the job succeeded, or was queued (--detach)
  1    the job failed, expired or was cancelled
  2    usage error
  3    refused, by the node or by a check here; nothing was done
  4    the result is not known: the wait was interrupted, or the node did not report in time
  130  interrupted before the node took the job: it was not submitted, or was cancelled";

/// Exit codes of `node update`.
const UPDATE_CODES: &str = "\
Exit codes:
  0    all nodes are up to date and healthy; with --dry-run: all nodes were queried
  1    a node failed, could not be queried, or is not healthy; the remaining nodes were
       not updated
  2    usage error
  3    refused, by a node or by a check here
  4    stopped by an interrupt after a batch, or the result of a node is not known
  130  interrupted: aborted, or before anything was changed";

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum JobKindArg {
    /// Apply the spec again, the newest one on nodes that fetch it
    Converge,
    /// Compare the node with its spec; change nothing
    Check,
    /// Install newer versions of packages, and restart the node if that is needed
    Update,
    /// Restart the node
    Reboot,
    /// Return the state, facts and last journal lines of homestak on the node
    Collect,
}

impl JobKindArg {
    /// Returns the kind.
    pub(crate) fn kind(self) -> JobKind {
        match self {
            Self::Converge => JobKind::Converge,
            Self::Check => JobKind::Check,
            Self::Update => JobKind::Update,
            Self::Reboot => JobKind::Reboot,
            Self::Collect => JobKind::Collect,
        }
    }
}

/// Which packages are updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum UpdatesArg {
    /// Security updates
    Security,
    /// All updates
    All,
}

impl UpdatesArg {
    fn scope(self) -> UpdateScope {
        match self {
            Self::Security => UpdateScope::Security,
            Self::All => UpdateScope::All,
        }
    }
}

/// Arguments of `node job`.
#[derive(Debug, Clone, Args)]
#[command(after_help = JOB_CODES)]
pub struct NodeJobArgs {
    /// Which node.
    #[command(flatten)]
    pub node: NodeArgs,
    /// Kind of job
    #[arg(value_enum, value_name = "KIND")]
    pub kind: JobKindArg,
    /// Update or restart outside of `run.window` too, and restart within 10 minutes after the last
    /// restart by a job too
    #[arg(long)]
    pub force: bool,
    /// Only show what an update would install
    #[arg(long)]
    pub dry_run: bool,
    /// Do not restart the node after an update
    #[arg(long)]
    pub no_reboot: bool,
    /// Which packages an update installs, instead of `run.updates` of the spec
    #[arg(long, value_enum, value_name = "SCOPE")]
    pub updates: Option<UpdatesArg>,
    /// How long the job may take [default: 3600 for converge and update, 600 for reboot, 300 for
    /// check, 120 for collect]
    #[arg(long, value_name = "SECONDS", value_parser = RangedU64ValueParser::<u64>::new().range(1..=86_400))]
    pub time_limit: Option<u64>,
    /// How long the job waits for the node to take it, at most 7 days
    #[arg(long, value_name = "SECONDS", default_value_t = DEFAULT_EXPIRES, value_parser = RangedU64ValueParser::<u64>::new().range(1..=604_800))]
    pub expires: u64,
    /// Run it over SSH, also on nodes that take jobs from the server
    #[arg(long)]
    pub ssh: bool,
    /// Show the outcome of a job that was started over SSH, without running it again
    #[arg(long, value_name = "ID", requires = "ssh")]
    pub id: Option<String>,
    /// Queue the job at the server, and do not wait for it
    #[arg(long, conflicts_with = "ssh")]
    pub detach: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
}

impl NodeJobArgs {
    /// Returns the job. Options without effect are refused.
    pub(crate) fn request(&self) -> Result<JobRequest, DriverError> {
        let kind = self.kind.kind();
        let is_update = kind == JobKind::Update;
        let updates_only = [
            (self.dry_run, "--dry-run"),
            (self.no_reboot, "--no-reboot"),
            (self.updates.is_some(), "--updates"),
        ];
        if let Some((_, flag)) = updates_only.iter().find(|(given, _)| *given)
            && !is_update
        {
            return Err(no_effect(flag, kind, "update"));
        }
        if self.force && !is_update && kind != JobKind::Reboot {
            return Err(no_effect("--force", kind, "update` and `reboot"));
        }
        Ok(JobRequest {
            kind,
            options: JobOptions {
                force: self.force,
                dry_run: self.dry_run,
                no_reboot: self.no_reboot,
                scope: self.updates.map(UpdatesArg::scope),
            },
            time_limit: self.time_limit.unwrap_or_else(|| default_time_limit(kind)),
            expires: self.expires,
            over_ssh: self.ssh,
            id: self.id.as_deref().map(parse_id).transpose()?,
        })
    }
}

fn no_effect(flag: &str, kind: JobKind, of: &str) -> DriverError {
    let kind = kind.name();
    DriverError::usage(format!("`{flag}` has no effect on `{kind}`."))
        .hint(format!("it is for `{of}`"))
}

/// Arguments of `node update`.
#[derive(Debug, Clone, Args)]
#[command(after_help = UPDATE_CODES)]
pub struct NodeUpdateArgs {
    /// Names of nodes; all nodes of the manifest when omitted
    #[arg(value_name = "NODE")]
    pub nodes: Vec<String>,
    /// Name of a manifest of the site
    #[arg(short = 'M', long, value_name = "NAME")]
    pub manifest: String,
    /// Host of the nodes; needed when the manifest is on several
    #[arg(short = 'H', long, value_name = "HOST")]
    pub host: Option<String>,
    /// Only show what would be updated
    #[arg(long)]
    pub dry_run: bool,
    /// Which packages are installed, instead of `run.updates` of the specs
    #[arg(long, value_enum, value_name = "SCOPE")]
    pub updates: Option<UpdatesArg>,
    /// Update nodes outside of their `run.window` too
    #[arg(long)]
    pub force: bool,
    /// Do not restart nodes after the update
    #[arg(long)]
    pub no_reboot: bool,
    /// How many nodes to update at the same time, instead of `settings.updates.at_once`
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub at_once: Option<u32>,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
}

impl NodeUpdateArgs {
    /// Returns the manifest that is chosen.
    pub(crate) fn choice(&self) -> ManifestSelector {
        ManifestSelector {
            name: Some(self.manifest.clone()),
            host: self.host.clone(),
            ..ManifestSelector::default()
        }
    }

    /// Returns what is updated.
    pub(crate) fn request(&self) -> UpdateRequest {
        UpdateRequest {
            nodes: self.nodes.clone(),
            scope: self.updates.map(UpdatesArg::scope),
            force: self.force,
            no_reboot: self.no_reboot,
            at_once: self.at_once,
        }
    }
}

/// Commands on jobs.
#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// List the jobs that the server knows, newest first
    ///
    /// The server keeps the last 50 jobs of each node. Jobs that ran over SSH are not in the list.
    List {
        /// Name or UUID of a node, to list its jobs only
        #[arg(value_name = "NODE", value_parser = NonEmptyStringValueParser::new())]
        node: Option<String>,
        /// Manifest of the node
        #[arg(short = 'M', long, value_name = "NAME", requires = "node")]
        manifest: Option<String>,
        /// Host of the node
        #[arg(short = 'H', long, value_name = "HOST", requires = "node")]
        host: Option<String>,
    },
    /// Show a job, its output and its outcome
    ///
    /// Findings and results are as reported by the node.
    Show {
        /// Id of the job, as `job list` shows it
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Cancel a job that its node has not taken yet
    ///
    /// Exit code: 0 cancelled, also if it was cancelled before; 3 it was taken, or has ended otherwise.
    Cancel {
        /// Id of the job, as `job list` shows it
        #[arg(value_name = "ID")]
        id: String,
    },
}
