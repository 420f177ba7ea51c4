//! Jobs: a spec carried out apart from the connection that brought it. Whoever comes back later
//! gets the same numbered events, and no job is begun twice.

mod worker;

use std::path::Path;

use homestak_core::converge::{Event, NumberedEvent, render};
use serde_json::{Value, json};

use crate::args::{JobCommand, Terms};
use crate::error::AgentError;
use crate::settings::require_root;
use crate::spec::{self, Spec};
use crate::state::job::{Job, Listener, Log, SPEC, Verdict, Wait};
use crate::system::Machine;
use crate::{apply, clock, converge, process, settings, state, ui, undo};

const TERMS: &str = "terms.json";
/// How often a driver is shown that it is not waiting in vain, in milliseconds.
const ALIVE: u64 = 10_000;
/// How long a worker may take to begin, in hundredths of a second.
const STARTING: usize = 3_000;

/// Runs a command about jobs.
pub(crate) fn run(command: JobCommand) -> Result<u8, AgentError> {
    require_root()?;
    match command {
        JobCommand::Run { job, terms } => {
            stay_alive();
            Ok(run_job(&Job::of(&job.id), &terms, || {
                spec::read(Some(Path::new("-")))
            }))
        }
        JobCommand::Undo {
            job,
            from,
            to,
            terms,
        } => {
            stay_alive();
            let read = || {
                let earlier = state::earlier_spec(&from, &to);
                spec::parse("-", earlier.ok_or(AgentError::NoEarlierSpec)?)
            };
            Ok(run_job(&Job::of(&job.id), &terms, read))
        }
        JobCommand::Follow { job, after } => {
            stay_alive();
            let job = Job::of(&job.id);
            if !job.is_known() {
                return Err(AgentError::NoJob(job.id));
            }
            let result = follow(&job, after, print)?;
            Ok(code_of(&result))
        }
        JobCommand::Confirm(job) => confirm(Some(job.id)),
        JobCommand::Work(job) => worker::work(&Job::of(&job.id)),
        JobCommand::Guard(job) => undo::guard(&Job::of(&job.id)),
    }
}

/// Says that this machine can still be reached.
pub(crate) fn confirm(id: Option<String>) -> Result<u8, AgentError> {
    require_root()?;
    let nothing = |job: &str, why| AgentError::NotAsked {
        job: job.to_owned(),
        why,
    };
    let id = id
        .or_else(state::unconfirmed)
        .ok_or_else(|| nothing("", "nothing waits for it"))?;
    let job = Job::of(&id);
    if !job.is_known() {
        return Err(AgentError::NoJob(id));
    }
    let verdict = match (job.verdict(), job.enforced()) {
        (Some(verdict), _) => verdict,
        (None, None) => return Err(nothing(&id, "it did not ask for that")),
        (None, Some(asked)) if asked.is_over() => Verdict::Reverted,
        (None, Some(_)) => job.judge(Verdict::Confirmed)?,
    };
    match verdict {
        Verdict::Confirmed => {
            ui::say("Confirmed: the changes stay.");
            Ok(0)
        }
        Verdict::Reverted => Err(nothing(&id, "too late, its changes are taken back")),
    }
}

fn run_job(job: &Job, terms: &Terms, read: impl FnOnce() -> Result<Spec, AgentError>) -> u8 {
    let result = carry_out(job, read, terms, print);
    // Nothing was begun, so there is nothing to come back to.
    let result = result.unwrap_or_else(|error| {
        let result = error.result();
        let end = Event::End {
            success: false,
            result: result.clone(),
        };
        print(&NumberedEvent { n: 1, event: end });
        ui::say(&format!("error: {}", error.message()));
        result
    });
    code_of(&result)
}

/// Does a job for a person on this machine, who confirms it over another connection.
pub(crate) fn by_hand(spec: Spec, terms: &Terms, json: bool) -> Result<u8, AgentError> {
    require_root()?;
    let job = Job::of(&format!("by-hand-{}", clock::now().as_millisecond()));
    let listener = if json { tell_progress } else { tell };
    let name = spec.name.clone();
    let result = carry_out(&job, || Ok(spec), terms, listener)?;
    if json {
        ui::json("config.apply", result.clone());
    }
    match result["message"].as_str() {
        Some(message) => ui::say(&format!("error: {message}")),
        None => ui::say(&format!("{name} is as its spec says.")),
    }
    Ok(code_of(&result))
}

/// Begins a job unless that was done before, and returns its result at its end.
fn carry_out(
    job: &Job,
    read: impl FnOnce() -> Result<Spec, AgentError>,
    terms: &Terms,
    listener: Listener,
) -> Result<Value, AgentError> {
    let ended = begin(job, read, terms, listener)?;
    ended.map_or_else(|| follow(job, 0, listener), Ok)
}

/// Begins a job, and marks that it failed when it could not be begun. Whoever comes while another
/// run is at work has not failed. Returns the result of a job that has ended by then.
fn begin(
    job: &Job,
    read: impl FnOnce() -> Result<Spec, AgentError>,
    terms: &Terms,
    listener: Listener,
) -> Result<Option<Value>, AgentError> {
    let mut name = String::new();
    begin_named(job, read, terms, listener, &mut name).map_err(|error| {
        let unchanged = matches!(
            error,
            AgentError::Busy | AgentError::Waiting(_) | AgentError::NoEarlierSpec
        );
        if !unchanged {
            _ = state::fail(&error, &name);
        }
        error
    })
}

/// When nothing differs the job ends here: that is what most pushes are.
fn begin_named(
    job: &Job,
    read: impl FnOnce() -> Result<Spec, AgentError>,
    terms: &Terms,
    listener: Listener,
    name: &mut String,
) -> Result<Option<Value>, AgentError> {
    let claim = job.claim()?;
    if job.is_known() {
        return Ok(None);
    }
    let begun = clock::uptime();
    let turn = undo::turn()?;
    let spec = read()?;
    name.clone_from(&spec.name);
    let look = apply::look(&Machine::default(), &spec.wanted)?;
    apply::require(&look.decision)?;
    let marked = |error: AgentError| {
        _ = state::fail(&error, &spec.name);
        error
    };
    if look.decision.steps.is_empty() {
        let mut worker = worker::Worker::new(job, terms, Log::open(job, Some(listener)));
        let done = converge::finish(&spec, look, begun, terms.lock_wait, &mut worker);
        job.forget_others();
        return Ok(Some(worker.end(done.map_err(marked))));
    }
    drop(turn);
    job.forget_others();
    job.write_text(SPEC, &spec.text)?;
    let terms = Terms {
        caller: settings::caller(),
        ..terms.clone()
    };
    job.write(TERMS, &terms)?;
    let mut log = Log::open(job, None);
    let started = launch(job);
    drop(claim);
    if let Err(error) = started {
        let (success, result) = (false, marked(error).result());
        log.say(Event::End { success, result });
    }
    Ok(None)
}

/// Lets systemd work on a job: it does not end with the connection.
fn launch(job: &Job) -> Result<(), AgentError> {
    let unit = format!("--unit=homestak-job-{}", job.id);
    let program = settings::program();
    let mut words = vec!["systemd-run", "--quiet", "--collect", "--service-type=exec"];
    words.push(&unit);
    let crash = settings::crash_after().map(|n| format!("--setenv=HOMESTAK_CRASH_AFTER={n}"));
    words.extend(crash.as_deref());
    words.extend(["--", &program, "job", "work", "--id", &job.id]);
    process::must(&words)?;
    for _ in 0..STARTING {
        if job.is_taken() {
            return Ok(());
        }
        clock::moment(10);
    }
    Err(AgentError::Killed)
}

/// Hands the events of a job on until its end, and returns its result.
fn follow(job: &Job, after: u64, listener: Listener) -> Result<Value, AgentError> {
    let mut n_read = 0;
    // Whoever takes changes back may be on its way.
    let mut n_lonely = 0;
    loop {
        let is_worked_on = job.is_worked_on();
        let text = job.events()?;
        let news = text.get(n_read..).unwrap_or_default();
        let whole = news.rfind('\n').map_or(0, |end| end + 1);
        for line in news[..whole].lines() {
            let Ok(event) = serde_json::from_str::<NumberedEvent>(line) else {
                continue;
            };
            let heard = event.n <= after || listener(&event);
            if let Event::End { result, .. } = event.event {
                return Ok(result);
            }
            // The job goes on without us.
            if !heard {
                return Ok(json!({ "code": 2 }));
            }
        }
        n_read += whole;
        if is_worked_on {
            n_lonely = 0;
        } else {
            n_lonely += 1;
            let awaited = state::unconfirmed().as_ref() == Some(&job.id);
            if !awaited || n_lonely > STARTING {
                bury(job);
            }
        }
        clock::moment(20);
    }
}

/// Says of a job that died what can be said.
fn bury(job: &Job) {
    if state::unconfirmed().as_ref() == Some(&job.id) {
        _ = undo::turn();
        return;
    }
    let alive = job.inherit(Wait::Never);
    // Someone was faster.
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
    Log::open(job, None).say(Event::End { success, result });
}

fn code_of(result: &Value) -> u8 {
    let code = result["code"].as_u64().unwrap_or_default();
    u8::try_from(code).unwrap_or(2)
}

/// Prints every few seconds that this is still at work: a driver tells a job that takes long from a
/// node that answers no more. It ends with the process.
fn stay_alive() {
    // Where there is no room for a thread, the driver waits longer.
    _ = std::thread::Builder::new().spawn(|| {
        let alive = NumberedEvent {
            n: 0,
            event: Event::Heartbeat,
        };
        while print(&alive) {
            clock::moment(ALIVE);
        }
    });
}

fn print(event: &NumberedEvent) -> bool {
    serde_json::to_string(event).is_ok_and(|line| ui::line(&line))
}

fn tell(event: &NumberedEvent) -> bool {
    if let Event::Changes { changes } = &event.event {
        ui::data(&render(changes));
    }
    tell_progress(event)
}

fn tell_progress(event: &NumberedEvent) -> bool {
    match &event.event {
        Event::Step { description } => ui::say(description),
        Event::Confirm { within } => ui::say(&format!(
            "Connect anew and run `homestak-agent config confirm` within {within} s, or everything is taken back."
        )),
        Event::Reverted { reason } => ui::say(&format!("reverted: {reason}")),
        Event::Heartbeat | Event::Changes { .. } | Event::End { .. } => {}
    }
    true
}
