//! Task-local context of a step: its run's events, its subject and its fencing token.
//!
//! Clients of providers are shared between runs, so the context travels with the task, like a
//! tracing span. [`run_blocking`] passes it on to the thread that does the work.

use std::sync::Arc;

use homestak_api::runtime;

use crate::events::{EventKind, RunEvents, Subject};
use crate::journal::Fence;
use crate::ports::PortError;

/// The context of a step.
#[derive(Clone, Default)]
pub(crate) struct StepContext {
    /// Events of its run; `None` outside of runs.
    pub(crate) hub: Option<Arc<RunEvents>>,
    /// Node or image it is about, for events that name no guest.
    pub(crate) subject: Subject,
    /// The fencing token of its run for the host.
    pub(crate) fence: Option<Fence>,
}

impl StepContext {
    pub(crate) fn new(hub: &Arc<RunEvents>, subject: Subject, fence: Option<Fence>) -> Self {
        Self {
            hub: Some(hub.clone()),
            subject,
            fence,
        }
    }
}

tokio::task_local! {
    static CONTEXT: StepContext;
}

/// Runs work in the context of a step.
pub(crate) async fn with_context<T>(context: StepContext, work: impl Future<Output = T>) -> T {
    CONTEXT.scope(context, work).await
}

/// Returns the context of the current task.
pub(crate) fn current() -> StepContext {
    CONTEXT.try_with(Clone::clone).unwrap_or_default()
}

/// Returns the fencing token of the current task. A provider that supports it refuses a token older
/// than the highest it has seen for the same scope.
pub fn fence() -> Option<Fence> {
    current().fence
}

/// Runs work with a fencing token that was passed by another process.
pub async fn with_fence<T>(fence: Option<Fence>, work: impl Future<Output = T>) -> T {
    let context = StepContext {
        fence,
        ..StepContext::default()
    };
    with_context(context, work).await
}

/// Runs blocking work (a program, a lock, a disk) on a separate thread, in the context of the
/// current task. Dropping the future does not stop the work.
pub async fn run_blocking<T: Send + 'static>(
    doing: &str,
    work: impl FnOnce() -> Result<T, PortError> + Send + 'static,
) -> Result<T, PortError> {
    let context = current();
    let done = runtime::run_blocking(move || CONTEXT.sync_scope(context, work)).await;
    done.map_err(|error| PortError::bug(doing, &error))?
}

/// Emits an event about what the current step waits for.
pub fn report_waiting(what: &str) {
    let StepContext { hub, subject, .. } = current();
    if let Some(hub) = hub {
        let what = what.to_owned();
        hub.emit(EventKind::Waiting { subject, what });
    }
}
