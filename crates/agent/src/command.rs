//! The commands: runs them and prints their results. `check`, `show`, `status`, `validate` and dry runs
//! change nothing.

use std::process::ExitCode;

use homestak_api::log::{self, LogSettings};
use homestak_api::v1::{
    AgentCorrection, AgentDryRun, AgentFailure, AgentRun, AgentStatus, ConfigApply, ConfigCheck,
    ConfigDetail, Marker, SpecValid, kind,
};
use homestak_core::converge::{Change, ConvergeStep, Decision, Handling, render};
use serde_json::Value;

use crate::apply::{self, ApplyObserver};
use crate::args::{Cli, Command, ConfigCommand, JobCommand, PullArgs, SpecArgs, SpecCommand};
use crate::converge::{changed_settings, compare, converge};
use crate::error::AgentError;
use crate::settings::{self, require_root};
use crate::spec::{self, Spec};
use crate::state::drift;
use crate::system::Machine;
use crate::{fetch, job, node_job, pull, run, state, ui, undo, watch};

/// Exit code: the machine differs from its spec.
const DIFFERS: u8 = 3;

/// Runs a command and returns its exit code.
pub(crate) fn run(cli: Cli) -> ExitCode {
    start_log(&cli);
    let json = cli.json_output;
    if require_root().is_ok()
        && let Err(error) = state::secure()
    {
        // The command itself may be able to repair it.
        ui::message(&format!("error: {}", error.message()));
    }
    let (kind, result) = match cli.command {
        Command::Config(ConfigCommand::Check(spec)) => {
            (kind::CONFIG_CHECK.failure(), check(&spec, json))
        }
        Command::Config(ConfigCommand::Apply {
            spec,
            dry_run,
            options,
        }) => {
            let result = match (dry_run, options.confirm) {
                (true, _) => show_plan(&spec, json),
                (false, None) => apply(&spec, options.lock_wait, json),
                (false, Some(_)) => {
                    read(&spec).and_then(|spec| job::run_manually(spec, &options, json))
                }
            };
            (kind::CONFIG_APPLY.failure(), result)
        }
        Command::Config(ConfigCommand::Confirm) => (kind::CONFIG_CONFIRM, job::confirm(None)),
        Command::Config(ConfigCommand::Show) => (kind::CONFIG_SHOW.failure(), show(json)),
        Command::Config(ConfigCommand::Fetch(args)) => {
            let result = fetch::get(&args, &kind::CONFIG_FETCH, json, pull::registered_spec);
            // Scripts expect 0 or 1.
            let result = result.map_err(|error| AgentError::NotFetched(Box::new(error)));
            (kind::CONFIG_FETCH.failure(), result)
        }
        Command::Job(command) => (kind::AGENT_JOB, job::run(command)),
        Command::NodeJob(args) => (
            kind::AGENT_NODE_JOB.failure(),
            node_job::run(&args, pull::PULLS, json),
        ),
        Command::Spec(SpecCommand::Get(args)) => {
            let result = fetch::get(&args, &kind::AGENT_SPEC_GET, json, pull::registered_spec);
            (kind::AGENT_SPEC_GET.failure(), result)
        }
        Command::Spec(SpecCommand::Validate { file, mut spec }) => {
            spec.spec = file.or(spec.spec);
            (kind::AGENT_SPEC_VALIDATE.failure(), validate(&spec, json))
        }
        Command::Pull(args) => (kind::AGENT_PULL.failure(), pull::run(&args, json)),
        Command::Run(args) => {
            let result = require_root().and_then(|()| match (args.daemon, args.dry_run) {
                (true, _) => watch::watch(),
                (false, true) => show_run_plan(json),
                (false, false) => run_once(json),
            });
            (kind::AGENT_RUN.failure(), result)
        }
        Command::Status => (kind::AGENT_STATUS.failure(), status(json)),
    };
    let code = match result {
        Ok(code) => code,
        Err(error) => {
            if json {
                let failure = AgentFailure {
                    phase: None,
                    code: None,
                    ..error.failure()
                };
                ui::json_failure(&kind, &failure);
            }
            ui::message(&format!("error: {}", error.message()));
            error.code()
        }
    };
    // A command whose output could not be written has failed.
    match (code, ui::write_error()) {
        (code, Some(error)) => {
            ui::message(&format!("error: cannot write the output: {error}"));
            ExitCode::from(code.max(1))
        }
        (code, None) => ExitCode::from(code),
    }
}

/// Starts logging. Commands that run as a service log at level info by default.
fn start_log(cli: &Cli) {
    let default = match &cli.command {
        Command::Pull(PullArgs { daemon: true, .. })
        | Command::Run(_)
        | Command::Job(JobCommand::Work(_) | JobCommand::Guard(_)) => 1,
        _ => 0,
    };
    let level = settings::log_level().unwrap_or_else(|other| {
        ui::message(&format!(
            "notice: HOMESTAK_LOG is `{other}`; use error, info, debug or trace"
        ));
        0
    });
    // Only a log file could fail.
    _ = log::start(&LogSettings {
        verbose: cli.verbose.max(level).max(default),
        file: None,
        journal_stream: settings::journal_stream(),
    });
}

fn read(args: &SpecArgs) -> Result<Spec, AgentError> {
    spec::read(args.spec.as_deref())
}

fn check(args: &SpecArgs, json: bool) -> Result<u8, AgentError> {
    require_root()?;
    let spec = read(args)?;
    let (decision, mut shown) = compare(&spec)?;
    let settings = changed_settings(&spec);
    let settled = decision.is_converged() && settings.is_empty();
    let n_changes = decision.changes.len() + settings.len();
    shown.extend(settings);
    if json {
        let stays = |change: &&Change| change.handling == Handling::Report;
        let left = decision.changes.iter().filter(stays);
        let check = ConfigCheck {
            spec: spec.name.clone(),
            settled,
            changes: shown,
            left: left.map(|change| change.id.clone()).collect(),
            refusals: decision.refusals.clone(),
            refused: decision.refused.clone(),
            unconfirmed: state::unconfirmed(),
        };
        ui::json(&kind::CONFIG_CHECK, check);
    } else {
        ui::data(&render(&shown));
        apply::require(&decision)?;
    }
    if settled {
        ui::message(&format!("{} matches its spec.", spec.name));
        return Ok(0);
    }
    ui::message(&format!(
        "{} differs from its spec in {}.",
        spec.name,
        fields(n_changes)
    ));
    Ok(DIFFERS)
}

fn show_plan(args: &SpecArgs, json: bool) -> Result<u8, AgentError> {
    require_root()?;
    let spec = read(args)?;
    let observation = apply::observe(&Machine::default(), &spec.wanted)?;
    let dry_run = dry_run(&spec, &observation.decision)?;
    match json {
        true => {
            let spec_path = Some(spec.path);
            let dry_run = AgentDryRun {
                spec_path,
                ..dry_run
            };
            ui::json(&kind::CONFIG_APPLY, ConfigApply::DryRun(dry_run));
        }
        false => show_steps(&observation.decision, &dry_run),
    }
    Ok(0)
}

fn show_run_plan(json: bool) -> Result<u8, AgentError> {
    let spec = spec::current()?;
    let decision = run::decide(&spec)?;
    let dry_run = dry_run(&spec, &decision)?;
    match json {
        true => ui::json(&kind::AGENT_RUN, AgentRun::DryRun(dry_run)),
        false => show_steps(&decision, &dry_run),
    }
    Ok(0)
}

/// Returns what would be done.
fn dry_run(spec: &Spec, decision: &Decision) -> Result<AgentDryRun, AgentError> {
    apply::require(decision)?;
    Ok(AgentDryRun {
        spec: spec.name.clone(),
        spec_path: None,
        dry_run: true,
        changes: decision.changes.clone(),
        steps: decision
            .steps
            .iter()
            .map(ConvergeStep::description)
            .collect(),
    })
}

fn show_steps(decision: &Decision, dry_run: &AgentDryRun) {
    ui::data(&render(&decision.changes));
    for step in &dry_run.steps {
        ui::data(&format!("would {step}\n"));
    }
}

fn apply(args: &SpecArgs, lock_wait: u64, json: bool) -> Result<u8, AgentError> {
    require_root()?;
    let _lock = undo::lock()?;
    let done = converge(read(args), lock_wait, &mut ConsoleObserver { json })?;
    if json {
        ui::json(&kind::CONFIG_APPLY, ConfigApply::Applied(done.body));
    }
    let spec = done.name;
    ui::message(&match done.n_steps {
        0 => format!("{spec} already matched its spec; nothing was changed."),
        1 => format!("{spec} matches its spec after 1 step."),
        n_steps => format!("{spec} matches its spec after {n_steps} steps."),
    });
    Ok(0)
}

/// Prints the progress of a run.
struct ConsoleObserver {
    json: bool,
}

impl ApplyObserver for ConsoleObserver {
    fn started(&mut self, changes: &[Change]) {
        if !self.json {
            ui::data(&render(changes));
        }
    }

    fn step(&mut self, step: &ConvergeStep) {
        ui::message(&step.description());
    }
}

fn run_once(json: bool) -> Result<u8, AgentError> {
    let run::OnceReport {
        spec,
        report,
        left,
        settled,
    } = run::once()?;
    if json {
        let correction = AgentCorrection {
            success: true,
            spec: spec.clone(),
            settled,
            changes: report.changes,
            corrected: report.corrected.clone(),
            left: left.clone(),
        };
        ui::json(&kind::AGENT_RUN, AgentRun::Corrected(correction));
    } else {
        ui::data(&render(&left));
    }
    let n_corrected = report.corrected.len();
    let corrected = format!("{} {} corrected", fields(n_corrected), were(n_corrected));
    if settled {
        ui::message(&format!("{spec} matches its spec; {corrected}."));
        return Ok(0);
    }
    ui::message(&format!(
        "{corrected}; differences that are only reported: {}; correct them with `homestak-agent config apply`.",
        left.len()
    ));
    Ok(DIFFERS)
}

/// Formats a number of fields.
fn fields(number: usize) -> String {
    match number {
        1 => "1 field".to_owned(),
        number => format!("{number} fields"),
    }
}

fn were(number: usize) -> &'static str {
    match number {
        1 => "was",
        _ => "were",
    }
}

fn show(json: bool) -> Result<u8, AgentError> {
    require_root()?;
    let state = state::load()?;
    if json {
        let detail = ConfigDetail {
            fields: state.fields,
            managed: state.managed,
        };
        ui::json(&kind::CONFIG_SHOW, detail);
    } else {
        for (field, value) in &state.fields {
            ui::data(&format!("{field} = {value}\n"));
        }
    }
    Ok(0)
}

fn validate(args: &SpecArgs, json: bool) -> Result<u8, AgentError> {
    let spec = read(args)?;
    if json {
        let valid = SpecValid {
            valid: true,
            spec: spec.name.clone(),
            resources: spec.wanted.clone(),
        };
        ui::json(&kind::AGENT_SPEC_VALIDATE, valid);
    }
    ui::message(&format!("The spec of {} is valid.", spec.name));
    Ok(0)
}

fn status(json: bool) -> Result<u8, AgentError> {
    if !state::is_readable() {
        return Err(AgentError::NotRoot);
    }
    let (complete, failed) = state::markers();
    let drift = drift::load();
    let watched = drift::is_watched();
    let unwatched = !watched && spec::current().is_ok_and(|spec| spec.wants_watch());
    let word = run::status_word();
    let fetched = state::file(state::FETCHED).exists();
    let spec = state::file(state::SPEC).exists() || state::attempted().is_some();
    let is_known = spec || complete.is_some() || failed.is_some();
    let headline = match is_known {
        true => headline(word, complete.as_ref(), watched),
        false => "no spec has been applied to this machine".to_owned(),
    };
    if json {
        let status = AgentStatus {
            status: word.to_owned(),
            complete: complete.map(Marker),
            failed: failed.map(Marker),
            fetched,
            watching: watched,
            enforcing: watched && drift.error.is_none(),
            drift,
        };
        ui::json(&kind::AGENT_STATUS, status);
    } else {
        let message = failed
            .as_ref()
            .and_then(|failed| failed["message"].as_str());
        ui::data(&format!("{headline}\n"));
        if let Some(message) = message {
            ui::data(&format!("{message}\n"));
        }
        if fetched {
            ui::data("a fetched spec is pending: apply it with `homestak config apply`\n");
        }
        if unwatched {
            ui::data(
                "not watched although its spec requires it: see `systemctl status homestak-agent`\n",
            );
        }
        ui::data(&run::summary(&drift, watched));
    }
    Ok(u8::from(!is_known))
}

/// Returns the first line of `status`. Without a watch, only the result of the last run is known.
fn headline(word: &str, complete: Option<&Value>, watched: bool) -> String {
    if word != "complete" || watched {
        return word.to_owned();
    }
    let since = complete.and_then(|marker| marker["timestamp"].as_str());
    let since = since.map_or_else(String::new, |since| format!(" (since {since})"));
    format!(
        "complete as of the last run{since}; not watched: `homestak-agent config check` compares now"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{fields, headline, were};

    #[test]
    fn one_field_is_singular() {
        assert_eq!((fields(1), were(1)), ("1 field".to_owned(), "was"));
        assert_eq!((fields(2), were(2)), ("2 fields".to_owned(), "were"));
    }

    #[test]
    fn without_a_watch_the_status_is_that_of_the_last_run() {
        let marker = json!({ "status": "complete", "timestamp": "2026-11-17T12:40:11Z" });
        let line = headline("complete", Some(&marker), false);
        assert_eq!(
            line,
            "complete as of the last run (since 2026-11-17T12:40:11Z); not watched: \
             `homestak-agent config check` compares now"
        );
        assert_eq!(headline("complete", Some(&marker), true), "complete");
        for word in ["differs", "failed", "unknown"] {
            assert_eq!(headline(word, None, false), word);
        }
    }
}
