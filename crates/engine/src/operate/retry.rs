//! Retries of a step while the other side is busy or unreachable.
//!
//! A step that may have been executed is probed before it is repeated.

use std::time::Duration;

use homestak_core::doc::timeouts::Limit;
use homestak_core::plan::StepKind;

use super::schedule::Direction;
use crate::ports::{ErrorClass, PortError};
use crate::steps::{self, StepTask};

/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The longest duration of a failed try that counts towards a time limit: connections and requests
/// time out earlier. A clock that is set in the meantime must not exhaust the limit.
const LONGEST_TRY: Duration = Duration::from_secs(60);

/// Executes or undoes a step, and retries it while the other side is busy or unreachable.
pub(super) async fn with_retries(
    task: &StepTask,
    direction: Direction,
) -> Result<steps::StepOutcome, PortError> {
    let limits = &task.limits;
    let mut pause = limits.pause;
    let mut tried = 0;
    let mut unreachable = Duration::ZERO;
    let mut busy = Duration::ZERO;
    let mut reported = String::new();
    loop {
        let started = task.clock.now();
        let result = match direction {
            Direction::Forward => forward(task, tried > 0).await,
            Direction::Back => task.undo().await,
        };
        tried += 1;
        let error = match result {
            Ok(outcome) => return Ok(outcome),
            Err(error) => error,
        };
        let took = Duration::try_from(task.clock.now().duration_since(started)).unwrap_or_default();
        busy += took;
        let may_retry = match error.class {
            ErrorClass::Unreachable { .. } => {
                unreachable += took.min(LONGEST_TRY);
                unreachable < limits.timeouts.of(Limit::Api)
            }
            ErrorClass::Busy => {
                unreachable = Duration::ZERO;
                busy < limits.timeouts.of(Limit::Lock)
            }
            ErrorClass::Broken => {
                unreachable = Duration::ZERO;
                tried < limits.tries
            }
            ErrorClass::Refused | ErrorClass::Partly | ErrorClass::Missing | ErrorClass::Bug => {
                false
            }
        };
        // Waiting for readiness has its own time limit.
        if !may_retry || task.step.kind == StepKind::Ready {
            return Err(error);
        }
        tracing::debug!(tried, class = ?error.class, %error, ?pause, "step is tried again");
        let what = match error.class {
            ErrorClass::Unreachable { .. } => format!("an answer ({error})"),
            _ => format!("another try ({error})"),
        };
        if what != reported {
            task.report_waiting(what.clone());
            reported = what;
        }
        task.clock.sleep(pause).await;
        (unreachable, busy) = (unreachable + pause, busy + pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn forward(task: &StepTask, again: bool) -> Result<steps::StepOutcome, PortError> {
    // Waiting for readiness polls by itself.
    if (again || task.was_begun())
        && task.step.kind != StepKind::Ready
        && let Some(outcome) = task.probe().await?
    {
        return Ok(outcome);
    }
    task.act().await
}
