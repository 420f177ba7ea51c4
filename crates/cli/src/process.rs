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

/// An editor that was asked to end has a second for it: it has nothing to save.
const END_LOOKS: u32 = 50;
const END_PAUSE: Duration = Duration::from_millis(20);

/// How an edit ended.
pub(crate) enum Edited {
    /// The editor ended.
    Ended(ExitStatus),
    /// A signal of this number asked this program to end, so the editor was ended.
    Interrupted(u8),
}

/// Receives the signals that would end this program, from before plain text is written on.
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

    /// Runs the person's editor on a file; its value may hold arguments, as `code --wait`.
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

/// Asks a child to end, and kills it when it does not.
async fn end(child: &mut Child) -> io::Result<()> {
    if let Some(id) = i32::try_from(child.id())
        .ok()
        .and_then(rustix::process::Pid::from_raw)
    {
        _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
    }
    for _ in 0..END_LOOKS {
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        tokio::time::sleep(END_PAUSE).await;
    }
    child.kill()?;
    child.wait()?;
    Ok(())
}

/// Runs a program and returns what it printed, as far as a node may print.
pub(crate) fn output(program: &str, arguments: &[OsString]) -> io::Result<Output> {
    let read = |from: &mut dyn Read| {
        let mut bytes = Vec::new();
        _ = from.take(MAX_OUTPUT as u64).read_to_end(&mut bytes);
        bytes
    };
    let (status, stdout, stderr) = run(program, arguments, Stdio::null(), read, read)?;
    Ok(Output {
        status,
        stdout,
        stderr,
    })
}

/// Runs a program and hands out the lines that it prints as they come: `true` for those on stdout.
pub(crate) fn follow(
    program: &str,
    arguments: &[OsString],
    stdin: Stdio,
    hear: &(dyn Fn(bool, &str) + Sync),
) -> io::Result<ExitStatus> {
    // A line without an end is handed out in parts.
    let longest = MAX_OUTPUT as u64;
    let out = |from: &mut dyn Read| each_line(from, longest, |line| hear(true, line));
    let err = |from: &mut dyn Read| each_line(from, longest, |line| hear(false, line));
    run(program, arguments, stdin, out, err).map(|(status, (), ())| status)
}

/// Runs a program for as long as a person lets it.
fn run<A: Send, B: Send>(
    program: &str,
    arguments: &[OsString],
    stdin: Stdio,
    out: impl FnOnce(&mut dyn Read) -> A + Send,
    err: impl FnOnce(&mut dyn Read) -> B + Send,
) -> io::Result<(ExitStatus, A, B)> {
    let mut command = command(program);
    command
        .args(arguments)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let ended = Limit::new(Duration::MAX, &|| false).run(&mut command, b"", out, err)?;
    ended.ok_or_else(|| io::Error::other("it did not end"))
}

/// Returns how the terminal takes keys now, in words for [`set_terminal`].
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

/// Becomes another program, with the same terminal; returns only when that fails.
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
