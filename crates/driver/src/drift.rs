//! Compares a running node with its spec.

use homestak_core::observed::PowerState;
use homestak_core::plan::{PlanOptions, SpecComparison, Verb};

use crate::configure::{NotApplied, not_applied};
use crate::error::DriverError;
use crate::job::Job;
use crate::nodes::RecordedNode;

/// A node compared with its spec.
pub struct Drift {
    /// Its spec.
    pub spec: String,
    /// The differences.
    pub found: SpecComparison,
}

/// Compares a node with its spec. The error explains why that is not possible.
pub async fn drift(job: &Job, known: &RecordedNode) -> Result<Drift, DriverError> {
    let name = known.name();
    let plan = job.plan(&PlanOptions::new(Verb::Apply)).await?;
    let node = plan.node(name);
    let config = node.and_then(|node| node.config.as_ref());
    let Some(config) = config else {
        let why = match node {
            None => "the manifest does not name it",
            Some(node) => not_applied(&job.driver.session.catalog, &job.resolved, node)
                .map_or("it has no spec", NotApplied::why),
        };
        return Err(DriverError::failed(format!(
            "`{name}` is not configured from here: {why}."
        )));
    };
    if let Some(found) = &config.found {
        return Ok(Drift {
            spec: config.spec.clone(),
            found: found.clone(),
        });
    }
    let unseen = config.unseen.as_ref();
    let power = node.and_then(|node| Some(node.found.as_ref()?.power));
    let why = match (unseen, power) {
        (Some(unseen), _) => &*unseen.why,
        (None, Some(PowerState::Running)) => "the next apply replaces it",
        (None, Some(PowerState::Stopped)) => "it is not running",
        (None, Some(PowerState::Unknown)) => "its power state is not known",
        (None, None) => "it does not exist",
    };
    let failed = DriverError::failed(format!(
        "`{name}` could not be compared with its spec: {why}."
    ))
    .hint(format!(
        "homestak manifest status {} shows its state",
        known.options()
    ));
    let hint = unseen.map(|unseen| &unseen.hint);
    let hint = hint.filter(|hint| !hint.is_empty());
    Err(hint.into_iter().fold(failed, DriverError::hint))
}
