//! `homestak exec`: runs a command on several nodes in parallel.

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use homestak_api::v1::{self, ExecError, ExecResults, kind};
use homestak_driver::error::count;
use homestak_driver::nodes::{self, MAX_OUTPUT, RecordedNode, Stream, shell_line};
use homestak_driver::runs::RunSelector;
use homestak_driver::{DriverError, Session, journal};

use crate::args::ExecArgs;
use crate::commands::Outcome;
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::{Printer, line};

/// Ends output that is too large for a JSON document.
const CUT: &str = "[truncated: more than 16 MiB]\n";

/// The result on one node.
#[derive(Default)]
struct ExecResult {
    exit: Option<i32>,
    error: Option<DriverError>,
    out: String,
    err: String,
}

/// Runs a command on nodes.
pub(in crate::commands) fn run(args: &ExecArgs, settings: &Settings, printer: &Printer) -> Outcome {
    let (journal, session) = (journal(&settings.driver)?, settings.session()?);
    let which = RunSelector {
        manifest: args.manifest.clone(),
        host: args.host.clone(),
    };
    let known = block_on(nodes::all(&*journal, &session, &which))??;
    let wanted = if args.all {
        &["*".to_owned()]
    } else {
        &*args.nodes
    };
    let chosen = nodes::select(&known, wanted)?;
    refuse_simulated(&chosen)?;
    let labels = nodes::labels(&chosen);
    let line = shell_line(&args.command);
    let results = on_each(
        (&chosen, &labels),
        (&line, args.parallel),
        (&session, settings),
        printer,
    );
    let success = results.iter().all(|result| result.exit == Some(0));
    if printer.output.json {
        let results = labels.iter().zip(&results);
        let results = results
            .map(|(label, result)| to_wire(label, result))
            .collect();
        printer.json(&kind::EXEC, &ExecResults { success, results });
    } else {
        summarize(&labels, &results, printer);
    }
    Ok(ExitCode::from(u8::from(!success)))
}

/// Refuses simulated nodes before anything is run on the others.
fn refuse_simulated(chosen: &[RecordedNode]) -> Result<(), DriverError> {
    let simulated = chosen.iter().filter(|node| node.traits.is_simulated);
    let names: Vec<String> = simulated.map(|node| format!("`{}`", node.name())).collect();
    if names.is_empty() {
        return Ok(());
    }
    let are = if names.len() == 1 { "is" } else { "are" };
    let names = names.join(", ");
    Err(DriverError::refused(format!(
        "{names} {are} simulated and cannot run commands; nothing was run."
    ))
    .hint("use -H HOST to select the nodes of another host"))
}

/// Runs a shell line on each node, `parallel` at a time. Prints output as it arrives, unless JSON.
fn on_each(
    (chosen, labels): (&[RecordedNode], &[String]),
    (line, parallel): (&str, u32),
    (session, settings): (&Session, &Settings),
    printer: &Printer,
) -> Vec<ExecResult> {
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<ExecResult>> = chosen.iter().map(|_| Mutex::default()).collect();
    let width = labels.iter().map(|label| label.chars().count()).max();
    let width = width.unwrap_or_default();
    // Lines of several nodes are printed one at a time.
    let turn = Mutex::new(());
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(node) = chosen.get(at) else {
                return;
            };
            let on_line = |stream: Stream, text: &str| {
                let mut result = results[at].lock().unwrap_or_else(PoisonError::into_inner);
                let output = match stream {
                    Stream::Out => &mut result.out,
                    Stream::Err => &mut result.err,
                };
                if printer.output.json {
                    if output.len() < MAX_OUTPUT {
                        output.push_str(text);
                        output.push('\n');
                        if output.len() >= MAX_OUTPUT {
                            output.push_str(CUT);
                        }
                    }
                    return;
                }
                let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
                let label = line::of_node(&labels[at], at, width);
                match stream {
                    Stream::Out => printer.node_stdout(&label, text),
                    Stream::Err => printer.node_stderr(&label, text),
                }
            };
            let ended = match nodes::connection(node, session, &settings.driver) {
                Ok(connection) => connection.with_retries(|ssh| ssh.follow(line, b"", &on_line)),
                Err(error) => Err(error),
            };
            let mut result = results[at].lock().unwrap_or_else(PoisonError::into_inner);
            match ended {
                Ok(exit) => result.exit = Some(exit),
                Err(error) => result.error = Some(error),
            }
        }
    };
    std::thread::scope(|scope| {
        let workers = chosen.len().min(parallel as usize);
        for _ in 0..workers {
            scope.spawn(work);
        }
    });
    results
        .into_iter()
        .map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner))
        .collect()
}

fn to_wire(label: &str, result: &ExecResult) -> v1::ExecResult {
    v1::ExecResult {
        node: label.to_owned(),
        exit: result.exit,
        stdout: result.out.clone(),
        stderr: result.err.clone(),
        error: result.error.as_ref().map(|error| ExecError {
            message: error.message.clone(),
            hints: error.hints.clone(),
        }),
    }
}

/// Prints failures, and on how many nodes it succeeded.
fn summarize(labels: &[String], results: &[ExecResult], printer: &Printer) {
    for (label, result) in labels.iter().zip(results) {
        match (&result.error, result.exit) {
            (Some(error), _) => {
                printer.message(&format!("{label}: {}", error.message));
                for hint in &error.hints {
                    printer.message(&format!("  hint: {hint}"));
                }
            }
            (None, Some(0) | None) => {}
            (None, Some(exit)) => printer.message(&format!("{label}: exit code {exit}")),
        }
    }
    let good = results
        .iter()
        .filter(|result| result.exit == Some(0))
        .count();
    if good == results.len() {
        printer.detail(&format!("Succeeded on {}.", count(good, "node")));
    } else {
        printer.message(&format!(
            "Succeeded on {good} of {}.",
            count(results.len(), "node")
        ));
    }
}
