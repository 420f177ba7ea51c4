//! git's smart protocol for reading, which shallow clones need: `git upload-pack` on published copies.
//!
//! Flow: a client lists references and requests objects. Each request is the input of a new process,
//! whose output is streamed to the client.
//! Guarantees: only published copies are read; memory, time and the number of processes are limited, also
//! of each address; a process is killed when its client disconnects or the server stops.
//! Assumptions: git parses its own protocol, and exits with an error code if a request is malformed.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use flate2::read::GzDecoder;
use homestak_api::limit::Limit;
use homestak_api::runtime::{Spawner, run_blocking};
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, Response};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::Instrument as _;

use super::repo::{find, permit, set_type};
use super::{Answer, Call};
use crate::body::Body;
use crate::listen::counted_address;
use crate::process::{NOT_RUN, upload_pack};
use crate::refusal::Refusal;

/// The name of the service.
pub(super) const SERVICE: &str = "git-upload-pack";
const REQUEST: &str = "application/x-git-upload-pack-request";
const RESULT: &str = "application/x-git-upload-pack-result";
const ADVERTISEMENT: &str = "application/x-git-upload-pack-advertisement";
/// The line before the list of references in versions of the protocol before 2.
const PREFIX: &[u8] = b"001e# service=git-upload-pack\n0000";

/// How many requests are processed at the same time. Others wait, at most until the timeout of requests.
const MAX_PROCESSES: usize = 8;
/// How many of them may be from one address. A process runs until its client has read its output, so
/// slow clients of one address must not delay those of others.
const MAX_PROCESSES_OF_ADDRESS: usize = MAX_PROCESSES / 2;
/// The largest decoded request, in bytes. git sends larger ones without a length (`http.postBuffer`).
const MAX_REQUEST: usize = 1 << 20;
/// How long a process may run.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(3600);
/// The most output that is read at once, in bytes.
const CHUNK: usize = 64 << 10;
/// How many chunks of output are buffered for a client.
const BUFFERED_CHUNKS: usize = 4;

static RUNNING: LazyLock<Arc<Semaphore>> =
    LazyLock::new(|| Arc::new(Semaphore::new(MAX_PROCESSES)));
/// The permits of each address that has requests.
static BY_ADDRESS: Mutex<BTreeMap<IpAddr, Arc<Semaphore>>> = Mutex::new(BTreeMap::new());

/// What a process holds while it runs: a permit of its address, and one of all.
type Permits = [OwnedSemaphorePermit; 2];

async fn permits(call: &Call<'_>) -> Result<Permits, Refusal> {
    let of_address = {
        let mut all = BY_ADDRESS.lock().unwrap_or_else(PoisonError::into_inner);
        // Permits, and requests that wait for one, have references too.
        all.retain(|_, permits| Arc::strong_count(permits) > 1);
        let new = || Arc::new(Semaphore::new(MAX_PROCESSES_OF_ADDRESS));
        let address = counted_address(call.peer.address);
        Arc::clone(all.entry(address).or_insert_with(new))
    };
    // In this order, so that an address which has its share does not wait in front of others.
    Ok([permit(&of_address).await?, permit(&RUNNING).await?])
}

/// `GET /{repo}.git/info/refs?service=git-upload-pack`
pub(super) async fn advertise(call: &Call<'_>, copy: &Path) -> Answer {
    let permits = permits(call).await?;
    let protocol = protocol(&call.head.headers);
    let command = upload_pack(copy, protocol, &["--http-backend-info-refs"]);
    let (first, rest) = run(command, Bytes::new(), permits).await.map_err(|error| {
        if error.kind() == io::ErrorKind::InvalidInput {
            tracing::error!(copy = %copy.display(), "git cannot read a copy of a repository");
        }
        Refusal::internal()
    })?;
    let first = match protocol {
        Some("version=2") => first,
        _ => [PREFIX, &first].concat().into(),
    };
    Ok(response(ADVERTISEMENT, first, rest))
}

/// `POST /{repo}.git/git-upload-pack`
pub(super) async fn post(call: &mut Call<'_>, path: &str) -> Answer {
    let copy = find(call, path)?.copy();
    call.require_type(REQUEST)?;
    // Acquired before the body is read, because the body is in memory until the process ends.
    let permits = permits(call).await?;
    let body = call.bytes_up_to(MAX_REQUEST).await?.freeze();
    let input = decoded(&call.head.headers, body)?;
    let command = upload_pack(&copy, protocol(&call.head.headers), &[]);
    let (first, rest) = run(command, input, permits)
        .await
        .map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => Refusal::malformed("git cannot process the request"),
            _ => Refusal::internal(),
        })?;
    Ok(response(RESULT, first, rest))
}

/// Returns the version of the protocol that a client asks for.
fn protocol(headers: &HeaderMap) -> Option<&'static str> {
    match headers.get("git-protocol")?.as_bytes() {
        b"version=1" => Some("version=1"),
        b"version=2" => Some("version=2"),
        _ => None,
    }
}

/// Returns the decoded body of a request. Its size is limited, because a compressed body can be a
/// thousand times smaller.
fn decoded(headers: &HeaderMap, body: Bytes) -> Result<Bytes, Refusal> {
    match headers.get(CONTENT_ENCODING).map(|value| value.as_bytes()) {
        None => return Ok(body),
        Some(b"gzip") => {}
        Some(_) => return Err(Refusal::unsupported("the encoding must be `gzip`")),
    }
    let mut bytes = Vec::new();
    let mut decoder = GzDecoder::new(&body[..]).take(MAX_REQUEST as u64 + 1);
    match decoder.read_to_end(&mut bytes) {
        Err(_) => Err(Refusal::malformed("the body is not valid gzip")),
        Ok(length) if length > MAX_REQUEST => Err(Refusal::too_large(MAX_REQUEST)),
        Ok(_) => Ok(bytes.into()),
    }
}

/// Returns the response with the output of a process.
fn response(kind: &'static str, first: Bytes, rest: Receiver<io::Result<Bytes>>) -> Response<Body> {
    let mut answer = Response::new(Body::Output(Some(first), rest));
    set_type(answer.headers_mut(), kind);
    answer
}

/// Starts a process. Returns the first chunk of its output, and a receiver of the others; the process is
/// killed when the receiver is dropped. `InvalidInput` if it exited with an error and printed nothing.
async fn run(
    command: Command,
    input: Bytes,
    permits: Permits,
) -> io::Result<(Bytes, Receiver<io::Result<Bytes>>)> {
    let (to, mut from) = mpsc::channel(BUFFERED_CHUNKS);
    // Cancel safety: the thread kills the process when the receiver is dropped.
    let work = run_blocking(move || {
        let _permits = permits;
        process(command, &input, &to);
    });
    let work = async { work.await.unwrap_or_default() };
    Spawner::default().spawn("git upload-pack", work.in_current_span());
    // Cancel safety: as above.
    let first = from.recv().await.transpose()?;
    Ok((first.unwrap_or_default(), from))
}

/// Runs a process until it exits, or the receiver of its output is dropped.
fn process(mut command: Command, input: &[u8], to: &Sender<io::Result<Bytes>>) {
    let mut has_output = false;
    let read = |from: &mut dyn Read| loop {
        let mut chunk = BytesMut::zeroed(CHUNK);
        match from.read(&mut chunk) {
            Ok(length @ 1..) => chunk.truncate(length),
            Ok(0) | Err(_) => return,
        }
        has_output = true;
        if to.blocking_send(Ok(chunk.freeze())).is_err() {
            return;
        }
    };
    let is_dropped = || to.is_closed();
    let ended = Limit::new(PROCESS_TIMEOUT, &is_dropped).run(&mut command, input, read, |_| ());
    let error = match ended {
        Ok(Some((status, ..))) if status.success() => return,
        Ok(Some((status, ..))) => match status.code() {
            Some(NOT_RUN) => {
                io::Error::other("git, or prlimit or choom of util-linux, is not installed")
            }
            // git has printed the error for the client.
            Some(_) if has_output => return,
            Some(_) => io::ErrorKind::InvalidInput.into(),
            None => io::Error::other(format!("it was ended: {status}")),
        },
        Ok(None) => io::ErrorKind::TimedOut.into(),
        Err(error) => error,
    };
    if error.kind() != io::ErrorKind::InvalidInput && !to.is_closed() {
        tracing::error!(%error, "`git upload-pack` failed");
    }
    // Aborts the response, so that the client does not take the output for complete.
    _ = to.blocking_send(Err(error));
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn only_known_versions_of_the_protocol_are_passed_on() {
        let version = |text| {
            let name = HeaderName::from_static("git-protocol");
            protocol(&HeaderMap::from_iter([(
                name,
                HeaderValue::from_static(text),
            )]))
        };
        assert_eq!(version("version=2"), Some("version=2"));
        assert_eq!(version("version=1"), Some("version=1"));
        for other in ["version=3", "version=2:x=y", "VERSION=2", "", "2"] {
            assert_eq!(version(other), None, "{other}");
        }
    }
}
