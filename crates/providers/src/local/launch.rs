//! Starts the supervisor process of a node, detached from this process.
//!
//! A node never runs outside of its control groups.

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use homestak_engine::ports::PortError;

use super::cgroup::{Cgroup, ResourceLimits};
use super::error;
use crate::process;

/// Runs the supervisor in its own namespaces: when it ends, for whatever reason, the kernel ends all
/// processes of the node and removes its mounts.
const UNSHARE: [&str; 8] = [
    "unshare",
    "--mount",
    "--propagation=private",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "sh",
];

/// The supervisor of a node.
pub(super) struct Supervisor<'k> {
    /// The script. Its arguments: wait or go, the node's directory, its image, its group in
    /// version 2 or -, groups to join, and the rest.
    pub(super) text: &'k str,
    /// The image.
    pub(super) image: &'k Path,
    /// What the node may use.
    pub(super) limits: ResourceLimits,
    /// The network namespace that it is started in, when it is not our own.
    pub(super) netns: Option<String>,
    /// Further arguments of the script.
    pub(super) arguments: Vec<String>,
}

/// Starts a node's supervisor.
pub(super) fn launch(
    supervisor: &Supervisor<'_>,
    directory: &Path,
    (name, part): (&str, &str),
    group: &Cgroup,
    systemd: bool,
) -> Result<(), PortError> {
    let doing = format!("start `{name}`");
    let io = |error: std::io::Error| error::io(&doing, &error);
    let groups = group.make(supervisor.limits).map_err(io)?;
    // From a file: systemd has its own meaning for `$` and `%` among arguments.
    let script = directory.join(format!("homestak-node-{name}"));
    fs_err::write(&script, supervisor.text).map_err(io)?;
    let mut arguments: Vec<String> = vec![
        script.display().to_string(),
        if systemd { "go" } else { "wait" }.into(),
        directory.display().to_string(),
        supervisor.image.display().to_string(),
        group
            .split()
            .map_or_else(|| "-".to_owned(), |path| path.display().to_string()),
        joined(&groups),
    ];
    arguments.extend(supervisor.arguments.iter().cloned());
    let log = console(directory).map_err(io)?;
    if systemd {
        return run_in_unit(part, group, supervisor, directory, &arguments)
            .map_err(|error| error::program(&doing, &error));
    }
    let mut command = process::command("setsid");
    command
        .args(namespace_command(supervisor.netns.as_deref()))
        .args(&arguments)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(log.try_clone().map_err(io)?)
        .stderr(log);
    let mut child = command.spawn().map_err(|error| {
        error::program(
            &doing,
            &process::ProgramError::NotStarted {
                program: "setsid".to_owned(),
                error,
            },
        )
    })?;
    // It waits for a line on stdin; should we die before, it ends by itself. Its parent is put into
    // the groups here, so that the node counts as running from now on.
    for group in &groups {
        fs_err::write(group.join("cgroup.procs"), child.id().to_string()).map_err(io)?;
    }
    let released = match child.stdin.take() {
        Some(mut stdin) => std::io::Write::write_all(&mut stdin, b"go\n"),
        None => Ok(()),
    };
    // Reaps the process, as long as this program runs.
    std::thread::spawn(move || child.wait());
    released.map_err(io)
}

fn namespace_command(netns: Option<&str>) -> Vec<String> {
    let netns = netns.map(|name| format!("--net=/run/netns/{name}"));
    let mut command: Vec<String> = netns
        .map(|netns| vec!["nsenter".to_owned(), netns, "--".to_owned()])
        .unwrap_or_default();
    command.extend(UNSHARE.map(str::to_owned));
    command
}

/// Returns paths of groups in one argument.
pub(super) fn joined(groups: &[PathBuf]) -> String {
    let groups: Vec<String> = groups
        .iter()
        .map(|group| group.display().to_string())
        .collect();
    groups.join(" ")
}

fn run_in_unit(
    part: &str,
    group: &Cgroup,
    supervisor: &Supervisor<'_>,
    directory: &Path,
    arguments: &[String],
) -> Result<(), process::ProgramError> {
    // A failed unit of that name would prevent the start.
    let _ = process::run("systemctl", &["reset-failed", &format!("{part}.service")]);
    let log = directory.join("console.log");
    let mut all: Vec<String> = ["--quiet", "--collect", "--service-type=exec"]
        .map(str::to_owned)
        .into();
    all.push(format!("--unit={part}.service"));
    let mut properties = group.properties(supervisor.limits);
    properties.push("KillMode=mixed".to_owned());
    properties.push(format!("StandardOutput=append:{}", log.display()));
    properties.push(format!("StandardError=append:{}", log.display()));
    all.extend(
        properties
            .into_iter()
            .map(|property| format!("--property={property}")),
    );
    all.extend(namespace_command(supervisor.netns.as_deref()));
    all.extend(arguments.iter().cloned());
    process::run("systemd-run", &all).map(|_| ())
}

/// Opens the log file of a node's console.
fn console(directory: &Path) -> std::io::Result<std::fs::File> {
    std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(directory.join("console.log"))
}
