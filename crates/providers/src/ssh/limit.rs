//! How long a program may take: its pipes are read and written no longer than that, whatever the
//! node at the other end does or does not do.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::time::{ClockId, clock_gettime};

/// How often is looked whether the limit is reached, in nanoseconds.
const TICK: i64 = 100_000_000;
/// How often is looked whether a program ended whose pipes are closed.
const ENDING: Duration = Duration::from_millis(1);

/// Returns the time that has passed since some point in the past.
pub(crate) fn monotonic() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

/// When a program is ended that has not ended by itself.
pub(super) struct Limit<'a> {
    until: Duration,
    stop: &'a (dyn Fn() -> bool + Sync),
}

impl<'a> Limit<'a> {
    pub(super) fn new(within: Duration, stop: &'a (dyn Fn() -> bool + Sync)) -> Self {
        let until = monotonic().saturating_add(within);
        Self { until, stop }
    }

    pub(super) fn is_stopped(&self) -> bool {
        (self.stop)()
    }

    fn is_reached(&self) -> bool {
        monotonic() >= self.until || self.is_stopped()
    }

    /// Waits until a pipe is ready; returns whether it is.
    fn ready(&self, pipe: &impl AsFd, wanted: PollFlags) -> bool {
        let tick = Timespec {
            tv_sec: 0,
            tv_nsec: TICK,
        };
        while !self.is_reached() {
            let mut polled = [PollFd::new(pipe, wanted)];
            match poll(&mut polled, Some(&tick)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return true,
                Err(_) => return false,
            }
        }
        false
    }

    /// Writes all that is read until the limit is reached.
    pub(super) fn write(&self, mut pipe: impl Write + AsFd, mut bytes: &[u8]) -> io::Result<()> {
        let flags = fcntl_getfl(&pipe)?;
        fcntl_setfl(&pipe, flags | OFlags::NONBLOCK)?;
        while !bytes.is_empty() && self.ready(&pipe, PollFlags::OUT) {
            match pipe.write(bytes) {
                Ok(n_written) => bytes = &bytes[n_written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until a program has ended; `None` when the limit was reached, and it was ended.
    pub(super) fn wait(&self, child: &mut Child) -> io::Result<Option<ExitStatus>> {
        // First the limit: one that ended because nobody reads any more has not said everything.
        while !self.is_reached() {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status));
            }
            std::thread::sleep(ENDING);
        }
        child.kill()?;
        child.wait()?;
        Ok(None)
    }
}

/// A pipe that ends when the limit is reached.
pub(super) struct Bounded<'a, R> {
    pub(super) pipe: R,
    pub(super) limit: &'a Limit<'a>,
}

impl<R: Read + AsFd> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.limit.ready(&self.pipe, PollFlags::IN) {
            return self.pipe.read(buffer);
        }
        Ok(0)
    }
}
