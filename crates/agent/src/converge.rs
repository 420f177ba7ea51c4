//! This machine made what a spec says: observed, decided, done, confirmed and marked.
//!
//! Whoever changes the machine holds the turn (`undo::turn`) from before the first look until it
//! is marked how that ended.

use std::time::Duration;

use homestak_core::converge::{Change, Decision, Resource, Step};
use serde_json::{Value, json};

use crate::apply::{self, Observation, Observer};
use crate::error::AgentError;
use crate::spec::Spec;
use crate::system::Machine;
use crate::{clock, state};

/// Returns what differs from a spec, and how each difference is handled by a machine that looks
/// after itself. What is none of ours is in neither.
pub(crate) fn compare(spec: &Spec) -> Result<(Decision, Vec<Change>), AgentError> {
    let Observation { mut decision, .. } = apply::look(&Machine::default(), &spec.wanted)?;
    let shown = spec.policy.annotate(&decision.changes);
    let is_shown = |change: &Change| shown.iter().any(|one| one.id == change.id);
    decision.changes.retain(is_shown);
    Ok((decision, shown))
}

/// A run that ended well.
pub(crate) struct Done {
    pub(crate) name: String,
    pub(crate) n_steps: usize,
    /// What is told of it.
    pub(crate) body: Value,
}

/// Makes the machine what a spec says and marks how that ended.
pub(crate) fn converge(
    spec: Result<Spec, AgentError>,
    lock_wait: u64,
    observer: &mut dyn Observer,
) -> Result<Done, AgentError> {
    let begun = clock::uptime();
    let (name, done) = match spec {
        Ok(spec) => {
            let look = apply::look(&Machine::default(), &spec.wanted);
            let done = look.and_then(|look| finish(&spec, look, begun, lock_wait, observer));
            (spec.name, done)
        }
        Err(error) => (String::new(), Err(error)),
    };
    done.map_err(|error| {
        let error = observer.failed(error);
        // The first failure is the one to tell of.
        _ = state::fail(&error, &name);
        error
    })
}

/// Goes on from a look at the machine.
pub(crate) fn finish(
    spec: &Spec,
    look: Observation,
    begun: u64,
    lock_wait: u64,
    observer: &mut dyn Observer,
) -> Result<Done, AgentError> {
    let changes = look.decision.changes.clone();
    let steps: Vec<String> = look.decision.steps.iter().map(Step::description).collect();
    observer.begins(&changes);
    if !steps.is_empty() {
        state::attempt(&spec.text)?;
    }
    let refused = apply::carry_out(
        &mut Machine::waiting(lock_wait),
        &spec.wanted,
        look,
        observer,
    )?;
    state::keep_spec(&spec.text)?;
    apply::require_all(&refused)?;
    let counts = mark_complete(spec)?;
    let milliseconds = clock::uptime().saturating_sub(begun);
    let mut body = json!({
        "phase": "config", "success": true, "spec": spec.name,
        "duration_seconds": Duration::from_millis(milliseconds).as_secs_f64(),
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
