//! Runs programs to completion: without a shell, with a fixed environment and a timeout.

mod line_buffer;
mod time_limit;

use std::fs::File;
use std::io::{ErrorKind, Read as _, Result as IoResult};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use homestak_core::foreign::ForeignText;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};

use self::line_buffer::LineBuffer;
pub(crate) use self::time_limit::{TimeLimit, is_exceeded, time_left, without_time_limit};
use crate::clock;

/// The result of a program.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Its exit code; `None` if it was ended by a signal.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
    /// Whether it was ended because it timed out.
    pub(crate) timed_out: bool,
}

/// A program could not be run, or failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProcessError {
    #[error("run `{program}`")]
    Start {
        program: String,
        #[source]
        source: std::io::Error,
    },
    #[error("`{command}` failed: {reason}")]
    Failed { command: String, reason: String },
}

/// How long a program may run. Long, since packages may be downloaded over slow lines.
const TIMEOUT: Duration = Duration::from_secs(1800);
/// How long a program may take to end after SIGTERM, and again after SIGKILL.
const KILL_DELAY: Duration = Duration::from_secs(10);
/// How often starting a program is tried while the machine is out of processes or memory, which a user
/// can cause for a while.
const MAX_STARTS: usize = 50;
/// The pause between two attempts, in milliseconds.
const START_PAUSE: u64 = 100;

/// Runs a program.
pub(crate) fn run(words: &[&str]) -> Result<Output, ProcessError> {
    run_for(words, TIMEOUT)
}

/// Runs a program that is ended after a time, or at the time limit of this thread.
pub(crate) fn run_for(words: &[&str], longest: Duration) -> Result<Output, ProcessError> {
    run_limited(words, longest, &mut |_| ())
}

/// Runs a program, and passes on each line of its output. Of a long output, only the end is returned.
pub(crate) fn run_streaming(
    words: &[&str],
    line: &mut dyn FnMut(&str),
) -> Result<Output, ProcessError> {
    let mut lines = [LineBuffer::default(), LineBuffer::default()];
    let output = run_limited(words, TIMEOUT, &mut |pipes| {
        for (pipe, lines) in pipes.iter_mut().zip(&mut lines) {
            lines.read(pipe, line);
        }
    })?;
    Ok(output)
}

fn run_limited(
    words: &[&str],
    longest: Duration,
    progress: &mut dyn FnMut(&mut [Pipe; 2]),
) -> Result<Output, ProcessError> {
    let longest = time_left().map_or(longest, |left| left.min(longest));
    if longest.is_zero() {
        return Ok(Output {
            timed_out: true,
            ..Output::default()
        });
    }
    tracing::debug!(command = ?words, "start");
    let begun = clock::instant();
    let output = run_within(words, [longest, KILL_DELAY, KILL_DELAY], progress)?;
    // Its output may quote files, and is not logged.
    let Output {
        code, timed_out, ..
    } = output;
    tracing::debug!(program = words.first(), code, timed_out, elapsed = ?begun.elapsed(), "ended");
    Ok(output)
}

/// Runs a program; SIGTERM is sent after the first wait, SIGKILL after the second. Uses no thread, so
/// that programs also run when the machine is out of threads.
fn run_within(
    words: &[&str],
    waits: [Duration; 3],
    progress: &mut dyn FnMut(&mut [Pipe; 2]),
) -> Result<Output, ProcessError> {
    let failed = |source| ProcessError::Start {
        program: words.first().unwrap_or(&"").to_string(),
        source,
    };
    let (program, rest) = words.split_first().unwrap_or((&"", &[]));
    #[expect(
        clippy::disallowed_methods,
        reason = "this is where processes are started"
    )]
    let mut command = Command::new(program);
    command
        .args(rest)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/root")
        .env("LC_ALL", "C.UTF-8")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("APT_LISTCHANGES_FRONTEND", "none")
        .env("NEEDRESTART_SUSPEND", "1")
        .env("SYSTEMD_PAGER", "")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A process group of its own, so that its children can be ended too.
        .process_group(0);
    let mut child = spawn_retrying(|| command.spawn()).map_err(failed)?;
    let group = Pid::from_child(&child);
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let mut pipes = [
        Pipe::of(out.map(OwnedFd::from)),
        Pipe::of(err.map(OwnedFd::from)),
    ];
    let mut signals = [Signal::TERM, Signal::KILL].into_iter();
    let mut timed_out = false;
    for wait in waits {
        if let Some(status) = wait_for(&mut child, &mut pipes, wait, progress).map_err(failed)? {
            let [out, err] = pipes.map(|pipe| String::from_utf8_lossy(&pipe.text).into_owned());
            return Ok(Output {
                code: status.code(),
                out,
                err,
                timed_out,
            });
        }
        timed_out = true;
        if let Some(signal) = signals.next() {
            _ = kill_process_group(group, signal);
        }
    }
    Ok(Output {
        timed_out,
        ..Output::default()
    })
}

/// Starts a program; tries again while there are not enough resources.
fn spawn_retrying(mut start: impl FnMut() -> IoResult<Child>) -> IoResult<Child> {
    for _ in 1..MAX_STARTS {
        match start() {
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::OutOfMemory) =>
            {
                clock::sleep(START_PAUSE);
            }
            done => return done,
        }
    }
    start()
}

/// An output pipe of a program.
struct Pipe {
    /// `None` once the other end is closed.
    file: Option<File>,
    text: Vec<u8>,
}

impl Pipe {
    fn of(fd: Option<OwnedFd>) -> Self {
        Self {
            file: fd.map(File::from),
            text: Vec::new(),
        }
    }

    /// Reads what is available. The pipe must be readable.
    fn read(&mut self) -> IoResult<()> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let mut some = [0; 16 << 10];
        match file.read(&mut some)? {
            0 => self.file = None,
            n => self.text.extend_from_slice(&some[..n]),
        }
        Ok(())
    }
}

/// Reads the output of a program until it has ended. `None` if that takes too long.
fn wait_for(
    child: &mut Child,
    pipes: &mut [Pipe; 2],
    within: Duration,
    progress: &mut dyn FnMut(&mut [Pipe; 2]),
) -> IoResult<Option<ExitStatus>> {
    let begun = clock::instant();
    loop {
        let left = within.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Ok(None);
        }
        let mut open: Vec<&mut Pipe> = pipes
            .iter_mut()
            .filter(|pipe| pipe.file.is_some())
            .collect();
        if open.is_empty() {
            // Most programs close their output only when they end.
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status));
            }
            clock::sleep(1);
            continue;
        }
        let ready: Vec<bool> = {
            let files = open.iter().filter_map(|pipe| pipe.file.as_ref());
            let mut fds: Vec<PollFd<'_>> =
                files.map(|file| PollFd::new(file, PollFlags::IN)).collect();
            match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            fds.iter().map(|fd| !fd.revents().is_empty()).collect()
        };
        for (pipe, is_ready) in open.iter_mut().zip(ready) {
            if is_ready {
                pipe.read()?;
            }
        }
        progress(pipes);
    }
}

/// Runs a program that must succeed, and returns its output.
pub(crate) fn run_ok(words: &[&str]) -> Result<String, ProcessError> {
    run(words)?.require_success(words)
}

impl Output {
    /// Returns what a program printed, or an error if it failed.
    pub(crate) fn require_success(self, words: &[&str]) -> Result<String, ProcessError> {
        if self.code == Some(0) {
            return Ok(self.out);
        }
        Err(ProcessError::Failed {
            command: words.join(" "),
            reason: self.reason(),
        })
    }

    /// Returns why a program failed, in one line: the end of its error output.
    pub(crate) fn reason(&self) -> String {
        if self.timed_out {
            return "timed out".to_owned();
        }
        let text = if self.err.trim().is_empty() {
            &self.out
        } else {
            &self.err
        };
        let lines: Vec<&str> = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        let last = &lines[lines.len().saturating_sub(3)..];
        if last.is_empty() {
            return match self.code {
                Some(code) => format!("exit code {code}"),
                None => "ended by a signal".to_owned(),
            };
        }
        ForeignText::line(&last.join("; ")).into()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        Command, ErrorKind, TimeLimit, is_exceeded, run, run_streaming, run_within, spawn_retrying,
        without_time_limit,
    };

    #[test]
    fn standard_output_and_error_are_read_completely() {
        let script = "head -c 300000 /dev/zero | tr '\\0' e >&2; head -c 300000 /dev/zero; exit 3";
        let output = run(&["sh", "-c", script]).unwrap();
        assert_eq!((output.code, output.timed_out), (Some(3), false));
        assert_eq!((output.out.len(), output.err.len()), (300_000, 300_000));
        assert!(output.err.bytes().all(|byte| byte == b'e'));
    }

    #[test]
    fn a_program_that_times_out_is_ended_with_its_children() {
        let waits = [
            Duration::from_millis(50),
            super::KILL_DELAY,
            super::KILL_DELAY,
        ];
        let output = run_within(&["sh", "-c", "sleep 600 | sleep 600"], waits, &mut |_| ());
        let output = output.unwrap();
        assert_eq!((output.code, output.timed_out), (None, true));
        assert_eq!(output.reason(), "timed out");
    }

    #[test]
    fn starting_is_retried_without_resources_but_not_for_a_missing_program() {
        let mut n_starts = 0;
        #[expect(clippy::disallowed_methods, reason = "the test starts a process")]
        let child = spawn_retrying(|| {
            n_starts += 1;
            match n_starts {
                1 => Err(ErrorKind::WouldBlock.into()),
                2 => Err(ErrorKind::OutOfMemory.into()),
                _ => Command::new("true").spawn(),
            }
        });
        assert!(child.unwrap().wait().unwrap().success());
        let mut n_starts = 0;
        let missing = spawn_retrying(|| {
            n_starts += 1;
            Err(ErrorKind::NotFound.into())
        });
        assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(n_starts, 1);
    }

    #[test]
    fn lines_are_passed_on_and_only_the_end_of_a_long_output_is_returned() {
        let mut lines = Vec::new();
        let script = "echo one; echo two >&2; printf three";
        let output = run_streaming(&["sh", "-c", script], &mut |line| {
            lines.push(line.to_owned());
        });
        lines.sort();
        assert_eq!(lines, ["one", "three", "two"]);
        assert_eq!(output.unwrap().out, "one\nthree");
        let mut n_bytes = 0;
        let script = "yes 0123456789 | head -c 2000000; head -c 100000 /dev/zero";
        let output = run_streaming(&["sh", "-c", script], &mut |line| n_bytes += line.len());
        let output = output.unwrap();
        assert!(output.out.len() <= 500_000, "{}", output.out.len());
        // Without the line breaks.
        assert!(n_bytes > 1_900_000, "{n_bytes}");
    }

    #[test]
    fn every_program_ends_at_the_time_limit_of_its_thread_and_none_is_started_after_it() {
        let limit = TimeLimit::new(Duration::from_millis(50));
        let output = run(&["sleep", "600"]).unwrap();
        assert!(output.timed_out && is_exceeded());
        assert!(run(&["true"]).unwrap().timed_out);
        let restored = without_time_limit(|| run(&["true"])).unwrap();
        assert_eq!(restored.code, Some(0));
        assert!(is_exceeded());
        drop(limit);
        assert_eq!(run(&["true"]).unwrap().code, Some(0));
    }
}
