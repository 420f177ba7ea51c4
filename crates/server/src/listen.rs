//! Accepts connections and answers their requests.
//!
//! Accepting never waits for a client: handshakes, requests and answers each have a task and a time
//! limit of their own.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use homestak_api::runtime::Spawner;
use homestak_api::trust::Fingerprint;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::connections::{Connection, ConnectionLimits, Connections, Stage};
use crate::http;
use crate::settings::Limits;
use crate::stall::WriteTimeout;

/// The pause after a connection could not be accepted, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The largest head of a request.
const HEAD_BYTES: usize = 16 << 10;

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// Its address.
    pub(crate) address: IpAddr,
    /// The certificate that it showed and holds the key of.
    pub(crate) certificate: Option<Fingerprint>,
}

/// Serves until `stop`; then requests in progress have `grace` to end.
pub(crate) async fn serve(listener: TcpListener, app: Arc<App>, stop: CancellationToken) {
    let limits = app.limits();
    let connections = Connections::new(ConnectionLimits {
        total: limits.connections,
        per_address: limits.connections_per_address,
    });
    let tasks = Spawner::default();
    loop {
        let accepted = tokio::select! {
            // Cancel safety: a flag.
            () = stop.cancelled() => break,
            // Cancel safety: accepting either took a connection or did not.
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
        let Some(connection) = connections.admit(canonical(address)) else {
            tracing::warn!(%address, "connection refused: all {} are busy", limits.connections);
            continue;
        };
        let task = Serving {
            app: app.clone(),
            stop: stop.clone(),
            connection,
            limits,
        };
        // Cancel safety: the task ends by itself at one of its limits.
        tasks.spawn("connection", task.run(stream, address));
    }
    drop(listener);
    // Cancel safety: what is left is dropped with the runtime.
    if timeout(limits.grace(), tasks.wait()).await.is_err() {
        tracing::warn!(
            open = connections.count(),
            "requests were cut off at the end of the grace period"
        );
    }
}

/// Returns the address of a client; IPv4 clients of an IPv6 socket have their IPv4 address.
fn canonical(address: SocketAddr) -> IpAddr {
    address.ip().to_canonical()
}

struct Serving {
    app: Arc<App>,
    stop: CancellationToken,
    connection: Connection,
    limits: Limits,
}

impl Serving {
    async fn run(self, stream: TcpStream, address: SocketAddr) {
        let close = self.connection.close.clone();
        tokio::select! {
            // Cancel safety: only a connection without a request in progress is closed.
            () = close.cancelled() => tracing::debug!(%address, "closed for a newer connection"),
            // Cancel safety: dropped when it is closed, which is the intention.
            () = self.connected(stream, address) => {}
        }
    }

    async fn connected(&self, stream: TcpStream, address: SocketAddr) {
        // Small answers leave at once.
        _ = stream.set_nodelay(true);
        let tls = stream
            .local_addr()
            .map(|local| self.app.tls(local.ip().to_canonical()));
        let tls = match tls {
            Ok(Ok(tls)) => tls,
            Ok(Err(error)) => {
                let error = homestak_core::error::chain(&error);
                tracing::error!(error, "no certificate; run `homestak server publish`");
                return;
            }
            Err(_) => return,
        };
        let stream = WriteTimeout::new(stream, self.limits.write());
        let handshake = timeout(
            self.limits.handshake(),
            TlsAcceptor::from(tls).accept(stream),
        );
        let stream = match handshake.await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                tracing::info!(%address, %error, "TLS handshake failed");
                return;
            }
            Err(_) => {
                tracing::info!(%address, "TLS handshake timed out");
                return;
            }
        };
        let peer = Peer {
            address: canonical(address),
            certificate: certificate(&stream),
        };
        let idle = match peer.certificate {
            Some(_) => Stage::IdleKnown,
            None => Stage::IdleAnonymous,
        };
        self.connection.set_stage(idle);
        let service = service_fn(|request| async move {
            self.connection.set_stage(Stage::Busy);
            let answer = http::answer(&self.app, peer, request).await;
            self.connection.set_stage(idle);
            Ok::<_, std::convert::Infallible>(answer)
        });
        let mut server = hyper::server::conn::http1::Builder::new();
        let served = server
            .timer(TokioTimer::new())
            // Also limits how long an idle connection stays open.
            .header_read_timeout(self.limits.idle())
            .max_buf_size(HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        let mut served = std::pin::pin!(served);
        tokio::select! {
            // Cancel safety: polled again below.
            ended = served.as_mut() => return log_end(address, ended),
            // Cancel safety: a flag.
            () = self.stop.cancelled() => served.as_mut().graceful_shutdown(),
        }
        log_end(address, served.await);
    }
}

fn log_end(address: SocketAddr, ended: hyper::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%address, error = %homestak_core::error::chain(&error), "connection ended");
    }
}

fn certificate<T>(stream: &TlsStream<T>) -> Option<Fingerprint> {
    let shown = stream.get_ref().1.peer_certificates()?;
    shown.first().map(|leaf| Fingerprint::of(leaf))
}
