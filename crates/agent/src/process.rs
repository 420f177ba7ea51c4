//! Programs of this machine, run to their end: without a shell, with an environment that does not
//! depend on who started us, and with a deadline.

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

use crate::clock;

/// How a program ended.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// Its exit code; `None` when a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
    /// Whether it was ended because it took too long.
    pub(crate) too_long: bool,
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
    #[error("`{command}` failed: {said}")]
    Failed { command: String, said: String },
}

/// How long a program may take: longer than any of them needs, so that one that hangs is ended
/// some day. Packages may come over slow lines.
const PATIENCE: Duration = Duration::from_secs(1800);
/// How long a program may take to end when it is asked to.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// How often a program is started again while the machine has no process or memory left: a user can
/// use them up, and seldom all the time.
const STARTS: usize = 50;
/// The pause between two starts, in milliseconds.
const PAUSE: u64 = 100;

/// Runs a program.
pub(crate) fn run(words: &[&str]) -> Result<Ended, ProcessError> {
    run_within(words, [PATIENCE, LAST_WORDS, LAST_WORDS])
}

/// Runs a program, which is asked to end after the first time and killed after the second. Without
/// a thread, so that programs run also where the machine has no room for one.
fn run_within(words: &[&str], waits: [Duration; 3]) -> Result<Ended, ProcessError> {
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
        // A group of its own, so that all of it can be ended.
        .process_group(0);
    let mut child = started(|| command.spawn()).map_err(failed)?;
    let group = Pid::from_child(&child);
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let mut pipes = [
        Pipe::of(out.map(OwnedFd::from)),
        Pipe::of(err.map(OwnedFd::from)),
    ];
    let mut signals = [Signal::TERM, Signal::KILL].into_iter();
    let mut too_long = false;
    for wait in waits {
        if let Some(status) = ended(&mut child, &mut pipes, wait).map_err(failed)? {
            let [out, err] = pipes.map(|pipe| String::from_utf8_lossy(&pipe.text).into_owned());
            return Ok(Ended {
                code: status.code(),
                out,
                err,
                too_long,
            });
        }
        too_long = true;
        if let Some(signal) = signals.next() {
            _ = kill_process_group(group, signal);
        }
    }
    Ok(Ended {
        too_long,
        ..Ended::default()
    })
}

/// Starts a program, again when there is no room for it.
fn started(mut start: impl FnMut() -> IoResult<Child>) -> IoResult<Child> {
    for _ in 1..STARTS {
        match start() {
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::OutOfMemory) =>
            {
                clock::moment(PAUSE);
            }
            done => return done,
        }
    }
    start()
}

/// What a program prints to.
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

    /// Reads what there is. Whoever calls knows that there is something, or the end.
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

/// Reads what a program prints until it has ended. `None` when that takes longer.
fn ended(
    child: &mut Child,
    pipes: &mut [Pipe; 2],
    within: Duration,
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
            // Nearly all programs close these by ending.
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status));
            }
            clock::moment(1);
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
    }
}

/// Runs a program that must succeed, and returns what it printed.
pub(crate) fn must(words: &[&str]) -> Result<String, ProcessError> {
    let ended = run(words)?;
    if ended.code == Some(0) {
        return Ok(ended.out);
    }
    Err(ProcessError::Failed {
        command: words.join(" "),
        said: ended.said(),
    })
}

impl Ended {
    /// Returns what a failing program said last, in one line.
    pub(crate) fn said(&self) -> String {
        if self.too_long {
            return "it took too long".to_owned();
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

    use super::{Command, ErrorKind, run, run_within, started};

    #[test]
    fn what_a_program_prints_is_read_from_both_sides_to_the_end() {
        let script = "head -c 300000 /dev/zero | tr '\\0' e >&2; head -c 300000 /dev/zero; exit 3";
        let ended = run(&["sh", "-c", script]).unwrap();
        assert_eq!((ended.code, ended.too_long), (Some(3), false));
        assert_eq!((ended.out.len(), ended.err.len()), (300_000, 300_000));
        assert!(ended.err.bytes().all(|byte| byte == b'e'));
    }

    #[test]
    fn a_program_that_takes_too_long_is_ended_with_all_that_it_started() {
        let waits = [
            Duration::from_millis(50),
            super::LAST_WORDS,
            super::LAST_WORDS,
        ];
        let ended = run_within(&["sh", "-c", "sleep 600 | sleep 600"], waits).unwrap();
        assert_eq!((ended.code, ended.too_long), (None, true));
        assert_eq!(ended.said(), "it took too long");
    }

    #[test]
    fn a_program_that_has_no_room_is_started_again_and_one_that_is_missing_is_not() {
        let mut n_starts = 0;
        #[expect(
            clippy::disallowed_methods,
            reason = "a test starts what is to be started again"
        )]
        let child = started(|| {
            n_starts += 1;
            match n_starts {
                1 => Err(ErrorKind::WouldBlock.into()),
                2 => Err(ErrorKind::OutOfMemory.into()),
                _ => Command::new("true").spawn(),
            }
        });
        assert!(child.unwrap().wait().unwrap().success());
        let mut n_starts = 0;
        let missing = started(|| {
            n_starts += 1;
            Err(ErrorKind::NotFound.into())
        });
        assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(n_starts, 1);
    }
}
