//! The commands, one function each.
//!
//! In: arguments. Out: what is printed, an exit code.
//! Never: a change in `check`, `show`, `status`, `validate` or a dry run.

use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;

use homestak_core::converge::{
    Change, Handling, Policy, Resource, Step, UNIT, render, sweep, wanted,
};
use homestak_core::doc::{Severity, Sources, node_spec};
use serde_json::{Value, json};

use crate::apply::{self, Look, Party};
use crate::args::{Cli, Command, ConfigCommand, SpecArgs, SpecCommand};
use crate::error::AgentError;
use crate::watch::memory;
use crate::{clock, fetch, job, run, state, ui, undo, watch};

/// Something on the machine differs.
const DIFFERS: u8 = 3;

/// A spec that was read.
pub(crate) struct Spec {
    path: String,
    pub(crate) text: String,
    pub(crate) wanted: Vec<Resource>,
    pub(crate) name: String,
    /// What a machine that looks after itself does about differences.
    pub(crate) policy: Policy,
    /// How often it looks, in seconds.
    pub(crate) sweep: u64,
}

/// Runs a command and returns its exit code.
pub(crate) fn run(cli: Cli) -> ExitCode {
    let json = cli.json_output;
    if rustix::process::geteuid().is_root()
        && let Err(error) = state::secure()
    {
        // What can be done is done: the command itself may be the way to repair it.
        ui::say(&format!("error: {}", error.message()));
    }
    let kind = match &cli.command {
        Command::Config(ConfigCommand::Check(_)) => "config.check",
        Command::Config(ConfigCommand::Apply { .. }) => "config.apply",
        Command::Config(ConfigCommand::Show) => "config.show",
        Command::Config(ConfigCommand::Confirm) => "config.confirm",
        Command::Config(ConfigCommand::Fetch(_)) => "config.fetch",
        Command::Job(_) => "job",
        Command::Spec(SpecCommand::Validate { .. }) => "spec.validate",
        Command::Spec(SpecCommand::Get(_)) => "spec.get",
        Command::Run(_) => "run",
        Command::Status => "status",
    };
    let result = match cli.command {
        Command::Config(ConfigCommand::Check(spec)) => check(&spec, json),
        Command::Config(ConfigCommand::Apply {
            spec,
            dry_run,
            terms,
        }) => match (dry_run, terms.confirm) {
            (true, _) => rehearse(&spec, json),
            (false, None) => apply(&spec, terms.lock_wait, json),
            (false, Some(_)) => read(&spec).and_then(|spec| job::by_hand(&spec, &terms, json)),
        },
        Command::Config(ConfigCommand::Confirm) => job::confirm(None),
        Command::Job(command) => job::run(command),
        Command::Config(ConfigCommand::Show) => show(json),
        // Scripts tell only whether it went well.
        Command::Config(ConfigCommand::Fetch(args)) => match fetch::get(&args, kind, json) {
            Err(error) => Err(AgentError::NotFetched(Box::new(error))),
            done => done,
        },
        Command::Spec(SpecCommand::Get(args)) => fetch::get(&args, kind, json),
        Command::Spec(SpecCommand::Validate { file, mut spec }) => {
            spec.spec = file.or(spec.spec);
            validate(&spec, json)
        }
        Command::Run(args) => require_root().and_then(|()| match args.daemon {
            true => watch::watch(),
            false => run::once(args.dry_run, json),
        }),
        Command::Status => status(json),
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

pub(crate) fn read(args: &SpecArgs) -> Result<Spec, AgentError> {
    let path = args.spec.clone().unwrap_or_else(state::next_spec);
    let shown = path.display().to_string();
    let text = read_text(&path).map_err(|source| AgentError::NoSpec {
        path: shown.clone(),
        source,
    })?;
    parse(shown, text)
}

/// Reads the text of a spec.
pub(crate) fn parse(shown: String, text: String) -> Result<Spec, AgentError> {
    let mut sources = Sources::default();
    let (spec, faults) = node_spec::read(&shown, &text, &mut sources);
    let Some(spec) = spec else {
        let lines = faults.sorted(&sources).into_iter();
        let lines = lines.filter(|fault| fault.severity == Severity::Error);
        return Err(AgentError::WrongSpec(
            lines
                .map(|fault| {
                    let at = sources.locate(fault.span);
                    let hint = fault.hint.as_deref().unwrap_or_default();
                    format!("{at}: {} ({hint})", fault.message)
                })
                .collect(),
        ));
    };
    let name = spec
        .identity
        .as_ref()
        .and_then(|identity| identity.hostname.as_ref());
    Ok(Spec {
        name: name.map(ToString::to_string).unwrap_or_default(),
        path: shown,
        policy: Policy::of(&spec),
        sweep: sweep(&spec),
        wanted: wanted(&spec),
        text,
    })
}

fn read_text(path: &Path) -> std::io::Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        return Ok(text);
    }
    fs_err::read_to_string(path)
}

pub(crate) fn require_root() -> Result<(), AgentError> {
    if rustix::process::geteuid().is_root() {
        Ok(())
    } else {
        Err(AgentError::NotRoot)
    }
}

fn check(args: &SpecArgs, json: bool) -> Result<u8, AgentError> {
    let spec = read(args)?;
    require_root()?;
    let Look { mut decision, .. } = apply::look(&spec.wanted)?;
    // How each is handled by itself is shown; whoever asks can have all but what is none of ours.
    let shown = spec.policy.mark(&decision.changes);
    decision
        .changes
        .retain(|change| shown.iter().any(|one| one.id == change.id));
    let settled = decision.is_settled();
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
    }
    if !json {
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
    let Look { decision, .. } = apply::look(&spec.wanted)?;
    apply::require(&decision)?;
    let steps: Vec<String> = decision.steps.iter().map(Step::words).collect();
    if json {
        ui::json(
            "config.apply",
            json!({ "spec": spec.name, "spec_path": spec.path, "dry_run": true, "changes": decision.changes, "steps": steps }),
        );
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
    let _turn = state::lock()?;
    undo::require_none()?;
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

impl Party for Talk {
    fn begins(&mut self, changes: &[Change]) {
        if !self.json {
            ui::data(&render(changes));
        }
    }

    fn step(&mut self, step: &Step) {
        ui::say(&step.words());
    }
}

/// A run that ended well.
pub(crate) struct Done {
    pub(crate) name: String,
    pub(crate) n_steps: usize,
    /// What is told of it.
    pub(crate) body: Value,
}

/// Makes the machine what a spec says and marks how that ended. Whoever calls has the turn.
pub(crate) fn converge(
    spec: Result<Spec, AgentError>,
    lock_wait: u64,
    party: &mut dyn Party,
) -> Result<Done, AgentError> {
    let begun = clock::uptime();
    let (name, done) = match spec {
        Ok(spec) => {
            let look = apply::look(&spec.wanted);
            let done = look.and_then(|look| finish(&spec, look, begun, lock_wait, party));
            (spec.name, done)
        }
        Err(error) => (String::new(), Err(error)),
    };
    done.map_err(|error| {
        let error = party.failed(error);
        // The first failure is the one to tell of.
        _ = state::fail(&error, &name);
        error
    })
}

/// Goes on from a look at the machine.
pub(crate) fn finish(
    spec: &Spec,
    look: Look,
    begun: u64,
    lock_wait: u64,
    party: &mut dyn Party,
) -> Result<Done, AgentError> {
    let changes = look.decision.changes.clone();
    let steps: Vec<String> = look.decision.steps.iter().map(Step::words).collect();
    party.begins(&changes);
    if !steps.is_empty() {
        state::attempt(&spec.text)?;
    }
    let refused = apply::carry_out(&spec.wanted, look, lock_wait, party)?;
    state::keep_spec(&spec.text)?;
    apply::require_all(&refused)?;
    let counts = mark_complete(spec)?;
    let milliseconds = clock::uptime().saturating_sub(begun);
    let mut body = json!({
        "phase": "config", "success": true, "spec": spec.name,
        "duration_seconds": std::time::Duration::from_millis(milliseconds).as_secs_f64(),
        "changes": changes, "steps": steps,
    });
    merge(&mut body, &counts);
    Ok(Done {
        name: spec.name.clone(),
        n_steps: steps.len(),
        body,
    })
}

/// Says that the machine is as the spec says, and returns what it counts.
pub(crate) fn mark_complete(spec: &Spec) -> Result<Value, AgentError> {
    let counts = counts(&spec.wanted);
    let mut marker = json!({ "phase": "config", "status": "complete", "spec": spec.name });
    merge(&mut marker, &counts);
    state::complete(marker)?;
    Ok(counts)
}

fn merge(into: &mut Value, from: &Value) {
    if let (Some(into), Some(from)) = (into.as_object_mut(), from.as_object()) {
        into.extend(from.clone());
    }
}

/// What markers and results count.
fn counts(wanted: &[Resource]) -> Value {
    let count = |is: &dyn Fn(&Resource) -> bool| wanted.iter().filter(|one| is(one)).count();
    json!({
        "packages": count(&|one| matches!(one, Resource::Package { .. })),
        "services_enabled": count(&|one| matches!(one, Resource::Service { enabled: true, .. })),
        "services_disabled": count(&|one| matches!(one, Resource::Service { enabled: false, .. })),
        "users": count(&|one| matches!(one, Resource::User { .. })),
    })
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
    let drift = memory::load_drift();
    let watched = memory::is_watched();
    // Without a spec that can be read nobody knows what it wants.
    let unwatched = !watched && run::kept_spec().is_ok_and(|spec| wants_watch(&spec));
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
            json!({ "status": word, "complete": complete, "failed": failed, "fetched": fetched, "watching": watched, "enforcing": watched && drift.trouble.is_none(), "drift": drift }),
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

/// Tells whether a spec wants its machine to be watched.
fn wants_watch(spec: &Spec) -> bool {
    let is_watch =
        |resource: &Resource| matches!(resource, Resource::Service { unit, .. } if unit == UNIT);
    spec.wanted.iter().any(is_watch)
}
