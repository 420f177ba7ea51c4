//! The terminal: data goes to stdout, everything else to stderr. Only commands use it.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use homestak_core::foreign::{ForeignText, escape, escape_json};
use serde_json::{Value, json};

/// Prints arguments that could not be understood, or the help that was asked for.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    _ = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Prints data. A reader that has gone away is no error. Whatever is in it, a terminal obeys none
/// of it.
pub(crate) fn data(text: &str) {
    _ = delivered(&escape(text));
}

/// Prints data as it is. It must arrive, unless its reader has gone away.
pub(crate) fn delivered(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Prints a result as JSON: `kind` and `version` first, so that readers can tell.
pub(crate) fn json(kind: &str, body: Value) {
    let mut whole = json!({ "kind": kind, "version": 1 });
    if let (Some(whole), Value::Object(body)) = (whole.as_object_mut(), body) {
        whole.extend(body);
    }
    escape_json(&mut whole, ForeignText::lines);
    _ = delivered(&format!("{whole:#}\n"));
}

/// Reads a file that an argument names; `-` is standard input.
pub(crate) fn read(path: &Path) -> std::io::Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        return std::io::stdin().read_to_string(&mut text).map(|_| text);
    }
    fs_err::read_to_string(path)
}

/// Says something.
pub(crate) fn say(text: &str) {
    let mut out = std::io::stderr().lock();
    _ = writeln!(out, "{}", escape(text));
}

/// Prints a line of data. Tells whether the reader is still there.
pub(crate) fn line(text: &str) -> bool {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).is_ok()
}
