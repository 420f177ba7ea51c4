//! The commands: arguments become calls, and what they return is printed. `check`, `show`,
//! `status`, `validate` and dry runs change nothing.

use std::process::ExitCode;

use homestak_core::converge::{Change, Decision, Handling, Step, render};
use serde_json::{Value, json};

use crate::apply::{self, Observer};
use crate::args::{Cli, Command, ConfigCommand, SpecArgs, SpecCommand};
use crate::converge::{compare, converge};
use crate::error::AgentError;
use crate::settings::require_root;
use crate::spec::{self, Spec};
use crate::state::drift;
use crate::system::Machine;
use crate::{fetch, job, run, state, ui, undo, watch};

/// Something on the machine differs.
const DIFFERS: u8 = 3;

/// Runs a command and returns its exit code.
pub(crate) fn run(cli: Cli) -> ExitCode {
    let json = cli.json_output;
    if require_root().is_ok()
        && let Err(error) = state::secure()
    {
        // What can be done is done: the command itself may be the way to repair it.
        ui::say(&format!("error: {}", error.message()));
    }
    let (kind, result) = match cli.command {
        Command::Config(ConfigCommand::Check(spec)) => ("config.check", check(&spec, json)),
        Command::Config(ConfigCommand::Apply {
            spec,
            dry_run,
            terms,
        }) => {
            let result = match (dry_run, terms.confirm) {
                (true, _) => rehearse(&spec, json),
                (false, None) => apply(&spec, terms.lock_wait, json),
                (false, Some(_)) => read(&spec).and_then(|spec| job::by_hand(spec, &terms, json)),
            };
            ("config.apply", result)
        }
        Command::Config(ConfigCommand::Confirm) => ("config.confirm", job::confirm(None)),
        Command::Config(ConfigCommand::Show) => ("config.show", show(json)),
        Command::Config(ConfigCommand::Fetch(args)) => {
            let result = fetch::get(&args, "config.fetch", json);
            // Scripts tell only whether it went well.
            let result = result.map_err(|error| AgentError::NotFetched(Box::new(error)));
            ("config.fetch", result)
        }
        Command::Job(command) => ("job", job::run(command)),
        Command::Spec(SpecCommand::Get(args)) => ("spec.get", fetch::get(&args, "spec.get", json)),
        Command::Spec(SpecCommand::Validate { file, mut spec }) => {
            spec.spec = file.or(spec.spec);
            ("spec.validate", validate(&spec, json))
        }
        Command::Run(args) => {
            let result = require_root().and_then(|()| match (args.daemon, args.dry_run) {
                (true, _) => watch::watch(),
                (false, true) => rehearse_run(json),
                (false, false) => run_once(json),
            });
            ("run", result)
        }
        Command::Status => ("status", status(json)),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            if json {
                let message = error.message();
                ui::json(
                    kind,
                    json!({ "success": false, "error": error.word(), "message": message }),
                );
            }
            ui::say(&format!("error: {}", error.message()));
            ExitCode::from(error.code())
        }
    }
}

fn read(args: &SpecArgs) -> Result<Spec, AgentError> {
    spec::read(args.spec.as_deref())
}

fn check(args: &SpecArgs, json: bool) -> Result<u8, AgentError> {
    let spec = read(args)?;
    require_root()?;
    let (decision, shown) = compare(&spec)?;
    let settled = decision.is_converged();
    if json {
        let stays = |change: &&Change| change.handling == Handling::Report;
        let left = decision.changes.iter().filter(stays);
        let left: Vec<&str> = left.map(|change| change.id.as_str()).collect();
        ui::json(
            "config.check",
            json!({ "spec": spec.name, "settled": settled, "changes": shown, "left": left, "refusals": decision.refusals, "refused": decision.refused, "unconfirmed": state::unconfirmed() }),
        );
    } else {
        ui::data(&render(&shown));
        apply::require(&decision)?;
    }
    let n_changes = decision.changes.len();
    if settled {
        ui::say(&format!("{} is as its spec says.", spec.name));
        return Ok(0);
    }
    ui::say(&format!(
        "{} differs from its spec in {n_changes} places.",
        spec.name
    ));
    Ok(DIFFERS)
}

fn rehearse(args: &SpecArgs, json: bool) -> Result<u8, AgentError> {
    let spec = read(args)?;
    require_root()?;
    let body = json!({ "spec": spec.name, "spec_path": spec.path });
    let look = apply::look(&Machine::default(), &spec.wanted)?;
    show_steps("config.apply", body, &look.decision, json)
}

fn rehearse_run(json: bool) -> Result<u8, AgentError> {
    let spec = spec::kept()?;
    let decision = run::decide(&spec)?;
    show_steps("run", json!({ "spec": spec.name }), &decision, json)
}

/// Shows what would be done.
fn show_steps(
    kind: &str,
    mut body: Value,
    decision: &Decision,
    json: bool,
) -> Result<u8, AgentError> {
    apply::require(decision)?;
    let steps: Vec<String> = decision.steps.iter().map(Step::description).collect();
    if json {
        body["dry_run"] = json!(true);
        body["changes"] = json!(decision.changes);
        body["steps"] = json!(steps);
        ui::json(kind, body);
    } else {
        ui::data(&render(&decision.changes));
        for step in &steps {
            ui::data(&format!("would {step}\n"));
        }
    }
    Ok(0)
}

fn apply(args: &SpecArgs, lock_wait: u64, json: bool) -> Result<u8, AgentError> {
    require_root()?;
    let _turn = undo::turn()?;
    let done = converge(read(args), lock_wait, &mut Talk { json })?;
    if json {
        ui::json("config.apply", done.body);
    }
    let spec = done.name;
    ui::say(&match done.n_steps {
        0 => format!("{spec} was as its spec says; nothing was changed."),
        1 => format!("{spec} is as its spec says after 1 step."),
        n_steps => format!("{spec} is as its spec says after {n_steps} steps."),
    });
    Ok(0)
}

/// Whoever runs a command hears of it, and has no say.
struct Talk {
    json: bool,
}

impl Observer for Talk {
    fn begins(&mut self, changes: &[Change]) {
        if !self.json {
            ui::data(&render(changes));
        }
    }

    fn step(&mut self, step: &Step) {
        ui::say(&step.description());
    }
}

fn run_once(json: bool) -> Result<u8, AgentError> {
    let run::Once {
        spec,
        round,
        left,
        settled,
    } = run::once()?;
    if json {
        ui::json(
            "run",
            json!({ "success": true, "spec": spec, "settled": settled, "changes": round.changes, "mended": round.mended, "left": left }),
        );
    } else {
        ui::data(&render(&left));
    }
    let n_mended = round.mended.len();
    if settled {
        ui::say(&format!(
            "{spec} is as its spec says; {n_mended} fields were mended."
        ));
        return Ok(0);
    }
    ui::say(&format!(
        "{n_mended} fields were mended, {} are left to a person: `homestak-agent config apply` mends them.",
        left.len()
    ));
    Ok(DIFFERS)
}

fn show(json: bool) -> Result<u8, AgentError> {
    require_root()?;
    let state = state::load()?;
    if json {
        ui::json(
            "config.show",
            json!({ "fields": state.fields, "managed": state.managed }),
        );
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
        ui::json(
            "spec.validate",
            json!({ "valid": true, "spec": spec.name, "resources": spec.wanted }),
        );
    }
    ui::say(&format!("The spec of {} is valid.", spec.name));
    Ok(0)
}

fn status(json: bool) -> Result<u8, AgentError> {
    if !state::is_readable() {
        return Err(AgentError::NotRoot);
    }
    let (complete, failed) = state::markers();
    let drift = drift::load();
    let watched = drift::is_watched();
    // Without a spec that can be read nobody knows what it wants.
    let unwatched = !watched && spec::kept().is_ok_and(|spec| spec.wants_watch());
    let word = match (&complete, &failed) {
        (_, Some(_)) => "failed",
        (Some(_), None) if watched && run::differs(&drift) => "differs",
        (Some(_), None) if unwatched => "differs",
        (Some(_), None) => "complete",
        (None, None) => "unknown",
    };
    let fetched = state::place(state::FETCHED).exists();
    let spec = state::place(state::SPEC).exists() || state::attempted().is_some();
    let is_known = spec || complete.is_some() || failed.is_some();
    if json {
        ui::json(
            "status",
            json!({ "status": word, "complete": complete, "failed": failed, "fetched": fetched, "watching": watched, "enforcing": watched && drift.error.is_none(), "drift": drift }),
        );
    } else {
        let message = failed
            .as_ref()
            .and_then(|failed| failed["message"].as_str());
        ui::data(&match is_known {
            true => format!("{word}\n"),
            false => "no spec was ever applied to this machine\n".to_owned(),
        });
        if let Some(message) = message {
            ui::data(&format!("{message}\n"));
        }
        if fetched {
            ui::data(
                "a fetched spec waits: `homestak config apply` makes this machine what it says\n",
            );
        }
        if unwatched {
            ui::data(
                "not watched, though its spec says so: `systemctl status homestak-agent` tells why\n",
            );
        }
        ui::data(&run::summary(&drift, watched));
    }
    Ok(u8::from(!is_known))
}
