//! Serves a World over TLS.
//!
//! In: a World and an address. Out: a [`Handle`] with the address, the certificate and a way to stop.
//! Never: plain HTTP; a client that does not verify learns nothing here.

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
use crate::http::wire::{self, Breakable, Cut};
use crate::http::{parse, reply};
use crate::world::World;
use crate::world::fault::SILENCE;

/// Why a World is not served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The certificate could not be made.
    #[error("make a certificate for the simulator")]
    Certificate(#[source] rcgen::Error),
    /// The certificate that was made before cannot be read.
    #[error("read the certificate of the simulator")]
    Identity(#[source] rustls::pki_types::pem::Error),
    /// The TLS set-up was refused.
    #[error("set up TLS for the simulator")]
    Tls(#[source] rustls::Error),
    /// The address could not be listened on.
    #[error("listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// A certificate that signs itself, and its key.
#[derive(Clone, Serialize, Deserialize)]
pub struct Identity {
    certificate: String,
    key: String,
}

impl Identity {
    /// Makes one for an address on loopback.
    pub fn make(address: SocketAddr) -> Result<Self, ServeError> {
        let names = [
            "localhost".to_owned(),
            "127.0.0.1".to_owned(),
            address.ip().to_string(),
        ];
        let made = rcgen::generate_simple_self_signed(names).map_err(ServeError::Certificate)?;
        Ok(Self {
            certificate: made.cert.pem(),
            key: made.signing_key.serialize_pem(),
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
    /// Where it listens.
    pub address: SocketAddr,
    /// The SHA-256 fingerprint of its certificate, as `AA:BB:...`.
    pub fingerprint: String,
    /// Its certificate, which signs itself.
    pub certificate_pem: String,
    stop: CancellationToken,
}

impl Handle {
    /// Returns the URL of the API.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Stops listening. Calls on their way are cut.
    pub fn stop(&self) {
        self.stop.cancel();
    }
}

/// Serves a World until it is stopped. Port 0 takes a free one.
pub async fn serve(world: World, address: SocketAddr) -> Result<Handle, ServeError> {
    listen(world, address, None, &Identity::make(address)?).await
}

/// Serves a World with a certificate that was made before.
pub async fn serve_as(
    world: World,
    address: SocketAddr,
    identity: &Identity,
) -> Result<Handle, ServeError> {
    listen(world, address, None, identity).await
}

/// Serves the World inside a guest: only while the guest is a hypervisor that runs.
///
/// Connections are cut otherwise, as they are by a machine that is off. The World must have been
/// asked for once, with [`World::inside`].
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
    within: Option<(World, u32)>,
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
    let print: Vec<String> = Sha256::digest(&certificate)
        .iter()
        .map(|byte| format!("{byte:02X}"))
        .collect();
    let handle = Handle {
        address,
        fingerprint: print.join(":"),
        certificate_pem: identity.certificate.clone(),
        stop: CancellationToken::new(),
    };
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let stop = handle.stop.clone();
    // Cancel safety: accepting loses nothing when it is dropped; connections watch the same token.
    world.spawner().spawn("simulated API", {
        let world = world.clone();
        async move { accept(world, listener, acceptor, within, stop).await }
    });
    Ok(handle)
}

async fn accept(
    world: World,
    listener: TcpListener,
    acceptor: TlsAcceptor,
    within: Option<(World, u32)>,
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
                    tracing::warn!(%error, "a connection was not accepted");
                    continue;
                }
            },
        };
        let world = match &within {
            None => world.clone(),
            // Asked for each time: a machine that was off has another World than before.
            Some((outer, vmid)) => match outer.inside(*vmid, |builder| builder) {
                Some(inner) => inner,
                None => continue,
            },
        };
        // Whoever connects is about to call: a server that would end for lack of calls stays.
        drop(world.begin());
        let (acceptor, stop) = (acceptor.clone(), stop.clone());
        world
            .spawner()
            .clone()
            .spawn("simulated connection", async move {
                tokio::select! {
                    // Cancel safety: a connection that is cut is cut.
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
            tracing::debug!(%error, "no handshake");
            return;
        }
    };
    let reset = Arc::new(AtomicBool::new(false));
    let io = Breakable {
        stream: tls,
        reset: reset.clone(),
    };
    let service = hyper::service::service_fn(move |request: HttpRequest<Incoming>| {
        let (world, reset) = (world.clone(), reset.clone());
        async move {
            let answer = answer(&world, request).await;
            if matches!(answer, Err(Cut::Reset)) {
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
) -> Result<Response<wire::Body>, Cut> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Cut::End)?.to_bytes();
    let call = match parse::request(&head, &body) {
        Ok(call) => call,
        Err(malformed) => {
            tracing::debug!(why = malformed.0, "a request that cannot be read");
            let refusal = Answer {
                status: 400,
                reason: "Bad Request".into(),
                content: None,
                delivery: Delivery::Whole,
            };
            return Ok(reply::response(refusal));
        }
    };
    if control::is_meant(&call) {
        return Ok(reply::response(control::answer(world, &call).await));
    }
    // What arrived is acted on, whether or not anyone waits for the answer.
    let (tell, told) = tokio::sync::oneshot::channel();
    world.spawner().spawn("simulated call", {
        let world = world.clone();
        async move {
            // Only a client that went away does not hear it.
            let _ = tell.send(world.call(call).await);
        }
    });
    let Ok(answer) = told.await else {
        return Err(Cut::Reset);
    };
    match answer.delivery {
        Delivery::Whole | Delivery::Garbage | Delivery::Truncated => Ok(reply::response(answer)),
        Delivery::Reset => Err(Cut::Reset),
        Delivery::Silence => {
            // Cancel safety: a client that goes away ends the wait.
            tokio::time::sleep(SILENCE).await;
            Err(Cut::End)
        }
    }
}
