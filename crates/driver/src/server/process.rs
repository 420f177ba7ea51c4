//! The background process of a server: starts it, and finds and stops it by its PID file.
//!
//! The server locks that file for as long as it runs. Signals are sent to the process that holds the
//! lock, as the kernel reports it, and never to a number that is only written in the file.

use std::ffi::OsString;
use std::fs::TryLockError;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;
use std::time::Duration;

use homestak_api::runtime::pause;
use homestak_api::v1::FailureError;
use rustix::process::{Pid, Signal, kill_process};

use super::{ServerClient, ServerFiles};
use crate::blocking::run_blocking;
use crate::error::DriverError;
use crate::process::{Background, become_again, run_again, start_again};
use crate::settings::DriverSettings;

/// How often the state of a process is polled while it starts or stops.
const INTERVAL: Duration = Duration::from_millis(25);
/// How long a server may take to start.
const START_TIME: Duration = Duration::from_secs(30);
/// How long a process that publishes for a server may take: copies of repositories can be large.
const PUBLISH_TIME: Duration = Duration::from_secs(600);
/// How long a killed process may take to end.
const KILL_TIME: Duration = Duration::from_secs(5);

/// A line in the file of a server that ends with its last user.
pub const TEMPORARY: &str = "until-unused";
/// The start of the line in the file with the seconds for requests in progress when it stops.
pub const GRACE: &str = "grace ";
/// The grace of a server that has not written it yet, in seconds.
const DEFAULT_GRACE: u32 = 5;
/// How much longer than its grace period a server may take to stop.
const EXTRA: Duration = Duration::from_secs(2);

/// Whether a server runs in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// No process has locked the file.
    Stopped,
    /// The process that has locked the file.
    Running {
        /// Its process id; `None` if the kernel does not show it.
        pid: Option<u32>,
        /// Whether it ends with its last user.
        is_temporary: bool,
        /// How long requests in progress may take when it stops, in seconds.
        grace: Option<u32>,
    },
}

/// Returns whether a server runs. A file that a dead process left does not count.
pub fn state(files: &ServerFiles) -> Result<ServerState, DriverError> {
    let path = &files.pid;
    let failed = |error: io::Error| DriverError::file("read", path, &error);
    let file = match fs_err::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ServerState::Stopped),
        Err(error) => return Err(failed(error)),
    };
    match file.file().try_lock_shared() {
        Ok(()) => Ok(ServerState::Stopped),
        Err(TryLockError::WouldBlock) => {
            let text = fs_err::read_to_string(path).map_err(failed)?;
            let others: Vec<&str> = text.lines().skip(1).collect();
            let grace = others.iter().find_map(|line| line.strip_prefix(GRACE));
            Ok(ServerState::Running {
                pid: holder(file.file()).map_err(failed)?,
                is_temporary: others.contains(&TEMPORARY),
                grace: grace.and_then(|grace| grace.parse().ok()),
            })
        }
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Returns the process that holds the exclusive lock on a file. Its content may be anyone's: of a backup
/// that was restored over it, for example.
fn holder(file: &std::fs::File) -> io::Result<Option<u32>> {
    let locked = file.metadata()?;
    let locks = fs_err::read_to_string("/proc/locks")?;
    let mut holders = locks.lines().filter_map(|line| holds(line, locked.ino()));
    // The device that the kernel prints is not on all file systems that of the file's metadata.
    Ok(holders.find(|pid| has_open(*pid, &locked)))
}

/// Reads a line of `/proc/locks`, such as `3: FLOCK  ADVISORY  WRITE 4711 fd:01:1234 0 EOF`.
fn holds(line: &str, inode: u64) -> Option<u32> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, "FLOCK", "ADVISORY", "WRITE", pid, file, ..] = words[..] else {
        return None;
    };
    let is_locked = file.rsplit(':').next()?.parse() == Ok(inode);
    pid.parse().ok().filter(|pid| *pid > 0 && is_locked)
}

/// Returns whether a process has a file open.
fn has_open(pid: u32, file: &std::fs::Metadata) -> bool {
    let descriptors = fs_err::read_dir(format!("/proc/{pid}/fd"));
    let mut opened = descriptors.into_iter().flatten().flatten();
    opened.any(|one| {
        let found = fs_err::metadata(one.path());
        found.is_ok_and(|found| (found.dev(), found.ino()) == (file.dev(), file.ino()))
    })
}

/// Starts a server in the background, and waits until it is healthy. The arguments follow
/// `homestak server start --foreground`.
pub async fn start(
    files: &ServerFiles,
    settings: &DriverSettings,
    arguments: &[OsString],
    client: &ServerClient,
) -> Result<u32, DriverError> {
    let mut all: Vec<OsString> = ["server", "start", "--foreground", "--pid-file"]
        .map(OsString::from)
        .into();
    all.push(files.pid.clone().into());
    all.extend(arguments.iter().cloned());
    let (used, program) = (files.clone(), settings.program.clone());
    // Cancel safety: a server that was started keeps running, and is found by its PID file.
    let mut server = run_blocking(move || start_process(&used, &program, &all)).await?;
    tracing::debug!(process = server.child.id(), "server started");
    let mut waited = Duration::ZERO;
    while waited < START_TIME {
        if let Ok(Some(status)) = server.child.try_wait() {
            return Err(did_not_start(server, &files.log, status.to_string()).await);
        }
        if client.is_healthy().await {
            return Ok(server.child.id());
        }
        tokio::time::sleep(INTERVAL).await;
        waited += INTERVAL;
    }
    // It would be in the way of the next attempt.
    _ = server.child.kill();
    let mut waited = Duration::ZERO;
    while waited < KILL_TIME && matches!(server.child.try_wait(), Ok(None)) {
        tokio::time::sleep(INTERVAL).await;
        waited += INTERVAL;
    }
    let how = "it did not become healthy".to_owned();
    Err(did_not_start(server, &files.log, how).await)
}

/// Replaces this process by a server in the foreground; returns only when that fails. The arguments
/// follow `homestak server start --foreground`.
pub fn become_server(
    settings: &DriverSettings,
    arguments: &[OsString],
    stdin: std::fs::File,
) -> DriverError {
    let mut all: Vec<OsString> = ["server", "start", "--foreground"]
        .map(OsString::from)
        .into();
    all.extend(arguments.iter().cloned());
    let error = become_again(&settings.program, &all, stdin);
    DriverError::failed(format!("Cannot start the server: {error}."))
}

/// Publishes the site for a server that reloads, in a process of its own: the one that listens must
/// not open the site. Returns the messages of that process. It waits: never call it on the runtime.
pub fn publish_again(
    settings: &DriverSettings,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<Vec<String>, DriverError> {
    let mut arguments: Vec<OsString> = ["server", "publish", "--without-specs"]
        .map(OsString::from)
        .into();
    if let Some(site) = &settings.candidates.flag {
        arguments.extend(["--site".into(), site.clone().into()]);
    }
    let failed = |why: &str| DriverError::failed(format!("The site was not published: {why}"));
    let ended = run_again(&settings.program, &arguments, PUBLISH_TIME, stop);
    match ended.map_err(|error| failed(&error.to_string()))? {
        None => Err(failed("its process was stopped, or took too long")),
        Some((status, printed)) if !status.success() => Err(failed(printed.trim())),
        Some((_, printed)) => Ok(printed.lines().map(str::to_owned).collect()),
    }
}

/// Starts the process of a server.
fn start_process(
    files: &ServerFiles,
    program: &Path,
    arguments: &[OsString],
) -> Result<Background, DriverError> {
    for path in [&files.pid, &files.log] {
        let directory = path.parent().unwrap_or(Path::new("/"));
        create_directory(directory)
            .map_err(|error| DriverError::file("create", directory, &error))?;
    }
    start_again(program, arguments, &files.log).map_err(|error| {
        DriverError::failed(format!("Cannot start the server: {error}.")).hint_if_full(&error)
    })
}

/// Creates a directory in which only its owner can write, whatever the caller's umask is: who can write
/// there decides which process `server stop` ends.
fn create_directory(path: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o755); // tidy: a method of the standard library
    builder.create(path)
}

/// Has a server in the background read everything again, also when it does not know the operator's
/// certificate yet. Does nothing if none runs.
pub(crate) fn send_reload(files: &ServerFiles) -> Result<(), DriverError> {
    let ServerState::Running { pid, .. } = state(files)? else {
        return Ok(());
    };
    if let Some(process) = pid.and_then(|pid| Pid::from_raw(pid.cast_signed())) {
        // One that has ended by now is found out by the next question.
        _ = kill_process(process, Signal::HUP);
    }
    Ok(())
}

/// Stops a server: it answers requests in progress first, for at most the time in its settings, and
/// is then killed. Returns whether one ran. It waits: never call it on the runtime.
pub fn stop(files: &ServerFiles) -> Result<bool, DriverError> {
    let ServerState::Running { pid, grace, .. } = state(files)? else {
        remove_stale(&files.pid);
        return Ok(false);
    };
    let grace = Duration::from_secs(grace.unwrap_or(DEFAULT_GRACE).into()) + EXTRA;
    let failed = |error: io::Error| DriverError::file("use", &files.pid, &error);
    let process = pid.and_then(|pid| Pid::from_raw(pid.cast_signed()));
    let Some(process) = process else {
        let message = format!(
            "The process that has locked `{}` is not known.",
            files.pid.display()
        );
        return Err(DriverError::failed(message)
            .hint("it may run in another container: stop it there, or `fuser FILE` shows it"));
    };
    for (signal, time) in [(Signal::TERM, grace), (Signal::KILL, KILL_TIME)] {
        tracing::debug!(
            process = process.as_raw_nonzero(),
            ?signal,
            "stop the server"
        );
        // A process that has ended by now is what is wanted.
        _ = kill_process(process, signal);
        let mut waited = Duration::ZERO;
        while waited < time {
            if state(files)? == ServerState::Stopped {
                _ = fs_err::remove_file(&files.pid);
                return Ok(true);
            }
            pause(INTERVAL).map_err(failed)?;
            waited += INTERVAL;
        }
    }
    let message = format!("Process {} does not end.", process.as_raw_nonzero());
    Err(DriverError::failed(message))
}

/// Removes the PID file of a server that was killed. If it cannot be removed, it does not count anyway.
fn remove_stale(path: &Path) {
    let Ok(file) = fs_err::OpenOptions::new().write(true).open(path) else {
        return;
    };
    // A server that starts locks the file, and then requires that it is still the one at this path.
    let is_same = |of: &std::fs::Metadata| {
        fs_err::metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == (of.dev(), of.ino()))
    };
    if file.file().try_lock().is_ok() && file.metadata().is_ok_and(|of| is_same(&of)) {
        _ = fs_err::remove_file(path);
    }
}

/// Makes the error for a server that ended while it started, with the error that it printed.
async fn did_not_start(mut server: Background, log: &Path, how: String) -> DriverError {
    let failure = run_blocking(move || Ok(server.failure())).await;
    start_error(failure.unwrap_or_default(), log, &how)
}

fn start_error(failure: Option<FailureError>, log: &Path, how: &str) -> DriverError {
    let (why, hints, empty) = match failure {
        Some(failure) => (failure.message, failure.hints, ""),
        // It prints its error to a file beside the log.
        None => (
            format!("{how}."),
            Vec::new(),
            "; if it is empty, its disk may be full",
        ),
    };
    let failed = DriverError::failed(format!("The server did not start: {why}"));
    let failed = hints.into_iter().fold(failed, DriverError::hint);
    failed.hint(format!("see its log: {}{empty}", log.display()))
}

#[cfg(test)]
mod tests {
    use homestak_api::v1::FailureKind;

    use super::*;

    fn files(directory: &Path) -> ServerFiles {
        ServerFiles {
            published: directory.join("published"),
            state: directory.join("state"),
            users: directory.join("users.lock"),
            turn: directory.join("start.lock"),
            copying: directory.join("copy.lock"),
            pid: directory.join("server.pid"),
            log: directory.join("server.log"),
        }
    }

    #[test]
    fn a_directory_for_a_server_can_be_written_by_its_owner_only() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("log/homestak");
        let before = rustix::process::umask(rustix::fs::Mode::empty());
        let created = create_directory(&path);
        rustix::process::umask(before);
        created.expect("created");
        for path in [path.as_path(), path.parent().expect("a directory")] {
            let found = fs_err::metadata(path).expect("found");
            assert_eq!(found.mode() & 0o7777, 0o755);
        }
    }

    #[test]
    fn a_file_that_a_dead_process_left_is_not_a_running_server() {
        let directory = tempfile::tempdir().expect("a directory");
        let files = files(directory.path());
        assert_eq!(state(&files).expect("known"), ServerState::Stopped);
        // A process that exists and is not the server.
        fs_err::write(&files.pid, "1\n").expect("written");
        assert_eq!(state(&files).expect("known"), ServerState::Stopped);
        assert!(!stop(&files).expect("nothing to stop"));
        assert!(!files.pid.exists(), "a stale file is removed");
        fs_err::write(&files.pid, "1\n").expect("written");
        let held = fs_err::File::open(&files.pid).expect("open");
        held.file().lock().expect("locked");
        // The process that holds the lock counts, whatever the file contains.
        let running = |is_temporary, grace| ServerState::Running {
            pid: Some(std::process::id()),
            is_temporary,
            grace,
        };
        assert_eq!(state(&files).expect("known"), running(false, None));
        fs_err::write(&files.pid, format!("1\n{TEMPORARY}\n{GRACE}30\n")).expect("written");
        assert_eq!(state(&files).expect("known"), running(true, Some(30)));
    }

    #[test]
    fn a_server_that_did_not_start_gives_its_reason_and_hints() {
        let log = Path::new("/var/log/homestak/server.log");
        let failure = FailureError {
            kind: FailureKind::Failed,
            message: "Listen on it.".to_owned(),
            hints: vec!["one".to_owned(), "two".to_owned()],
            code: None,
        };
        let error = start_error(Some(failure), log, "exit status: 1");
        assert_eq!(error.message, "The server did not start: Listen on it.");
        assert_eq!(error.hints[..2], ["one", "two"]);
        let error = start_error(None, log, "exit status: 1");
        assert_eq!(error.message, "The server did not start: exit status: 1.");
        assert_eq!(error.hints.len(), 1);
    }

    #[test]
    fn only_the_exclusive_lock_of_this_file_counts() {
        for (line, found) in [
            (
                "3: FLOCK  ADVISORY  WRITE 4711 fd:01:1234 0 EOF",
                Some(4711),
            ),
            ("3: FLOCK  ADVISORY  WRITE 0 fd:01:1234 0 EOF", None),
            ("3: FLOCK  ADVISORY  READ 4711 fd:01:1234 0 EOF", None),
            ("3: FLOCK  ADVISORY  WRITE 4711 fd:01:12345 0 EOF", None),
            ("3: -> FLOCK  ADVISORY  WRITE 4711 fd:01:1234 0 EOF", None),
            ("3: POSIX  ADVISORY  WRITE 4711 fd:01:1234 0 EOF", None),
            ("", None),
        ] {
            assert_eq!(holds(line, 1234), found, "{line}");
        }
    }
}
