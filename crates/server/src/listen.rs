//! Accepts connections and answers their requests.
//!
//! Accepting never waits for a client: handshakes, requests and answers each have a task and a time
//! limit of their own.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use homestak_api::runtime::Spawner;
use homestak_api::trust::{Fingerprint, client_not_after};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::connections::{Connection, ConnectionClass, ConnectionState, Connections};
use crate::flush::NoticeFlush;
use crate::heartbeat::Heartbeat;
use crate::http;
use crate::settings::Limits;
use crate::stall::WriteTimeout;

/// The pause after a failed accept, such as without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often the number of failures that were not logged is logged, at most.
const SUMMARY: Duration = Duration::from_secs(60);
/// The largest head of a request.
const HEAD_BYTES: usize = 16 << 10;

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// Its address.
    pub(crate) address: IpAddr,
    /// The certificate that it showed and holds the key of.
    pub(crate) certificate: Option<Fingerprint>,
    /// Until when that certificate is valid, in seconds since 1970, if it can be read.
    pub(crate) not_after: Option<i64>,
}

/// Serves until `stop`; then requests in progress have `grace` to end.
pub(crate) async fn serve(
    listener: TcpListener,
    (app, heartbeat): (Arc<App>, &Heartbeat),
    stop: CancellationToken,
) {
    let connections = Connections::default();
    let tasks = Spawner::default();
    let mut summary = tokio::time::interval(SUMMARY);
    loop {
        let accepted = tokio::select! {
            // Cancel safety: a flag.
            () = stop.cancelled() => break,
            // Cancel safety: a missed tick is followed by the next.
            _ = summary.tick() => {
                app.end_minute();
                continue;
            }
            // Cancel safety: a question that is not taken now is taken next time.
            () = heartbeat.asked() => {
                heartbeat.answer();
                continue;
            }
            // Cancel safety: `accept` is cancel-safe.
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Those of the last reload.
        let limits = app.limits();
        let Some(connection) = connections.admit(counted_address(canonical(address)), &limits)
        else {
            if app.refusals.admits(canonical(address), app.now()) {
                tracing::warn!(%address, "connection refused: too many are busy");
            }
            continue;
        };
        let task = ServedConnection {
            app: app.clone(),
            stop: stop.clone(),
            connection,
            limits,
        };
        // Cancel safety: the task ends by itself at one of its limits.
        tasks.spawn("connection", task.run(stream, address));
    }
    drop(listener);
    // Nothing that is waited for comes any more.
    app.stopping.cancel();
    // Cancel safety: what is left is dropped with the runtime.
    if timeout(app.limits().grace(), tasks.wait()).await.is_err() {
        tracing::warn!(
            open = connections.count(),
            "requests were aborted at the end of the grace period"
        );
    }
}

/// Returns the address of a client; IPv4 clients of an IPv6 socket have their IPv4 address.
fn canonical(address: SocketAddr) -> IpAddr {
    address.ip().to_canonical()
}

/// Returns the address under which limits count a client. A client with IPv6 usually has a whole /64
/// network, which is counted as one address.
pub(crate) fn counted_address(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

struct ServedConnection {
    app: Arc<App>,
    stop: CancellationToken,
    connection: Connection,
    limits: Limits,
}

impl ServedConnection {
    async fn run(self, stream: TcpStream, address: SocketAddr) {
        let close = self.connection.close.clone();
        tokio::select! {
            // Cancel safety: only a connection that answers no request is closed.
            () = close.cancelled() => tracing::debug!(%address, "closed for a newer connection"),
            // Cancel safety: dropped when it is closed, which is the intention.
            () = self.connected(stream, address) => {}
        }
    }

    /// Negotiates TLS; `None` if that failed, which is logged. A function of its own, since a connection
    /// would keep room for everything here: there are thousands.
    async fn handshake(
        &self,
        stream: TcpStream,
        address: SocketAddr,
    ) -> Option<Box<TlsStream<WriteTimeout<TcpStream>>>> {
        // Small answers leave at once.
        _ = stream.set_nodelay(true);
        let local = stream.local_addr().ok()?.ip().to_canonical();
        let tls = match self.app.tls(local) {
            Ok(tls) => tls,
            Err(error) => {
                if self.is_logged(address) {
                    let error = homestak_core::error::chain(&error);
                    tracing::error!(%address, error, "no certificate; run `homestak server publish`");
                }
                return None;
            }
        };
        let stream = WriteTimeout::new(stream, self.limits.write());
        let accept = Box::pin(TlsAcceptor::from(tls).accept(stream));
        match timeout(self.limits.handshake(), accept).await {
            Ok(Ok(stream)) => return Some(Box::new(stream)),
            Ok(Err(error)) if self.is_logged(address) => {
                tracing::info!(%address, %error, "TLS handshake failed");
            }
            Err(_) if self.is_logged(address) => {
                tracing::info!(%address, "TLS handshake timed out");
            }
            Ok(Err(_)) | Err(_) => {}
        }
        None
    }

    async fn connected(&self, stream: TcpStream, address: SocketAddr) {
        let Some(stream) = self.handshake(stream, address).await else {
            return;
        };
        let shown = stream.get_ref().1.peer_certificates();
        let shown = shown.and_then(<[_]>::first);
        let peer = Peer {
            address: canonical(address),
            certificate: shown.map(|shown| Fingerprint::of(shown)),
            not_after: shown.and_then(client_not_after),
        };
        let class = self.app.class(peer);
        if let (ConnectionClass::Node, Some(certificate)) = (class, peer.certificate)
            && !self.connection.set_node(certificate)
        {
            if self.is_logged(address) {
                tracing::warn!(%address, "connection refused: too many of this node are busy");
            }
            return;
        }
        self.connection.set_state(ConnectionState::Idle(class));
        let stream = NoticeFlush::new(stream, || {
            self.connection.flushed(|| self.app.class(peer));
        });
        let service = service_fn(|request| {
            Box::pin(http::answer(&self.app, peer, &self.connection, request))
        });
        let served = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            // Also limits how long an idle connection stays open.
            .header_read_timeout(self.limits.idle())
            .max_buf_size(HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        let mut served = std::pin::pin!(served);
        tokio::select! {
            // Cancel safety: polled again below.
            ended = served.as_mut() => return self.log_end(address, ended),
            // Cancel safety: a flag.
            () = self.stop.cancelled() => served.as_mut().graceful_shutdown(),
        }
        self.log_end(address, served.await);
    }

    /// Returns whether a failure of a client is to be logged.
    fn is_logged(&self, address: SocketAddr) -> bool {
        self.app.refusals.admits(canonical(address), self.app.now())
    }

    fn log_end(&self, address: SocketAddr, ended: hyper::Result<()>) {
        let Err(error) = ended else {
            return;
        };
        let is_refusal = error.is_parse() || error.is_parse_too_large() || error.is_timeout();
        let is_stalled = std::error::Error::source(&error)
            .and_then(|source| source.downcast_ref::<std::io::Error>())
            .is_some_and(|source| source.kind() == std::io::ErrorKind::TimedOut);
        let error = homestak_core::error::chain(&error);
        match is_refusal || is_stalled {
            true if self.is_logged(address) => {
                tracing::info!(%address, reason = error, "refused: a malformed request or a slow client");
            }
            true => {}
            false => tracing::debug!(%address, error, "connection ended"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_count_addresses_of_one_ipv6_network_as_one_and_ipv4_addresses_each() {
        let of =
            |text: &str| counted_address(canonical(SocketAddr::new(text.parse().expect("one"), 1)));
        assert_eq!(
            of("2001:db8:1:2::1"),
            of("2001:db8:1:2:ffff:ffff:ffff:ffff")
        );
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_ne!(of("::ffff:192.0.2.1"), of("::ffff:192.0.2.2"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    }
}
