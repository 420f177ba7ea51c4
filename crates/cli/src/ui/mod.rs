//! Output: data on stdout, messages on stderr, colour on terminals only.
//!
//! Control characters in data are escaped on a terminal, except for our own colours.

pub(crate) mod ask;
pub(crate) mod diagnostic;
pub(crate) mod job;
pub(crate) mod line;
pub(crate) mod plan;
pub(crate) mod progress;
pub(crate) mod result;
pub(crate) mod table;
pub(crate) mod update;

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

use anstream::ColorChoice;
use clap::CommandFactory as _;
use homestak_api::v1::{Kind, kind};
use homestak_core::doc::{Diagnostics, Sources};
use homestak_core::foreign::{escape, escape_but_style, escape_in_json};
use homestak_driver::error::count;
use homestak_driver::{DriverError, ErrorKind, Notices, wire};
use owo_colors::OwoColorize as _;
use serde::Serialize;

use crate::args::{Cli, GlobalArgs};
use crate::legacy;
use crate::settings::variable;

/// The first error of a write to stdout.
static WRITE_ERROR: OnceLock<std::io::Error> = OnceLock::new();

/// Remembers a failed write to stdout. A closed pipe is not an error.
fn remember(written: std::io::Result<()>) {
    if let Err(error) = written
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        _ = WRITE_ERROR.set(error);
    }
}

/// Format, colour and amount of output.
#[derive(Clone, Copy, Debug)]
pub struct OutputOptions {
    /// Results as JSON.
    pub json: bool,
    /// Whether stdout and stderr may have colour; each also needs a terminal behind it.
    pub color: ColorChoice,
    /// How often `-v` was given.
    pub verbose: u8,
}

impl OutputOptions {
    /// Merges flags and environment.
    pub fn new(flags: &GlobalArgs) -> Self {
        let plain = flags.no_color || variable("NO_COLOR").is_some();
        let color = if plain {
            ColorChoice::Never
        } else {
            ColorChoice::Auto
        };
        Self {
            json: flags.json_output,
            color,
            verbose: flags.verbose,
        }
    }

    /// Returns the options for errors before arguments are parsed.
    pub fn guess() -> Self {
        let has = |word: &str| std::env::args_os().any(|one| one == word);
        Self::new(&GlobalArgs {
            json_output: has("--json-output") || (has("server") && has("--json")),
            no_color: has("--no-color"),
            ..GlobalArgs::default()
        })
    }
}

/// Prints results and messages.
pub(crate) struct Printer {
    pub(crate) output: OutputOptions,
}

impl Printer {
    /// Makes a printer.
    pub(crate) fn new(output: OutputOptions) -> Self {
        Self { output }
    }

    /// Prints data on stdout.
    pub(crate) fn data(&self, text: &str) {
        let terminal = std::io::stdout().is_terminal();
        let mut out = anstream::AutoStream::new(std::io::stdout(), self.color(terminal));
        let text = match terminal {
            true => escape_but_style(text),
            false => Cow::Borrowed(text),
        };
        remember(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
    }

    /// Prints a line of a node's stdout after a label; escaped on a terminal, otherwise unchanged.
    pub(crate) fn node_stdout(&self, label: &str, text: &str) {
        remember(self.node_line(std::io::stdout().lock(), label, text));
    }

    /// Prints a line of the output of a job after a label, always escaped: it is text for people, who may
    /// read it later in a file.
    pub(crate) fn job_stdout(&self, label: &str, text: &str) {
        self.node_stdout(label, &escape(text));
    }

    /// The same on stderr.
    pub(crate) fn job_stderr(&self, label: &str, text: &str) {
        self.node_stderr(label, &escape(text));
    }

    /// Prints a line of a node's stderr in the same way.
    pub(crate) fn node_stderr(&self, label: &str, text: &str) {
        _ = self.node_line(std::io::stderr().lock(), label, text);
    }

    fn node_line(
        &self,
        mut out: impl Write + IsTerminal,
        label: &str,
        text: &str,
    ) -> std::io::Result<()> {
        let terminal = out.is_terminal();
        let text = match terminal {
            true => escape(text),
            false => Cow::Borrowed(text),
        };
        let line = match self.color(terminal) {
            ColorChoice::Never => format!("{}{text}\n", anstream::adapter::strip_str(label)),
            _ => format!("{label}{text}\n"),
        };
        out.write_all(line.as_bytes()).and_then(|()| out.flush())
    }

    /// Prints a result as JSON on stdout.
    pub(crate) fn json<T: Serialize>(&self, kind: &Kind<T>, body: &T) {
        self.raw_json(&kind.document(body));
    }

    /// Prints JSON that is no output of a kind.
    pub(crate) fn raw_json(&self, value: &impl Serialize) {
        // Escaped in a pipe as well: the values are the same, and the text may be shown later.
        let text = serde_json::to_string_pretty(value).unwrap_or_default();
        let mut out = std::io::stdout().lock();
        let written = writeln!(out, "{}", escape_in_json(&text));
        remember(written.and_then(|()| out.flush()));
    }

    /// Prints JSON in one line.
    pub(crate) fn json_line(&self, value: &impl Serialize) {
        let mut out = std::io::stdout().lock();
        let Ok(text) = serde_json::to_string(value) else {
            return;
        };
        let written = writeln!(out, "{}", escape_in_json(&text));
        remember(written.and_then(|()| out.flush()));
    }

    /// Prints a message on stderr.
    pub(crate) fn message(&self, text: &str) {
        let color = self.color(std::io::stderr().is_terminal());
        // Locked for the whole line: log lines of other threads come before or after it.
        let mut out = anstream::AutoStream::new(std::io::stderr().lock(), color);
        _ = writeln!(out, "{}", escape_but_style(text));
    }

    /// Prints a hint.
    pub(crate) fn hint(&self, hint: &str) {
        self.message(&format!("\n{} {hint}", "hint:".cyan().bold()));
    }

    /// Logs what is being done.
    pub(crate) fn detail(&self, text: &str) {
        tracing::info!("{text}");
    }

    fn color(&self, terminal: bool) -> ColorChoice {
        if terminal && self.output.color != ColorChoice::Never {
            ColorChoice::Always
        } else {
            ColorChoice::Never
        }
    }

    /// Prints diagnostics on stderr, sorted by place, and a line that counts them.
    pub(crate) fn diagnostics(&self, faults: &Diagnostics, sources: &Sources) {
        let sorted = faults.sorted(sources);
        for fault in &sorted {
            self.message(&diagnostic::render(fault, sources));
            self.message("");
        }
        let more = faults.dropped();
        let errors = faults.errors();
        if errors > 0 {
            let mut line = count(errors, "error");
            let notices = (sorted.len() + more).saturating_sub(errors);
            if notices > 0 {
                line = format!("{line} and {}", count(notices, "notice"));
            }
            if more > 0 {
                line = format!("{line} ({more} not shown)");
            }
            self.message(&format!("{line}."));
        }
    }

    /// Prints an error and returns its exit code.
    pub(crate) fn fail(&self, error: &DriverError) -> ExitCode {
        self.fail_json(error);
        let label = match error.kind {
            ErrorKind::Failed | ErrorKind::Usage | ErrorKind::Stopped => "error",
            ErrorKind::Refused => "refused",
        };
        let label = match error.code {
            Some(code) => format!("{label}[{}]:", code.id()),
            None => format!("{label}:"),
        };
        self.message(&format!("{} {}", label.red().bold(), error.message));
        for hint in &error.hints {
            self.hint(hint);
        }
        ExitCode::from(exit_code(error.kind))
    }

    /// Prints an error as JSON, when JSON is asked for.
    fn fail_json(&self, error: &DriverError) {
        if self.output.json {
            self.json(&kind::ERROR, &wire::diagnostic::failure(error));
        }
    }
}

impl Notices for Printer {
    fn detail(&self, text: &str) {
        Self::detail(self, text);
    }

    fn notice(&self, text: &str) {
        self.message(text);
    }

    fn diagnostics(&self, faults: &Diagnostics, sources: &Sources) {
        Self::diagnostics(self, faults, sources);
    }
}

/// Returns the exit code of an error.
fn exit_code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Failed => 1,
        ErrorKind::Usage => 2,
        ErrorKind::Refused => 3,
        ErrorKind::Stopped => 4,
    }
}

/// Prints the overview for a call without arguments.
pub(crate) fn print_help() {
    remember(Cli::command().print_help());
}

/// Prints a result of the argument parser: help and version on stdout, errors on stderr.
pub(crate) fn usage(error: &clap::Error, arguments: &[OsString]) -> ExitCode {
    if error.use_stderr()
        && let Some((message, hint)) = legacy::removed(arguments)
    {
        return Printer::new(OutputOptions::guess()).fail(&DriverError::usage(message).hint(hint));
    }
    if error.use_stderr() {
        Printer::new(OutputOptions::guess()).fail_json(&usage_error(error));
        _ = error.print();
    } else {
        remember(error.print());
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Converts an error of the argument parser: the first paragraph of its text.
fn usage_error(error: &clap::Error) -> DriverError {
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return DriverError::usage("A subcommand or an argument is missing.");
    }
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let lines = text.lines().take_while(|line| !line.trim().is_empty());
    let lines: Vec<&str> = lines.map(str::trim).collect();
    DriverError::usage(lines.join(" "))
}

/// Returns the exit code of the program: a command whose output could not be written has failed.
pub(crate) fn with_write_error(code: ExitCode) -> ExitCode {
    let Some(error) = WRITE_ERROR.get() else {
        return code;
    };
    let printer = Printer::new(OutputOptions {
        json: false,
        ..OutputOptions::guess()
    });
    let failed = printer.fail(&DriverError::failed(format!(
        "Cannot write the output: {error}."
    )));
    match code {
        ExitCode::SUCCESS => failed,
        code => code,
    }
}
