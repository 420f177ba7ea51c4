//! `homestak node update`: updates the nodes of a manifest in batches.

use std::collections::BTreeMap;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use homestak_api::v1::kind;
use homestak_api::v1::node_update::{JobRoute, NodeUpdate, NodeUpdateEntry, NodeUpdateState};
use homestak_driver::error::count;
use homestak_driver::job::Job;
use homestak_driver::node_job::{ABANDON_TIME, JobEvent, JobObserver, JobRunner};
use homestak_driver::node_update::{Asking, StagedUpdate, UpdateEvent, UpdateLock, UpdateObserver};
use homestak_driver::{DriverError, ErrorKind};

use super::super::agree;
use super::Outcome;
use crate::args::NodeUpdateArgs;
use crate::runtime::{block_on, drive, shutdown_signal};
use crate::settings::Settings;
use crate::ui::job::{LineBuffer, line};
use crate::ui::progress::Screen;
use crate::ui::{OutputOptions, Printer, update};

/// Plans and executes a staged update.
pub(super) fn run(args: &NodeUpdateArgs, settings: &Settings, printer: &Printer) -> Outcome {
    let screen = Arc::new(Screen::new(printer.output, false));
    let (choice, session) = (args.choice(), settings.session()?);
    let job = Job::open(choice, None, session, &settings.driver, screen.clone())?;
    block_on(async {
        let queued = QueuedJobs::default();
        let prepared = {
            let mut work = pin!(prepare(&job, args, &queued, printer));
            tokio::select! {
                biased;
                // Cancel safety: the nodes only report their updates, and nothing changes.
                prepared = &mut work => Some(prepared),
                // Cancel safety: only waited for.
                () = shutdown_signal() => None,
            }
        };
        // Nothing else changes these nodes until the update has ended.
        let (mut staged, _lock) = match prepared {
            Some(Ok(Prepared::Ready(staged, lock))) => (staged, lock),
            Some(Ok(Prepared::Ended(code))) => return Ok(code),
            Some(Err(error)) => return Err(error),
            None => return Ok(interrupted(&job, args, &queued, printer).await),
        };
        let observe = observer(printer);
        let done = drive(
            async |interrupt| {
                staged.execute(&interrupt, &observe).await;
                Ok(())
            },
            &screen,
            &job.driver,
            printer,
        );
        if done.await?.is_none() {
            staged.abort();
            if printer.output.json {
                printer.json(&kind::NODE_UPDATE, &staged.output(false));
            }
            printer.message(
                "Aborted. Nodes that were being updated continue on their own; the same command again continues the update.",
            );
            return Ok(ExitCode::from(130));
        }
        Ok(finish(&staged.output(false), printer))
    })?
}

/// The result of preparing an update.
enum Prepared {
    /// The update was confirmed, and its nodes are locked.
    Ready(Box<StagedUpdate>, UpdateLock),
    /// There is nothing to execute.
    Ended(ExitCode),
}

/// The ids of the jobs that this command has queued on the server.
type QueuedJobs = Arc<Mutex<Vec<String>>>;

/// Locks the nodes, has them report their updates, shows the plan and asks for confirmation. Changes
/// nothing.
async fn prepare(
    job: &Job,
    args: &NodeUpdateArgs,
    queued: &QueuedJobs,
    printer: &Printer,
) -> Result<Prepared, DriverError> {
    let lock = match args.dry_run {
        true => None,
        false => Some(UpdateLock::take(job, &args.request()).await?),
    };
    let asking = |event: Asking<'_>| match event {
        Asking::Begun => printer.message("Asking the nodes what they would update."),
        Asking::Answered(node) => printer.message(&format!("{node}: answered")),
    };
    let observe = record_jobs(queued);
    let staged = StagedUpdate::plan(job, args.request(), lock.as_ref(), &observe, &asking).await?;
    let plan = staged.output(true);
    let Some(lock) = lock else {
        show(&plan, printer);
        return Ok(Prepared::Ended(match staged.require_complete() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => incomplete(&error, printer),
        }));
    };
    printer.message(update::plan(&plan).trim_end());
    staged.require_complete()?;
    if staged.is_empty() {
        let done = staged.output(false);
        if printer.output.json {
            printer.json(&kind::NODE_UPDATE, &done);
        } else {
            printer.message("Nothing to update.");
        }
        return Ok(Prepared::Ended(ExitCode::SUCCESS));
    }
    let planned = plan
        .nodes
        .iter()
        .filter(|node| node.batch.is_some())
        .count();
    let question = format!("Update {}?", count(planned, "node"));
    agree(args.yes, &question, printer).await?;
    Ok(Prepared::Ready(Box::new(staged), lock))
}

/// Returns an observer that records the ids of the jobs in which nodes report their updates.
fn record_jobs(queued: &QueuedJobs) -> JobObserver {
    let queued = queued.clone();
    Arc::new(move |event| match event {
        JobEvent::Submitted {
            id,
            route: JobRoute::Server,
        } => {
            let mut queued = queued.lock().unwrap_or_else(PoisonError::into_inner);
            queued.push(id);
        }
        JobEvent::Submitted {
            route: JobRoute::Ssh,
            ..
        }
        | JobEvent::State(_)
        | JobEvent::NotTaken { .. }
        | JobEvent::Waiting(_)
        | JobEvent::Output(_) => {}
    })
}

/// Prints that nothing was changed, and cancels the queued jobs. Another signal ends the command at once.
async fn interrupted(
    job: &Job,
    args: &NodeUpdateArgs,
    queued: &QueuedJobs,
    printer: &Printer,
) -> ExitCode {
    printer.message("Interrupted; nothing was changed.");
    if printer.output.json {
        let stopped = NodeUpdate {
            stopped: Some("it was interrupted".to_owned()),
            ..StagedUpdate::unplanned(job, &args.request(), args.dry_run)
        };
        printer.json(&kind::NODE_UPDATE, &stopped);
    }
    let ids = std::mem::take(&mut *queued.lock().unwrap_or_else(PoisonError::into_inner));
    let runner = JobRunner::new(&job.driver);
    let abandon = async {
        for id in ids {
            // If this fails, the job changes nothing, and expires.
            _ = runner.cancel_on_temporary(&id).await;
        }
    };
    tokio::select! {
        // Cancel safety: a job that is not cancelled expires.
        () = abandon => {}
        // Cancel safety: only waited for.
        () = shutdown_signal() => {}
        // Cancel safety: as above.
        () = tokio::time::sleep(ABANDON_TIME) => {}
    }
    ExitCode::from(130)
}

/// Prints why a plan is incomplete, after the plan was printed.
fn incomplete(error: &DriverError, printer: &Printer) -> ExitCode {
    printer.message(&error.message);
    error.hints.iter().for_each(|hint| printer.hint(hint));
    ExitCode::from(match error.kind {
        ErrorKind::Refused => 3,
        ErrorKind::Failed | ErrorKind::Usage | ErrorKind::Stopped => 1,
    })
}

/// Prints a plan as the result of the command.
fn show(plan: &NodeUpdate, printer: &Printer) {
    if printer.output.json {
        printer.json(&kind::NODE_UPDATE, plan);
    } else {
        printer.data(&update::plan(plan));
    }
}

/// Returns an observer that prints the progress in complete lines.
fn observer(printer: &Printer) -> UpdateObserver {
    let printer = Printer::new(OutputOptions { ..printer.output });
    let buffers: Mutex<BTreeMap<String, LineBuffer>> = Mutex::default();
    Arc::new(move |event| {
        let mut buffers = buffers.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            UpdateEvent::Batch { number, of, nodes } => {
                printer.message(&format!("Batch {number} of {of}: {}.", nodes.join(", ")));
            }
            UpdateEvent::Node { node, doing } => {
                printer.message(&format!("{node}: {}", line(&doing)));
            }
            UpdateEvent::Output { node, text } => {
                let label = format!("{node} | ");
                for line in buffers.entry(node).or_default().add(&text) {
                    printer.job_stderr(&label, &line);
                }
            }
            UpdateEvent::Ended {
                node,
                state,
                message,
            } => {
                if let Some(rest) = buffers.remove(&node).and_then(|mut buffer| buffer.rest()) {
                    printer.job_stderr(&format!("{node} | "), &rest);
                }
                let why = message.map(|message| format!(": {}", line(&message)));
                let why = why.unwrap_or_default();
                printer.message(&format!("{node}: {}{why}", state.name()));
            }
        }
    })
}

/// Prints the result, and what to do next.
fn finish(done: &NodeUpdate, printer: &Printer) -> ExitCode {
    if printer.output.json {
        printer.json(&kind::NODE_UPDATE, done);
    } else {
        printer.data(&update::result(done));
    }
    let Some(why) = &done.stopped else {
        return ExitCode::SUCCESS;
    };
    let is_not_started = |node: &&NodeUpdateEntry| node.state == NodeUpdateState::NotStarted;
    let not_started = match done.nodes.iter().filter(is_not_started).count() {
        0 => String::new(),
        number => format!("; {} not started", count(number, "node")),
    };
    let why = line(why);
    printer.message(&format!("The update stopped, because {why}{not_started}."));
    printer.hint(
        match done.nodes.iter().any(|node| needs_attention(node.state)) {
            true => "correct the node, then repeat the command: it continues with what is left",
            false => "the same command again continues",
        },
    );
    if let Some(bad) = done.nodes.iter().find(|node| needs_attention(node.state)) {
        let (name, manifest) = (&bad.node, &done.manifest);
        printer.hint(&format!(
            "homestak node job {name} collect -M {manifest} shows its state"
        ));
    }
    ExitCode::from(exit_code(done))
}

/// Returns whether a node must be inspected before the update is repeated.
fn needs_attention(state: NodeUpdateState) -> bool {
    match state {
        NodeUpdateState::Failed
        | NodeUpdateState::Refused
        | NodeUpdateState::Unhealthy
        | NodeUpdateState::Unknown => true,
        NodeUpdateState::Planned
        | NodeUpdateState::UpToDate
        | NodeUpdateState::Skipped
        | NodeUpdateState::Updated
        | NodeUpdateState::NotStarted => false,
    }
}

/// Returns the exit code of an update that stopped.
fn exit_code(done: &NodeUpdate) -> u8 {
    let has = |state: NodeUpdateState| done.nodes.iter().any(|node| node.state == state);
    if has(NodeUpdateState::Failed) || has(NodeUpdateState::Unhealthy) {
        1
    } else if has(NodeUpdateState::Unknown) {
        4
    } else if has(NodeUpdateState::Refused) {
        3
    } else {
        4
    }
}
