//! Applies a spec to this machine: observe, decide, change, wait for confirmation, write the marker.
//!
//! The caller acquires the run lock (`undo::lock`) before the observation, and holds it until the marker
//! is written.

use std::time::Duration;

use homestak_api::v1::{ConfigApplied, ResourceCounts};
use homestak_core::converge::{Change, ChangeCause, ConvergeStep, Decision, Handling, Resource};
use serde_json::{Value, json};

use crate::apply::{self, ApplyObserver, Observation};
use crate::error::AgentError;
use crate::spec::{self, Spec};
use crate::system::Machine;
use crate::{clock, state};

/// Returns the decision for a spec, and its differences with how the watch handles each. Both are without
/// the differences that the policy ignores.
pub(crate) fn compare(spec: &Spec) -> Result<(Decision, Vec<Change>), AgentError> {
    let Observation { mut decision, .. } = apply::observe(&Machine::default(), &spec.wanted)?;
    let shown = spec.policy.annotate(&decision.changes);
    let is_shown = |change: &Change| shown.iter().any(|one| one.id == change.id);
    decision.changes.retain(is_shown);
    Ok((decision, shown))
}

/// Returns how a spec changes the settings of the agent itself. They are not resources: without these
/// changes, a spec that differs only in them would count as applied.
pub(crate) fn changed_settings(spec: &Spec) -> Vec<Change> {
    let parsed = |text: &str| serde_json::from_str::<Value>(text).ok();
    let applied = spec::current().ok().and_then(|spec| parsed(&spec.text));
    let (Some(old), Some(new)) = (applied, parsed(&spec.text)) else {
        return Vec::new();
    };
    let resource = "agent:settings";
    let changed = ["run", "config/converge"].into_iter().filter_map(|field| {
        let value = |spec: &Value| spec.pointer(&format!("/{field}")).cloned();
        let (old, new) = (value(&old), value(&new));
        let shown =
            |value: Option<Value>| value.map_or("absent".to_owned(), |value| value.to_string());
        (old != new).then(|| Change {
            id: format!("{resource}/{field}"),
            resource: resource.to_owned(),
            field: field.to_owned(),
            expected: shown(new).into(),
            found: shown(old).into(),
            cause: ChangeCause::Spec,
            danger: None,
            handling: Handling::Enforce,
        })
    });
    changed.collect()
}

/// A successful run.
pub(crate) struct ConvergeReport {
    pub(crate) name: String,
    pub(crate) n_steps: usize,
    /// The result.
    pub(crate) body: ConfigApplied,
}

impl ConvergeReport {
    /// Returns the result for a job that succeeded.
    pub(crate) fn result(self) -> Value {
        serde_json::to_value(self.body).unwrap_or_default()
    }
}

/// Applies a spec, and writes the marker of success or failure.
pub(crate) fn converge(
    spec: Result<Spec, AgentError>,
    lock_wait: u64,
    observer: &mut dyn ApplyObserver,
) -> Result<ConvergeReport, AgentError> {
    let begun = clock::uptime();
    let (name, done) = match spec {
        Ok(spec) => {
            let _span = tracing::error_span!("apply", spec = spec.name).entered();
            let observation = apply::observe(&Machine::default(), &spec.wanted);
            let done = observation
                .and_then(|observation| finish(&spec, observation, begun, lock_wait, observer));
            (spec.name, done)
        }
        Err(error) => (String::new(), Err(error)),
    };
    done.map_err(|error| {
        let error = observer.failed(error);
        // An error of the marker is ignored: this one is reported.
        _ = state::fail(&error, &name);
        error
    })
}

/// Applies a spec to an observed machine, and writes the marker of success.
pub(crate) fn finish(
    spec: &Spec,
    observation: Observation,
    begun: u64,
    lock_wait: u64,
    observer: &mut dyn ApplyObserver,
) -> Result<ConvergeReport, AgentError> {
    let changes = observation.decision.changes.clone();
    let steps: Vec<String> = observation
        .decision
        .steps
        .iter()
        .map(ConvergeStep::description)
        .collect();
    let n_steps = steps.len();
    observer.started(&changes);
    if !steps.is_empty() {
        state::attempt(&spec.text)?;
    }
    let refused = apply::carry_out(
        &mut Machine::with_lock_wait(lock_wait),
        &spec.wanted,
        observation,
        observer,
    )?;
    state::keep_spec(&spec.text)?;
    apply::require_all(&refused)?;
    let counts = mark_complete(spec)?;
    let milliseconds = clock::uptime().saturating_sub(begun);
    let body = ConfigApplied {
        phase: "config".to_owned(),
        success: true,
        spec: spec.name.clone(),
        duration_seconds: Duration::from_millis(milliseconds).as_secs_f64(),
        changes,
        steps,
        counts,
    };
    Ok(ConvergeReport {
        name: spec.name.clone(),
        n_steps,
        body,
    })
}

/// Writes the marker of success, and returns the counts in it.
pub(crate) fn mark_complete(spec: &Spec) -> Result<ResourceCounts, AgentError> {
    let counts = counts(&spec.wanted);
    let marker = json!({
        "phase": "config", "status": "complete", "spec": spec.name,
        "packages": counts.packages,
        "services_enabled": counts.services_enabled,
        "services_disabled": counts.services_disabled,
        "users": counts.users,
    });
    state::complete(marker)?;
    Ok(counts)
}

/// Counts the resources that markers and results report.
fn counts(wanted: &[Resource]) -> ResourceCounts {
    let count = |is_counted: &dyn Fn(&Resource) -> bool| {
        wanted.iter().filter(|one| is_counted(one)).count()
    };
    ResourceCounts {
        packages: count(&|one| matches!(one, Resource::Package { .. })),
        services_enabled: count(&|one| matches!(one, Resource::Service { enabled: true, .. })),
        services_disabled: count(&|one| matches!(one, Resource::Service { enabled: false, .. })),
        users: count(&|one| matches!(one, Resource::User { .. })),
    }
}
