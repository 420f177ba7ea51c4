//! Waits that a person can end: whoever waits for something outside lets go when asked to stop.
//!
//! Only waits are left, so that what is done between them is done whole. Work that was left is
//! work whose outcome is not known; whoever repeats it looks first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::{Notify, watch};
use tokio::task::JoinError;

use crate::clock::{Clock, SharedClock};

tokio::task_local! {
    /// The wish to stop that holds for the work of this task. It is context, like a span of a log.
    static STOP: Stop;
}

#[derive(Clone)]
struct Stop {
    asked: watch::Receiver<bool>,
    left: Arc<Notify>,
    /// Whether a thread ended a wait of the work.
    ended: Arc<AtomicBool>,
}

impl Stop {
    /// Waits until a person asks to stop; for ever when nobody can.
    async fn asked(&mut self) {
        if self.asked.wait_for(|asked| *asked).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Has the work left: it is dropped where it stands.
    async fn leave<T>(&self) -> T {
        self.left.notify_one();
        std::future::pending().await
    }
}

/// Does work whose waits end when `asked` becomes true. `None` when it was left in a wait.
pub async fn stoppable<T>(
    asked: watch::Receiver<bool>,
    work: impl Future<Output = T>,
) -> Option<T> {
    let left = Arc::new(Notify::new());
    let stop = Stop {
        asked,
        left: left.clone(),
        ended: Arc::default(),
    };
    tokio::select! {
        biased;
        // Cancel safety: the work is dropped only when it has said that it waits.
        done = STOP.scope(stop, work) => Some(done),
        // Cancel safety: a notice that is not taken stays.
        () = left.notified() => None,
    }
}

/// Waits for something, and leaves the work when a person asks to stop: at once, or after `room`,
/// for what is nearly always over by then.
pub async fn leavable<T>(room: Duration, wait: impl Future<Output = T>) -> T {
    let Ok(mut stop) = STOP.try_with(Clone::clone) else {
        return wait.await;
    };
    let asked = async {
        stop.asked().await;
        tokio::time::sleep(room).await;
    };
    tokio::select! {
        biased;
        // Cancel safety: it is dropped together with the work it belongs to.
        done = wait => return done,
        // Cancel safety: only a flag and a pause.
        () = asked => {}
    }
    stop.leave().await
}

/// Leaves the work when a person has asked to stop; for the point before something new is begun.
pub async fn checkpoint() {
    if let Ok(stop) = STOP.try_with(Clone::clone)
        && *stop.asked.borrow()
    {
        stop.leave::<()>().await;
    }
}

/// Does work that waits by itself, for a program, a lock or a disk, on a thread that may. It belongs
/// to what the caller belongs to; a caller that is dropped does not stop it.
pub async fn off<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let span = tracing::Span::current();
    let work = move || span.in_scope(work);
    let Ok(stop) = STOP.try_with(Clone::clone) else {
        return tokio::task::spawn_blocking(work).await;
    };
    let own = stop.clone();
    // Cancel safety: the thread goes on, and nobody takes the result.
    let done = tokio::task::spawn_blocking(move || STOP.sync_scope(own, work)).await;
    if stop.ended.load(Ordering::Relaxed) {
        stop.leave::<()>().await;
    }
    done
}

/// Pauses a thread between two looks. An error when a person has asked to stop: whoever waits there
/// returns at once then, since the work it belongs to is left and nobody looks at what it returns.
pub fn pause(duration: Duration) -> std::io::Result<()> {
    let asked = STOP.try_with(|stop| {
        let asked = *stop.asked.borrow();
        stop.ended.fetch_or(asked, Ordering::Relaxed);
        asked
    });
    if asked.unwrap_or(false) {
        return Err(std::io::Error::new(std::io::ErrorKind::Interrupted, "left"));
    }
    std::thread::sleep(duration);
    Ok(())
}

/// A clock whose waits are left when a person asks to stop.
pub struct LeavableClock(SharedClock);

impl LeavableClock {
    /// Wraps a clock.
    pub fn shared(clock: SharedClock) -> SharedClock {
        Arc::new(Self(clock))
    }
}

#[async_trait]
impl Clock for LeavableClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    async fn sleep(&self, duration: Duration) {
        leavable(Duration::ZERO, self.0.sleep(duration)).await;
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
    async fn a_wait_is_left_when_asked_and_what_is_done_before_it_is_done_whole() {
        let (ask, asked) = watch::channel(false);
        let clock = LeavableClock::shared(Arc::new(WallClock));
        let done = AtomicBool::new(false);
        let work = async {
            // Not a wait: it goes on although a person has asked.
            yield_now().await;
            done.store(true, Ordering::SeqCst);
            clock.sleep(HOUR).await;
        };
        ask.send_replace(true);
        assert_eq!(stoppable(asked, work).await, None);
        assert!(done.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn a_wait_that_has_begun_is_left_when_someone_asks() {
        let (ask, asked) = watch::channel(false);
        let work = leavable(Duration::ZERO, pending::<()>());
        let asking = async {
            yield_now().await;
            ask.send_replace(true);
        };
        let (ended, ()) = tokio::join!(stoppable(asked, work), asking);
        assert_eq!(ended, None);
    }

    #[tokio::test]
    async fn a_wait_on_a_thread_is_left_when_asked_and_work_without_one_is_finished() {
        let (ask, asked) = watch::channel(false);
        let held = tempfile::NamedTempFile::new().expect("a file");
        let wait = |file: std::fs::File| off(move || crate::lock::lock(&file, HOUR, |_| ()));
        held.as_file().lock().expect("free");
        let other = fs_err::File::open(held.path()).expect("open");
        let waits = stoppable(asked.clone(), wait(other.into_parts().0));
        let asking = async {
            yield_now().await;
            ask.send_replace(true);
        };
        let (ended, ()) = tokio::join!(waits, asking);
        assert!(ended.is_none());
        let done = stoppable(asked, off(|| 7)).await;
        assert_eq!(done.expect("not left").ok(), Some(7));
    }

    #[tokio::test]
    async fn what_is_nearly_over_is_given_room_and_nothing_new_is_begun() {
        let (_ask, asked) = watch::channel(true);
        let over_soon = leavable(HOUR, yield_now());
        assert_eq!(stoppable(asked.clone(), over_soon).await, Some(()));
        assert_eq!(stoppable(asked, checkpoint()).await, None);
    }

    #[tokio::test]
    async fn nothing_is_left_when_nobody_asks_or_nobody_can() {
        let (ask, asked) = watch::channel(false);
        let wait = || leavable(Duration::ZERO, yield_now());
        assert_eq!(stoppable(asked.clone(), wait()).await, Some(()));
        drop(ask);
        assert_eq!(stoppable(asked, wait()).await, Some(()));
        checkpoint().await;
        wait().await;
    }
}
