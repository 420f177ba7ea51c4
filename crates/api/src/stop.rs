//! Waits that the user can interrupt.
//!
//! Only waits are interrupted, so that the work between them is complete. The outcome of
//! interrupted work is unknown: check the state before repeating it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::{Notify, watch};
use tokio::task::JoinError;

use crate::clock::{Clock, SharedClock};

tokio::task_local! {
    /// The stop request for the work of this task. It is context, like a tracing span.
    static STOP: Stop;
}

#[derive(Clone)]
struct Stop {
    requested: watch::Receiver<bool>,
    interrupted: Arc<Notify>,
    /// Whether a wait on a blocking thread was interrupted.
    thread_interrupted: Arc<AtomicBool>,
}

impl Stop {
    /// Waits until a stop is requested; for ever if the sender is dropped.
    async fn requested(&mut self) {
        if self
            .requested
            .wait_for(|requested| *requested)
            .await
            .is_err()
        {
            std::future::pending::<()>().await;
        }
    }

    /// Interrupts the work: its future is dropped.
    async fn interrupt<T>(&self) -> T {
        self.interrupted.notify_one();
        std::future::pending().await
    }
}

/// Runs work whose waits are interrupted when `requested` becomes true. `None` if that happened.
pub async fn stoppable<T>(
    requested: watch::Receiver<bool>,
    work: impl Future<Output = T>,
) -> Option<T> {
    let interrupted = Arc::new(Notify::new());
    let stop = Stop {
        requested,
        interrupted: interrupted.clone(),
        thread_interrupted: Arc::default(),
    };
    tokio::select! {
        biased;
        // Cancel safety: the work is dropped only in an interruptible wait.
        done = STOP.scope(stop, work) => Some(done),
        // Cancel safety: a pending notification is kept.
        () = interrupted.notified() => None,
    }
}

/// Waits for something. When a stop is requested, the wait is interrupted after `grace`, in which
/// most waits finish.
pub async fn interruptible<T>(grace: Duration, wait: impl Future<Output = T>) -> T {
    let Ok(mut stop) = STOP.try_with(Clone::clone) else {
        return wait.await;
    };
    let requested = async {
        stop.requested().await;
        tokio::time::sleep(grace).await;
    };
    tokio::select! {
        biased;
        // Cancel safety: dropped together with the work it belongs to.
        done = wait => return done,
        // Cancel safety: only a flag and a pause.
        () = requested => {}
    }
    stop.interrupt().await
}

/// Interrupts the work if a stop was requested. Call it before starting something new.
pub async fn checkpoint() {
    if let Ok(stop) = STOP.try_with(Clone::clone)
        && *stop.requested.borrow()
    {
        stop.interrupt::<()>().await;
    }
}

/// Runs blocking work (a program, a lock, a disk) on a separate thread, in the context of the current
/// task. Dropping the future does not stop it.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let span = tracing::Span::current();
    let work = move || span.in_scope(work);
    let Ok(stop) = STOP.try_with(Clone::clone) else {
        return tokio::task::spawn_blocking(work).await;
    };
    let own = stop.clone();
    // Cancel safety: the thread continues, and its result is discarded.
    let done = tokio::task::spawn_blocking(move || STOP.sync_scope(own, work)).await;
    if stop.thread_interrupted.load(Ordering::Relaxed) {
        stop.interrupt::<()>().await;
    }
    done
}

/// Pauses a blocking thread between two polls. An error if a stop was requested: the caller then
/// returns immediately, and its result is discarded.
pub fn pause(duration: Duration) -> std::io::Result<()> {
    let requested = STOP.try_with(|stop| {
        let requested = *stop.requested.borrow();
        stop.thread_interrupted
            .fetch_or(requested, Ordering::Relaxed);
        requested
    });
    if requested.unwrap_or(false) {
        return Err(std::io::Error::new(
            std::io::ErrorKind::Interrupted,
            "interrupted",
        ));
    }
    std::thread::sleep(duration);
    Ok(())
}

/// A clock whose waits are interrupted when a stop is requested.
pub struct InterruptibleClock(SharedClock);

impl InterruptibleClock {
    /// Wraps a clock.
    pub fn shared(clock: SharedClock) -> SharedClock {
        Arc::new(Self(clock))
    }
}

#[async_trait]
impl Clock for InterruptibleClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    async fn sleep(&self, duration: Duration) {
        interruptible(Duration::ZERO, self.0.sleep(duration)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::task::yield_now;

    use super::*;
    use crate::clock::WallClock;

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn a_wait_is_interrupted_and_the_work_before_it_is_complete() {
        let (request, requested) = watch::channel(false);
        let clock = InterruptibleClock::shared(Arc::new(WallClock));
        let done = AtomicBool::new(false);
        let work = async {
            // Not a wait: it continues although a stop was requested.
            yield_now().await;
            done.store(true, Ordering::SeqCst);
            clock.sleep(HOUR).await;
        };
        request.send_replace(true);
        assert_eq!(stoppable(requested, work).await, None);
        assert!(done.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn a_wait_in_progress_is_interrupted() {
        let (request, requested) = watch::channel(false);
        let work = interruptible(Duration::ZERO, pending::<()>());
        let stop = async {
            yield_now().await;
            request.send_replace(true);
        };
        let (ended, ()) = tokio::join!(stoppable(requested, work), stop);
        assert_eq!(ended, None);
    }

    #[tokio::test]
    async fn a_wait_on_a_thread_is_interrupted_and_work_without_one_is_finished() {
        let (request, requested) = watch::channel(false);
        let held = tempfile::NamedTempFile::new().expect("a file");
        let wait =
            |file: std::fs::File| run_blocking(move || crate::lock::lock(&file, HOUR, |_| ()));
        held.as_file().lock().expect("free");
        let other = fs_err::File::open(held.path()).expect("open");
        let waits = stoppable(requested.clone(), wait(other.into_parts().0));
        let stop = async {
            yield_now().await;
            request.send_replace(true);
        };
        let (ended, ()) = tokio::join!(waits, stop);
        assert!(ended.is_none());
        let done = stoppable(requested, run_blocking(|| 7)).await;
        assert_eq!(done.expect("not interrupted").ok(), Some(7));
    }

    #[tokio::test]
    async fn a_short_wait_finishes_in_the_grace_period_and_nothing_new_is_started() {
        let (_request, requested) = watch::channel(true);
        let over_soon = interruptible(HOUR, yield_now());
        assert_eq!(stoppable(requested.clone(), over_soon).await, Some(()));
        assert_eq!(stoppable(requested, checkpoint()).await, None);
    }

    #[tokio::test]
    async fn nothing_is_interrupted_without_a_stop_request() {
        let (request, requested) = watch::channel(false);
        let wait = || interruptible(Duration::ZERO, yield_now());
        assert_eq!(stoppable(requested.clone(), wait()).await, Some(()));
        drop(request);
        assert_eq!(stoppable(requested, wait()).await, Some(()));
        checkpoint().await;
        wait().await;
    }
}
