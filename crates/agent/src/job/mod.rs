//! Jobs: a spec applied independently of the connection that brought it. A driver that reconnects gets
//! the same numbered events, and no job runs twice.

mod worker;

use std::path::Path;

use homestak_api::v1::kind;
use homestak_core::converge::{Event, NumberedEvent, render};
use serde_json::{Value, json};

use crate::args::{ApplyOptions, JobCommand};
use crate::error::AgentError;
use crate::settings::require_root;
use crate::spec::{self, Spec};
use crate::state::job::{EventLog, Job, Listener, SPEC, Verdict, Wait};
use crate::system::Machine;
use crate::{apply, clock, converge, process, settings, state, ui, undo};

const OPTIONS: &str = "terms.json";
/// The interval of keepalive events, in milliseconds.
const KEEPALIVE: u64 = 10_000;
/// How long a worker may take to start, in hundredths of a second.
const START_TIMEOUT: usize = 3_000;

/// Runs a command about jobs.
pub(crate) fn run(command: JobCommand) -> Result<u8, AgentError> {
    require_root()?;
    match command {
        JobCommand::Run { job, options } => {
            send_keepalives();
            Ok(run_job(&Job::new(&job.id), &options, || {
                spec::read(Some(Path::new("-")))
            }))
        }
        JobCommand::Undo {
            job,
            from,
            to,
            options,
        } => {
            send_keepalives();
            let read = || {
                let earlier = state::earlier_spec(&from, &to);
                spec::parse("-", earlier.ok_or(AgentError::NoEarlierSpec)?)
            };
            Ok(run_job(&Job::new(&job.id), &options, read))
        }
        JobCommand::Follow { job, after } => {
            send_keepalives();
            let job = Job::new(&job.id);
            if !job.exists() {
                return Err(AgentError::NoJob(job.id));
            }
            let result = follow(&job, after, print)?;
            Ok(code_of(&result))
        }
        JobCommand::Confirm(job) => confirm(Some(job.id)),
        JobCommand::Work(job) => worker::work(&Job::new(&job.id)),
        JobCommand::Guard(job) => undo::guard(&Job::new(&job.id)),
    }
}

/// Confirms the changes of a job.
pub(crate) fn confirm(id: Option<String>) -> Result<u8, AgentError> {
    require_root()?;
    let not_confirmable = |job: &str, why| AgentError::NotConfirmable {
        job: job.to_owned(),
        why,
    };
    let id = id
        .or_else(state::unconfirmed)
        .ok_or(AgentError::NothingToConfirm)?;
    let job = Job::new(&id);
    if !job.exists() {
        return Err(AgentError::NoJob(id));
    }
    let verdict = match (job.verdict(), job.request()) {
        (Some(verdict), _) => verdict,
        (None, None) => return Err(not_confirmable(&id, "it did not request confirmation")),
        (None, Some(request)) if request.is_expired() => Verdict::Reverted,
        (None, Some(_)) => job.decide(Verdict::Confirmed)?,
    };
    match verdict {
        Verdict::Confirmed => {
            ui::message("Confirmed: the changes are kept.");
            Ok(0)
        }
        Verdict::Reverted => Err(not_confirmable(
            &id,
            "too late, its changes are being reverted",
        )),
    }
}

fn run_job(
    job: &Job,
    options: &ApplyOptions,
    read: impl FnOnce() -> Result<Spec, AgentError>,
) -> u8 {
    let result = carry_out(job, read, options, print);
    // The job was not created, so its only event is printed here.
    let result = result.unwrap_or_else(|error| {
        let result = error.result();
        let end = Event::End {
            success: false,
            result: result.clone(),
        };
        print(&NumberedEvent { n: 1, event: end });
        ui::message(&format!("error: {}", error.message()));
        result
    });
    code_of(&result)
}

/// Applies a spec as a job for a local user, who confirms it over another connection.
pub(crate) fn run_manually(
    spec: Spec,
    options: &ApplyOptions,
    json: bool,
) -> Result<u8, AgentError> {
    require_root()?;
    let job = Job::new(&format!("manual-{}", clock::now().as_millisecond()));
    let listener = if json { print_progress } else { print_all };
    let name = spec.name.clone();
    let result = carry_out(&job, || Ok(spec), options, listener)?;
    if json {
        let output = serde_json::from_value(result.clone());
        let output = output.map_err(AgentError::observe("the result of the job"))?;
        ui::output(&kind::CONFIG_APPLY, &output);
    }
    match result["message"].as_str() {
        Some(message) => ui::message(&format!("error: {message}")),
        None => ui::message(&format!("{name} matches its spec.")),
    }
    Ok(code_of(&result))
}

/// Creates a job unless it exists, and returns its result when it has ended.
fn carry_out(
    job: &Job,
    read: impl FnOnce() -> Result<Spec, AgentError>,
    options: &ApplyOptions,
    listener: Listener,
) -> Result<Value, AgentError> {
    let ended = begin(job, read, options, listener)?;
    ended.map_or_else(|| follow(job, 0, listener), Ok)
}

/// Creates a job; writes the marker of failure if that fails, unless because of another run. Returns the
/// result of a job that has already ended.
fn begin(
    job: &Job,
    read: impl FnOnce() -> Result<Spec, AgentError>,
    options: &ApplyOptions,
    listener: Listener,
) -> Result<Option<Value>, AgentError> {
    let mut name = String::new();
    begin_named(job, read, options, listener, &mut name).map_err(|error| {
        let unchanged = matches!(
            error,
            AgentError::Busy | AgentError::AwaitingConfirmation(_) | AgentError::NoEarlierSpec
        );
        if !unchanged {
            _ = state::fail(&error, &name);
        }
        error
    })
}

/// If nothing differs, the job ends without a worker.
fn begin_named(
    job: &Job,
    read: impl FnOnce() -> Result<Spec, AgentError>,
    options: &ApplyOptions,
    listener: Listener,
    name: &mut String,
) -> Result<Option<Value>, AgentError> {
    let claim = job.claim()?;
    if job.exists() {
        return Ok(None);
    }
    let begun = clock::uptime();
    let lock = undo::lock()?;
    let spec = read()?;
    name.clone_from(&spec.name);
    let observation = apply::observe(&Machine::default(), &spec.wanted)?;
    apply::require(&observation.decision)?;
    let marked = |error: AgentError| {
        _ = state::fail(&error, &spec.name);
        error
    };
    if observation.decision.steps.is_empty() {
        let mut worker = worker::Worker::new(job, options, EventLog::open(job, Some(listener)));
        let done = converge::finish(&spec, observation, begun, options.lock_wait, &mut worker);
        job.delete_old();
        return Ok(Some(worker.end(done.map_err(marked))));
    }
    drop(lock);
    job.delete_old();
    job.write_text(SPEC, &spec.text)?;
    let options = ApplyOptions {
        caller: settings::caller(),
        ..options.clone()
    };
    job.write(OPTIONS, &options)?;
    let mut log = EventLog::open(job, None);
    let started = launch(job);
    drop(claim);
    if let Err(error) = started {
        let (success, result) = (false, marked(error).result());
        log.write(Event::End { success, result });
    }
    Ok(None)
}

/// Starts a worker under systemd, so that it outlives the connection.
fn launch(job: &Job) -> Result<(), AgentError> {
    let unit = format!("--unit=homestak-job-{}", job.id);
    let program = settings::program();
    let mut words = vec!["systemd-run", "--quiet", "--collect", "--service-type=exec"];
    words.push(&unit);
    let crash = settings::crash_after().map(|n| format!("--setenv=HOMESTAK_CRASH_AFTER={n}"));
    words.extend(crash.as_deref());
    words.extend(["--", &program, "job", "work", "--id", &job.id]);
    process::run_ok(&words)?;
    for _ in 0..START_TIMEOUT {
        if job.is_started() {
            return Ok(());
        }
        clock::sleep(10);
    }
    Err(AgentError::Killed)
}

/// Forwards the events of a job until its end, and returns its result.
fn follow(job: &Job, after: u64, listener: Listener) -> Result<Value, AgentError> {
    let mut n_read = 0;
    // The unit that reverts changes may be starting.
    let mut n_unattended = 0;
    loop {
        let is_active = job.is_active();
        let text = job.events()?;
        let new = text.get(n_read..).unwrap_or_default();
        let whole = new.rfind('\n').map_or(0, |end| end + 1);
        for line in new[..whole].lines() {
            let Ok(event) = serde_json::from_str::<NumberedEvent>(line) else {
                continue;
            };
            let wanted = event.n <= after || listener(&event);
            if let Event::End { result, .. } = event.event {
                return Ok(result);
            }
            // The job continues without us.
            if !wanted {
                return Ok(json!({ "code": 2 }));
            }
        }
        n_read += whole;
        if is_active {
            n_unattended = 0;
        } else {
            n_unattended += 1;
            let unconfirmed = state::unconfirmed().as_ref() == Some(&job.id);
            if !unconfirmed || n_unattended > START_TIMEOUT {
                end_dead_job(job);
            }
        }
        clock::sleep(20);
    }
}

/// Records the end of a job whose worker was killed.
fn end_dead_job(job: &Job) {
    if state::unconfirmed().as_ref() == Some(&job.id) {
        _ = undo::lock();
        return;
    }
    let alive = job.take_over(Wait::Never);
    // Another process did this meanwhile.
    if alive.is_err()
        || job
            .events()
            .is_ok_and(|text| text.contains("\"event\":\"end\""))
    {
        return;
    }
    let error = AgentError::Killed;
    _ = state::fail(&error, "");
    let result = error.result();
    let success = false;
    EventLog::open(job, None).write(Event::End { success, result });
}

fn code_of(result: &Value) -> u8 {
    let code = result["code"].as_u64().unwrap_or_default();
    u8::try_from(code).unwrap_or(2)
}

/// Prints a keepalive event every few seconds, so that a driver can distinguish a long job from an
/// unreachable node. Ends with the process.
fn send_keepalives() {
    // Without a thread, the driver times out later.
    _ = std::thread::Builder::new().spawn(|| {
        let alive = NumberedEvent {
            n: 0,
            event: Event::Heartbeat,
        };
        while print(&alive) {
            clock::sleep(KEEPALIVE);
        }
    });
}

fn print(event: &NumberedEvent) -> bool {
    serde_json::to_string(event).is_ok_and(|line| ui::line(&line))
}

fn print_all(event: &NumberedEvent) -> bool {
    if let Event::Changes { changes } = &event.event {
        ui::data(&render(changes));
    }
    print_progress(event)
}

fn print_progress(event: &NumberedEvent) -> bool {
    match &event.event {
        Event::Step { description } => ui::message(description),
        Event::Confirm { within } => ui::message(&format!(
            "Run `homestak-agent config confirm` over a new connection within {within} s, or all changes are reverted."
        )),
        Event::Reverted { reason } => ui::message(&format!("reverted: {reason}")),
        Event::Heartbeat | Event::Changes { .. } | Event::End { .. } => {}
    }
    true
}
