//! One file per command. Commands call the driver and `core`, and print the results.

mod explain;
mod host;
mod image;
mod job;
mod local;
pub(crate) mod manifest;
mod names;
mod node;
mod pages;
mod resolve;
mod schema;
pub(crate) mod secrets;
mod server;
mod sim;
mod site;
mod spec;
mod state;
mod token;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use homestak_api::durable::{self, Access};
use homestak_api::v1::{Diagnostic, Kind};
use homestak_core::doc::{Diagnostics, Sources};
use homestak_core::shell::quote_if_needed;
use homestak_driver::{Driver, DriverError, Session, wire};
use serde::Serialize;

use crate::args::{AgentArgs, Command};
use crate::settings::Settings;
use crate::ui::Printer;
use crate::ui::ask::{Answer, ask};
use crate::ui::progress::Screen;

/// How a command ends.
pub(crate) type Outcome = Result<ExitCode, DriverError>;

/// Runs a command.
pub(crate) fn run(command: Command, settings: &Settings, printer: &Printer) -> Outcome {
    match command {
        Command::Manifest(command) => manifest::run(command, settings, printer),
        Command::Spec(command) => spec::run(command, settings, printer),
        Command::Site(command) => site::run(command, settings, printer),
        Command::Host(command) => host::run(command, settings, printer),
        Command::Server(command) => server::run(command, settings, printer),
        Command::Node(command) => node::registered::run(&command, settings, printer),
        Command::Job(command) => job::run(&command, settings, printer),
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
        Command::Config(own) => Ok(run_agent(&["config"], own, printer)),
        Command::Run(own) => Ok(run_agent(&["run"], own, printer)),
        Command::Status(own) => Ok(run_agent(&["status"], own, printer)),
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

/// Returns a driver, and the screen that shows the events of its runs.
fn driver(
    session: Session,
    settings: &Settings,
    events: bool,
    printer: &Printer,
) -> Result<(Driver, Arc<Screen>), DriverError> {
    let screen = Arc::new(Screen::new(printer.output, events));
    let driver = Driver::new(Arc::new(session), &settings.driver, screen.clone())?;
    Ok((driver, screen))
}

/// Runs the agent on this machine: a machine that drives others is a node too.
fn run_agent(command: &[&str], own: AgentArgs, printer: &Printer) -> ExitCode {
    let json = printer.output.json.then(|| OsString::from("--json-output"));
    let words = ["homestak"].iter().chain(command).map(OsString::from);
    homestak_agent::main(words.chain(json).chain(own.words))
}

/// Prints the result of a check: diagnostics, then a line or JSON. An error makes it fail.
fn verdict<T: Serialize>(
    printer: &Printer,
    kind: &Kind<T>,
    (faults, sources): (&Diagnostics, &Sources),
    body: impl FnOnce(bool, Vec<Diagnostic>) -> T,
    good: &str,
) -> Outcome {
    printer.diagnostics(faults, sources);
    let valid = faults.errors() == 0;
    if printer.output.json {
        let diagnostics = wire::diagnostic::diagnostics(faults, sources);
        printer.json(kind, &body(valid, diagnostics));
    } else if valid {
        printer.data(&format!("{good}\n"));
    }
    Ok(ExitCode::from(u8::from(!valid)))
}

/// Returns the command as it was given, with another flag.
fn repeated(flag: &str) -> String {
    let quoted = |word: &OsString| quote_if_needed(&word.to_string_lossy());
    let given: Vec<OsString> = std::env::args_os().skip(1).collect();
    let given = given.iter().map(quoted);
    let words: Vec<String> = given.chain([flag.to_owned()]).collect();
    format!("homestak {}", words.join(" "))
}

/// Asks for confirmation, unless `--yes` was given.
async fn agree(yes: bool, question: &str, printer: &Printer) -> Result<(), DriverError> {
    if yes {
        return Ok(());
    }
    match ask(question, printer).await {
        Answer::Yes => Ok(()),
        Answer::No => Err(DriverError::refused("Not confirmed; nothing was changed.")),
        Answer::NoTerminal => {
            let refused =
                DriverError::refused("This needs confirmation, and there is no terminal.");
            Err(refused.hint(format!("to confirm: {}", repeated("--yes"))))
        }
    }
}

/// Writes text for people or tools to a file, whole or not at all.
fn write_file(path: &Path, text: &str) -> Result<(), DriverError> {
    write_with_mode(path, text, 0o644)
}

/// Writes text that only its owner may read, whole or not at all.
fn write_private(path: &Path, text: &str) -> Result<(), DriverError> {
    write_with_mode(path, text, 0o600)
}

fn write_with_mode(path: &Path, text: &str, mode: u32) -> Result<(), DriverError> {
    durable::write(path, text.as_bytes(), Access::mode(mode))
        .map_err(|error| DriverError::file("write", path, &error))
}
