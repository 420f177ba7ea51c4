//! Runs `git` on published copies of repositories, and on repositories of others, with limits: what
//! is small in a repository can be large in memory.

use std::io::{self, Read};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use homestak_api::{environment, limit};

/// How long reading a file may take.
const TIME: Duration = Duration::from_secs(5);

/// The exit code of a program that starts another one that does not exist.
pub(crate) const NOT_RUN: i32 = 127;

/// What `git` printed.
pub(crate) enum GitOutput {
    /// It succeeded.
    Done(Vec<u8>),
    /// It failed, usually since there is no such object.
    Failed,
    /// It printed more than allowed.
    TooLarge,
}

/// Runs `git` in a bare repository and returns what it prints, at most `most` bytes. It waits: never
/// call it on the runtime.
pub(crate) fn git(repo: &Path, arguments: &[&str], most: u64) -> io::Result<GitOutput> {
    let mut command = command();
    command
        .env("GIT_DIR", repo)
        .args(
            LESS_MEMORY
                .iter()
                .flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")]),
        )
        .args(arguments)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let read = |from: &mut dyn Read| {
        let mut bytes = Vec::new();
        // One more, to see that there is more; the pipe is closed then, and git ends.
        let read = from.take(most + 1).read_to_end(&mut bytes);
        read.map(|_| bytes)
    };
    let ended = limit::Limit::new(TIME, &|| false).run(&mut command, b"", read, |_| ())?;
    let Some((status, bytes, ())) = ended else {
        return Err(io::ErrorKind::TimedOut.into());
    };
    let bytes = bytes?;
    if status.code() == Some(NOT_RUN) {
        return Err(io::Error::other(
            "git, or prlimit of util-linux, is not installed",
        ));
    }
    Ok(match status.success() {
        _ if bytes.len() as u64 > most => GitOutput::TooLarge,
        true => GitOutput::Done(bytes),
        false => GitOutput::Failed,
    })
}

/// Settings with which git needs little memory, whatever is in a repository: large files are not read
/// as a whole, and packs are mapped in small parts.
pub(crate) const LESS_MEMORY: &[(&str, &str)] = &[
    ("core.bigFileThreshold", "1m"),
    ("core.packedGitWindowSize", "1m"),
    ("core.packedGitLimit", "32m"),
    ("core.deltaBaseCacheLimit", "8m"),
    ("pack.threads", "1"),
    ("pack.windowMemory", "16m"),
    ("pack.deltaCacheSize", "8m"),
];

/// The most memory of a process of git that sends objects, in bytes: half a million of them need less.
const SEND_MEMORY: u64 = 256 << 20;
/// The most memory of a process of git that reads a copy, in bytes: a file of 16 MiB, and the indexes
/// of packs with two million objects.
const READ_MEMORY: u64 = 128 << 20;
/// The largest file that git may write, in bytes: a commit without its files has some hundred.
const GIT_FILE: u64 = 64 << 20;
/// The most processor time of git, in seconds.
const GIT_PROCESSOR: u64 = 60;

/// Returns the program that ends git with the thread that waits for it: nobody would end it after the
/// server was killed. Only for root: systemd ends all processes of the unit, whose filter of system calls
/// does not allow what `setpriv` does.
fn ending() -> &'static [&'static str] {
    match rustix::process::geteuid().is_root() {
        true => &["setpriv", "--pdeathsig=KILL", "--"],
        false => &[],
    }
}

/// Returns the limits of git, of memory in bytes.
fn limits(memory: u64) -> Vec<String> {
    limit::resources(&[
        ("as", memory),
        ("fsize", GIT_FILE),
        ("cpu", GIT_PROCESSOR),
        ("core", 0),
    ])
}

/// Returns `git` for repositories of others, with limits (of memory in bytes), at low priority and in
/// a process group of its own. The caller names the configuration and the protocols that it may use.
#[expect(clippy::disallowed_methods, reason = "this is the crate's process.rs")]
pub(crate) fn limited_git(memory: u64, more: &[&str]) -> Command {
    let mut command = Command::new("nice");
    environment::clean(&mut command, more);
    command
        .args(["-n", "10", limit::LIMITED])
        .args(limits(memory))
        .args(ending())
        .arg("git")
        .process_group(0);
    for (name, value) in ALONE {
        command.env(name, value);
    }
    for (name, value) in [
        ("GIT_ASKPASS", "/bin/false"),
        ("GIT_SSH_VARIANT", "ssh"),
        (
            "GIT_SSH_COMMAND",
            "ssh -F /dev/null -o BatchMode=yes -o StrictHostKeyChecking=yes -o ConnectTimeout=10 \
             -o ClearAllForwardings=yes -o ControlPath=none",
        ),
    ] {
        command.env(name, value);
    }
    command
}

/// What keeps git from reading more than requested, and from running other programs.
const ALONE: &[(&str, &str)] = &[
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_ATTR_NOSYSTEM", "1"),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_NO_REPLACE_OBJECTS", "1"),
    ("GIT_LITERAL_PATHSPECS", "1"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("LC_ALL", "C"),
];

/// Returns `git upload-pack` for one request about a published copy, with limits and in a process group of
/// its own. Only its own options matter for what it runs: git takes `uploadpack.packObjectsHook` from no
/// repository, and a copy has no hooks that reading runs. `protocol` is the version that the client asks for.
pub(crate) fn upload_pack(copy: &Path, protocol: Option<&str>, more: &[&str]) -> Command {
    let mut command = limited_git(SEND_MEMORY, &[]);
    let settings = LESS_MEMORY.iter().copied().chain([
        // A permanent server has another user than who publishes.
        ("safe.directory", "*"),
        ("uploadpack.allowFilter", "false"),
        ("uploadpack.allowRefInWant", "false"),
    ]);
    for (name, value) in settings {
        command.arg("-c").arg(format!("{name}={value}"));
    }
    command
        .args(["upload-pack", "--strict", "--stateless-rpc"])
        .args(more)
        .arg(copy)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_ALLOW_PROTOCOL", "none")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    if let Some(protocol) = protocol {
        command.env("GIT_PROTOCOL", protocol);
    }
    command
}

/// Returns `git` with limits, without the configuration of the system and of users, and without ways
/// to start other programs or to connect anywhere.
#[expect(clippy::disallowed_methods, reason = "this is the crate's process.rs")]
fn command() -> Command {
    let mut command = Command::new(limit::LIMITED);
    environment::clean(&mut command, &[]);
    command.args(limits(READ_MEMORY)).args(ending()).arg("git");
    for (name, value) in ALONE {
        command.env(name, value);
    }
    command.env("GIT_CONFIG_GLOBAL", "/dev/null");
    command.env("GIT_ALLOW_PROTOCOL", "none");
    command
}
