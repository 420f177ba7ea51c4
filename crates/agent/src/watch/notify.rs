//! Notifies systemd that we are ready, and alive. Without systemd this does nothing.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use crate::settings;

/// Longer than packages may take: while they are installed nothing else is said.
const LONG: Duration = Duration::from_secs(4000);

/// The way to systemd.
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

    fn say(&self, line: &str) {
        if let Some((socket, to)) = &self.socket {
            _ = socket.send_to_addr(line.as_bytes(), to);
        }
    }

    /// Says that the machine is watched.
    pub(super) fn ready(&self) {
        self.say("READY=1");
    }

    /// Says that we are alive.
    pub(super) fn alive(&self) {
        self.say("WATCHDOG=1");
    }

    /// Says that it may take long until we say anything again.
    pub(super) fn busy(&self) {
        if self.watchdog.is_some() {
            self.say(&format!("WATCHDOG_USEC={}", LONG.as_micros()));
        }
    }

    /// Says that it may not any more.
    pub(super) fn idle(&self) {
        if let Some(usual) = self.watchdog {
            self.say(&format!("WATCHDOG_USEC={}\nWATCHDOG=1", usual.as_micros()));
        }
    }

    /// Returns how long we may be silent at most.
    pub(super) fn silence(&self) -> Duration {
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
