//! Arguments of the program.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use homestak_api::job_statement::MAX_TIME_LIMIT;
use homestak_api::job_statement::is_job_id;
use homestak_api::v1::node_job::{JobKind, UpdateScope};
use homestak_core::doc::secrets::Secret;
use serde::de::DeserializeOwned;

/// Apply the spec of this machine, and detect and correct drift
#[derive(Parser)]
#[command(name = "homestak-agent", version, about)]
pub(crate) struct Cli {
    /// Print the result as JSON
    #[arg(long, global = true)]
    pub(crate) json_output: bool,
    /// Log to stderr: -v info, -vv debug, -vvv trace [env: HOMESTAK_LOG]
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Apply and check the spec of this machine
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Apply a spec for a driver, independently of its connection
    #[command(subcommand)]
    Job(JobCommand),
    /// Run a job of this machine for a driver, once for each id
    ///
    /// Live output is on stderr. It continues when the connection is lost; with the same id again, the
    /// recorded outcome is printed. Exit code: 0 succeeded, 2 failed, 3 refused.
    NodeJob(NodeJobArgs),
    /// Validate and fetch specs
    #[command(subcommand)]
    Spec(SpecCommand),
    /// Obtain the spec of this machine from the server it is enrolled at, apply it and report
    ///
    /// Exit code: 0 applied; 2 failed; 3 refused for good: trying again changes nothing.
    Pull(PullArgs),
    /// Check for drift, and correct what the spec enforces
    ///
    /// Exit code: 0 no differences, 1 the spec is missing or invalid, 2 failed, 3 differences that are
    /// only reported.
    Run(RunArgs),
    /// Show the result of the last run, and the drift that the watch has found since then
    ///
    /// Exit code: 0 shown, 1 no spec has been applied, 2 failed.
    Status,
}

#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Show how this machine differs from its spec
    ///
    /// Exit code: 0 no differences, 1 the spec is missing or invalid, 2 failed, 3 differences.
    Check(SpecArgs),
    /// Apply a spec to this machine
    ///
    /// Exit code: 0 applied, 1 the spec is missing or invalid, 2 failed.
    Apply {
        #[command(flatten)]
        spec: SpecArgs,
        /// Show what would be done without changing anything
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        options: ApplyOptions,
    },
    /// Confirm that this machine is still reachable, so that changes are not reverted
    ///
    /// Exit code: 0 confirmed, 1 nothing to confirm, or too late.
    Confirm,
    /// Fetch the spec of this machine for `config apply`; the same as `spec get`
    ///
    /// Exit code: 0 fetched, 1 failed.
    Fetch(FetchArgs),
    /// List the managed fields as of the last run
    Show,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// Apply a spec from standard input, and print events
    ///
    /// An existing job is followed, not repeated. Exit code: as for `config apply`.
    Run {
        #[command(flatten)]
        job: JobArgs,
        #[command(flatten)]
        options: ApplyOptions,
    },
    /// Apply the previous spec again, and print events
    ///
    /// Exit code: as for `config apply`; 1 if that spec is not recorded here.
    Undo {
        #[command(flatten)]
        job: JobArgs,
        /// Digest of the spec whose changes are undone
        #[arg(long, value_name = "DIGEST")]
        from: String,
        /// Digest of the previous spec
        #[arg(long, value_name = "DIGEST")]
        to: String,
        #[command(flatten)]
        options: ApplyOptions,
    },
    /// Print the events of a job until its end
    ///
    /// Exit code: that of the job; 1 if there is no such job.
    Follow {
        #[command(flatten)]
        job: JobArgs,
        /// Skip the events up to this one
        #[arg(long, value_name = "N", default_value_t = 0)]
        after: u64,
    },
    /// Confirm that this machine is still reachable, so that a job's changes are not reverted
    ///
    /// Exit code: 0 confirmed, 1 no such job, nothing to confirm, or too late.
    Confirm(JobArgs),
    /// Execute a job
    #[command(hide = true)]
    Work(JobArgs),
    /// Revert a job's unconfirmed changes when its worker has exited
    #[command(hide = true)]
    Guard(JobArgs),
}

#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    /// Name of the job: letters, digits and `-`, at most 64 characters
    #[arg(long, value_name = "ID", value_parser = job_id)]
    pub(crate) id: String,
}

fn job_id(text: &str) -> Result<String, String> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if !text.is_empty() && text.len() <= 64 && text.bytes().all(good) {
        return Ok(text.to_owned());
    }
    Err("the name of a job consists of letters, digits and `-`, at most 64".to_owned())
}

/// How a spec is applied.
#[derive(Clone, Debug, Args, serde::Serialize, serde::Deserialize)]
pub(crate) struct ApplyOptions {
    /// Revert changes that could make this machine unreachable unless confirmed in this time
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) confirm: Option<u64>,
    /// How long to wait for the lock of the package database
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub(crate) lock_wait: u64,
    /// The user who applies it, and must still be able to log in afterwards.
    #[arg(skip)]
    #[serde(default)]
    pub(crate) caller: String,
}

#[derive(Subcommand)]
pub(crate) enum SpecCommand {
    /// Check a resolved spec
    ///
    /// Exit code: 0 valid, 1 missing or invalid.
    Validate {
        /// The file, instead of --spec
        #[arg(value_name = "FILE", conflicts_with = "spec")]
        file: Option<PathBuf>,
        #[command(flatten)]
        spec: SpecArgs,
    },
    /// Fetch the spec of this machine from a server for `config apply`
    ///
    /// Exit code: 0 fetched; 1 missing settings, or the token was refused (400, 401); 2 the server is
    /// unreachable or has no spec (403, 404, 500); 3 the server's spec is invalid (422).
    Get(FetchArgs),
}

fn secret(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::new(text))
}

/// How a spec is fetched.
#[derive(Args)]
pub(crate) struct FetchArgs {
    /// URL of the server: https://HOST:PORT [env: HOMESTAK_SERVER]
    #[arg(long, short, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// Name of this machine [default: HOMESTAK_IDENTITY, else its host name]
    #[arg(long, short, value_name = "NAME")]
    pub(crate) identity: Option<String>,
    /// File with the provisioning token; `-` reads standard input [env: HOMESTAK_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// The token itself, visible to every user
    #[arg(long, short, hide = true, conflicts_with = "token_file", value_parser = secret)]
    pub(crate) token: Option<Secret>,
    /// Write the spec to this file instead of storing it; `-` prints it
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Trust this CA certificate (PEM) [env: HOMESTAK_CA_CERT]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_cert: Option<PathBuf>,
    /// Trust the certificate with this fingerprint, of the server or its authority, and store it
    /// [env: HOMESTAK_FINGERPRINT]
    #[arg(long, value_name = "SHA256", conflicts_with = "ca_cert")]
    pub(crate) fingerprint: Option<String>,
    /// Trust the certificate that the server presents the first time, and only that afterwards
    #[arg(long, short = 'k')]
    pub(crate) insecure: bool,
    /// Number of attempts while the server is unreachable
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) attempts: u32,
    /// Delay before the second attempt, doubled for each further one
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=3_600))]
    pub(crate) wait: u64,
}

/// Reads a value of an enum whose values are strings in JSON.
fn word<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(text.into()).map_err(|_| format!("`{text}` is not one of the values"))
}

fn node_job_id(text: &str) -> Result<String, String> {
    match is_job_id(text) {
        true => Ok(text.to_owned()),
        false => Err("an id has 32 hexadecimal digits".to_owned()),
    }
}

/// A job of this machine.
#[derive(Debug, Args)]
pub(crate) struct NodeJobArgs {
    /// What it does: converge, check, update, reboot or collect
    #[arg(value_name = "KIND", value_parser = word::<JobKind>)]
    pub(crate) kind: JobKind,
    /// Its id, 32 hexadecimal digits [default: a new one]
    #[arg(long, value_name = "ID", value_parser = node_job_id)]
    pub(crate) id: Option<String>,
    /// Only return the outcome of the job with this id, and run nothing
    #[arg(long, requires = "id")]
    pub(crate) known: bool,
    /// How long it may take
    #[arg(long, value_name = "SECONDS", default_value_t = 3_600, value_parser = clap::value_parser!(u64).range(1..=MAX_TIME_LIMIT))]
    pub(crate) time_limit: u64,
    /// Update or restart also outside the window of the spec, and restart again within ten minutes
    #[arg(long)]
    pub(crate) force: bool,
    /// Only show which packages would be updated
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not restart, even if an update needs it
    #[arg(long)]
    pub(crate) no_reboot: bool,
    /// Which packages are updated: security or all [default: `run.updates` of the spec]
    #[arg(long, value_name = "SCOPE", value_parser = word::<UpdateScope>)]
    pub(crate) scope: Option<UpdateScope>,
}

#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// Do it once, even if the spec was applied before [default]
    #[arg(long, conflicts_with = "daemon")]
    pub(crate) once: bool,
    /// Do it whenever there is a newer spec, and again after failures
    #[arg(long)]
    pub(crate) daemon: bool,
    /// Check that the spec can be fetched, and change nothing
    #[arg(long, conflicts_with_all = ["once", "daemon", "enrolment"])]
    pub(crate) check: bool,
    /// Enrol with this file first, unless this machine has enrolled; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) enrolment: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Check once
    #[arg(long, required_unless_present = "daemon", conflicts_with = "daemon")]
    pub(crate) once: bool,
    /// Check whenever something changes, and periodically
    #[arg(long)]
    pub(crate) daemon: bool,
    /// Show what would be done without changing anything
    #[arg(long, conflicts_with = "daemon")]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SpecArgs {
    /// The resolved spec; `-` reads it from standard input [default: the fetched spec, otherwise
    /// the spec applied last]
    #[arg(long, value_name = "FILE")]
    pub(crate) spec: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory as _};
    use homestak_api::v1::{OUTPUTS, Program};

    fn leaves(command: &Command, words: &str, all: &mut Vec<String>) {
        for below in command.get_subcommands() {
            let words = format!("{words} {}", below.get_name());
            match below.has_subcommands() {
                true => leaves(below, &words, all),
                false => all.push(words.trim().to_owned()),
            }
        }
    }

    #[test]
    fn every_command_has_an_output_kind() {
        let mut commands = Vec::new();
        leaves(&super::Cli::command(), "", &mut commands);
        let outputs = OUTPUTS.iter();
        let outputs = outputs.filter(|output| output.program == Program::Agent);
        let mut listed: Vec<String> = outputs
            .flat_map(|output| output.commands)
            .map(ToString::to_string)
            .collect();
        commands.sort();
        listed.sort();
        assert_eq!(listed, commands);
    }
}
