//! The simulator's World over real TLS.
//!
//! In: requests. Out: the World's answers, delivered or not, as it says.
//! Never: answers of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use homestak_api::runtime::Spawner;
use homestak_api::trust::{Fingerprint, Trust};
use homestak_sim::{Answer, Credentials, Delivery, Request as SimRequest, Upload, World};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::calls::Call;
use super::server::{CONFIG, Cut};

/// Serves a World; returns its address and its trust.
pub async fn serve(world: World) -> (String, Trust) {
    let (certificate, config) = &*CONFIG;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let acceptor = TlsAcceptor::from(Arc::clone(config));
    let spawner = Spawner::default();
    let tasks = spawner.clone();
    // Cancel safety: the test's runtime ends it.
    spawner.spawn("accept", async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, world) = (acceptor.clone(), world.clone());
            tasks.spawn("connection", async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let service = service_fn(move |request| answer(world.clone(), request));
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    let trust = Trust::Pinned(Fingerprint::of(certificate));
    (format!("https://127.0.0.1:{port}"), trust)
}

async fn answer(world: World, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Cut> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Cut)?.to_bytes();
    let call = Call::new(parts.method.as_str(), &parts.uri.to_string(), &body);
    let header = |name: &str| {
        let value = parts
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok());
        value.map(str::to_owned)
    };
    let token = header("authorization")
        .and_then(|value| value.strip_prefix("PVEAPIToken=").map(str::to_owned));
    let mut request = SimRequest {
        method: call.method.clone(),
        path: percent_decode_str(&call.path)
            .decode_utf8_lossy()
            .into_owned(),
        parameters: call.params.clone(),
        credentials: token.map_or(Credentials::None, Credentials::Token),
        upload: None,
    };
    if call.path.ends_with("/upload") {
        let (parameters, upload) = multipart(&body);
        request.parameters = parameters;
        request.upload = Some(upload);
    }
    // A request that arrived is worked on, whether or not anyone waits for the answer.
    let (done, result) = tokio::sync::oneshot::channel();
    Spawner::default().spawn("work", async move {
        let _ = done.send(world.call(request).await);
    });
    deliver(result.await.map_err(|_| Cut)?).await
}

async fn deliver(answer: Answer) -> Result<Response<Full<Bytes>>, Cut> {
    let body = answer.body.map(|body| body.to_string()).unwrap_or_default();
    let body = match answer.delivery {
        Delivery::Whole => body,
        Delivery::Reset => return Err(Cut),
        Delivery::Silence => {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            return Err(Cut);
        }
        Delivery::Garbage => "<html>oops".to_owned(),
        Delivery::Truncated => body[..body.len() / 2].to_owned(),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = StatusCode::from_u16(answer.status).map_err(|_| Cut)?;
    if let Ok(phrase) = hyper::ext::ReasonPhrase::try_from(answer.reason.as_bytes()) {
        response.extensions_mut().insert(phrase);
    }
    Ok(response)
}

/// Reads a form with one file, which comes last.
fn multipart(body: &[u8]) -> (BTreeMap<String, String>, Upload) {
    let end = body
        .windows(2)
        .position(|pair| pair == b"\r\n")
        .expect("a boundary");
    let boundary = &body[..end];
    let mut parameters = BTreeMap::new();
    let mut rest = &body[end + 2..];
    loop {
        let head = find(rest, b"\r\n\r\n").expect("a head");
        let header = String::from_utf8_lossy(&rest[..head]).into_owned();
        let quoted = |key: &str| {
            let value = header.split(&format!("{key}=\"")).nth(1)?;
            value.split('"').next().map(str::to_owned)
        };
        let content = &rest[head + 4..];
        let size = find(content, boundary).expect("an end") - 2;
        if let Some(name) = quoted(" filename") {
            let bytes = &content[..size];
            let digits: String = Sha256::digest(bytes)
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            let upload = Upload {
                name: name.clone(),
                size: size as u64,
                checksums: BTreeMap::from([("sha256".to_owned(), digits)]),
                head: bytes[..size.min(64)].to_vec(),
            };
            parameters.insert("filename".to_owned(), name);
            return (parameters, upload);
        }
        let value = String::from_utf8_lossy(&content[..size]).into_owned();
        parameters.insert(quoted(" name").expect("a name"), value);
        rest = &content[size + 2 + boundary.len() + 2..];
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
