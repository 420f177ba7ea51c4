//! Arguments of the program. No default depends on the machine.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use homestak_core::doc::secrets::Secret;

/// Make this machine what its spec says
#[derive(Parser)]
#[command(name = "homestak-agent", version, about)]
pub(crate) struct Cli {
    /// Print the result as JSON
    #[arg(long, global = true)]
    pub(crate) json_output: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Converge this machine
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Converge for a driver that may lose its connection
    #[command(subcommand)]
    Job(JobCommand),
    /// Look at specs
    #[command(subcommand)]
    Spec(SpecCommand),
    /// Look after this machine: find what has changed, and mend what its spec says
    ///
    /// Exit code: 0 all is as it should be, 1 the spec is missing or wrong, 2 it failed,
    /// 3 something differs that the spec leaves to a person.
    Run(RunArgs),
    /// Show what this machine last became, whether that failed, and what differs since
    ///
    /// Exit code: 0 it is shown, 1 no spec was ever applied here, 2 it could not be read.
    Status,
}

#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Say field by field what is not as it should be
    ///
    /// Exit code: 0 all is as it should be, 1 the spec is missing or wrong, 2 it could not be
    /// found out, 3 something differs.
    Check(SpecArgs),
    /// Make this machine what the spec says
    ///
    /// Exit code: 0 done, 1 the spec is missing or wrong, 2 it failed.
    Apply {
        #[command(flatten)]
        spec: SpecArgs,
        /// Show what would be done, and change nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        terms: Terms,
    },
    /// Say that this machine can still be reached, so that its last changes stay
    ///
    /// Exit code: 0 they stay, 1 there is nothing to confirm, or not any more.
    Confirm,
    /// Fetch the spec of this machine, for `config apply`; the same as `spec get`
    ///
    /// Exit code: 0 it is here, 1 it is not.
    Fetch(FetchArgs),
    /// List what is managed here, as it was when the machine last converged
    Show,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// Read a spec from standard input, make this machine what it says, and print events
    ///
    /// A job that exists already is followed, not begun again. Exit code: as of `config apply`.
    Run {
        #[command(flatten)]
        job: JobArgs,
        #[command(flatten)]
        terms: Terms,
    },
    /// Make this machine again what its spec before said, and print events
    ///
    /// Exit code: as of `config apply`; 1 when that spec is not recorded here.
    Undo {
        #[command(flatten)]
        job: JobArgs,
        /// Digest of the spec whose changes are undone
        #[arg(long, value_name = "DIGEST")]
        from: String,
        /// Digest of the spec before it
        #[arg(long, value_name = "DIGEST")]
        to: String,
        #[command(flatten)]
        terms: Terms,
    },
    /// Print the events of a job until its end
    ///
    /// Exit code: that of the job; 1 when there is none of that name.
    Follow {
        #[command(flatten)]
        job: JobArgs,
        /// Leave out the events up to this one
        #[arg(long, value_name = "N", default_value_t = 0)]
        after: u64,
    },
    /// Say that this machine can still be reached, so that a job's changes stay
    ///
    /// Exit code: 0 they stay, 1 there is no such job, or nothing to confirm any more.
    Confirm(JobArgs),
    /// Do the work of a job
    #[command(hide = true)]
    Work(JobArgs),
    /// Take a job's changes back when whoever waits for their confirmation is gone
    #[command(hide = true)]
    Guard(JobArgs),
}

#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    /// Name of the job: letters, digits and `-`, at most 64
    #[arg(long, value_name = "ID", value_parser = job_id)]
    pub(crate) id: String,
}

fn job_id(text: &str) -> Result<String, String> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if !text.is_empty() && text.len() <= 64 && text.bytes().all(good) {
        return Ok(text.to_owned());
    }
    Err("a job's name has letters, digits and `-`, at most 64".to_owned())
}

/// How a machine is converged.
#[derive(Clone, Debug, Args, serde::Serialize, serde::Deserialize)]
pub(crate) struct Terms {
    /// Take changes that could cut this machine off back unless they are confirmed in that time
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) confirm: Option<u64>,
    /// How long another user of the package database is waited for
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub(crate) lock_wait: u64,
    /// Who asks for it: the user who must still get in afterwards.
    #[arg(skip)]
    #[serde(default)]
    pub(crate) caller: String,
}

#[derive(Subcommand)]
pub(crate) enum SpecCommand {
    /// Check a resolved spec
    ///
    /// Exit code: 0 it is valid, 1 it is missing or wrong.
    Validate {
        /// The file, instead of --spec
        #[arg(value_name = "FILE", conflicts_with = "spec")]
        file: Option<PathBuf>,
        #[command(flatten)]
        spec: SpecArgs,
    },
    /// Fetch the spec of this machine from a server, for `config apply`
    ///
    /// Exit code: 0 it is here; 1 something is missing, or the token was refused (400, 401); 2 the
    /// server was not reached, or does not have it (403, 404, 500); 3 the server says that the
    /// spec has faults (422).
    Get(FetchArgs),
}

fn secret(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::new(text))
}

/// How a spec is fetched.
#[derive(Args)]
pub(crate) struct FetchArgs {
    /// Address of the server: https://HOST:PORT [default: HOMESTAK_SERVER]
    #[arg(long, short, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// Name by which this machine asks [default: its host name]
    #[arg(long, short, value_name = "NAME")]
    pub(crate) identity: Option<String>,
    /// File with the provisioning token; `-` reads standard input [default: HOMESTAK_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// The token itself, for everyone to see
    #[arg(long, short, hide = true, conflicts_with = "token_file", value_parser = secret)]
    pub(crate) token: Option<Secret>,
    /// Write the spec into this file, and keep nothing; `-` prints it
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Trust servers with a certificate of this authority (PEM) [default: HOMESTAK_CA_CERT]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_cert: Option<PathBuf>,
    /// Trust the certificate with this SHA-256, and remember it [default: HOMESTAK_FINGERPRINT]
    #[arg(long, value_name = "SHA256", conflicts_with = "ca_cert")]
    pub(crate) fingerprint: Option<String>,
    /// Trust whichever certificate the server shows the first time, and only that from then on
    #[arg(long, short = 'k')]
    pub(crate) insecure: bool,
    /// How often a server is asked that cannot be reached
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) attempts: u32,
    /// How long is waited before asking again; twice as long each time
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=3_600))]
    pub(crate) wait: u64,
    /// Accepted for older scripts: it says what it does anyway
    #[arg(long, short, hide = true)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Look once
    #[arg(long, required_unless_present = "daemon", conflicts_with = "daemon")]
    pub(crate) once: bool,
    /// Look whenever something changes, and from time to time
    #[arg(long)]
    pub(crate) daemon: bool,
    /// Show what would be done, and change nothing
    #[arg(long, conflicts_with = "daemon")]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SpecArgs {
    /// The resolved spec; `-` reads it from standard input [default: the one that was fetched,
    /// else the one of the last time]
    #[arg(long, value_name = "FILE")]
    pub(crate) spec: Option<PathBuf>,
}
