//! Asks for confirmation on the terminal, without blocking the runtime.

use std::io::{BufRead as _, IsTerminal as _};

use homestak_api::runtime::run_blocking;

use super::Printer;

/// The answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Yes.
    Yes,
    /// Anything else.
    No,
    /// There is no terminal.
    NoTerminal,
}

/// Asks a question. Only `y` and `yes` confirm it.
pub(crate) async fn ask(question: &str, printer: &Printer) -> Answer {
    if !std::io::stdin().is_terminal() {
        return Answer::NoTerminal;
    }
    printer.message(&format!("{question} [y/N]"));
    // Cancel safety: after cancellation, a line that is read is lost.
    let line = run_blocking(|| {
        let mut line = String::new();
        _ = std::io::stdin().lock().read_line(&mut line);
        line
    });
    let line = line.await.unwrap_or_default();
    match line.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Answer::Yes,
        _ => Answer::No,
    }
}
