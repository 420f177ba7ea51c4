//! Which server is trusted: by arguments or environment, else by a stored fingerprint, else by the
//! public certificate authorities. A stored fingerprint is never replaced silently.

use std::collections::BTreeMap;

use homestak_api::trust::{Fingerprint, Trust};

use crate::args::FetchArgs;
use crate::error::{AgentError, FetchError};
use crate::{settings, state};

/// Fingerprints of servers by URL.
const SERVERS: &str = "servers.json";

/// Returns what to trust. `None` trusts the certificate that the server presents.
pub(super) fn trust(args: &FetchArgs, server: &str) -> Result<Option<Trust>, AgentError> {
    // Of the server's certificate, or of the authority of its site.
    let pinned = |text: String| match Fingerprint::parse(&text) {
        Some(fingerprint) => Ok(Some(Trust::Site(vec![fingerprint]))),
        None => Err(FetchError::Fingerprint.into()),
    };
    if let Some(fingerprint) = &args.fingerprint {
        return pinned(fingerprint.clone());
    }
    if let Some(path) = args.ca_cert.clone().or_else(settings::ca_cert) {
        let pem = fs_err::read_to_string(path).map_err(FetchError::AuthorityFile)?;
        return Ok(Some(Trust::Authority(pem)));
    }
    if let Some(fingerprint) = settings::fingerprint() {
        return pinned(fingerprint);
    }
    if let Some(fingerprint) = known()?.remove(server) {
        return pinned(fingerprint);
    }
    Ok((!args.insecure).then_some(Trust::WebPki))
}

/// Reads the stored fingerprints.
fn known() -> Result<BTreeMap<String, String>, AgentError> {
    state::read_or_default(SERVERS)
}

/// Stores the fingerprint of a server.
pub(super) fn remember(server: &str, fingerprint: Fingerprint) -> Result<(), AgentError> {
    let mut known = known()?;
    let text = fingerprint.to_string();
    if known.get(server) == Some(&text) {
        return Ok(());
    }
    known.insert(server.to_owned(), text);
    let text = serde_json::to_string_pretty(&known);
    let text = text.map_err(|error| state::failed(SERVERS)(error.into()))?;
    state::write(SERVERS, &format!("{text}\n"))
}
