//! Obtains the spec of this machine from a server of its site, applies it and reports.
//!
//! What a server sends is accepted only with the signature of the site (`verify`). Without a server
//! the machine keeps its last spec.

mod client;
mod confirm;
mod daemon;
mod jobs;
mod node;
mod pass;
mod registration;
mod report;
mod session;
mod store;
mod token;
mod update;
mod verify;

use homestak_api::publication::sha256;
use homestak_api::v1::{AgentPull, kind};

use self::node::{LocalNode, Node as _};
use self::pass::{Apply, PassOptions, PassReport, obtain, pass, pass_in};
use self::session::Session;
use self::store::Store;
use crate::args::PullArgs;
use crate::error::{AgentError, PullError};
use crate::node_job::{Output, Pulls};
use crate::{http, settings, ui};

/// Obtains the spec once, or repeatedly.
///
/// Exit code: 0 applied; 2 failed; 3 refused permanently, so that a retry cannot succeed.
pub(crate) fn run(args: &PullArgs, json: bool) -> Result<u8, AgentError> {
    attempt(args, json).map_err(|error| AgentError::NotPulled(Box::new(error)))
}

fn attempt(args: &PullArgs, json: bool) -> Result<u8, AgentError> {
    settings::require_root()?;
    let store = Store::default();
    if args.check {
        session::check(&store)?;
        ui::message("The spec of this machine can be fetched.");
        return Ok(0);
    }
    if let Some(path) = &args.enrolment {
        let text = ui::read(path).map_err(PullError::ReadEnrolment)?;
        let _lock = store.lock()?;
        store.put_enrolment(&text)?;
    }
    match args.daemon {
        true => daemon::run(&store),
        false => once(&store, json),
    }
}

fn once(store: &Store, json: bool) -> Result<u8, AgentError> {
    let _runtime = http::ignore_hangup()?;
    let _lock = store.lock()?;
    let mut node = LocalNode;
    let done = pass(store, &mut node, Apply::Always, None);
    if let Err(error) = &done
        && error.is_permanent()
    {
        node.mark(Some(error));
    }
    let PassReport {
        spec,
        generation,
        fetched,
        changed,
        reported,
        ..
    } = done?;
    let result = match changed {
        true => format!("{spec} matches its spec of generation {generation}."),
        false => format!("{spec} already matched its spec of generation {generation}."),
    };
    if json {
        let pull = AgentPull {
            success: true,
            spec,
            generation,
            fetched,
            changed,
            reported,
        };
        ui::json(&kind::AGENT_PULL, pull);
    }
    ui::message(&result);
    Ok(0)
}

/// Fetches the spec with the certificate of this machine, verifies it and stores it. `None` if it has
/// not enrolled, or a token is set for this command.
pub(crate) fn registered_spec() -> Result<Option<String>, AgentError> {
    let store = Store::default();
    if store.registration()?.is_none() || settings::token().is_some() {
        return Ok(None);
    }
    let _lock = store.lock()?;
    obtain(&store, &mut LocalNode).map(Some)
}

/// What jobs use of this module.
pub(crate) const PULLS: Pulls = Pulls {
    converge,
    generation,
};

/// Fetches the newest spec and applies it, for a job. Returns whether anything was changed, and the
/// generation; `None` if this machine has not enrolled.
fn converge(output: Output<'_>) -> Result<Option<(bool, u64)>, AgentError> {
    let store = Store::default();
    if store.registration()?.is_none() {
        return Ok(None);
    }
    let _lock = store.lock()?;
    let mut session = Session::open(&store)?;
    let mut options = PassOptions {
        apply: Apply::Always,
        programs: None,
        output,
    };
    let done = pass_in(&mut session, &mut LocalNode, &mut options)?;
    Ok(Some((done.changed, done.generation)))
}

/// Returns the generation of a spec, if it is the one that was accepted last.
fn generation(text: &str) -> Option<u64> {
    let accepted = Store::default().registration().ok()??.accepted?;
    (accepted.sha256 == sha256(text.as_bytes())).then_some(accepted.generation)
}

#[cfg(test)]
mod tests;
