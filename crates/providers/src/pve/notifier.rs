//! Reports waits and warnings of the client to the listener, together with the guest they concern.
//!
//! URLs may contain secrets and are never reported.

use std::sync::Arc;

use homestak_core::foreign::ForeignText;
use homestak_engine::ports::{GuestUuid, ProgressListener, ProviderEvent};

tokio::task_local! {
    /// The guest of the current call. Used only in messages, never for decisions.
    static GUEST: GuestUuid;
}

/// Runs `work` with messages attributed to a guest.
pub(super) async fn with_guest<T>(guest: &GuestUuid, work: impl Future<Output = T>) -> T {
    GUEST.scope(guest.clone(), work).await
}

/// Sends messages to a listener, if there is one.
#[derive(Clone, Default)]
pub(super) struct Notifier(Option<Arc<dyn ProgressListener>>);

impl Notifier {
    /// Creates a notifier for a listener.
    pub(super) fn to(listener: Arc<dyn ProgressListener>) -> Self {
        Self(Some(listener))
    }

    /// Reports what is being waited for; once per wait, not per poll.
    pub(super) fn waiting(&self, what: impl Into<ForeignText>) {
        let what = String::from(what.into());
        tracing::debug!(what, "waiting");
        self.send(ProviderEvent::Waiting(what));
    }

    /// Reports a warning.
    pub(super) fn warning(&self, what: impl Into<ForeignText>) {
        let what = String::from(what.into());
        tracing::warn!(what, "warning of a task");
        self.send(ProviderEvent::Warning(what));
    }

    fn send(&self, event: ProviderEvent) {
        let Some(listener) = &self.0 else { return };
        match GUEST.try_with(Clone::clone) {
            Ok(guest) => listener.report(Some(&guest), event),
            Err(_) => listener.report(None, event),
        }
    }
}
