//! `homestak node job`: has a node do something, and follows it.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use homestak_api::v1::kind;
use homestak_api::v1::node_job::{JobKind, JobState};
use homestak_api::v1::node_update::{JobRoute, NodeJob};
use homestak_driver::node_job::{JobEvent, JobRequest, JobRunner, LastKnown};
use homestak_driver::nodes::{self, RecordedNode};
use homestak_driver::{Driver, DriverError};

use super::super::{agree, driver};
use super::Outcome;
use super::registered::time;
use crate::args::NodeJobArgs;
use crate::runtime::{block_on, shutdown_signal};
use crate::settings::Settings;
use crate::ui::job::{LineBuffer, ended};
use crate::ui::{OutputOptions, Printer};

/// How often a line reports that a job still runs.
const REMINDER: Duration = Duration::from_secs(15);

/// Runs a job on a node.
pub(super) fn run(args: &NodeJobArgs, settings: &Settings, printer: &Printer) -> Outcome {
    let request = args.request()?;
    let (driver, _) = driver(settings.session()?, settings, false, printer)?;
    block_on(async {
        let which = args.node.selector();
        let journal = driver.journal();
        let node = nodes::one(&**journal, &driver.session, &args.node.node, &which).await?;
        confirm(args, &request, &node, printer).await?;
        let runner = JobRunner::new(&driver);
        if args.detach {
            let queued = runner.detach(&node, &request).await?;
            if printer.output.json {
                printer.json(&kind::NODE_JOB, &queued);
            } else {
                let id = &queued.job.id;
                printer.data(&ended(&queued.job));
                printer.message(&format!("homestak job show {id} shows its result."));
            }
            return Ok(ExitCode::SUCCESS);
        }
        follow(&driver, &runner, &node, &request, printer).await
    })?
}

/// Asks before a node is restarted.
async fn confirm(
    args: &NodeJobArgs,
    request: &JobRequest,
    node: &RecordedNode,
    printer: &Printer,
) -> Result<(), DriverError> {
    // One that is followed again was confirmed before.
    if request.kind != JobKind::Reboot || request.id.is_some() {
        return Ok(());
    }
    let name = node.name();
    let question = match node.record.hosts_guests {
        Some(true) => format!("Restart `{name}`, and with it the nodes that run on it?"),
        Some(false) | None => format!("Restart `{name}`?"),
    };
    agree(args.yes, &question, printer).await
}

/// What is known of a job while it is followed.
#[derive(Default)]
struct Followed {
    submitted: Option<(String, JobRoute)>,
    state: Option<JobState>,
    buffer: LineBuffer,
    /// Whether it has contacted the server since the last reminder.
    is_recent: bool,
    doing: String,
}

impl Followed {
    fn observe(&mut self, event: JobEvent, name: &str, printer: &Printer) {
        self.is_recent = true;
        match event {
            JobEvent::Submitted { id, route } => {
                let by = match route {
                    JobRoute::Server => "through the server",
                    JobRoute::Ssh => "over SSH",
                };
                printer.message(&format!("Job {id} of `{name}`, {by}."));
                self.doing = format!("`{name}` runs the job");
                self.submitted = Some((id, route));
            }
            JobEvent::NotTaken { last_contact } => {
                let contact = match last_contact {
                    Some(_) => format!("its last contact was at {}", time(last_contact)),
                    None => "it has not contacted the server so far".to_owned(),
                };
                printer.message(&format!("Waiting for `{name}` to take the job; {contact}."));
            }
            JobEvent::State(state) => self.enter(state, name, printer),
            JobEvent::Waiting(what) => {
                self.flush(printer);
                self.doing = format!("waiting for {what}");
                printer.message(&format!("Waiting for {what}."));
            }
            JobEvent::Output(text) => {
                for line in self.buffer.add(&text) {
                    printer.job_stderr("", &line);
                }
            }
        }
    }

    fn enter(&mut self, state: JobState, name: &str, printer: &Printer) {
        self.state = Some(state);
        match state {
            JobState::Queued => self.doing = format!("waiting for `{name}` to take the job"),
            JobState::Taken => {
                self.doing = format!("`{name}` runs the job");
                printer.message(&format!("`{name}` runs the job."));
            }
            JobState::Succeeded
            | JobState::Failed
            | JobState::Refused
            | JobState::Cancelled
            | JobState::Expired
            | JobState::Lost => self.flush(printer),
        }
    }

    /// Returns what is known of the job, if it was submitted.
    fn last_known(&self, begun: i64) -> Option<LastKnown> {
        let (id, route) = self.submitted.clone()?;
        let state = self.state.unwrap_or(match route {
            JobRoute::Server => JobState::Queued,
            JobRoute::Ssh => JobState::Taken,
        });
        Some(LastKnown {
            id,
            route,
            state,
            begun,
        })
    }

    fn flush(&mut self, printer: &Printer) {
        if let Some(rest) = self.buffer.rest() {
            printer.job_stderr("", &rest);
        }
    }
}

/// Runs a job and shows its output. An interrupt ends this only; the node continues.
async fn follow(
    driver: &Driver,
    runner: &JobRunner,
    node: &RecordedNode,
    request: &JobRequest,
    printer: &Printer,
) -> Outcome {
    let followed = Arc::new(Mutex::new(Followed::default()));
    let locked = || followed.lock().unwrap_or_else(PoisonError::into_inner);
    let (seen, name, own) = (
        followed.clone(),
        node.name().to_owned(),
        Printer::new(OutputOptions { ..printer.output }),
    );
    let observe = Arc::new(move |event| {
        let mut followed = seen.lock().unwrap_or_else(PoisonError::into_inner);
        followed.observe(event, &name, &own);
    });
    let clock = &driver.operator.clock;
    let begun = clock.now();
    let mut reminder = tokio::time::interval(REMINDER);
    reminder.reset();
    let observe = observe as homestak_driver::node_job::JobObserver;
    let done = {
        let mut work = std::pin::pin!(runner.run(node, request, &observe));
        let mut interrupted = std::pin::pin!(shutdown_signal());
        loop {
            tokio::select! {
                biased;
                // Cancel safety: the node continues on its own.
                done = &mut work => break Some(done),
                // Cancel safety: only waited for.
                () = &mut interrupted => break None,
                // Cancel safety: a tick that is missed is only a line less.
                _ = reminder.tick() => {
                    let mut followed = locked();
                    if !std::mem::take(&mut followed.is_recent) && !followed.doing.is_empty() {
                        let passed = clock.now().duration_since(begun).as_secs();
                        printer.message(&format!("{passed} s: {}.", followed.doing));
                    }
                }
            }
        }
    };
    locked().flush(printer);
    match done {
        Some(done) => Ok(show(&done?, printer)),
        None => {
            let last = locked().last_known(begun.as_second());
            interrupted(runner, (node, request), last, printer).await
        }
    }
}

/// Prints how a job ended, and returns the exit code.
fn show(done: &NodeJob, printer: &Printer) -> ExitCode {
    if printer.output.json {
        printer.json(&kind::NODE_JOB, done);
    } else {
        printer.data(&ended(&done.job));
        if done.truncated {
            printer.message("Later output was dropped because there was too much.");
        }
    }
    ExitCode::from(match done.job.state {
        JobState::Succeeded => 0,
        JobState::Failed | JobState::Cancelled | JobState::Expired => 1,
        JobState::Refused => 3,
        JobState::Queued | JobState::Taken | JobState::Lost => 4,
    })
}

/// Prints the state of a job that is no longer followed.
async fn interrupted(
    runner: &JobRunner,
    (node, request): (&RecordedNode, &JobRequest),
    last: Option<LastKnown>,
    printer: &Printer,
) -> Outcome {
    let Some(last) = last else {
        printer.message("Interrupted. No job was submitted, unless `homestak job list` shows one.");
        return Ok(ExitCode::from(130));
    };
    let abandoned = runner.abandon(node, request, last).await;
    let done = &abandoned.job;
    if done.job.state.is_ended() && !abandoned.is_cancelled {
        return Ok(show(done, printer));
    }
    if printer.output.json {
        printer.json(&kind::NODE_JOB, done);
    }
    let (name, kind, id) = (node.name(), request.kind.name(), &done.job.id);
    if abandoned.is_cancelled {
        printer.message(&format!(
            "Interrupted. This command started a temporary server, which stops when the command ends, so the job {id} was cancelled; `{name}` had not taken it."
        ));
        return Ok(ExitCode::from(130));
    }
    let is_queued = done.job.state == JobState::Queued;
    printer.message(&match (done.route, is_queued) {
        (JobRoute::Server, _) if !abandoned.is_current => format!(
            "Interrupted. The server does not answer; the job {id} was last {}.",
            done.job.state.name()
        ),
        (_, true) => {
            format!("Interrupted. The job {id} is still queued, and runs when `{name}` takes it.")
        }
        (_, false) => {
            format!("Interrupted. The job {id} is no longer followed, and `{name}` continues.")
        }
    });
    if is_queued {
        printer.hint(&format!("homestak job cancel {id} cancels it"));
    }
    printer.hint(&match done.route {
        JobRoute::Ssh => format!(
            "homestak node job {name} {kind} {} --ssh --id {id} returns its outcome",
            node.options()
        ),
        JobRoute::Server => format!("homestak job show {id} shows what becomes of it"),
    });
    Ok(ExitCode::from(4))
}
