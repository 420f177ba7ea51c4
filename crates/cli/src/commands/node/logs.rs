//! `homestak logs`: the console output and the journal of a node.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::os::fd::AsRawFd;
use std::process::{ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};

use homestak_api::v1::{NodeLogs, kind};
use homestak_core::foreign::ForeignText;
use homestak_driver::hosts::local::{Engine, Local, Node};
use homestak_driver::nodes::{Stream, shell_line};
use homestak_driver::{DriverError, journal, nodes};

use super::PROGRAM;
use super::inside::{Inside, find, of_host, require_root};
use crate::args::LogsArgs;
use crate::commands::Outcome;
use crate::process;
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::Printer;

/// Shows the logs of a node.
pub(in crate::commands) fn run(args: &LogsArgs, settings: &Settings, printer: &Printer) -> Outcome {
    if args.follow && printer.shape.json {
        return Err(DriverError::usage(
            "`--follow` cannot be combined with `--json-output`.",
        ));
    }
    let (journal, session) = (journal(&settings.driver)?, settings.session()?);
    match block_on(find(&*journal, &args.node, &session, settings))?? {
        Inside::Here(found) => {
            require_root("Reading logs of a node")?;
            here(&found.0, &found.1, args, settings, printer)
        }
        Inside::In(parent, node) => {
            let lines = args.lines.to_string();
            let mut words = vec!["logs", &node, "-n", &lines];
            words.extend(args.follow.then_some("--follow"));
            words.extend(printer.shape.json.then_some("--json-output"));
            let command: Vec<String> = PROGRAM
                .iter()
                .chain(&words)
                .map(ToString::to_string)
                .collect();
            inside(
                &nodes::connection(&parent, &session, &settings.driver)?,
                &shell_line(&command),
                printer,
            )
        }
        Inside::Elsewhere(known) => {
            let console = format!("its console: {}", of_host(&known));
            let way = nodes::connection(&known, &session, &settings.driver)
                .map_err(|error| error.hint(console.clone()))?;
            over_ssh(&way, args, printer).map_err(|error| error.hint(console))
        }
    }
}

/// Shows the logs of a node on this machine.
fn here(
    local: &Local,
    node: &Node,
    args: &LogsArgs,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let mut console = local.console(node, args.lines);
    if printer.shape.json || std::io::stdout().is_terminal() {
        // Colours are for the terminal it was written to.
        for line in &mut console {
            *line = anstream::adapter::strip_str(line.trim_end()).to_string();
        }
    }
    if !printer.shape.json {
        printer.say("Console:");
        for line in &console {
            printer.node_data("", line);
        }
        printer.say("Journal:");
    }
    let number = args.lines.to_string();
    let asked = ["--no-pager", "--lines", &number];
    let mut words = vec!["journalctl"];
    words.extend(asked);
    words.extend(args.follow.then_some("--follow"));
    if let Some(mut arguments) = local.enter(node, &[], &words) {
        let program = arguments.remove(0);
        return show(&program, &arguments, &console, args.follow, printer);
    }
    let kept = local.journal(node).map_err(|error| unreadable(&error))?;
    if !kept.is_empty() {
        // By what is open here: a path could lead elsewhere by the time it is read.
        let own = std::process::id();
        let files = kept.iter().map(AsRawFd::as_raw_fd);
        let files = files.map(|file| format!("--file=/proc/{own}/fd/{file}"));
        let mut arguments: Vec<String> = files.collect();
        arguments.extend(asked.map(str::to_owned));
        return show("journalctl", &arguments, &console, false, printer);
    }
    if node.engine == Engine::Machine {
        // Its journal is on a disk of its own.
        let (journal, session) = (journal(&settings.driver)?, settings.session()?);
        let which = args.node.which();
        let known = block_on(nodes::one(&*journal, &session, &args.node.node, &which))??;
        let way = nodes::connection(&known, &session, &settings.driver)?;
        return over_ssh(&way, args, printer);
    }
    if printer.shape.json {
        let journal = Vec::new();
        printer.json(&kind::LOGS, &NodeLogs { console, journal });
    } else {
        printer.say("The node is not running, and has no stored journal.");
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a program that prints the journal.
fn show(
    program: &str,
    arguments: &[String],
    console: &[String],
    follow: bool,
    printer: &Printer,
) -> Outcome {
    let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
    let failed = |error: &dyn std::fmt::Display| unreadable(&format_args!("{program}: {error}"));
    if follow {
        // Not as this process itself: the program is the node's, and so is what it prints.
        let ended =
            process::follow(
                program,
                &arguments,
                Stdio::null(),
                &|on_stdout, line| match on_stdout {
                    true => printer.node_data("", line),
                    false => printer.node_talk("", line),
                },
            );
        let ended = ended.map_err(|error| failed(&error))?;
        return Ok(ExitCode::from(u8::from(!ended.success())));
    }
    let output = process::output(program, &arguments).map_err(|error| failed(&error))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().lines().last().unwrap_or_default();
        return Err(failed(&ForeignText::line(said)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    if printer.shape.json {
        let logs = NodeLogs {
            console: console.to_vec(),
            journal: text.lines().map(str::to_owned).collect(),
        };
        printer.json(&kind::LOGS, &logs);
    } else {
        text.lines().for_each(|line| printer.node_data("", line));
    }
    Ok(ExitCode::SUCCESS)
}

fn unreadable(error: &dyn std::fmt::Display) -> DriverError {
    DriverError::failed(format!("The journal cannot be read: {error}."))
        .hint("homestak local check finds what is missing")
}

/// Shows the journal of a node that only SSH reaches.
fn over_ssh(way: &nodes::NodeConnection, args: &LogsArgs, printer: &Printer) -> Outcome {
    let follow = if args.follow { " --follow" } else { "" };
    let asked = format!("journalctl --no-pager --lines {}{follow}", args.lines);
    // Root's own login may have no sudo.
    let line = format!("if [ \"$(id -u)\" = 0 ]; then exec {asked}; else exec sudo -n {asked}; fi");
    let said = Mutex::new(Vec::new());
    let hear = |stream: Stream, line: &str| match stream {
        Stream::Err => printer.node_talk("", line),
        Stream::Out if printer.shape.json => {
            let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
            // A node may print more than it was asked for.
            if said.len() < args.lines {
                said.push(line.to_owned());
            }
        }
        Stream::Out => printer.node_data("", line),
    };
    let status = way.with_retries(|ssh| ssh.follow(&line, b"", &hear))?;
    if printer.shape.json {
        let journal = said.into_inner().unwrap_or_else(PoisonError::into_inner);
        let console = Vec::new();
        printer.json(&kind::LOGS, &NodeLogs { console, journal });
    }
    Ok(ExitCode::from(u8::from(status != 0)))
}

/// Shows what this program prints inside a node that the one meant runs on.
fn inside(way: &nodes::NodeConnection, line: &str, printer: &Printer) -> Outcome {
    let hear = |stream: Stream, text: &str| match stream {
        Stream::Out => printer.node_data("", text),
        Stream::Err => printer.node_talk("", text),
    };
    let status = way.with_retries(|ssh| ssh.follow(line, b"", &hear))?;
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(1)))
}
