//! Background tasks: they end with the program, and a panic in one is logged.

use tokio_util::task::TaskTracker;

pub use crate::clock::{Clock, SharedClock, WallClock};
pub use crate::stop::{
    InterruptibleClock, checkpoint, interruptible, pause, run_blocking, stoppable,
};

/// Starts tasks and tracks them, so that a shutdown can wait for all.
#[derive(Clone, Debug, Default)]
pub struct Spawner {
    tasks: TaskTracker,
}

impl Spawner {
    /// Starts a task. A panic in it is logged; other tasks continue.
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
