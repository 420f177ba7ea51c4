//! `homestak logs`: the console output and the journal of a node.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::os::fd::AsRawFd;
use std::process::{ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};

use homestak_api::limit::monotonic;
use homestak_api::v1::{NodeLogs, kind};
use homestak_core::foreign::ForeignText;
use homestak_driver::hosts::local::{Engine, Local, Node};
use homestak_driver::nodes::{Stream, shell_line};
use homestak_driver::{DriverError, journal, nodes};

use super::PROGRAM;
use super::entry_point::{EntryPoint, find, of_host, require_root};
use crate::args::LogsArgs;
use crate::commands::Outcome;
use crate::process;
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::Printer;

/// Shows the logs of a node.
pub(in crate::commands) fn run(args: &LogsArgs, settings: &Settings, printer: &Printer) -> Outcome {
    if args.follow && printer.output.json {
        return Err(DriverError::usage(
            "`--follow` cannot be combined with `--json-output`.",
        ));
    }
    let (journal, session) = (journal(&settings.driver)?, settings.session()?);
    match block_on(find(&*journal, &args.node, &session, settings))?? {
        EntryPoint::Local(found) => {
            require_root("Reading logs of a node")?;
            here(&found.0, &found.1, args, settings, printer)
        }
        EntryPoint::InNode(parent, node) => {
            let lines = args.lines.to_string();
            let mut words = vec!["logs", &node, "-n", &lines];
            words.extend(args.follow.then_some("--follow"));
            words.extend(printer.output.json.then_some("--json-output"));
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
        EntryPoint::OnHost(known) => {
            let connection = nodes::connection(&known, &session, &settings.driver);
            let shown = connection.and_then(|connection| over_ssh(&connection, args, printer));
            let console = of_host(&known).map(|command| format!("its console: {command}"));
            shown.map_err(|error| console.into_iter().fold(error, DriverError::hint))
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
    if printer.output.json || std::io::stdout().is_terminal() {
        // Colours are for the terminal it was written to.
        for line in &mut console {
            *line = anstream::adapter::strip_str(line.trim_end()).to_string();
        }
    }
    if !printer.output.json {
        printer.message("Console:");
        for line in &console {
            printer.node_stdout("", line);
        }
        printer.message("Journal:");
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
        // By file descriptor: a path could be replaced before it is read.
        let own = std::process::id();
        let files = kept.iter().map(AsRawFd::as_raw_fd);
        let files = files.map(|file| format!("--file=/proc/{own}/fd/{file}"));
        let mut arguments: Vec<String> = files.collect();
        arguments.extend(asked.map(str::to_owned));
        return show("journalctl", &arguments, &console, false, printer);
    }
    if node.engine == Engine::Machine {
        // Its journal is on its own disk.
        let (journal, session) = (journal(&settings.driver)?, settings.session()?);
        let which = args.node.selector();
        let known = block_on(nodes::one(&*journal, &session, &args.node.node, &which))??;
        let connection = nodes::connection(&known, &session, &settings.driver)?;
        return over_ssh(&connection, args, printer);
    }
    if printer.output.json {
        let journal = Vec::new();
        printer.json(&kind::LOGS, &NodeLogs { console, journal });
    } else {
        printer.message("The node is not running, and has no stored journal.");
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
        // As a child process: the program and its output are controlled by the node.
        let ended =
            process::follow(
                program,
                &arguments,
                Stdio::null(),
                &|on_stdout, line| match on_stdout {
                    true => printer.node_stdout("", line),
                    false => printer.node_stderr("", line),
                },
            );
        let ended = ended.map_err(|error| failed(&error))?;
        return Ok(ExitCode::from(u8::from(!ended.success())));
    }
    let output = process::output(program, &arguments).map_err(|error| failed(&error))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        let message = message.trim().lines().last().unwrap_or_default();
        return Err(failed(&ForeignText::line(message)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    if printer.output.json {
        let logs = NodeLogs {
            console: console.to_vec(),
            journal: text.lines().map(str::to_owned).collect(),
        };
        printer.json(&kind::LOGS, &logs);
    } else {
        text.lines().for_each(|line| printer.node_stdout("", line));
    }
    Ok(ExitCode::SUCCESS)
}

fn unreadable(error: &dyn std::fmt::Display) -> DriverError {
    DriverError::failed(format!("The journal cannot be read: {error}."))
        .hint("homestak local check finds what is missing")
}

/// Shows the journal of a node that only SSH reaches.
fn over_ssh(connection: &nodes::NodeConnection, args: &LogsArgs, printer: &Printer) -> Outcome {
    let follow = if args.follow { " --follow" } else { "" };
    let asked = format!("journalctl --no-pager --lines {}{follow}", args.lines);
    // Root's own login may have no sudo.
    let line = format!("if [ \"$(id -u)\" = 0 ]; then exec {asked}; else exec sudo -n {asked}; fi");
    let journal_lines = Mutex::new(Vec::new());
    let on_line = |stream: Stream, line: &str| match stream {
        Stream::Err => printer.node_stderr("", line),
        Stream::Out if printer.output.json => {
            let mut journal_lines = journal_lines.lock().unwrap_or_else(PoisonError::into_inner);
            // A node may print more than it was asked for.
            if journal_lines.len() < args.lines {
                journal_lines.push(line.to_owned());
            }
        }
        Stream::Out => printer.node_stdout("", line),
    };
    let until = monotonic() + process::LOGS_TIMEOUT;
    let is_over = || !args.follow && monotonic() >= until;
    let status = connection.with_retries(|ssh| ssh.follow_until(&line, b"", &on_line, &is_over))?;
    let Some(status) = status else {
        let seconds = process::LOGS_TIMEOUT.as_secs();
        return Err(unreadable(&format_args!(
            "the node did not send all of it within {seconds} s"
        )));
    };
    if printer.output.json {
        let journal = journal_lines
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let console = Vec::new();
        printer.json(&kind::LOGS, &NodeLogs { console, journal });
    }
    Ok(ExitCode::from(u8::from(status != 0)))
}

/// Shows the output of this program, run in the node that hosts the requested one.
fn inside(connection: &nodes::NodeConnection, line: &str, printer: &Printer) -> Outcome {
    let on_line = |stream: Stream, text: &str| match stream {
        Stream::Out => printer.node_stdout("", text),
        Stream::Err => printer.node_stderr("", text),
    };
    let status = connection.with_retries(|ssh| ssh.follow(line, b"", &on_line))?;
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(1)))
}
