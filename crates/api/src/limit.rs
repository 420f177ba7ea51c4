//! Runs programs with a deadline, which also limits reading and writing their pipes. These
//! functions block: never call them on the runtime.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, Command, ExitStatus, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use rustix::time::{ClockId, clock_gettime};

/// How often the limit is checked, in nanoseconds.
const TICK: i64 = 100_000_000;
/// The most output of a program that is kept in memory, in bytes: a list of a million files.
const MAX_OUTPUT: u64 = 128 << 20;
/// How often an exit is polled for after the pipes are closed, on kernels without pidfd.
const ENDING: Duration = Duration::from_millis(5);

/// Returns the monotonic time.
pub fn monotonic() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

/// The program that runs others with limited resources: when memory is short, the kernel ends them
/// and not the caller.
pub const LIMITED: &str = "choom";

/// Returns the arguments of [`LIMITED`] up to the program to run, which gets limits of `prlimit`.
pub fn resources(limits: &[(&str, u64)]) -> Vec<String> {
    let mut words = ["-n", "500", "--", "prlimit"].map(str::to_owned).to_vec();
    words.extend(
        limits
            .iter()
            .map(|(name, value)| format!("--{name}={value}")),
    );
    words.push("--".to_owned());
    words
}

/// Runs a command whose pipes are set up, and returns its output. One that takes longer than
/// `within`, or prints more than 128 MiB, is killed, which is an error.
pub fn output(command: &mut Command, input: &[u8], within: Duration) -> io::Result<Output> {
    let is_too_much = AtomicBool::new(false);
    let read = |from: &mut dyn Read| {
        let mut bytes = Vec::new();
        _ = from.take(MAX_OUTPUT + 1).read_to_end(&mut bytes);
        if bytes.len() as u64 > MAX_OUTPUT {
            is_too_much.store(true, Ordering::Relaxed);
        }
        bytes
    };
    let stop = || is_too_much.load(Ordering::Relaxed);
    let ended = Limit::new(within, &stop).run(command, input, read, read)?;
    let program = command.get_program().to_string_lossy();
    if stop() {
        let most = MAX_OUTPUT >> 20;
        let text = format!("`{program}` printed more than {most} MiB, and was killed");
        return Err(io::Error::other(text));
    }
    let (status, stdout, stderr) = ended.ok_or_else(|| {
        let seconds = within.as_secs();
        let text = format!("`{program}` did not end within {seconds} s, and was killed");
        io::Error::new(ErrorKind::TimedOut, text)
    })?;
    Ok(Output {
        status,
        stdout,
        stderr,
    })
}

/// Calls `on_line` with each line, without its newline. Invalid UTF-8 is replaced, and lines longer
/// than `longest` bytes are split.
pub fn each_line(from: &mut dyn Read, longest: u64, mut on_line: impl FnMut(&str)) {
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    while (&mut reader)
        .take(longest)
        .read_until(b'\n', &mut line)
        .is_ok_and(|read| read > 0)
    {
        let text = String::from_utf8_lossy(&line);
        on_line(text.trim_end_matches(['\n', '\r']));
        line.clear();
    }
}

/// When a running program is killed.
pub struct Limit<'a> {
    until: Duration,
    stop: &'a (dyn Fn() -> bool + Sync),
}

impl<'a> Limit<'a> {
    /// Limits the time to `within`, or less if `stop` returns true.
    pub fn new(within: Duration, stop: &'a (dyn Fn() -> bool + Sync)) -> Self {
        let until = monotonic().saturating_add(within);
        Self { until, stop }
    }

    /// Returns whether `stop` returned true.
    pub fn is_stopped(&self) -> bool {
        (self.stop)()
    }

    fn is_reached(&self) -> bool {
        monotonic() >= self.until || self.is_stopped()
    }

    /// Runs a command whose pipes are set up: writes its input, and reads its output. `None` if the
    /// limit was reached and it was killed.
    pub fn run<A: Send, B: Send>(
        &self,
        command: &mut Command,
        input: &[u8],
        out: impl FnOnce(&mut dyn Read) -> A + Send,
        err: impl FnOnce(&mut dyn Read) -> B + Send,
    ) -> io::Result<Option<(ExitStatus, A, B)>> {
        let mut child = command.spawn()?;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (out, err) = std::thread::scope(|scope| {
            let err = scope.spawn(|| err(&mut self.bounded(stderr)));
            let out = scope.spawn(|| out(&mut self.bounded(stdout)));
            if let Some(stdin) = stdin {
                // A program that does not read all of its input is not an error.
                _ = self.write(stdin, input);
            }
            (out.join(), err.join())
        });
        let (Ok(out), Ok(err)) = (out, err) else {
            self.kill(&mut child)?;
            return Err(io::Error::other("cannot read the output"));
        };
        Ok(self.wait(&mut child)?.map(|status| (status, out, err)))
    }

    fn bounded<R: Read + AsFd>(&self, pipe: Option<R>) -> Bounded<'_, R> {
        Bounded { pipe, limit: self }
    }

    /// Waits until a pipe is ready; returns whether it is.
    fn ready(&self, pipe: &impl AsFd, wanted: PollFlags) -> bool {
        let tick = Timespec {
            tv_sec: 0,
            tv_nsec: TICK,
        };
        while !self.is_reached() {
            let mut polled = [PollFd::new(pipe, wanted)];
            match poll(&mut polled, Some(&tick)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return true,
                Err(_) => return false,
            }
        }
        false
    }

    /// Writes the input until the limit is reached.
    fn write(&self, mut pipe: ChildStdin, mut bytes: &[u8]) -> io::Result<()> {
        let flags = fcntl_getfl(&pipe)?;
        fcntl_setfl(&pipe, flags | OFlags::NONBLOCK)?;
        while !bytes.is_empty() && self.ready(&pipe, PollFlags::OUT) {
            match pipe.write(bytes) {
                Ok(n_written) => bytes = &bytes[n_written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until a program has exited; `None` if the limit was reached and it was killed.
    fn wait(&self, child: &mut Child) -> io::Result<Option<ExitStatus>> {
        let reported = pidfd_open(Pid::from_child(child), PidfdFlags::empty());
        // The limit is checked first: a program that exited because its pipes were closed has
        // incomplete output.
        while !self.is_reached() {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status));
            }
            match &reported {
                Ok(reported) => _ = self.ready(reported, PollFlags::IN),
                Err(_) => std::thread::sleep(ENDING),
            }
        }
        self.kill(child)?;
        Ok(None)
    }

    /// Kills a program, and its children if it has its own process group.
    fn kill(&self, child: &mut Child) -> io::Result<()> {
        // Fails if it has no group of its own: until it is waited for, no other group has its id.
        _ = kill_process_group(Pid::from_child(child), Signal::KILL);
        child.kill()?;
        child.wait().map(drop)
    }
}

/// A pipe that ends when the limit is reached.
struct Bounded<'a, R> {
    pipe: Option<R>,
    limit: &'a Limit<'a>,
}

impl<R: Read + AsFd> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.pipe {
            Some(pipe) if self.limit.ready(pipe, PollFlags::IN) => pipe.read(buffer),
            _ => Ok(0),
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "programs are run")]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Stdio;

    use super::*;

    fn shell(script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        shell
    }

    #[test]
    fn input_is_written_and_output_is_returned() {
        let minute = Duration::from_secs(60);
        let script = "cat; echo no >&2; exit 3";
        let ended = output(&mut shell(script), b"hello", minute).expect("it runs");
        let printed = (ended.stdout.as_slice(), ended.stderr.as_slice());
        assert_eq!(printed, (&b"hello"[..], &b"no\n"[..]));
        assert_eq!(ended.status.code(), Some(3));
        // Not reading the input is not an error, however large it is.
        let many = vec![0; 1 << 20];
        output(&mut shell("exec true"), &many, minute).expect("it runs");
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_its_children_and_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let note = directory.path().join("child");
        let script = format!("sleep 1000 & echo $! > {}; wait", note.display());
        for script in [script.as_str(), "exec >&- 2>&-; exec sleep 1000"] {
            let mut hanging = shell(script);
            hanging.process_group(0);
            let error = output(&mut hanging, b"", Duration::from_secs(1)).expect_err("timed out");
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            let text = error.to_string();
            assert_eq!(text, "`sh` did not end within 1 s, and was killed");
        }
        let child = fs_err::read_to_string(note).expect("it began");
        let stat = fs_err::read_to_string(format!("/proc/{}/stat", child.trim()));
        // Killed, or being killed.
        assert!(stat.is_err() || stat.is_ok_and(|stat| stat.contains(") Z ")));
    }

    #[test]
    fn a_program_that_prints_without_end_is_killed() {
        let minute = Duration::from_secs(60);
        let script = "head -c 150000000 /dev/zero; trap '' PIPE; exec sleep 1000";
        for script in [script.to_owned(), format!("({script}) >&2")] {
            let begun = monotonic();
            let error = output(&mut shell(&script), b"", minute).expect_err("too much");
            assert_eq!(
                error.to_string(),
                "`sh` printed more than 128 MiB, and was killed"
            );
            assert!(monotonic().saturating_sub(begun) < minute / 2);
        }
    }
}
