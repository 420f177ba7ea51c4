//! A spec fetched from a server, checked, and kept for `config apply`.
//!
//! Nothing is sent to a server that is not trusted, no spec is kept that is faulty or another
//! machine's, and the token is in no message.

mod client;
mod trusted;

use std::io::Write as _;
use std::path::Path;

use homestak_api::durable::{self, Access};
use homestak_core::doc::secrets::Secret;
use serde_json::json;

use crate::args::FetchArgs;
use crate::error::{AgentError, FetchError};
use crate::spec::{self, Spec};
use crate::{gather, settings, state, ui};
use client::Question;

/// What a failure is marked as, apart from those of other commands.
const PHASE: &str = "fetch";

/// Fetches the spec of this machine.
///
/// Exit code: 0 kept; 1 something is missing, or the token was refused (400, 401); 2 the server
/// could not be reached, or has no spec (403, 404, 500); 3 the server's spec has faults (422).
pub(crate) fn get(args: &FetchArgs, kind: &str, json: bool) -> Result<u8, AgentError> {
    let kept = args.output.is_none();
    if kept && settings::require_root().is_err() {
        return Err(FetchError::NotRoot.into());
    }
    let got = fetch(args, kept).and_then(|spec| {
        let place = put(args, &spec)?;
        Ok((spec, place))
    });
    if kept {
        mark(got.as_ref().err());
    }
    let (spec, place) = got.map_err(|error| match error {
        AgentError::Fetch(_) => error,
        // What fails here is not the server's.
        error => AgentError::NotFetched(Box::new(error)),
    })?;
    if json && args.output.as_deref() != Some(Path::new("-")) {
        ui::json(
            kind,
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

/// Tells whoever waits for this machine to become something that it has no spec yet, or has one
/// now. What other commands said stays: a machine that is complete is, and why one is not is theirs.
fn mark(error: Option<&AgentError>) {
    // Whoever has the turn is about to say something better.
    let Ok(Some(_turn)) = state::take(state::LOCK) else {
        return;
    };
    let (complete, failed) = state::markers();
    let ours = failed
        .as_ref()
        .is_none_or(|failed| failed["phase"] == PHASE);
    // A marker that cannot be written changes nothing about the spec.
    _ = match error {
        Some(error) if complete.is_none() && ours => state::fail_in(PHASE, error, ""),
        None if failed.is_some() && ours => state::remove(state::FAILED),
        _ => Ok(()),
    };
}

fn fetch(args: &FetchArgs, kept: bool) -> Result<Spec, AgentError> {
    let question = question(args)?;
    let server = question.server.clone();
    let text = client::ask(&question, args, |fingerprint| {
        // Whoever answered was trusted, and is from then on.
        if kept {
            trusted::remember(&server, fingerprint)
        } else {
            Ok(())
        }
    })?;
    let shown = format!("the answer of {server}");
    let spec = spec::parse(&shown, text).map_err(|error| match error {
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
        state::write(state::FETCHED, &spec.text)?;
        return Ok(state::place(state::FETCHED).display().to_string());
    };
    let shown = match path == Path::new("-") {
        true => "standard output".to_owned(),
        false => path.display().to_string(),
    };
    let other = |found: std::fs::Metadata| !found.is_file();
    let written = if path == Path::new("-") {
        ui::delivered(&format!("{}\n", spec.text.trim_end()))
    } else if fs_err::metadata(path).is_ok_and(other) {
        // A device or a pipe is written to, and not replaced.
        let opened = fs_err::OpenOptions::new().write(true).open(path);
        opened.and_then(|mut file| file.write_all(spec.text.as_bytes()))
    } else {
        write_whole(path, &spec.text)
    };
    written.map_err(AgentError::write(&shown))?;
    Ok(shown)
}

fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    if let Some(parent) = parent {
        fs_err::create_dir_all(parent)?;
    }
    durable::write(path, text.as_bytes(), Access::PRIVATE)
}

fn question(args: &FetchArgs) -> Result<Question, AgentError> {
    let server = args.server.clone().or_else(settings::server);
    let server = server.ok_or(FetchError::NoServer)?;
    let server = server.trim_end_matches('/').to_owned();
    client::place(&server)?;
    let identity = args.identity.clone().unwrap_or_else(gather::hostname);
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let named = identity.bytes().any(|byte| byte != b'.');
    if !named || !identity.bytes().all(fits) {
        return Err(FetchError::Identity(identity).into());
    }
    Ok(Question {
        token: token(args)?,
        trust: trusted::trust(args, &server)?,
        server,
        identity,
    })
}

fn token(args: &FetchArgs) -> Result<Secret, AgentError> {
    let text = match (&args.token_file, &args.token) {
        (Some(path), _) => ui::read(path).map_err(FetchError::TokenFile)?,
        (None, Some(token)) => {
            ui::say(
                "notice: a token among the arguments can be read by everyone on this machine; \
                 HOMESTAK_TOKEN or --token-file keeps it",
            );
            token.expose().to_owned()
        }
        (None, None) => settings::token().ok_or(FetchError::NoToken)?,
    };
    let token = text.trim();
    match token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Err(FetchError::WrongToken.into()),
        false => Ok(Secret::new(token)),
    }
}
