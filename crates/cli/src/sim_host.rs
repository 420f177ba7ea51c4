//! The host `sim`: a simulated Proxmox VE that is kept, in a process of its own.
//!
//! In: a directory. Out: where the server of that directory is; it is started when there is none.
//! Never: two servers for one directory, whoever asks at the same time.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use homestak_api::probe;
use homestak_sim::kept::{self, Endpoint, Lock};

use crate::error::CommandError;
use crate::process;
use crate::settings::Settings;

/// How often it is looked whether a server has come up or gone: for thirty seconds in all.
const LOOKS: u32 = 1_200;
const BETWEEN: Duration = Duration::from_millis(25);
/// How long a server that was started for a command goes on without calls, in seconds.
const IDLE: u32 = 120;

/// Returns the directory of the simulated host when none is named.
pub(crate) fn directory(settings: &Settings) -> PathBuf {
    settings.state.join("sim")
}

/// Returns where the World kept in a directory is served. Starts a server when there is none, with
/// time that goes so many times faster than on the wall; one that runs already keeps its own.
pub(crate) fn ensure(directory: &Path, speed: f64) -> Result<Endpoint, CommandError> {
    let failed = |error: std::io::Error| CommandError::file("use", directory, &error);
    kept::create(directory).map_err(failed)?;
    // Of two who come at once, the second finds the server of the first.
    let _turn = Lock::take(&directory.join("ensure.lock")).map_err(failed)?;
    if let Some(endpoint) = answering(directory)? {
        return Ok(endpoint);
    }
    let log = directory.join("serve.log");
    let mut arguments: Vec<OsString> = ["sim", "serve", "--state"].map(OsString::from).into();
    arguments.push(absolute(directory)?.into());
    let numbers = ["--idle", &IDLE.to_string(), "--speed", &speed.to_string()].map(OsString::from);
    arguments.extend(numbers);
    let mut server = process::start_again(&arguments, &log)
        .map_err(|error| CommandError::failed(format!("Cannot start the simulator: {error}.")))?;
    for _ in 0..LOOKS {
        if let Some(endpoint) = answering(directory)? {
            return Ok(endpoint);
        }
        let ended = server.try_wait().ok().flatten();
        if ended.is_some() && !kept::is_served(directory).map_err(failed)? {
            return Err(did_not_start(&log));
        }
        std::thread::sleep(BETWEEN);
    }
    Err(CommandError::failed(format!(
        "The simulator of `{}` does not answer.",
        directory.display()
    ))
    .hint(format!("its words are in {}", log.display())))
}

/// Returns the endpoint that a server wrote, if that server answers.
pub(crate) fn answering(directory: &Path) -> Result<Option<Endpoint>, CommandError> {
    let endpoint = Endpoint::read(directory)
        .map_err(|error| CommandError::file("read", &directory.join("endpoint.json"), &error))?;
    Ok(endpoint.filter(|endpoint| {
        // Another program may have the port by now; only the server has the certificate.
        let port = endpoint.url.rsplit_once(':').map(|(_, port)| port.parse());
        let Some(Ok(port)) = port else {
            return false;
        };
        probe::fingerprint("127.0.0.1", port)
            .is_ok_and(|found| found.to_string() == endpoint.fingerprint)
    }))
}

/// Ends the server of a directory, and waits until it has. Returns whether there was one.
pub(crate) fn stop(directory: &Path) -> Result<bool, CommandError> {
    let failed = |error: std::io::Error| CommandError::file("use", directory, &error);
    if !kept::is_served(directory).map_err(failed)? {
        return Ok(false);
    }
    for _ in 0..LOOKS {
        // Asked each time: a server that was just starting forgets wishes of before.
        kept::request_stop(directory).map_err(failed)?;
        std::thread::sleep(BETWEEN);
        if !kept::is_served(directory).map_err(failed)? {
            return Ok(true);
        }
    }
    let pid = Endpoint::read(directory).ok().flatten();
    let error = CommandError::failed(format!(
        "The simulator of `{}` does not end.",
        directory.display()
    ));
    Err(match pid {
        Some(endpoint) => error.hint(format!("kill -9 {}", endpoint.pid)),
        None => error,
    })
}

fn absolute(directory: &Path) -> Result<PathBuf, CommandError> {
    std::path::absolute(directory).map_err(|error| CommandError::file("find", directory, &error))
}

fn did_not_start(log: &Path) -> CommandError {
    let said = fs_err::read_to_string(log).unwrap_or_default();
    let said = said.lines().rev().find(|line| line.starts_with("error"));
    CommandError::failed(format!(
        "The simulator did not start: {}",
        said.unwrap_or("it said nothing.")
    ))
    .hint(format!("its words are in {}", log.display()))
    .hint("homestak sim reset starts over")
}
