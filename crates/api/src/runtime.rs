//! Tasks that are never lost, and the clock they wait by.
//!
//! In: futures. Out: tasks that end with the program.
//! Never: a task that panics unseen.

use tokio_util::task::TaskTracker;

pub use crate::clock::{Clock, SharedClock, TestClock, WallClock};
pub use crate::stop::{LeavableClock, checkpoint, leavable, off, pause, stoppable};

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
