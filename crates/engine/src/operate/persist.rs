//! Patience: a step is tried again while the other side is busy or away.
//!
//! In: a step. Out: what came of it, or the error that no more tries would change.
//! Never: an act without a look first, once it may have been done.

use std::time::Duration;

use homestak_core::doc::timeouts::Limit;
use homestak_core::plan::StepKind;

use super::schedule::Way;
use crate::ports::{Class, PortError};
use crate::steps::{self, Task};

/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The longest time of a try in vain that counts: a connection and an answer are over by then. A
/// clock that is set meanwhile must not use up all patience.
const IN_VAIN: Duration = Duration::from_secs(60);

/// Does or undoes a step, again when the other side is busy or away: every step looks first.
pub(super) async fn persist(task: &Task, way: Way) -> Result<steps::Came, PortError> {
    let limits = &task.limits;
    let mut pause = limits.pause;
    let mut tried = 0;
    let mut away = Duration::ZERO;
    let mut busy = Duration::ZERO;
    let mut said = String::new();
    loop {
        let begun = task.clock.now();
        let result = match way {
            Way::Forward => forward(task, tried > 0).await,
            Way::Back => task.undo().await,
        };
        tried += 1;
        let error = match result {
            Ok(came) => return Ok(came),
            Err(error) => error,
        };
        let took = Duration::try_from(task.clock.now().duration_since(begun)).unwrap_or_default();
        busy += took;
        let later = match error.class {
            Class::Unreachable { .. } => {
                away += took.min(IN_VAIN);
                away < limits.timeouts.of(Limit::Api)
            }
            Class::Busy => {
                away = Duration::ZERO;
                busy < limits.timeouts.of(Limit::Lock)
            }
            Class::Broken => {
                away = Duration::ZERO;
                tried < limits.tries
            }
            Class::Refused | Class::Partly | Class::Missing | Class::Bug => false,
        };
        // Waiting until it is reached has a patience of its own.
        if !later || task.step.kind == StepKind::Ready {
            return Err(error);
        }
        tracing::debug!(tried, class = ?error.class, %error, ?pause, "step is tried again");
        let what = match error.class {
            Class::Unreachable { .. } => format!("an answer ({error})"),
            _ => format!("another try ({error})"),
        };
        if what != said {
            task.waits_for(what.clone());
            said = what;
        }
        task.clock.sleep(pause).await;
        (away, busy) = (away + pause, busy + pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn forward(task: &Task, again: bool) -> Result<steps::Came, PortError> {
    // Waiting until it is reached looks by itself, with patience.
    if (again || task.was_begun())
        && task.step.kind != StepKind::Ready
        && let Some(came) = task.probe().await?
    {
        return Ok(came);
    }
    task.act().await
}
