//! Starts other programs: a key command, and this program itself. Secrets are passed in files and
//! pipes, never in arguments.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

use fs_err::os::unix::fs::OpenOptionsExt as _;
use homestak_api::v1::{Failure, FailureError, kind};
use homestak_api::{environment, limit};

/// Timeout of a key command: the user may have to enter a passphrase.
const PATIENCE: Duration = Duration::from_secs(300);
/// The most memory of a process of git, in bytes. It needs this for some million objects; an object
/// can be a thousand times as large as it is packed.
const MEMORY: u64 = 2 << 30;

/// Variables that are passed on to this program. Keys and tokens are not among them, nor is
/// `SOPS_AGE_KEY_CMD`, which may contain a key.
const AGAIN: &[&str] = &[
    "HOMESTAK_ROOT",
    "HOMESTAK_SITE_CONFIG",
    "HOMESTAK_STATE",
    "HOMESTAK_SERVER",
    "HOMESTAK_HURRY",
    "NO_COLOR",
    "SOPS_AGE_KEY_FILE",
    "SUDO_UID",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
];

/// Variables of systemd for a service.
const SERVICE: &[&str] = &[
    "JOURNAL_STREAM",
    "LISTEN_FDNAMES",
    "LISTEN_FDS",
    "LISTEN_PID",
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
];

/// The longest output of this program that is read, in bytes.
const MAX_OUTPUT: u64 = 1 << 20;

/// Runs a shell command and returns its output, as SOPS does with `SOPS_AGE_KEY_CMD`.
pub(crate) fn output_of(line: &str) -> io::Result<String> {
    // The command may need any variable, except the keys themselves.
    let mut command = command("sh");
    command.env_clear();
    let kept = |name: &OsString| !name.to_string_lossy().starts_with("SOPS_AGE_KEY");
    command.envs(std::env::vars_os().filter(|(name, _)| kept(name)));
    // In the same process group: it may ask at the terminal.
    command
        .arg("-c")
        .arg(line)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = limit::output(&mut command, b"", PATIENCE)?;
    if !output.status.success() {
        return Err(io::Error::other(format!("it ended with {}", output.status)));
    }
    String::from_utf8(output.stdout)
        .map_err(|_| io::Error::other("it printed something that is not text"))
}

/// This program in the background.
pub(crate) struct Background {
    /// The process.
    pub(crate) child: Child,
    /// What it prints on stdout: JSON.
    stdout: std::fs::File,
}

impl Background {
    /// Returns the error that it printed, if any.
    pub(crate) fn failure(&mut self) -> Option<FailureError> {
        let mut printed = Vec::new();
        self.stdout.rewind().ok()?;
        self.stdout.read_to_end(&mut printed).ok()?;
        failure_in(&printed)
    }
}

/// Returns the error among JSON documents.
fn failure_in(printed: &[u8]) -> Option<FailureError> {
    let documents = serde_json::Deserializer::from_slice(printed).into_iter::<serde_json::Value>();
    let mut errors = documents
        .map_while(Result::ok)
        .filter(|document| document["kind"] == kind::ERROR.name());
    let failure: Failure = serde_json::from_value(errors.next()?).ok()?;
    Some(failure.error)
}

/// Starts this program in the background: in a process group of its own, so that an interrupt at
/// the terminal does not reach it, with its messages in a log file. It prints JSON, so that an error
/// need not be searched for in the log.
pub(crate) fn start_again(
    program: &Path,
    arguments: &[OsString],
    log: &Path,
) -> io::Result<Background> {
    let mut beside = log.as_os_str().to_owned();
    beside.push(".start");
    let beside = Path::new(&beside);
    // Left by a process that was killed here.
    match fs_err::remove_file(beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let open = |options: &mut fs_err::OpenOptions, path: &Path| {
        let file = options.mode(0o600).open(path)?;
        Ok::<_, io::Error>(file.into_parts().0)
    };
    let stdout = open(
        fs_err::OpenOptions::new()
            .create_new(true)
            .read(true)
            .write(true),
        beside,
    )?;
    // Only the two processes need it.
    fs_err::remove_file(beside)?;
    let log = open(fs_err::OpenOptions::new().create(true).append(true), log)?;
    let mut command = command(program);
    environment::clean(&mut command, AGAIN);
    let child = command
        .args(arguments)
        .arg("--json-output")
        .stdin(Stdio::null())
        .stdout(stdout.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()?;
    Ok(Background { child, stdout })
}

/// Replaces this process by a new one of this program, as the same service; returns only when that
/// fails. Nothing of what is in memory remains.
pub(crate) fn become_again(
    program: &Path,
    arguments: &[OsString],
    stdin: std::fs::File,
) -> io::Error {
    let mut command = command(program);
    let more = [AGAIN, SERVICE, environment::PROXIES].concat();
    environment::clean(&mut command, &more);
    command.args(arguments).stdin(stdin).exec()
}

/// Runs this program, and returns what it prints on stderr; `None` if it was killed, because it took
/// longer than `within` or `stop` returned true.
pub(crate) fn run_again(
    program: &Path,
    arguments: &[OsString],
    within: Duration,
    stop: &(dyn Fn() -> bool + Sync),
) -> io::Result<Option<(ExitStatus, String)>> {
    let mut command = command(program);
    environment::clean(&mut command, AGAIN);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0);
    let read = |from: &mut dyn Read| {
        let mut bytes = Vec::new();
        _ = from.take(MAX_OUTPUT).read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let ended = limit::Limit::new(within, stop).run(&mut command, b"", |_| (), read)?;
    Ok(ended.map(|(status, (), printed)| (status, printed)))
}

/// Returns `git` without the configuration of the system and of users, and without ways to connect
/// anywhere, with a limit of memory; as another user and group, if given.
///
/// That user can control the program, so it is in a session of its own before it has that user:
/// otherwise it could write to the terminal as if it were typed there.
pub(crate) fn git(owner: Option<(u32, u32)>) -> std::process::Command {
    let mut command = command(limit::LIMITED);
    command.args(limit::resources(&[("as", MEMORY), ("core", 0)]));
    if owner.is_some() {
        command.arg("setsid");
    }
    // It ends with the thread that waits for it: nobody would end it otherwise.
    command.args(["setpriv", "--pdeathsig=KILL"]);
    if let Some((user, group)) = owner {
        command
            .args(["--clear-groups", "--no-new-privs"])
            .arg(format!("--reuid={user}"))
            .arg(format!("--regid={group}"));
    }
    command.args(["--", "git"]);
    for (name, value) in [
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_ATTR_NOSYSTEM", "1"),
        ("GIT_NO_LAZY_FETCH", "1"),
        ("GIT_NO_REPLACE_OBJECTS", "1"),
        ("GIT_LITERAL_PATHSPECS", "1"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_ALLOW_PROTOCOL", "none"),
        ("GIT_OPTIONAL_LOCKS", "0"),
        ("LC_ALL", "C"),
    ] {
        command.env(name, value);
    }
    command
}

#[expect(clippy::disallowed_methods, reason = "this is the crate's process.rs")]
fn command(program: impl AsRef<OsStr>) -> std::process::Command {
    let mut command = std::process::Command::new(program);
    environment::clean(&mut command, &[]);
    command
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn git_of_another_user_has_neither_the_terminal_nor_the_groups_of_root() {
        const NOBODY: u32 = 65534;
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let script = "alias.x=!cut -d' ' -f6 /proc/self/stat; id -u; id -G; \
                      grep NoNewPrivs /proc/self/status";
        let mut git = git(Some((NOBODY, NOBODY)));
        git.args(["-c", script, "x"]).current_dir("/");
        git.stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = limit::output(&mut git, b"", PATIENCE).expect("git runs");
        let printed = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<&str> = printed.lines().collect();
        // Not `getsid`: it is 0 where the session is of another PID namespace or of the first
        // process, which is no `Pid`.
        let own = fs_err::read_to_string("/proc/self/stat").expect("it is readable");
        let own = own
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').nth(3));
        let [session, user, groups, privileges] = lines[..] else {
            panic!("{output:?}");
        };
        assert_ne!(Some(session), own);
        assert_eq!((user, groups), ("65534", "65534"));
        assert_eq!(privileges.split_whitespace().last(), Some("1"));
    }

    #[test]
    fn git_ends_with_the_thread_that_waits_for_it() {
        let users = [None, Some((65534, 65534))];
        let is_root = rustix::process::geteuid().is_root();
        for owner in users.into_iter().filter(|user| user.is_none() || is_root) {
            let started = std::thread::spawn(move || {
                let mut git = git(owner);
                git.args(["-c", "alias.x=!echo; exec cat", "x"]);
                git.current_dir("/");
                git.stdin(Stdio::piped()).stdout(Stdio::piped());
                let mut child = git.spawn().expect("git runs");
                let mut ready = [0];
                let printed = child.stdout.as_mut().expect("a pipe");
                printed.read_exact(&mut ready).expect("it runs");
                child
            });
            let mut child = started.join().expect("started");
            let begun = limit::monotonic();
            let ended = loop {
                if let Some(status) = child.try_wait().expect("it is a child") {
                    break Some(status);
                }
                if limit::monotonic().saturating_sub(begun) > Duration::from_secs(20) {
                    break None;
                }
                std::thread::sleep(Duration::from_millis(10));
            };
            let signal = ended.and_then(|status| status.signal());
            assert_eq!(signal, Some(9), "{owner:?}: {ended:?}");
        }
    }

    #[test]
    fn git_has_a_limit_of_memory_and_is_ended_first_when_memory_is_short() {
        let users = [None, Some((65534, 65534))];
        let is_root = rustix::process::geteuid().is_root();
        for owner in users.into_iter().filter(|user| user.is_none() || is_root) {
            let script = "alias.x=!cat /proc/self/oom_score_adj; \
                          grep -E 'address space|core' /proc/self/limits";
            let mut git = git(owner);
            git.args(["-c", script, "x"]).current_dir("/");
            git.stdout(Stdio::piped()).stderr(Stdio::piped());
            let output = limit::output(&mut git, b"", PATIENCE).expect("git runs");
            let printed = String::from_utf8_lossy(&output.stdout);
            let mut numbers = printed.lines().map(|line| {
                let words = line.split_whitespace();
                words.filter_map(|word| word.parse::<u64>().ok()).collect()
            });
            let expected: [Vec<u64>; 3] = [vec![500], vec![0, 0], vec![MEMORY, MEMORY]];
            for expected in expected {
                assert_eq!(numbers.next(), Some(expected), "{output:?}");
            }
        }
    }

    #[test]
    fn the_error_of_a_process_is_read_from_its_json_and_not_from_its_log() {
        let error = r#"{"kind":"error","version":1,"success":false,
            "error":{"kind":"failed","message":"Listen on it.","hints":["one","two"]}}"#;
        let started = r#"{"kind":"server.start","url":"https://192.0.2.7"}"#;
        for printed in [error.to_owned(), format!("{started}\n{error}\n")] {
            let found = failure_in(printed.as_bytes()).expect("an error");
            assert_eq!(found.message, "Listen on it.");
            assert_eq!(found.hints, ["one", "two"]);
        }
        for printed in ["", started, "error: no JSON", "{"] {
            assert!(failure_in(printed.as_bytes()).is_none(), "{printed}");
        }
    }
}
