//! The serial console of a virtual machine: what is typed goes there, what it says comes back.

use std::io::{IsTerminal as _, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use homestak_driver::DriverError;

use crate::commands::Outcome;
use crate::process;
use crate::ui::Printer;

/// Ctrl-], which leaves: few programs want it for themselves.
const LEAVE: u8 = 0x1d;

/// A terminal that passes every key on; as before when this is dropped.
struct Raw {
    before: String,
}

impl Raw {
    fn new() -> Option<Self> {
        if !std::io::stdin().is_terminal() {
            return None;
        }
        let before = process::terminal()?;
        process::set_terminal(&["raw", "-echo"]).ok()?;
        Some(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        _ = process::set_terminal(&[&self.before]);
    }
}

/// Talks until the machine ends, input ends, or a person leaves.
pub(super) fn talk(socket: &Path, name: &str, printer: &Printer) -> Outcome {
    let failed = |error: std::io::Error| {
        DriverError::failed(format!(
            "The serial console of `{name}` does not answer: {error}."
        ))
        .hint("does it run? homestak local show tells")
    };
    let stream = UnixStream::connect(socket).map_err(failed)?;
    let listener = stream.try_clone().map_err(failed)?;
    if std::io::stdin().is_terminal() {
        printer.say(&format!(
            "Connected to `{name}`. Ctrl-] leaves; Enter shows the login."
        ));
    }
    let raw = Raw::new();
    let heard = std::thread::spawn(move || listen(listener));
    let left = speak(stream, raw.is_some());
    if !left {
        // Whatever it still says to what was sent is waited for.
        _ = heard.join();
    }
    drop(raw);
    Ok(ExitCode::SUCCESS)
}

fn listen(mut stream: UnixStream) {
    let mut out = std::io::stdout();
    let mut bytes = [0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut bytes) {
        if out
            .write_all(&bytes[..read])
            .and_then(|()| out.flush())
            .is_err()
        {
            return;
        }
    }
}

/// Returns whether a person left.
fn speak(mut stream: UnixStream, keys: bool) -> bool {
    let mut input = std::io::stdin();
    let mut bytes = [0; 1024];
    while let Ok(read @ 1..) = input.read(&mut bytes) {
        let typed = &bytes[..read];
        let end = typed.iter().position(|byte| keys && *byte == LEAVE);
        if stream.write_all(&typed[..end.unwrap_or(read)]).is_err() {
            return false;
        }
        if end.is_some() {
            return true;
        }
    }
    _ = stream.shutdown(std::net::Shutdown::Write);
    false
}
