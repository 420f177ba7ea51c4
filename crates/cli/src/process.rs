//! Starts other programs: the editor, a key command, `ssh`, and this program again.
//!
//! Secrets are passed in files and pipes, never in arguments.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal as _, Read};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ExitStatus, Output, Stdio};
use std::time::Duration;

use homestak_api::environment;
use homestak_api::limit::{Limit, each_line};
use homestak_driver::nodes::MAX_OUTPUT;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How long an editor may take to end after SIGTERM: it has nothing to save.
const END_POLLS: u32 = 50;
const END_PAUSE: Duration = Duration::from_millis(20);

/// How long a program may take that prints logs.
pub(crate) const LOGS_TIMEOUT: Duration = Duration::from_secs(300);

/// How an edit ended.
pub(crate) enum Edited {
    /// The editor ended.
    Ended(ExitStatus),
    /// This program received this signal, so the editor was ended.
    Interrupted(u8),
}

/// Catches signals that would end this program, before plain text is written.
pub(crate) struct Editing {
    hangup: Signal,
    interrupt: Signal,
    terminate: Signal,
    child: Signal,
}

impl Editing {
    /// Installs the signal handlers.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            child: signal(SignalKind::child())?,
        })
    }

    /// Runs the user's editor on a file; the setting may have arguments, as `code --wait`.
    ///
    /// An interrupt from the terminal reaches the editor too, which decides what it means: emacs
    /// sends one for Ctrl-G. So it ends the edit only where there is no terminal.
    pub(crate) async fn run(mut self, editor: &str, file: &Path) -> io::Result<Edited> {
        let mut words = editor.split_whitespace();
        let program = words
            .next()
            .ok_or_else(|| io::Error::other("no editor is set"))?;
        let terminal = io::stdin().is_terminal();
        let mut editor = command(program);
        environment::clean(&mut editor, environment::DESKTOP);
        let mut child = editor.args(words).arg(file).spawn()?;
        let number = loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Edited::Ended(status));
            }
            // Cancel safety: a signal that is not received now is received in the next round.
            tokio::select! {
                _ = self.child.recv() => {}
                _ = self.hangup.recv() => break SignalKind::hangup(),
                _ = self.terminate.recv() => break SignalKind::terminate(),
                _ = self.interrupt.recv(), if !terminal => break SignalKind::interrupt(),
            }
        };
        end(&mut child).await?;
        let number = u8::try_from(number.as_raw_value()).unwrap_or_default();
        Ok(Edited::Interrupted(number))
    }
}

/// Terminates a child, and kills it when it does not end.
async fn end(child: &mut Child) -> io::Result<()> {
    if let Some(id) = i32::try_from(child.id())
        .ok()
        .and_then(rustix::process::Pid::from_raw)
    {
        _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
    }
    for _ in 0..END_POLLS {
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        tokio::time::sleep(END_PAUSE).await;
    }
    child.kill()?;
    child.wait()?;
    Ok(())
}

/// Runs a program that prints logs and returns its output, up to the limit for nodes.
pub(crate) fn output(program: &str, arguments: &[OsString]) -> io::Result<Output> {
    let read = |from: &mut dyn Read| {
        let mut bytes = Vec::new();
        _ = from.take(MAX_OUTPUT as u64).read_to_end(&mut bytes);
        bytes
    };
    let within = LOGS_TIMEOUT;
    let (status, stdout, stderr) = run(program, arguments, (Stdio::null(), within), read, read)?;
    Ok(Output {
        status,
        stdout,
        stderr,
    })
}

/// Runs a program and passes on its output line by line: `true` for lines on stdout. Only the user
/// ends it.
pub(crate) fn follow(
    program: &str,
    arguments: &[OsString],
    stdin: Stdio,
    on_line: &(dyn Fn(bool, &str) + Sync),
) -> io::Result<ExitStatus> {
    // A long line is passed on in parts.
    let longest = MAX_OUTPUT as u64;
    let out = |from: &mut dyn Read| each_line(from, longest, |line| on_line(true, line));
    let err = |from: &mut dyn Read| each_line(from, longest, |line| on_line(false, line));
    run(program, arguments, (stdin, Duration::MAX), out, err).map(|(status, (), ())| status)
}

/// Runs a program until it ends, is interrupted or reaches its time limit.
fn run<A: Send, B: Send>(
    program: &str,
    arguments: &[OsString],
    (stdin, within): (Stdio, Duration),
    out: impl FnOnce(&mut dyn Read) -> A + Send,
    err: impl FnOnce(&mut dyn Read) -> B + Send,
) -> io::Result<(ExitStatus, A, B)> {
    let mut command = command(program);
    command
        .args(arguments)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let ended = Limit::new(within, &|| false).run(&mut command, b"", out, err)?;
    let seconds = within.as_secs();
    ended.ok_or_else(|| io::Error::other(format!("did not end within {seconds} s")))
}

/// Returns the terminal settings, as arguments of [`set_terminal`].
pub(crate) fn terminal() -> Option<String> {
    let output = command("stty")
        .arg("-g")
        .stdin(Stdio::inherit())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// Changes how the terminal takes keys.
pub(crate) fn set_terminal(words: &[&str]) -> io::Result<ExitStatus> {
    command("stty").args(words).status()
}

/// Replaces this process by another program; returns only when that fails.
pub(crate) fn become_program(program: &str, arguments: &[OsString]) -> io::Error {
    let mut command = command(program);
    if program == "ssh" {
        environment::clean(&mut command, environment::SSH);
    }
    command.args(arguments).exec()
}

#[expect(clippy::disallowed_methods, reason = "this is the crate's process.rs")]
fn command(program: impl AsRef<OsStr>) -> std::process::Command {
    let mut command = std::process::Command::new(program);
    environment::clean(&mut command, &[]);
    command
}
