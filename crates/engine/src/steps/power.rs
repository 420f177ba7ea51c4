//! Starts guests and brings them to a halt.
//!
//! In: a step with its node. Out: whether anything was changed.
//! Never: a guest switched off that was not asked to end first.

use std::time::Duration;

use homestak_core::plan::Action;

use super::{Came, Task, ready};
use crate::ports::{Halt, PortError, Power};

/// How long a guest may take to end by itself.
const GRACE: Duration = Duration::from_secs(60);
/// The same when a run is undone: nobody has used the guest yet.
const SHORT_GRACE: Duration = Duration::from_secs(10);

async fn power(task: &Task) -> Result<Option<Power>, PortError> {
    let provider = task.provider().await?;
    let there = provider.inspect(&task.guest()?).await?;
    Ok(there.map(|there| there.power))
}

pub(super) async fn is_running(task: &Task) -> Result<Option<Came>, PortError> {
    let running = power(task).await? == Some(Power::Running);
    Ok(running.then(Came::default))
}

pub(super) async fn is_stopped(task: &Task) -> Result<Option<Came>, PortError> {
    let stopped = matches!(power(task).await?, Some(Power::Stopped) | None);
    Ok(stopped.then(Came::default))
}

pub(super) async fn start(task: &Task) -> Result<Came, PortError> {
    if let Some(came) = is_running(task).await? {
        return Ok(came);
    }
    let provider = task.provider().await?;
    provider.start(&task.guest()?).await?;
    Ok(Came::changed())
}

pub(super) async fn stop(task: &Task) -> Result<Came, PortError> {
    halt(task, GRACE).await
}

async fn halt(task: &Task, grace: Duration) -> Result<Came, PortError> {
    task.board.leave(&task.node()?.name);
    if let Some(came) = is_stopped(task).await? {
        return Ok(came);
    }
    let provider = task.provider().await?;
    provider.stop(&task.guest()?, Halt::Graceful(grace)).await?;
    Ok(Came::changed())
}

/// Stops a guest that was started. One that ran before is left alone, unless it was stopped to be
/// changed: then it is stopped again to be changed back.
pub(super) async fn undo_start(task: &Task) -> Result<Came, PortError> {
    let node = task.node()?;
    let ran = node.found.as_ref().is_some_and(|found| found.running);
    if ran && node.action == Action::Start {
        return Ok(Came::default());
    }
    halt(task, SHORT_GRACE).await
}

/// Starts a guest again that ran before it was stopped, if it is still there. One that others run
/// on is waited for: what is undone next is inside it.
pub(super) async fn undo_stop(task: &Task) -> Result<Came, PortError> {
    if !task.found()?.running {
        return Ok(Came::default());
    }
    let stopped = match power(task).await? {
        None => return Ok(Came::default()),
        Some(power) => power == Power::Stopped,
    };
    if stopped {
        let provider = task.provider().await?;
        provider.start(&task.guest()?).await?;
    }
    let came = if task.board.hosts_others(&task.node()?.name) {
        ready::act(task).await?
    } else {
        Came::default()
    };
    Ok(Came {
        changed: stopped,
        ..came
    })
}
