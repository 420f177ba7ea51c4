//! Runs build programs in their own namespaces. They are killed when dropped or when this process ends.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

use crate::process;

/// Runs a program in namespaces of its own, so that its mounts and its children end with it.
const UNSHARE: &[&str] = &[
    "setpriv",
    "--pdeathsig=KILL",
    "unshare",
    "--mount",
    "--propagation=private",
    "--pid",
    "--fork",
    "--kill-child=KILL",
    "--mount-proc",
];

/// What a running program does.
enum ProcessEvent {
    Line(String),
    Ended(std::io::Result<ExitStatus>),
}

/// How long a program that was killed may take to end.
const KILL_TIME: Duration = Duration::from_secs(10);

/// A running program. Dropping it kills it with all its children, and waits until they have ended,
/// for at most [`KILL_TIME`].
pub(crate) struct IsolatedProcess {
    events: UnboundedReceiver<ProcessEvent>,
    handle: Option<OwnedFd>,
    /// Closed when the process and its children have ended.
    ended: Receiver<()>,
}

impl IsolatedProcess {
    /// Starts a program with its mounts and children apart from everyone else's.
    pub(crate) fn start(command: Vec<OsString>, environment: &[(&str, String)]) -> Self {
        let (sender, events) = unbounded_channel();
        let (reported_at, handle) = sync_channel(1);
        let environment: Vec<(String, String)> = environment
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect();
        // The kernel kills the program when the thread that started it ends: it stays to the end.
        let (until_ended, all_ended) = sync_channel::<()>(0);
        std::thread::spawn(move || {
            let _until_ended = until_ended;
            let ended = run_child(&command, &environment, &sender, |pidfd| {
                _ = reported_at.send(pidfd);
            });
            _ = sender.send(ProcessEvent::Ended(ended));
        });
        Self {
            events,
            handle: handle.recv().ok().flatten(),
            ended: all_ended,
        }
    }

    /// Returns the lines that have come since, and whether it has ended.
    pub(crate) fn read_lines(&mut self) -> (Vec<String>, bool) {
        let mut lines = Vec::new();
        loop {
            match self.events.try_recv() {
                Ok(ProcessEvent::Line(line)) => lines.push(line),
                Ok(ProcessEvent::Ended(_)) | Err(TryRecvError::Disconnected) => {
                    return (lines, true);
                }
                Err(TryRecvError::Empty) => return (lines, false),
            }
        }
    }

    /// Hands over every line and returns how it ended. A process that takes longer than `limit` is
    /// killed. Cancel-safe: dropping this kills it.
    pub(crate) async fn follow(
        mut self,
        limit: Duration,
        line_seen: impl FnMut(&str) + Send,
    ) -> std::io::Result<ExitStatus> {
        if let Ok(ended) = timeout(limit, self.wait(line_seen)).await {
            return ended;
        }
        self.kill();
        _ = timeout(KILL_TIME, self.wait(|_| ())).await;
        let text = format!("it did not end within {} s and was killed", limit.as_secs());
        Err(std::io::Error::new(std::io::ErrorKind::TimedOut, text))
    }

    /// Waits until it has ended.
    async fn wait(
        &mut self,
        mut line_seen: impl FnMut(&str) + Send,
    ) -> std::io::Result<ExitStatus> {
        loop {
            // Cancel safety: a line that is not received stays in the channel.
            match self.events.recv().await {
                Some(ProcessEvent::Line(line)) => line_seen(&line),
                Some(ProcessEvent::Ended(ended)) => return ended,
                None => return Err(std::io::Error::other("the process is no longer observed")),
            }
        }
    }

    fn kill(&self) {
        if let Some(handle) = &self.handle {
            // Fails when it has ended already, which is as good.
            _ = pidfd_send_signal(handle, Signal::KILL);
        }
    }
}

impl Drop for IsolatedProcess {
    fn drop(&mut self) {
        self.kill();
        // What it wrote is deleted next. The kernel ends it in milliseconds, unless a disk or a
        // file server does not answer.
        _ = self.ended.recv_timeout(KILL_TIME);
    }
}

/// Starts the program, passes on its lines and waits for it.
fn run_child(
    command: &[OsString],
    environment: &[(String, String)],
    sender: &UnboundedSender<ProcessEvent>,
    reported_at: impl FnOnce(Option<OwnedFd>),
) -> std::io::Result<ExitStatus> {
    let (reader, writer) = std::io::pipe()?;
    let mut apart = process::command(UNSHARE[0]);
    apart
        .args(&UNSHARE[1..])
        .args(command)
        .env("LC_ALL", "C.UTF-8")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .envs(environment.iter().cloned())
        .current_dir("/")
        // Its own process group: Ctrl-C goes to this program, which ends it; otherwise it would
        // report the signal.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let mut child = match apart.spawn() {
        Ok(child) => child,
        Err(error) => {
            reported_at(None);
            return Err(error);
        }
    };
    // It holds our ends of the pipe, which would never close.
    drop(apart);
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    reported_at(pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()));
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(&line);
        _ = sender.send(ProcessEvent::Line(text.trim_end().to_owned()));
        line.clear();
    }
    child.wait()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::IsolatedProcess;

    /// Returns the process group of the process that has a word among its arguments.
    fn group_of(word: &str) -> Option<i32> {
        let processes = fs_err::read_dir("/proc").ok()?.flatten();
        let has_word = |path: &std::path::Path| {
            let words = fs_err::read(path.join("cmdline")).unwrap_or_default();
            words
                .split(|byte| *byte == 0)
                .any(|one| one == word.as_bytes())
        };
        let process = processes
            .map(|entry| entry.path())
            .find(|path| has_word(path))?;
        let stat = fs_err::read_to_string(process.join("stat")).ok()?;
        let rest = stat.rsplit_once(')')?.1;
        rest.split_whitespace().nth(2)?.parse().ok()
    }

    #[tokio::test]
    async fn a_program_that_does_not_end_is_killed_after_its_time_limit() {
        let word = format!("11{}.5", std::process::id());
        let running = IsolatedProcess::start(vec!["sleep".into(), word.clone().into()], &[]);
        let ended = running.follow(Duration::from_millis(50), |_| ()).await;
        match ended {
            Err(error) => assert!(error.to_string().contains("did not end within"), "{error}"),
            // Without root, there are no namespaces and it ends at once.
            Ok(status) => assert!(!rustix::process::geteuid().is_root(), "{status}"),
        }
        assert_eq!(group_of(&word), None, "it has ended");
    }

    #[test]
    fn build_programs_do_not_receive_terminal_interrupts() {
        // Unique among all tests: processes of the whole machine are searched.
        let word = format!("10{}.5", std::process::id());
        let running = IsolatedProcess::start(vec!["sleep".into(), word.clone().into()], &[]);
        let found = (0..200).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            group_of(&word)
        });
        drop(running);
        let group = found.expect("it was started");
        let own = rustix::process::getpgrp().as_raw_nonzero().get();
        assert_ne!(group, own);
    }
}
