//! The HTTP server of the small Proxmox VE: TLS, HTTP/1.1, reason phrases, faults.

use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use homestak_api::runtime::Spawner;
use homestak_api::trust::{self, Fingerprint, Trust};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::calls::{self, Reply};
use super::world::{Fault, World};

/// One certificate for all servers of a test binary.
static CONFIG: LazyLock<(CertificateDer<'static>, Arc<rustls::ServerConfig>)> =
    LazyLock::new(|| {
        let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a key");
        let certificate = key.cert.der().clone();
        let private =
            PrivateKeyDer::try_from(key.signing_key.serialize_der()).expect("a private key");
        let config = rustls::ServerConfig::builder_with_provider(trust::provider())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], private)
            .expect("a certificate");
        (certificate, Arc::new(config))
    });

pub struct Server {
    pub url: String,
    pub trust: Trust,
    pub world: Arc<Mutex<World>>,
}

impl Server {
    pub async fn start(world: World) -> Self {
        let (certificate, config) = &*CONFIG;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let world = Arc::new(Mutex::new(world));
        let acceptor = TlsAcceptor::from(Arc::clone(config));
        let spawner = Spawner::default();
        let shared = Arc::clone(&world);
        let tasks = spawner.clone();
        // Cancel safety: the test's runtime ends it.
        spawner.spawn("accept", async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, world) = (acceptor.clone(), Arc::clone(&shared));
                tasks.spawn("connection", async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    world.lock().expect("the world").connections += 1;
                    let service = service_fn(move |request| answer(Arc::clone(&world), request));
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self {
            url: format!("https://127.0.0.1:{port}"),
            trust: Trust::Pinned(Fingerprint::of(certificate)),
            world,
        }
    }

    pub fn world(&self) -> std::sync::MutexGuard<'_, World> {
        self.world.lock().expect("the world")
    }
}

#[derive(Debug)]
pub struct Disconnected;

impl std::fmt::Display for Disconnected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cut")
    }
}

impl std::error::Error for Disconnected {}

async fn answer(
    world: Arc<Mutex<World>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Disconnected> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Disconnected)?.to_bytes();
    let authorized = parts.headers.get("authorization").is_some_and(|value| {
        value.as_bytes() == format!("PVEAPIToken={}", super::TOKEN).as_bytes()
    });
    let header = |name: &str| {
        let value = parts
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let ticket = header("cookie").replace("PVEAuthCookie=PVE:", "");
    let csrf = header("csrfpreventiontoken").replace("6AFA:", "");
    let reads = parts.method == hyper::Method::GET;
    let call = calls::Call::new(parts.method.as_str(), &parts.uri.to_string(), &body);
    let pause = {
        let mut world = world.lock().expect("the world");
        world.in_flight += 1;
        world.most_in_flight = world.most_in_flight.max(world.in_flight);
        world.pause
    };
    if !pause.is_zero() {
        tokio::time::sleep(pause).await;
    }
    let (fault, reply) = {
        let mut world = world.lock().expect("the world");
        world.in_flight -= 1;
        let fault = world.next_fault(&call);
        let reply = match fault {
            Some(Fault::CutBefore | Fault::StatusBefore(_) | Fault::Answer(..)) => None,
            _ if !authorized && !ticket.is_empty() => {
                let known = ticket
                    .parse::<u32>()
                    .is_ok_and(|nth| (1..=world.logins).contains(&nth));
                Some(if !known {
                    Reply::error(401, "permission denied - invalid PVE ticket")
                } else if !reads && csrf != ticket {
                    Reply::error(401, "Permission denied - invalid csrf token")
                } else {
                    calls::handle(&mut world, &call)
                })
            }
            _ if !authorized && !call.path.ends_with("/access/ticket") => {
                Some(Reply::error(401, "No ticket"))
            }
            Some(Fault::Twice) => {
                calls::handle(&mut world, &call);
                Some(calls::handle(&mut world, &call))
            }
            _ => Some(calls::handle(&mut world, &call)),
        };
        (fault, reply)
    };
    match fault {
        Some(Fault::CutBefore | Fault::CutAfter) => Err(Disconnected),
        Some(Fault::StatusBefore(status) | Fault::StatusAfter(status)) => {
            Ok(render(&Reply::error(status, "Broken pipe")))
        }
        Some(Fault::GarbageAfter) => {
            Ok(Response::new(Full::new(Bytes::from_static(b"<html>oops"))))
        }
        Some(Fault::Silence) => {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            Err(Disconnected)
        }
        Some(Fault::Answer(status, text)) => Ok(render(&Reply::error(status, text))),
        None | Some(Fault::Twice) => Ok(render(
            &reply.unwrap_or_else(|| Reply::error(500, "no reply")),
        )),
    }
}

fn render(reply: &Reply) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(reply.body.to_string())));
    *response.status_mut() = StatusCode::from_u16(reply.status).expect("a status");
    if let Ok(phrase) = hyper::ext::ReasonPhrase::try_from(reply.reason.as_bytes()) {
        response.extensions_mut().insert(phrase);
    }
    response
}
