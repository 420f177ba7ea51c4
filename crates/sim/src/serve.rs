//! Serves a World over TLS only, as Proxmox VE does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{Request as HttpRequest, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::calls::{Answer, Delivery};
use crate::control;
use crate::http::wire::{self, Disconnect, ResettableStream};
use crate::http::{parse, reply};
use crate::world::World;
use crate::world::fault::SILENCE;

/// Why a World cannot be served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The certificate could not be generated.
    #[error("generate a certificate for the simulator")]
    Certificate(#[source] rcgen::Error),
    /// The stored certificate cannot be parsed.
    #[error("read the certificate of the simulator")]
    Identity(#[source] rustls::pki_types::pem::Error),
    /// The TLS configuration is invalid.
    #[error("set up TLS for the simulator")]
    Tls(#[source] rustls::Error),
    /// Cannot listen on the address.
    #[error("listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

/// A self-signed certificate and its key.
#[derive(Clone, Serialize, Deserialize)]
pub struct Identity {
    certificate: String,
    key: String,
}

impl Identity {
    /// Generates one for localhost and an address.
    pub fn generate(address: SocketAddr) -> Result<Self, ServeError> {
        let names = [
            "localhost".to_owned(),
            "127.0.0.1".to_owned(),
            address.ip().to_string(),
        ];
        let generated =
            rcgen::generate_simple_self_signed(names).map_err(ServeError::Certificate)?;
        Ok(Self {
            certificate: generated.cert.pem(),
            key: generated.signing_key.serialize_pem(),
        })
    }

    fn parse(&self) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), ServeError> {
        let certificate = CertificateDer::from_pem_slice(self.certificate.as_bytes())
            .map_err(ServeError::Identity)?;
        let key =
            PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(ServeError::Identity)?;
        Ok((certificate, key))
    }
}

/// A World that is being served.
#[derive(Clone, Debug)]
pub struct Handle {
    /// The address it listens on.
    pub address: SocketAddr,
    /// The SHA-256 fingerprint of its certificate, as `AA:BB:...`.
    pub fingerprint: String,
    /// Its self-signed certificate.
    pub certificate_pem: String,
    stop: CancellationToken,
}

impl Handle {
    /// Returns the URL of the API.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Stops listening and closes all connections.
    pub fn stop(&self) {
        self.stop.cancel();
    }
}

/// Serves a World until it is stopped. Port 0 selects a free port.
pub async fn serve(world: World, address: SocketAddr) -> Result<Handle, ServeError> {
    listen(world, address, None, &Identity::generate(address)?).await
}

/// Serves a World with an existing certificate.
pub async fn serve_with_identity(
    world: World,
    address: SocketAddr,
    identity: &Identity,
) -> Result<Handle, ServeError> {
    listen(world, address, None, identity).await
}

/// Serves the World inside a guest while the guest is a running hypervisor. At other times,
/// connections are closed.
///
/// Call [`World::inside`] once before.
pub async fn serve_inside(
    outer: World,
    vmid: u32,
    address: SocketAddr,
    identity: &Identity,
) -> Result<Handle, ServeError> {
    listen(outer.clone(), address, Some((outer, vmid)), identity).await
}

async fn listen(
    world: World,
    address: SocketAddr,
    guest: Option<(World, u32)>,
    identity: &Identity,
) -> Result<Handle, ServeError> {
    let (certificate, key) = identity.parse()?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(ServeError::Tls)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .map_err(ServeError::Tls)?;
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| ServeError::Listen { address, source })?;
    let address = listener
        .local_addr()
        .map_err(|source| ServeError::Listen { address, source })?;
    let digest: Vec<String> = Sha256::digest(&certificate)
        .iter()
        .map(|byte| format!("{byte:02X}"))
        .collect();
    let handle = Handle {
        address,
        fingerprint: digest.join(":"),
        certificate_pem: identity.certificate.clone(),
        stop: CancellationToken::new(),
    };
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let stop = handle.stop.clone();
    // Cancel safety: dropping `accept` loses nothing; connections watch the same token.
    world.spawner().spawn("simulated API", {
        let world = world.clone();
        async move { accept(world, listener, acceptor, guest, stop).await }
    });
    Ok(handle)
}

async fn accept(
    world: World,
    listener: TcpListener,
    acceptor: TlsAcceptor,
    guest: Option<(World, u32)>,
    stop: CancellationToken,
) {
    loop {
        let stream = tokio::select! {
            // Cancel safety: the token stays cancelled.
            () = stop.cancelled() => return,
            // Cancel safety: documented for `accept`.
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    continue;
                }
            },
        };
        let world = match &guest {
            None => world.clone(),
            // A guest that was stopped and started has a new World.
            Some((outer, vmid)) => match outer.inside(*vmid, |builder| builder) {
                Some(inner) => inner,
                None => continue,
            },
        };
        // A connection counts as a call, so that an idle server does not exit before the request.
        drop(world.begin());
        let (acceptor, stop) = (acceptor.clone(), stop.clone());
        world
            .spawner()
            .clone()
            .spawn("simulated connection", async move {
                tokio::select! {
                    // Cancel safety: the connection is closed, which is intended.
                    () = stop.cancelled() => {}
                    // Cancel safety: as above.
                    () = connection(world, stream, acceptor) => {}
                }
            });
    }
}

async fn connection(world: World, stream: TcpStream, acceptor: TlsAcceptor) {
    let _ = stream.set_nodelay(true);
    let tls = match acceptor.accept(stream).await {
        Ok(tls) => tls,
        Err(error) => {
            tracing::debug!(%error, "TLS handshake failed");
            return;
        }
    };
    let reset = Arc::new(AtomicBool::new(false));
    let io = ResettableStream {
        stream: tls,
        reset: reset.clone(),
    };
    let service = hyper::service::service_fn(move |request: HttpRequest<Incoming>| {
        let (world, reset) = (world.clone(), reset.clone());
        async move {
            let answer = answer(&world, request).await;
            if matches!(answer, Err(Disconnect::Reset)) {
                reset.store(true, Ordering::Relaxed);
            }
            answer
        }
    });
    let outcome = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(io), service)
        .await;
    if let Err(error) = outcome {
        tracing::debug!(%error, "connection ended");
    }
}

async fn answer(
    world: &World,
    request: HttpRequest<Incoming>,
) -> Result<Response<wire::Body>, Disconnect> {
    let (head, body) = request.into_parts();
    let body = body
        .collect()
        .await
        .map_err(|_| Disconnect::Close)?
        .to_bytes();
    let call = match parse::request(&head, &body) {
        Ok(call) => call,
        Err(malformed) => {
            tracing::debug!(why = malformed.0, "malformed request");
            let refusal = Answer {
                status: 400,
                reason: "Bad Request".into(),
                content: None,
                delivery: Delivery::Whole,
            };
            return Ok(reply::response(refusal));
        }
    };
    if control::is_control_request(&call) {
        return Ok(reply::response(control::answer(world, &call).await));
    }
    // A request that arrived is executed even if the client disconnects.
    let (sender, receiver) = tokio::sync::oneshot::channel();
    world.spawner().spawn("simulated call", {
        let world = world.clone();
        async move {
            // The receiver is dropped only if the client disconnected.
            let _ = sender.send(world.call(call).await);
        }
    });
    let Ok(answer) = receiver.await else {
        return Err(Disconnect::Reset);
    };
    match answer.delivery {
        Delivery::Whole | Delivery::Garbage | Delivery::Truncated => Ok(reply::response(answer)),
        Delivery::Reset => Err(Disconnect::Reset),
        Delivery::Silence => {
            // Cancel safety: a client that disconnects ends the wait.
            tokio::time::sleep(SILENCE).await;
            Err(Disconnect::Close)
        }
    }
}
