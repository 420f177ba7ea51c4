//! Notifications to systemd: readiness and the watchdog. Without systemd they do nothing.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use crate::settings;

/// The watchdog timeout during a check, which may install packages.
const BUSY_TIMEOUT: Duration = Duration::from_secs(4000);

/// The notification socket.
pub(super) struct Notify {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Notify {
    pub(super) fn new() -> Self {
        Self {
            socket: settings::notify_socket().and_then(|name| open(&name)),
            watchdog: settings::watchdog(),
        }
    }

    fn send(&self, line: &str) {
        if let Some((socket, to)) = &self.socket {
            _ = socket.send_to_addr(line.as_bytes(), to);
        }
    }

    /// The watch has started.
    pub(super) fn ready(&self) {
        self.send("READY=1");
    }

    /// Resets the watchdog.
    pub(super) fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    /// Extends the watchdog timeout for a check.
    pub(super) fn busy(&self) {
        if self.watchdog.is_some() {
            self.send(&format!("WATCHDOG_USEC={}", BUSY_TIMEOUT.as_micros()));
        }
    }

    /// Restores the watchdog timeout.
    pub(super) fn idle(&self) {
        if let Some(timeout) = self.watchdog {
            self.send(&format!(
                "WATCHDOG_USEC={}\nWATCHDOG=1",
                timeout.as_micros()
            ));
        }
    }

    /// Returns the longest time between two notifications.
    pub(super) fn interval(&self) -> Duration {
        self.watchdog
            .map_or(Duration::from_secs(3600), |watchdog| watchdog / 2)
    }
}

fn open(name: &str) -> Option<(UnixDatagram, SocketAddr)> {
    let to = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name).ok()?,
        None => SocketAddr::from_pathname(name).ok()?,
    };
    Some((UnixDatagram::unbound().ok()?, to))
}
