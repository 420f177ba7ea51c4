//! A person's wish to stop.
//!
//! In: an [`Interrupter`] that is asked. Out: an [`Interrupt`] that says so.
//! Never: the end of a step that does something; one that only follows a node ends.

use tokio::sync::watch;

/// Says when to stop: nothing new is begun, what runs is finished or no longer followed.
#[derive(Clone, Debug)]
pub struct Interrupt(watch::Receiver<bool>);

/// Asks to stop.
#[derive(Debug)]
pub struct Interrupter(watch::Sender<bool>);

impl Interrupt {
    /// Makes both ends.
    pub fn new() -> (Interrupter, Self) {
        let (sender, receiver) = watch::channel(false);
        (Interrupter(sender), Self(receiver))
    }

    /// Tells whether a person asked to stop.
    pub fn is_asked(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until a person asks to stop; for ever when nobody can. Cancel-safe.
    pub(crate) async fn asked(&mut self) {
        if self.0.wait_for(|asked| *asked).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Interrupter {
    /// Asks to stop.
    pub fn ask(&self) {
        self.0.send_replace(true);
    }
}
