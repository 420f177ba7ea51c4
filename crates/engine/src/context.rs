//! What a step belongs to: its run, its subject, and the number under which it may change its host.
//!
//! Clients of providers are shared by runs, so this goes with the task, like a span of a log. Work
//! that leaves the task for a thread takes it along with [`carry`].

use std::sync::Arc;

use crate::events::RunHub;
use crate::journal::Fence;

/// What a step belongs to.
#[derive(Clone, Default)]
pub(crate) struct Context {
    /// Where events of its run are told; none outside of runs.
    pub(crate) hub: Option<Arc<RunHub>>,
    /// Node or image it is about, for remarks that name no guest.
    pub(crate) subject: String,
    /// The number under which its run holds the host.
    pub(crate) fence: Option<Fence>,
}

impl Context {
    pub(crate) fn new(hub: &Arc<RunHub>, subject: String, fence: Option<Fence>) -> Self {
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

/// Returns work for another thread, which then belongs to what the current task belongs to.
pub fn carry<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let context = current();
    move || CONTEXT.sync_scope(context, work)
}
