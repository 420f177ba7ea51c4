//! One file per command.
//!
//! In: typed arguments. Out: results through the printer, an exit code.
//! Never: decisions about documents; commands call `core` and show what it says.

mod explain;
mod host;
mod image;
mod local;
pub(crate) mod manifest;
mod names;
mod node;
mod pages;
mod resolve;
mod schema;
pub(crate) mod secrets;
mod sim;
mod site;
mod spec;
mod state;
mod token;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use homestak_api::durable::{self, Access};
use homestak_core::doc::{Code, Faults, Sources};
use serde_json::Value as Json;

use crate::args::{Command, OwnArgs};
use crate::error::CommandError;
use crate::settings::Settings;
use crate::ui::ask::{Answer, ask};
use crate::ui::{Printer, diagnostics_json};

/// How a command ends.
type Outcome = Result<ExitCode, CommandError>;

/// Runs a command.
pub(crate) fn run(command: Command, settings: &Settings, printer: &Printer) -> Outcome {
    match command {
        Command::Manifest(command) => manifest::run(command, settings, printer),
        Command::Spec(command) => spec::run(command, settings, printer),
        Command::Site(command) => site::run(command, settings, printer),
        Command::Host(command) => host::run(command, settings, printer),
        Command::State(command) => state::run(&command, settings, printer),
        Command::Sim(command) => sim::run(command, settings, printer),
        Command::Image(command) => image::run(command, settings, printer),
        Command::Local(command) => local::run(&command, settings, printer),
        Command::Ssh(args) => node::ssh::run(&args, settings),
        Command::Exec(args) => node::exec::run(&args, settings, printer),
        Command::Console(args) => node::console::run(&args, settings, printer),
        Command::Logs(args) => node::logs::run(&args, settings, printer),
        Command::Resolve(command) => resolve::run(command, settings, printer),
        Command::Secrets(command) => secrets::run(command, settings, printer),
        Command::Token(command) => token::run(command, settings, printer),
        Command::Config(own) => Ok(own_machine(&["config"], own, printer)),
        Command::Run(own) => Ok(own_machine(&["run"], own, printer)),
        Command::Status(own) => Ok(own_machine(&["status"], own, printer)),
        Command::Explain { code } => explain::run(code.as_deref(), printer),
        Command::Schema { kind, out } => schema::run(kind.as_deref(), out.as_deref(), printer),
        Command::Completions { shell, names } => match (shell, names) {
            (_, Some(kind)) => Ok(names::print(kind, settings, printer)),
            (Some(shell), None) => pages::completions(shell, printer),
            (None, None) => Ok(ExitCode::from(2)),
        },
        Command::Man { out } => pages::man(out.as_deref(), printer),
    }
}

/// Does something to the machine the program runs on: a machine that drives others is a node too.
fn own_machine(command: &[&str], own: OwnArgs, printer: &Printer) -> ExitCode {
    let json = printer.shape.json.then(|| OsString::from("--json-output"));
    let words = ["homestak"].iter().chain(command).map(OsString::from);
    homestak_agent::main(words.chain(json).chain(own.words))
}

/// Shows the result of a check: diagnostics, then a line or JSON. A fault makes it fail.
fn verdict(
    printer: &Printer,
    kind: &str,
    faults: &Faults,
    sources: &Sources,
    mut body: Json,
    good: &str,
) -> Outcome {
    printer.diagnostics(faults, sources);
    let valid = faults.errors() == 0;
    if printer.shape.json {
        body["success"] = valid.into();
        body["diagnostics"] = diagnostics_json(faults, sources);
        printer.json(kind, body);
    } else if valid {
        printer.data(&format!("{good}\n"));
    }
    Ok(ExitCode::from(u8::from(!valid)))
}

/// Stops a command whose documents have faults, after showing them.
pub(crate) fn require_sound(
    printer: &Printer,
    faults: &Faults,
    sources: &Sources,
) -> Result<(), CommandError> {
    // The driver has a key of its own; who else can log in is a question for `validate`.
    printer.diagnostics(&faults.without(Code::NoKeys), sources);
    if faults.errors() == 0 {
        return Ok(());
    }
    let error = CommandError::failed("The documents have faults, so there is nothing to show.")
        .hint("mend the faults above, then run the command again");
    Err(CommandError {
        diagnostics: Some(Box::new(diagnostics_json(faults, sources))),
        ..error
    })
}

/// Asks, unless a person has agreed already.
fn agree(yes: bool, question: &str, printer: &Printer) -> Result<(), CommandError> {
    if yes {
        return Ok(());
    }
    match ask(question, printer) {
        Answer::Yes => Ok(()),
        Answer::No => Err(CommandError::refused("Nothing was done.")),
        Answer::Nobody => {
            Err(CommandError::refused("There is no terminal to ask at.").hint("--yes agrees"))
        }
    }
}

/// Writes text for people or tools to a file, whole or not at all.
fn write_file(path: &Path, text: &str) -> Result<(), CommandError> {
    write_with_mode(path, text, 0o644)
}

/// Writes text that only its owner may read, whole or not at all.
fn write_private(path: &Path, text: &str) -> Result<(), CommandError> {
    write_with_mode(path, text, 0o600)
}

fn write_with_mode(path: &Path, text: &str, mode: u32) -> Result<(), CommandError> {
    durable::write(path, text.as_bytes(), Access::mode(mode))
        .map_err(|error| CommandError::file("write", path, &error))
}
