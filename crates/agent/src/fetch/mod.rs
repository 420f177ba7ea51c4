//! A spec fetched from a server, for this machine to become.
//!
//! In: a server, a provisioning token, whom to trust. Out: a spec that was checked, kept for
//! `config apply`.
//! Never: a byte sent to a server that is not the right one; a spec kept that cannot be read, or
//! is another machine's; the token in a message.

mod client;
mod error;

use std::io::Read as _;
use std::path::Path;

use homestak_api::probe;
use homestak_api::trust::{Fingerprint, Trust};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::args::FetchArgs;
use crate::command::{self, Spec};
use crate::error::AgentError;
use crate::files::write_whole;
use crate::{settings, state, ui};
pub(crate) use error::FetchError;

/// Which certificate a server showed when it was first trusted.
const SERVER: &str = "server.json";

/// Who is asked, by whom, and with what.
struct Question {
    server: String,
    identity: String,
    token: String,
    trust: Trust,
}

/// The server whose certificate is remembered.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Known {
    server: String,
    fingerprint: String,
}

/// Fetches the spec of this machine.
///
/// Exit code: 0 kept; 1 something is missing, or the token was refused (400, 401); 2 the server
/// could not be reached, or has no spec (403, 404, 500); 3 the server's spec has faults (422).
pub(crate) fn get(args: &FetchArgs, json: bool) -> Result<u8, AgentError> {
    get_and_keep(args, json).map_err(|error| match error {
        AgentError::Fetch(_) => error,
        // What fails here is not the server's.
        error => AgentError::NotFetched(Box::new(error)),
    })
}

fn get_and_keep(args: &FetchArgs, json: bool) -> Result<u8, AgentError> {
    let kept = args.output.is_none();
    if kept {
        command::require_root()?;
    }
    let fetched = fetch(args, kept);
    if let (true, Err(error)) = (kept, &fetched)
        && state::markers().0.is_none()
    {
        // Whoever waits for this machine to become something can stop waiting. One that is
        // complete stays so.
        _ = state::fail(error, "");
    }
    let spec = fetched?;
    let place = put(args, &spec)?;
    if json && args.output.as_deref() != Some(Path::new("-")) {
        ui::json(
            "spec.get",
            json!({ "success": true, "spec": spec.name, "path": place, "resources": spec.wanted.len() }),
        );
    }
    ui::say(&match kept {
        true => format!(
            "The spec of {} is here; `homestak config apply` makes this machine what it says.",
            spec.name
        ),
        false => format!("The spec of {} is in {place}.", spec.name),
    });
    Ok(0)
}

fn fetch(args: &FetchArgs, kept: bool) -> Result<Spec, AgentError> {
    let question = question(args)?;
    let text = client::ask(&question, args)?;
    // What is remembered was trusted by whoever asked, and has answered.
    if let (true, Trust::Pinned(fingerprint)) = (kept, &question.trust) {
        remember(&question.server, fingerprint)?;
    }
    let shown = format!("the answer of {}", question.server);
    let spec = command::parse(shown, text).map_err(|error| match error {
        AgentError::WrongSpec(lines) => FetchError::NoSpec(lines).into(),
        error => error,
    })?;
    if spec.name != question.identity {
        return Err(FetchError::Another {
            name: spec.name,
            identity: question.identity,
        }
        .into());
    }
    Ok(spec)
}

/// Puts a spec where it was asked for, and says where that is.
fn put(args: &FetchArgs, spec: &Spec) -> Result<String, AgentError> {
    let Some(path) = &args.output else {
        state::write(state::FETCHED, &spec.text, 0o600)?;
        return Ok(state::place(state::FETCHED).display().to_string());
    };
    if path == Path::new("-") {
        ui::data(&format!("{}\n", spec.text.trim_end()));
        return Ok("standard output".to_owned());
    }
    let shown = path.display().to_string();
    write_whole(path, &spec.text, 0o600).map_err(|source| AgentError::Write {
        path: shown.clone(),
        source,
    })?;
    Ok(shown)
}

fn question(args: &FetchArgs) -> Result<Question, AgentError> {
    let server = args
        .server
        .clone()
        .or_else(settings::server)
        .ok_or(FetchError::NoServer)?;
    let server = server.trim_end_matches('/').to_owned();
    let identity = args.identity.clone().unwrap_or_else(state::node);
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if identity.is_empty() || !identity.bytes().all(fits) {
        return Err(FetchError::Identity(identity).into());
    }
    Ok(Question {
        token: token(args)?,
        trust: trust(args, &server)?,
        server,
        identity,
    })
}

fn token(args: &FetchArgs) -> Result<String, AgentError> {
    let text = match (&args.token_file, &args.token) {
        (Some(path), _) if path == Path::new("-") => {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.map_err(|source| FetchError::file("standard input", source))?;
            Some(text)
        }
        (Some(path), _) => {
            let read = fs_err::read_to_string(path);
            Some(read.map_err(|source| FetchError::file(&path.display().to_string(), source))?)
        }
        (None, Some(token)) => {
            ui::say(
                "notice: a token among the arguments can be read by everyone on this machine; \
                 HOMESTAK_TOKEN or --token-file keeps it",
            );
            Some(token.clone())
        }
        (None, None) => settings::token(),
    };
    let token = text.map(|text| text.trim().to_owned()).unwrap_or_default();
    let fits = |byte: u8| byte.is_ascii_graphic();
    match token.is_empty() || !token.bytes().all(fits) {
        true => Err(FetchError::NoToken.into()),
        false => Ok(token),
    }
}

/// Decides whom to trust: what was said now, else what was trusted before, else the authorities
/// that browsers trust.
fn trust(args: &FetchArgs, server: &str) -> Result<Trust, AgentError> {
    let authority = args.ca_cert.clone().or_else(settings::ca_cert);
    if let Some(fingerprint) = args.fingerprint {
        return Ok(Trust::Pinned(fingerprint));
    }
    if let Some(path) = authority {
        let read = fs_err::read_to_string(&path);
        let pem = read.map_err(|source| FetchError::file(&path.display().to_string(), source))?;
        return Ok(Trust::Authority(pem));
    }
    if let Some(fingerprint) = settings::fingerprint() {
        let parsed = Fingerprint::parse(&fingerprint);
        return Ok(Trust::Pinned(parsed.ok_or(FetchError::Fingerprint)?));
    }
    if let Some(fingerprint) = known(server) {
        return Ok(Trust::Pinned(fingerprint));
    }
    if !args.insecure {
        return Ok(Trust::WebPki);
    }
    let (host, port) = client::place(server)?;
    let unreachable = |error: probe::ProbeError| FetchError::Unreachable {
        server: server.to_owned(),
        attempts: 1,
        why: homestak_core::error::chain(&error),
    };
    let fingerprint = probe::fingerprint(&host, port).map_err(unreachable)?;
    ui::say(&format!(
        "notice: {server} is trusted because of --insecure; from now on only with this \
         certificate: {fingerprint}"
    ));
    Ok(Trust::Pinned(fingerprint))
}

fn known(server: &str) -> Option<Fingerprint> {
    let text = fs_err::read_to_string(state::place(SERVER)).ok()?;
    let known: Known = serde_json::from_str(&text).ok()?;
    (known.server == server).then(|| Fingerprint::parse(&known.fingerprint))?
}

fn remember(server: &str, fingerprint: &Fingerprint) -> Result<(), AgentError> {
    if known(server).as_ref() == Some(fingerprint) {
        return Ok(());
    }
    let known = Known {
        server: server.to_owned(),
        fingerprint: fingerprint.to_string(),
    };
    let text = serde_json::to_string_pretty(&known);
    let text = text.map_err(|error| state::failed(SERVER)(error.into()))?;
    state::write(SERVER, &format!("{text}\n"), 0o644)
}
