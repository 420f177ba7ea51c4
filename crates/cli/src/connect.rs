//! From a host's document to a client for its API.
//!
//! In: a name, the site's documents. Out: a client that verifies whom it talks to.
//! Never: a connection without verification; a token in a message.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use homestak_api::trust::{Fingerprint, Trust};
use homestak_core::doc::pve_node::PveNode;
use homestak_engine::ports::{Class, PortError};
use homestak_providers::pve::{ApiToken, Credential, Endpoint, Limits, Pve, PveSettings};
use homestak_site::Chosen;

use crate::clock;
use crate::error::CommandError;
use crate::session::Session;

/// Returns the document of a Proxmox VE host.
pub(crate) fn document<'s>(name: &str, session: &'s Session) -> Result<&'s PveNode, CommandError> {
    let document = session.catalog.nodes.get(name).ok_or_else(|| {
        if session.catalog.has_host(name) {
            return CommandError::failed(format!("The host `{name}` has no `nodes/{name}.yaml`."))
                .hint("hosts with an API are the files in `nodes/` of the site");
        }
        CommandError::unknown("host", name, session.catalog.host_names())
            .hint("hosts with an API are the files in `nodes/` of the site")
    })?;
    document
        .value
        .as_ref()
        .filter(|_| document.faults.errors() == 0)
        .ok_or_else(|| {
            CommandError::failed(format!("`nodes/{name}.yaml` has faults."))
                .hint("homestak site validate shows them")
        })
}

/// Returns host and port of an API's address.
pub(crate) fn host_and_port(node: &PveNode) -> Option<(String, u16)> {
    let url = node.api_endpoint.as_ref()?.as_str();
    let rest = url.split_once("://")?.1;
    let authority = rest.split(['/', '?', '#']).next()?;
    match authority
        .rsplit_once(':')
        .filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()))
    {
        Some((host, port)) => Some((host.to_owned(), port.parse().ok()?)),
        None => Some((authority.to_owned(), 8006)),
    }
}

/// Makes a client for a host.
pub(crate) fn connect(name: &str, session: &Session) -> Result<Pve, CommandError> {
    connect_at(name, None, session)
}

/// Makes a client for a host that was found at an address: one that is written as another address
/// is reached at that one, one that has a name by its name.
pub(crate) fn connect_at(
    name: &str,
    found: Option<IpAddr>,
    session: &Session,
) -> Result<Pve, CommandError> {
    let node = document(name, session)?;
    let url = node
        .api_endpoint
        .as_ref()
        .map(|url| url.as_str().trim_end_matches('/').to_owned());
    let url = url.ok_or_else(|| {
        CommandError::failed(format!("`nodes/{name}.yaml` has no `api_endpoint`."))
    })?;
    let url = match (found, host_and_port(node)) {
        (Some(found), Some((host, port))) if is_another_address(&host, found) => {
            format!("https://{}", SocketAddr::new(found, port))
        }
        _ => url,
    };
    let endpoint = Endpoint {
        url,
        trust: trust(name, node, session)?,
    };
    let mut settings = PveSettings::new(endpoint, Credential::Token(token(name, node, session)?));
    settings.limits = Limits::from(&session.timeouts());
    Pve::new(clock::patient(settings), clock::shared()).map_err(|error| failed(name, &error))
}

fn is_another_address(host: &str, found: IpAddr) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.parse().is_ok_and(|host: IpAddr| host != found)
}

/// Whom to trust: the recorded fingerprint, the named authority, or the public ones.
fn trust(name: &str, node: &PveNode, session: &Session) -> Result<Trust, CommandError> {
    if let Some(text) = &node.fingerprint {
        let fingerprint = Fingerprint::parse(text).ok_or_else(|| {
            CommandError::failed(format!(
                "The fingerprint in `nodes/{name}.yaml` is malformed."
            ))
            .hint(format!("homestak host trust {name}"))
        })?;
        return Ok(Trust::Pinned(fingerprint));
    }
    let Some(file) = &node.ca else {
        return Ok(Trust::WebPki);
    };
    let base = match &session.find.chosen {
        Chosen::Directory(site) => site.as_path(),
        Chosen::Stock => Path::new("."),
    };
    let path = base.join(file.as_str());
    let pem =
        fs_err::read_to_string(&path).map_err(|error| CommandError::file("read", &path, &error))?;
    Ok(Trust::Authority(pem))
}

fn token(name: &str, node: &PveNode, session: &Session) -> Result<ApiToken, CommandError> {
    let id = node.api_token.as_ref().map_or(name, |id| id.as_str());
    let secrets = session
        .catalog
        .secrets
        .as_ref()
        .and_then(|secrets| secrets.value.as_ref());
    let tokens = secrets.and_then(|secrets| secrets.api_tokens.as_ref());
    let token = tokens.and_then(|tokens| tokens.get(id)).ok_or_else(|| {
        CommandError::failed(format!("There is no API token `{id}` in the secrets.")).hint(format!(
            "homestak host role {name} prints how to make one; put it under `api_tokens.{id}`"
        ))
    })?;
    ApiToken::parse(token.expose()).map_err(|error| {
        CommandError::failed(format!("The API token `{id}` cannot be used: {error}."))
            .hint("copy it again as `pveum user token add` printed it")
    })
}

/// Runs a future to its end on a runtime of its own.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> Result<T, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime =
        runtime.map_err(|error| CommandError::failed(format!("Cannot start: {error}.")))?;
    let value = runtime.block_on(future);
    // What was begun and is not wanted any more is not waited for.
    runtime.shutdown_background();
    Ok(value)
}

/// Words an error of a host for a person.
pub(crate) fn failed(name: &str, error: &PortError) -> CommandError {
    let made = CommandError::failed(format!(
        "Cannot {}: {}.",
        error.doing,
        error.detail.trim_end_matches('.')
    ));
    let made = error
        .log
        .iter()
        .fold(made, |made, line| made.hint(format!("log: {line}")));
    let made = if error.hint.is_empty() {
        made
    } else {
        made.hint(error.hint.clone())
    };
    if error.detail.contains("certificate") {
        return made.hint(format!(
            "homestak host trust {name} shows the fingerprint and records it"
        ));
    }
    match error.class {
        Class::Unreachable { .. } => made.hint(format!(
            "is `{name}` up, and its certificate trusted? homestak host trust {name}"
        )),
        Class::Refused
        | Class::Partly
        | Class::Missing
        | Class::Busy
        | Class::Broken
        | Class::Bug => made,
    }
}
