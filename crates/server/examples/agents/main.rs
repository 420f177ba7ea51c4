//! Load of many nodes on a server, for `bench/server.py`.
//!
//! `agents site DIRECTORY NODES BODY` writes a site with enrolled nodes and their specs, and prints
//! tokens of a node that has not enrolled.
//! `agents run DIRECTORY URL SECONDS MODE` lets all nodes connect within that time. Each does what
//! `homestak-agent` does between two changes of its spec: it asks for its spec and reports, on two
//! connections with a full handshake each. MODE is `close` to close both, `keep` to leave both open, or
//! `poll` to close the one of the report and request jobs on the other, as `homestak-agent` does.
//! `agents stay DIRECTORY URL SECONDS INTERVAL` lets all nodes do that once every interval, for some
//! time.
//! `agents repeat URL FINGERPRINT REQUEST SECONDS` requests a URL as often as it can, from 32 clients
//! on one thread: what wrk cannot do, with a client certificate, or with a full handshake each time.

mod repeat;
mod run;
mod site;
mod stay;

use std::error::Error;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use homestak_api::trust::{Fingerprint, Trust};

use crate::run::After;
use crate::site::BenchSite;

type Failure = Box<dyn Error + Send + Sync>;

const USAGE: &str = "usage: agents site DIRECTORY NODES BODY | run DIRECTORY URL SECONDS close|keep|poll \
                     | stay DIRECTORY URL SECONDS INTERVAL | repeat URL FINGERPRINT REQUEST SECONDS";

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let figures = match *arguments.as_slice() {
        ["site", directory, n_nodes, body] => {
            let body = fs_err::read_to_string(body)?;
            BenchSite::new(Path::new(directory), body)?.write(n_nodes.parse()?)?
        }
        ["run", directory, url, seconds, mode] => {
            let within = Duration::from_secs(seconds.parse()?);
            let after = match mode {
                "close" => After::Close,
                "keep" => After::Keep,
                "poll" => After::Poll,
                _ => return Err(USAGE.into()),
            };
            two_threads()?.block_on(run::run(Path::new(directory), url, within, after))?
        }
        ["stay", directory, url, seconds, every] => {
            let lasting = Duration::from_secs(seconds.parse()?);
            let every = Duration::from_secs(every.parse()?);
            two_threads()?.block_on(stay::stay(Path::new(directory), url, lasting, every))?
        }
        ["repeat", url, fingerprint, request, seconds] => {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let request = serde_json::from_str(&fs_err::read_to_string(request)?)?;
            let trust = Trust::Pinned(Fingerprint::parse(fingerprint).ok_or("not a fingerprint")?);
            let lasting = Duration::from_secs(seconds.parse()?);
            runtime.block_on(repeat::repeat(url, &trust, request, lasting))?
        }
        _ => return Err(USAGE.into()),
    };
    writeln!(std::io::stdout(), "{figures:#}")?;
    Ok(())
}

fn two_threads() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
}

/// Returns the time in seconds that a part of sorted times does not exceed.
fn percentile(sorted: &[Duration], part: f64) -> Option<f64> {
    let index = (sorted.len() as f64 * part) as usize;
    let last = sorted.len().checked_sub(1)?;
    Some(sorted[index.min(last)].as_secs_f64())
}
