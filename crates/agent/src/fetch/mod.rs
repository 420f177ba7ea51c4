//! Fetches the spec of this machine from a server, validates it, and stores it for `config apply`.
//!
//! The token is only sent to a trusted server, and appears in no message.

pub(crate) mod client;
mod trust;

use std::io::Write as _;
use std::path::Path;

use homestak_api::durable::{self, Access};
use homestak_api::v1::{AgentOutput, Kind, SpecFetched};
use homestak_core::doc::secrets::Secret;

use crate::args::FetchArgs;
use crate::error::{AgentError, FetchError};
use crate::spec::{self, Spec};
use crate::{facts, settings, state, ui};
use client::SpecRequest;

/// Fetches the spec of this machine: with its certificate if it has enrolled (`registered`) and
/// neither a token nor a server is given, otherwise with its token.
///
/// Exit code: 0 fetched; 1 missing settings, or the token was refused (400, 401); 2 the server is
/// unreachable or has no spec (403, 404, 500); 3 the server's spec is invalid (422).
pub(crate) fn get(
    args: &FetchArgs,
    kind: &Kind<AgentOutput<SpecFetched>>,
    json: bool,
    registered: fn() -> Result<Option<String>, AgentError>,
) -> Result<u8, AgentError> {
    let stored = args.output.is_none();
    if stored && settings::require_root().is_err() {
        return Err(FetchError::NotRoot.into());
    }
    let names_source = args.token.is_some()
        || args.token_file.is_some()
        || args.server.is_some()
        || args.identity.is_some();
    let text = match names_source || settings::require_root().is_err() {
        true => Ok(None),
        false => registered(),
    };
    let fetched = text.and_then(|text| match text {
        Some(text) => spec::parse("the spec of the server", text),
        None => fetch(args, stored),
    });
    let fetched = fetched.and_then(|spec| {
        let path = write_spec(args, &spec)?;
        Ok((spec, path))
    });
    if stored {
        mark(fetched.as_ref().err(), false);
    }
    let (spec, path) = fetched.map_err(|error| match error {
        AgentError::Fetch(_) => error,
        // Errors of this machine, not of the server.
        error => AgentError::NotFetched(Box::new(error)),
    })?;
    if json && args.output.as_deref() != Some(Path::new("-")) {
        let fetched = SpecFetched {
            success: true,
            spec: spec.name.clone(),
            path: path.clone(),
            resources: spec.wanted.len(),
        };
        ui::json(kind, fetched);
    }
    ui::message(&match stored {
        true => format!(
            "The spec of {} was fetched; apply it with `homestak config apply`.",
            spec.name
        ),
        false => format!("The spec of {} was written to {path}.", spec.name),
    });
    Ok(0)
}

/// Writes or removes the marker of failure, which `status` shows. Markers of other phases are not
/// changed. On a machine whose spec was applied, only a permanent failure is one of the machine: it
/// receives no other spec.
pub(crate) fn mark(error: Option<&AgentError>, is_permanent: bool) {
    // A run in progress writes a marker of its own.
    let Ok(Some(_lock)) = state::try_lock(state::LOCK) else {
        return;
    };
    let (complete, failed) = state::markers();
    let ours = failed
        .as_ref()
        .is_none_or(|failed| failed["phase"] == state::FETCH);
    // A failure to write the marker does not affect the spec.
    _ = match error {
        Some(error) if (complete.is_none() || is_permanent) && ours => {
            state::fail_in(state::FETCH, error, "")
        }
        None if failed.is_some() && ours => state::remove(state::FAILED),
        _ => Ok(()),
    };
}

fn fetch(args: &FetchArgs, stored: bool) -> Result<Spec, AgentError> {
    let request = request(args)?;
    let server = request.server.clone();
    let text = client::fetch(&request, args, |fingerprint| {
        if stored {
            trust::remember(&server, fingerprint)
        } else {
            Ok(())
        }
    })?;
    let shown = format!("response of {server}");
    let spec = spec::parse(&shown, text).map_err(|error| match error {
        AgentError::WrongSpec(lines) => FetchError::NoSpec(lines).into(),
        error => error,
    })?;
    if spec.name != request.identity {
        return Err(FetchError::WrongIdentity {
            name: spec.name,
            identity: request.identity,
        }
        .into());
    }
    Ok(spec)
}

/// Writes a spec to its destination, and returns its path.
fn write_spec(args: &FetchArgs, spec: &Spec) -> Result<String, AgentError> {
    let Some(path) = &args.output else {
        state::write(state::FETCHED, &spec.text)?;
        return Ok(state::file(state::FETCHED).display().to_string());
    };
    let shown = match path == Path::new("-") {
        true => "standard output".to_owned(),
        false => path.display().to_string(),
    };
    let other = |found: std::fs::Metadata| !found.is_file();
    let written = if path == Path::new("-") {
        ui::write_all(&format!("{}\n", spec.text.trim_end()))
    } else if fs_err::metadata(path).is_ok_and(other) {
        // Devices and pipes are not replaced.
        let opened = fs_err::OpenOptions::new().write(true).open(path);
        opened.and_then(|mut file| file.write_all(spec.text.as_bytes()))
    } else {
        write_file(path, &spec.text)
    };
    written.map_err(AgentError::write(&shown))?;
    Ok(shown)
}

fn write_file(path: &Path, text: &str) -> std::io::Result<()> {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    if let Some(parent) = parent {
        fs_err::create_dir_all(parent)?;
    }
    durable::write(path, text.as_bytes(), Access::PRIVATE)
}

fn request(args: &FetchArgs) -> Result<SpecRequest, AgentError> {
    let server = args.server.clone().or_else(settings::server);
    let server = server.ok_or(FetchError::NoServer)?;
    let server = server.trim_end_matches('/').to_owned();
    client::host_and_port(&server)?;
    let identity = args.identity.clone().or_else(settings::identity);
    let identity = identity.unwrap_or_else(|| node_name(&facts::hostname()));
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let not_dots = identity.bytes().any(|byte| byte != b'.');
    if !not_dots || !identity.bytes().all(fits) {
        return Err(FetchError::Identity(identity).into());
    }
    Ok(SpecRequest {
        token: token(args)?,
        trust: trust::trust(args, &server)?,
        server,
        identity,
    })
}

/// Returns the name of the node with a host name, which may include the domain and is not case
/// sensitive.
fn node_name(hostname: &str) -> String {
    let (name, _) = hostname.split_once('.').unwrap_or((hostname, ""));
    name.to_ascii_lowercase()
}

fn token(args: &FetchArgs) -> Result<Secret, AgentError> {
    let text = match (&args.token_file, &args.token) {
        (Some(path), _) => ui::read(path).map_err(FetchError::TokenFile)?,
        (None, Some(token)) => {
            ui::message(
                "notice: a token among the arguments is visible to every user of this machine; use \
                 HOMESTAK_TOKEN or --token-file",
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
