//! Signals of systemd on the system bus: units that start, stop, or are enabled.
//!
//! A signal only means that something changed; what changed is observed afterwards.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use zbus::connection::Builder;
use zbus::fdo::DBusProxy;
use zbus::message::Type;
use zbus::zvariant::OwnedObjectPath;
use zbus::{Error, MatchRule, MessageStream};

/// The socket of the system bus.
const SOCKET: &str = "/run/dbus/system_bus_socket";
const SYSTEMD: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";

/// How long subscribing may take.
const SUBSCRIBE: Duration = Duration::from_secs(5);
/// How long to wait for the rest of a message of which something has arrived.
const RECEIVE: Duration = Duration::from_millis(100);

/// A subscription to the signals of some units. The connection is only read by [`Self::receive`], so
/// its descriptor can be polled together with others.
pub(super) struct UnitSignals {
    socket: UnixStream,
    messages: MessageStream,
    runtime: Runtime,
}

impl UnitSignals {
    /// Connects to the system bus and subscribes.
    pub(super) fn subscribe(units: &BTreeSet<String>) -> zbus::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let socket = UnixStream::connect(SOCKET)?;
        socket.set_nonblocking(true)?;
        let connection = socket.try_clone()?;
        let messages = async { timeout(SUBSCRIBE, connect(connection, units)).await };
        let messages = runtime
            .block_on(messages)
            .map_err(|_| Error::Failure("timed out".to_owned()))??;
        Ok(Self {
            socket,
            messages,
            runtime,
        })
    }

    /// Receives all messages that have arrived, and returns whether one of them is a signal. The
    /// connection cannot be used after an error.
    pub(super) fn receive(&mut self) -> zbus::Result<bool> {
        let messages = &mut self.messages;
        self.runtime.block_on(async {
            let Ok(mut message) = timeout(RECEIVE, messages.next()).await else {
                return Ok(false);
            };
            let mut any = false;
            loop {
                let closed = || Error::Failure("the connection was closed".to_owned());
                any |= message.ok_or_else(closed)??.message_type() == Type::Signal;
                match messages.next().now_or_never() {
                    Some(next) => message = next,
                    None => return Ok(any),
                }
            }
        })
    }
}

impl AsFd for UnitSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

async fn connect(socket: UnixStream, units: &BTreeSet<String>) -> zbus::Result<MessageStream> {
    let socket = tokio::net::UnixStream::from_std(socket)?;
    let connection = Builder::unix_stream(socket).build().await?;
    let bus = DBusProxy::new(&connection).await?;
    let signal = || MatchRule::builder().msg_type(Type::Signal).sender(SYSTEMD);
    let enabled = signal()?.interface(MANAGER)?.member("UnitFilesChanged")?;
    bus.add_match_rule(enabled.build()).await?;
    for unit in units {
        let loaded = connection
            .call_method(Some(SYSTEMD), PATH, Some(MANAGER), "LoadUnit", unit)
            .await;
        let loaded = match loaded {
            Err(Error::MethodError(error, detail, _)) => {
                // An invalid name, for one. Signals of the other units are still received.
                tracing::warn!(unit, %error, detail, "cannot observe the unit");
                continue;
            }
            loaded => loaded?,
        };
        let path: OwnedObjectPath = loaded.body().deserialize()?;
        let state = signal()?
            .path(path)?
            .interface("org.freedesktop.DBus.Properties")?
            .member("PropertiesChanged")?
            .arg(0, "org.freedesktop.systemd1.Unit")?;
        bus.add_match_rule(state.build()).await?;
    }
    // systemd emits no signals before the first subscription.
    connection
        .call_method(Some(SYSTEMD), PATH, Some(MANAGER), "Subscribe", &())
        .await?;
    Ok(connection.into())
}
