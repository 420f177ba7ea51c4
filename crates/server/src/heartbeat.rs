//! Shows that the loop that accepts connections runs, for the watchdog of the process.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Asks the loop that accepts connections whether it runs.
pub struct Heartbeat {
    asked: Notify,
    has_answered: AtomicBool,
}

impl Heartbeat {
    pub(crate) fn new() -> Self {
        Self {
            asked: Notify::new(),
            // It was not asked yet.
            has_answered: AtomicBool::new(true),
        }
    }

    /// Returns whether the loop has answered since the last call, and asks it again.
    pub fn is_alive(&self) -> bool {
        let has_answered = self.has_answered.swap(false, Ordering::Relaxed);
        self.asked.notify_one();
        has_answered
    }

    /// Waits for a question.
    pub(crate) async fn asked(&self) {
        // Cancel safety: a question that is not taken now is taken next time.
        self.asked.notified().await;
    }

    pub(crate) fn answer(&self) {
        self.has_answered.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_loop_is_alive_while_it_answers() {
        let heartbeat = Heartbeat::new();
        assert!(heartbeat.is_alive());
        assert!(!heartbeat.is_alive());
        heartbeat.asked().await;
        heartbeat.answer();
        assert!(heartbeat.is_alive());
    }
}
