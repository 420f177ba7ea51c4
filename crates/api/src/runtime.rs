//! Time and tasks: the one clock that can be replaced, and tasks that are never lost.
//!
//! In: durations and futures. Out: waits, and tasks that end with the program.
//! Never: reading the system's clock anywhere else; a task that panics unseen.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio_util::task::TaskTracker;

/// Tells the time and waits. Everything that waits takes one, so that tests decide how time goes.
#[async_trait]
pub trait Clock: Send + Sync {
    /// Returns now.
    fn now(&self) -> Timestamp;
    /// Waits. Cancel-safe: dropping it has no effect.
    async fn sleep(&self, duration: Duration);
}

/// A clock shared by many.
pub type SharedClock = Arc<dyn Clock>;

/// The clock on the wall.
#[derive(Clone, Copy, Debug, Default)]
pub struct WallClock;

#[async_trait]
impl Clock for WallClock {
    #[expect(clippy::disallowed_methods, reason = "this is a clock")]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

/// A clock that runs on tokio's time, so that a paused runtime makes waiting free.
#[derive(Clone, Debug)]
pub struct TestClock {
    start: Timestamp,
    origin: tokio::time::Instant,
}

impl TestClock {
    /// Starts at `start`. Must be called inside a runtime.
    pub fn starting_at(start: Timestamp) -> Self {
        Self {
            start,
            origin: tokio::time::Instant::now(),
        }
    }
}

#[async_trait]
impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        let passed = jiff::SignedDuration::try_from(self.origin.elapsed()).unwrap_or_default();
        self.start.checked_add(passed).unwrap_or(self.start)
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

/// Starts tasks and remembers them, so that shutting down can wait for all.
#[derive(Clone, Debug, Default)]
pub struct Spawner {
    tasks: TaskTracker,
}

impl Spawner {
    /// Starts a task. A panic in it is logged; the others go on.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        // Cancel safety: the tracker only counts; the task itself decides what dropping it means.
        let handle = self.tasks.spawn(task);
        self.tasks.spawn(async move {
            if let Err(error) = handle.await
                && error.is_panic()
            {
                tracing::error!(task = name, "a background task panicked");
            }
        });
    }

    /// Waits until every task has ended.
    pub async fn wait(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}
