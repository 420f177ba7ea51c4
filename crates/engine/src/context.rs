//! What a step belongs to: its run, its subject, and the number under which it may change its host.
//!
//! Clients of providers are shared by runs, so this goes with the task, like a span of a log. Work
//! that leaves the task for a thread takes it along with [`off`].

use std::sync::Arc;

use homestak_api::runtime;

use crate::events::{RunHub, Subject, What};
use crate::journal::Fence;
use crate::ports::PortError;

/// What a step belongs to.
#[derive(Clone, Default)]
pub(crate) struct Context {
    /// Where events of its run are told; none outside of runs.
    pub(crate) hub: Option<Arc<RunHub>>,
    /// Node or image it is about, for remarks that name no guest.
    pub(crate) subject: Subject,
    /// The number under which its run holds the host.
    pub(crate) fence: Option<Fence>,
}

impl Context {
    pub(crate) fn new(hub: &Arc<RunHub>, subject: Subject, fence: Option<Fence>) -> Self {
        Self {
            hub: Some(hub.clone()),
            subject,
            fence,
        }
    }
}

tokio::task_local! {
    static CONTEXT: Context;
}

/// Does work that belongs to a step.
pub(crate) async fn within<T>(context: Context, work: impl Future<Output = T>) -> T {
    CONTEXT.scope(context, work).await
}

/// Returns what the current task belongs to.
pub(crate) fn current() -> Context {
    CONTEXT.try_with(Clone::clone).unwrap_or_default()
}

/// Returns the number under which the current task may change its host. A provider that can refuses
/// an older number than the highest it has seen of the same scope.
pub fn fence() -> Option<Fence> {
    current().fence
}

/// Does work under a number that came from another process.
pub async fn fenced<T>(fence: Option<Fence>, work: impl Future<Output = T>) -> T {
    let context = Context {
        fence,
        ..Context::default()
    };
    within(context, work).await
}

/// Does work that waits by itself, for a program, a lock or a disk, on a thread that may wait; it
/// belongs to what the current task belongs to. A caller that is dropped does not stop it.
pub async fn off<T: Send + 'static>(
    doing: &str,
    work: impl FnOnce() -> Result<T, PortError> + Send + 'static,
) -> Result<T, PortError> {
    let context = current();
    let done = runtime::off(move || CONTEXT.sync_scope(context, work)).await;
    done.map_err(|error| PortError::bug(doing, &error))?
}

/// Tells those who watch the run what the current step waits for.
pub fn waits_for(what: &str) {
    let Context { hub, subject, .. } = current();
    if let Some(hub) = hub {
        let what = what.to_owned();
        hub.tell(What::Waiting { subject, what });
    }
}
