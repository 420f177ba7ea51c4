//! Runs build programs in their own namespaces. They are killed when dropped or when this process ends.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{ExitStatus, Stdio};
use std::thread::JoinHandle;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

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

/// A program that runs. Dropping it kills it with all its children, and waits until they are gone.
pub(crate) struct IsolatedProcess {
    events: UnboundedReceiver<ProcessEvent>,
    handle: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl IsolatedProcess {
    /// Starts a program with its mounts and children apart from everyone else's.
    pub(crate) fn start(command: Vec<OsString>, environment: &[(&str, String)]) -> Self {
        let (sender, events) = unbounded_channel();
        let (reported_at, handle) = std::sync::mpsc::sync_channel(1);
        let environment: Vec<(String, String)> = environment
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect();
        // The kernel kills the program when the thread that started it ends: it stays to the end.
        let thread = std::thread::spawn(move || {
            let ended = run_child(&command, &environment, &sender, |pidfd| {
                _ = reported_at.send(pidfd);
            });
            _ = sender.send(ProcessEvent::Ended(ended));
        });
        Self {
            events,
            handle: handle.recv().ok().flatten(),
            thread: Some(thread),
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

    /// Hands over every line and returns how it ended. Cancel-safe: dropping this kills it.
    pub(crate) async fn follow(
        mut self,
        mut line_seen: impl FnMut(&str) + Send,
    ) -> std::io::Result<ExitStatus> {
        loop {
            match self.events.recv().await {
                Some(ProcessEvent::Line(line)) => line_seen(&line),
                Some(ProcessEvent::Ended(ended)) => return ended,
                None => return Err(std::io::Error::other("the process is no longer observed")),
            }
        }
    }
}

impl Drop for IsolatedProcess {
    fn drop(&mut self) {
        if let Some(handle) = &self.handle {
            // Fails when it has ended already, which is as good.
            _ = pidfd_send_signal(handle, Signal::KILL);
        }
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
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
        // A group of its own: Ctrl-C is for us, and we end it. Otherwise it would report the signal.
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

    #[test]
    fn build_programs_do_not_receive_terminal_interrupts() {
        // Unlike that of any other test: processes of the whole machine are looked at.
        let word = format!("10{}.5", std::process::id());
        let running = IsolatedProcess::start(vec!["sleep".into(), word.clone().into()], &[]);
        let looks = (0..200).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            group_of(&word)
        });
        drop(running);
        let group = looks.expect("it was started");
        let own = rustix::process::getpgrp().as_raw_nonzero().get();
        assert_ne!(group, own);
    }
}
