//! git's smart protocol for reading, which shallow clones need: `git upload-pack` on published copies.
//!
//! Flow: a client lists references and requests objects. Each request is the input of a new process,
//! whose output is streamed to the client.
//! Guarantees: only published copies are read; memory, time and the number of processes are limited; a
//! process ends when its client leaves and when the server stops.
//! Assumptions: git reads its own protocol, and exits with an error code if a request is malformed.

use std::io::{self, Read};
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use flate2::read::GzDecoder;
use homestak_api::limit::Limit;
use homestak_api::runtime::{Spawner, pause, run_blocking};
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, Response};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tracing::Instrument as _;

use super::repo::{find, set_type};
use super::{Answer, Call};
use crate::body::Body;
use crate::process::{NOT_RUN, upload_pack};
use crate::refusal::Refusal;
use crate::share::{Permit, Shares};

/// The name of the service.
pub(super) const SERVICE: &str = "git-upload-pack";
const REQUEST: &str = "application/x-git-upload-pack-request";
const RESULT: &str = "application/x-git-upload-pack-result";
const ADVERTISEMENT: &str = "application/x-git-upload-pack-advertisement";
/// What precedes the list of references before version 2.
const PREFIX: &[u8] = b"001e# service=git-upload-pack\n0000";

/// How many requests are processed at a time, and of one address. Others wait, at most for the time of a
/// request.
const MAX_PROCESSES: usize = 8;
const MAX_PROCESSES_PER_ADDRESS: usize = 2;
/// The largest request, decoded. git sends larger ones without a length (`http.postBuffer`).
const MAX_REQUEST: usize = 1 << 20;
/// How long sending may take.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(3600);
/// How much a client must read while output waits for it, in bytes, within [`MIN_READ_TIME`]: otherwise
/// it could hold a process for an hour.
const MIN_READ: usize = 480 << 10;
const MIN_READ_TIME: Duration = Duration::from_secs(30);
/// How often the progress of a client is checked that reads less than git prints.
const PAUSE: Duration = Duration::from_millis(2);
/// How much output is in memory for each client: the pieces, and how many of them wait.
const CHUNK: usize = 64 << 10;
const BUFFERED_CHUNKS: usize = 4;

static RUNNING: LazyLock<Shares> =
    LazyLock::new(|| Shares::new(MAX_PROCESSES, MAX_PROCESSES_PER_ADDRESS));

/// `GET /{repo}.git/info/refs?service=git-upload-pack`
pub(super) async fn advertise(call: &Call<'_>, copy: &Path) -> Answer {
    let permit = RUNNING.of(call.peer.address).await?.permit().await?;
    let protocol = protocol(&call.head.headers);
    let command = upload_pack(copy, protocol, &["--http-backend-info-refs"]);
    let (first, rest) = run(command, Bytes::new(), permit).await.map_err(|error| {
        if error.kind() == io::ErrorKind::InvalidInput {
            tracing::error!(copy = %copy.display(), "git cannot read a copy of a repository");
        }
        Refusal::internal()
    })?;
    let first = match protocol {
        Some("version=2") => first,
        _ => [PREFIX, &first].concat().into(),
    };
    Ok(sent(ADVERTISEMENT, first, rest))
}

/// `POST /{repo}.git/git-upload-pack`
pub(super) async fn post(call: &mut Call<'_>, path: &str) -> Answer {
    let copy = find(call, path)?.copy();
    call.require_type(REQUEST)?;
    // Before the body is read, since it is in memory until the process ends; the permit after that, since
    // a client may send it slowly.
    let share = RUNNING.of(call.peer.address).await?;
    let body = call.bytes_up_to(MAX_REQUEST).await?.freeze();
    let permit = share.permit().await?;
    let input = decoded(&call.head.headers, body)?;
    let command = upload_pack(&copy, protocol(&call.head.headers), &[]);
    let (first, rest) = run(command, input, permit)
        .await
        .map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => Refusal::malformed("git cannot process the request"),
            _ => Refusal::internal(),
        })?;
    Ok(sent(RESULT, first, rest))
}

/// Returns the version of the protocol that a client asks for.
fn protocol(headers: &HeaderMap) -> Option<&'static str> {
    match headers.get("git-protocol")?.as_bytes() {
        b"version=1" => Some("version=1"),
        b"version=2" => Some("version=2"),
        _ => None,
    }
}

/// Returns a request without its encoding. A short one can decode to a thousand times its size.
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

fn sent(kind: &'static str, first: Bytes, rest: Receiver<io::Result<Bytes>>) -> Response<Body> {
    let mut answer = Response::new(Body::Output(Some(first), rest));
    set_type(answer.headers_mut(), kind);
    answer
}

/// Starts a process. Returns the start of its output, and what receives the rest; the process ends when
/// that is dropped. `InvalidInput` if it failed without output.
async fn run(
    command: Command,
    input: Bytes,
    permit: Permit,
) -> io::Result<(Bytes, Receiver<io::Result<Bytes>>)> {
    let (to, mut from) = mpsc::channel(BUFFERED_CHUNKS);
    // Cancel safety: the thread ends the process when nothing is received any more.
    let work = run_blocking(move || {
        process(command, &input, &to, permit);
    });
    let work = async { work.await.unwrap_or_default() };
    Spawner::default().spawn("git upload-pack", work.in_current_span());
    // Cancel safety: as above.
    let first = from.recv().await.transpose()?;
    Ok((first.unwrap_or_default(), from))
}

/// Runs a process to its end, or until nothing is received any more.
fn process(mut command: Command, input: &[u8], to: &Sender<io::Result<Bytes>>, permit: Permit) {
    let (mut has_output, mut is_slow) = (false, false);
    let mut pace = Pace::default();
    let read = |from: &mut dyn Read| loop {
        let mut piece = BytesMut::zeroed(CHUNK);
        match from.read(&mut piece) {
            Ok(length @ 1..) => piece.truncate(length),
            Ok(0) | Err(_) => return,
        }
        has_output = true;
        let mut piece = Ok(piece.freeze());
        // Not `blocking_send`, which waits without end.
        while let Err(refused) = to.try_send(piece) {
            let TrySendError::Full(back) = refused else {
                return;
            };
            piece = back;
            if pace.is_too_slow(PAUSE) || pause(PAUSE).is_err() {
                is_slow = true;
                return;
            }
        }
        pace.sent += CHUNK;
    };
    let is_left = || to.is_closed();
    let ended = Limit::new(PROCESS_TIMEOUT, &is_left).run(&mut command, input, read, |_| ());
    let error = match ended {
        Ok(_) if is_slow => io::Error::new(io::ErrorKind::TimedOut, "the client reads too slowly"),
        Ok(Some((status, ..))) if status.success() => return,
        Ok(Some((status, ..))) => match status.code() {
            Some(NOT_RUN) => {
                io::Error::other("git, or prlimit or choom of util-linux, is not installed")
            }
            // The output has the reason.
            Some(_) if has_output => return,
            Some(_) => io::ErrorKind::InvalidInput.into(),
            None => io::Error::other(format!("it was ended: {status}")),
        },
        Ok(None) => io::ErrorKind::TimedOut.into(),
        Err(error) => error,
    };
    if is_slow {
        tracing::info!("`git upload-pack` was ended: its client reads too slowly");
    } else if error.kind() != io::ErrorKind::InvalidInput && !to.is_closed() {
        tracing::error!(%error, "`git upload-pack` failed");
    }
    // Incomplete output is an error for the client. One that is slow sees it when it has read the rest,
    // for which the permit is not needed.
    drop(permit);
    _ = to.blocking_send(Err(error));
}

/// How fast a client reads, while output waits for it.
#[derive(Default)]
struct Pace {
    sent: usize,
    waited: Duration,
}

impl Pace {
    /// Returns whether a client that was waited for again has read too little.
    fn is_too_slow(&mut self, waited: Duration) -> bool {
        self.waited += waited;
        if self.waited < MIN_READ_TIME {
            return false;
        }
        let is_too_slow = self.sent < MIN_READ;
        *self = Self::default();
        is_too_slow
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn a_client_must_read_a_part_of_what_waits_for_it() {
        let mut pace = Pace::default();
        let second = Duration::from_secs(1);
        for _ in 0..29 {
            assert!(!pace.is_too_slow(second));
        }
        assert!(pace.is_too_slow(second));
        // What was read before does not count for later.
        for expected in [false, true] {
            if !expected {
                pace.sent = 1 << 30;
            }
            for _ in 0..29 {
                assert!(!pace.is_too_slow(second));
            }
            assert_eq!(pace.is_too_slow(second), expected);
        }
    }

    #[test]
    fn only_known_versions_of_the_protocol_are_passed_on() {
        let of = |text| {
            let name = HeaderName::from_static("git-protocol");
            protocol(&HeaderMap::from_iter([(
                name,
                HeaderValue::from_static(text),
            )]))
        };
        assert_eq!(of("version=2"), Some("version=2"));
        assert_eq!(of("version=1"), Some("version=1"));
        for other in ["version=3", "version=2:x=y", "VERSION=2", "", "2"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
