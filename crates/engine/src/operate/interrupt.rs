//! Requests to stop a run. Waits end early; a change in progress is completed.

use tokio::sync::watch;

/// Receives the request to stop: no new steps start, waits end, running changes complete.
#[derive(Clone, Debug)]
pub struct Interrupt(watch::Receiver<bool>);

/// Requests a run to stop.
#[derive(Debug)]
pub struct Interrupter(watch::Sender<bool>);

impl Interrupt {
    /// Makes a connected pair.
    pub fn new() -> (Interrupter, Self) {
        let (sender, receiver) = watch::channel(false);
        (Interrupter(sender), Self(receiver))
    }

    /// Returns whether a stop was requested.
    pub fn is_requested(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns the flag itself, for waits further down.
    pub(crate) fn flag(&self) -> watch::Receiver<bool> {
        self.0.clone()
    }

    /// Waits for the request; forever if the sender was dropped. Cancel-safe.
    pub(crate) async fn requested(&mut self) {
        if self.0.wait_for(|requested| *requested).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Interrupter {
    /// Requests the run to stop.
    pub fn request(&self) {
        self.0.send_replace(true);
    }
}
