//! The serial console of a virtual machine, connected to the terminal.

use std::io::{IsTerminal as _, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use homestak_driver::DriverError;

use crate::commands::Outcome;
use crate::process;
use crate::ui::Printer;

/// Ctrl-], which disconnects; few programs use it.
const LEAVE: u8 = 0x1d;

/// A terminal in raw mode; restored when this is dropped.
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

/// Connects until the machine stops, input ends, or the user disconnects.
pub(super) fn connect(socket: &Path, name: &str, printer: &Printer) -> Outcome {
    let failed = |error: std::io::Error| {
        DriverError::failed(format!(
            "The serial console of `{name}` does not answer: {error}."
        ))
        .hint("check whether it runs: homestak local show")
    };
    let stream = UnixStream::connect(socket).map_err(failed)?;
    let listener = stream.try_clone().map_err(failed)?;
    if std::io::stdin().is_terminal() {
        printer.message(&format!(
            "Connected to `{name}`. Press Enter for a login prompt, Ctrl-] to disconnect."
        ));
    }
    let raw = Raw::new();
    let reader = std::thread::spawn(move || print_output(listener));
    let left = send_input(stream, raw.is_some());
    if !left {
        // Waits for the output that follows the last input.
        _ = reader.join();
    }
    drop(raw);
    Ok(ExitCode::SUCCESS)
}

fn print_output(mut stream: UnixStream) {
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

/// Sends input to the machine. Returns whether the user disconnected.
fn send_input(mut stream: UnixStream, keys: bool) -> bool {
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
