//! Notifications to systemd, as `sd_notify(3)` describes them.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// How a service notifies systemd; does nothing outside systemd.
#[derive(Clone, Debug, Default)]
pub struct Notifier {
    socket: Option<String>,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// Uses the values of `NOTIFY_SOCKET` and `WATCHDOG_USEC`.
    pub fn new(socket: Option<String>, watchdog_micros: Option<String>) -> Self {
        let micros = watchdog_micros.and_then(|text| text.parse().ok());
        Self {
            socket,
            watchdog: micros.map(Duration::from_micros),
        }
    }

    /// Returns how often [`Self::alive`] must be called: twice as often as systemd expects it.
    pub fn interval(&self) -> Option<Duration> {
        self.watchdog.map(|watchdog| watchdog / 2)
    }

    /// The service is ready.
    pub fn ready(&self) {
        self.send("READY=1");
    }

    /// The service works.
    pub fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    /// Extends the timeout of the watchdog for work that takes long.
    pub fn busy(&self, timeout: Duration) {
        if self.watchdog.is_some() {
            self.send(&format!("WATCHDOG_USEC={}", timeout.as_micros()));
        }
    }

    /// Restores the timeout of the watchdog.
    pub fn idle(&self) {
        if let Some(timeout) = self.watchdog {
            let micros = timeout.as_micros();
            self.send(&format!("WATCHDOG_USEC={micros}\nWATCHDOG=1"));
        }
    }

    /// The service ends.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    fn send(&self, text: &str) {
        let Some(name) = &self.socket else {
            return;
        };
        // Without systemd's attention the service still works.
        _ = send(name, text);
    }
}

fn send(name: &str, text: &str) -> std::io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    match name.strip_prefix('@') {
        Some(name) => {
            let address = SocketAddr::from_abstract_name(name)?;
            socket.send_to_addr(text.as_bytes(), &address)?;
        }
        None => {
            socket.send_to(text.as_bytes(), name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notification_reaches_the_socket_that_was_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        let name = path.to_str().expect("text").to_owned();
        let notifier = Notifier::new(Some(name), Some("2000000".to_owned()));
        assert_eq!(notifier.interval(), Some(Duration::from_secs(1)));
        notifier.ready();
        let mut buffer = [0; 16];
        let length = socket.recv(&mut buffer).expect("received");
        assert_eq!(&buffer[..length], b"READY=1");
        Notifier::default().ready();
    }
}
