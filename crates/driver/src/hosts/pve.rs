//! Hosts of kind `pve`: clients for the Proxmox VE API, and their checks.
//!
//! The certificate is always verified; tokens never appear in messages.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use homestak_api::trust::{Fingerprint, Trust};
use homestak_api::v1::{HostDetail, PveHost};
use homestak_core::doc::DocumentKind;
use homestak_core::doc::pve_node::PveNode;
use homestak_core::plan::Plan;
use homestak_engine::context::run_blocking;
use homestak_engine::ports::{PortError, Provider};
use homestak_providers::finding::Finding;
use homestak_providers::pve::preflight::check;
use homestak_providers::pve::{ApiToken, Credential, Endpoint, Pve, PveLimits, PveSettings};
use homestak_site::SiteSource;

use super::{HostContext, HostDriver, HostKind, HostTraits};
use crate::error::DriverError;
use crate::preflight::wanted;
use crate::session::Session;
use crate::wire;

/// Proxmox VE hosts.
pub(super) const KIND: HostKind = HostKind {
    name: "pve",
    label: "Proxmox VE",
    default_of: Some(DocumentKind::Node),
    traits: HostTraits::PROXMOX_VE,
    open: |site| Arc::new(PveHosts(site.clone())),
    data_directory: None,
};

struct PveHosts(Arc<HostContext>);

impl PveHosts {
    /// Makes a client for one command.
    async fn client(&self, name: &str) -> Result<Pve, DriverError> {
        let (site, name) = (self.0.clone(), name.to_owned());
        // Cancel safety: only opens a client.
        crate::blocking::run_blocking(move || connect(&name, &site.session)).await
    }
}

#[async_trait]
impl HostDriver for PveHosts {
    async fn host(&self, name: &str) -> Result<Arc<dyn Provider>, PortError> {
        let doing = format!("open host `{name}`");
        let (site, name, at) = (self.0.clone(), name.to_owned(), doing.clone());
        // Cancel safety: only opens a client.
        run_blocking(&doing, move || {
            site.opened(format!("host {name}"), || {
                let pve = connect(&name, &site.session).map_err(|error| error.at_port(&at))?;
                Ok(Arc::new(pve.listening(site.hub.clone())))
            })
        })
        .await
    }

    async fn inside(
        &self,
        host: &str,
        node: &str,
        address: IpAddr,
    ) -> Result<Arc<dyn Provider>, PortError> {
        let doing = format!("open the hypervisor in `{node}`");
        let session = &self.0.session;
        if !session.catalog.nodes.contains_key(node) {
            return Err(PortError::refused(
                &doing,
                format!("the site has no `nodes/{node}.yaml`, so its token is unknown"),
                format!(
                    "write `nodes/{node}.yaml` with `api_endpoint: https://{address}:8006`, run \
                     homestak host trust {node}, put its token under `api_tokens.{node}`, then \
                     homestak manifest resume"
                ),
            ));
        }
        let key = format!("inside {host} {node} {address}");
        let (site, node, at) = (self.0.clone(), node.to_owned(), doing.clone());
        // Cancel safety: only opens a client.
        run_blocking(&doing, move || {
            site.opened(key, || {
                let pve = connect_at(&node, Some(address), &site.session);
                let pve = pve.map_err(|error| error.at_port(&at))?;
                Ok(Arc::new(pve.listening(site.hub.clone())))
            })
        })
        .await
    }

    fn endpoint(&self, name: &str) -> String {
        let node = self.0.session.catalog.nodes.get(name);
        let node = node.and_then(|document| document.value.as_ref());
        let url = node.and_then(|node| node.api_endpoint.as_ref());
        url.map_or_else(
            || name.to_owned(),
            |url| url.as_str().trim_end_matches('/').to_owned(),
        )
    }

    async fn ssh_answers(&self, address: IpAddr, ports: &[u16]) -> Result<bool, PortError> {
        Ok(self.0.has_ssh_server(address, ports).await)
    }

    async fn check(&self, name: &str, plan: Option<&Plan>) -> Result<Vec<Finding>, DriverError> {
        let wanted = wanted(name, plan, &self.0.session)?;
        let facts = self.client(name).await?.facts(&wanted).await;
        Ok(check(&facts, &wanted))
    }

    async fn show(&self, name: &str, offline: bool) -> Result<HostDetail, DriverError> {
        let node = document(name, &self.0.session)?;
        let report = match offline {
            true => None,
            false => {
                let pve = self.client(name).await?;
                let asked = async { Ok((pve.capabilities().await?, pve.observe().await?)) };
                let failed = |error| DriverError::of_host(name, &error);
                let (capabilities, observed) = asked.await.map_err(failed)?;
                Some(wire::host::pve_report(&capabilities, &observed))
            }
        };
        Ok(HostDetail::Pve(PveHost {
            name: name.to_owned(),
            node: node
                .node
                .as_ref()
                .map_or(name, |node| node.as_str())
                .to_owned(),
            api_endpoint: node.api_endpoint.as_ref().map(ToString::to_string),
            datastore: node.datastore.as_ref().map(ToString::to_string),
            ip: node.ip.as_ref().map(ToString::to_string),
            fingerprint: node.fingerprint.as_ref().map(ToString::to_string),
            report,
        }))
    }
}

/// Returns the document of a Proxmox VE host.
pub fn document<'s>(name: &str, session: &'s Session) -> Result<&'s PveNode, DriverError> {
    let document = session.catalog.nodes.get(name).ok_or_else(|| {
        if session.catalog.has_host(name) {
            return DriverError::failed(format!("The host `{name}` has no `nodes/{name}.yaml`."))
                .hint("hosts with an API are the files in `nodes/` of the site");
        }
        DriverError::unknown("host", name, session.catalog.host_names())
            .hint("hosts with an API are the files in `nodes/` of the site")
    })?;
    if let Some(kind) = session.catalog.kind_of(name)
        && kind.name != KIND.name
    {
        let (kind, own) = (kind.name, KIND.name);
        return Err(DriverError::refused(format!(
            "The host `{name}` is of the kind `{kind}`, and not of the kind `{own}`."
        )));
    }
    document
        .value
        .as_ref()
        .filter(|_| document.diagnostics.errors() == 0)
        .ok_or_else(|| {
            DriverError::failed(format!("`nodes/{name}.yaml` has errors."))
                .hint("homestak site validate shows them")
        })
}

/// Returns host and port of the API endpoint.
pub fn host_and_port(node: &PveNode) -> Option<(String, u16)> {
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

/// Connects to a host. Reads the certificate of its authority: never call it on the runtime.
pub fn connect(name: &str, session: &Session) -> Result<Pve, DriverError> {
    connect_at(name, None, session)
}

/// As [`connect`], to a host whose address was observed. An endpoint with another IP address is replaced
/// by it; one with a name is kept.
pub fn connect_at(
    name: &str,
    found: Option<IpAddr>,
    session: &Session,
) -> Result<Pve, DriverError> {
    let node = document(name, session)?;
    let url = node
        .api_endpoint
        .as_ref()
        .map(|url| url.as_str().trim_end_matches('/').to_owned());
    let url = url.ok_or_else(|| {
        DriverError::failed(format!("`nodes/{name}.yaml` has no `api_endpoint`."))
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
    let settings = PveSettings::new(endpoint, Credential::Token(token(name, node, session)?));
    client(settings, session).map_err(|error| DriverError::of_host(name, &error))
}

/// Makes a client with the clock and time limits of the site.
pub(super) fn client(mut settings: PveSettings, session: &Session) -> Result<Pve, PortError> {
    settings.limits = PveLimits::from(&session.timeouts());
    Pve::new(session.time.scale(settings), session.time.clock())
}

fn is_another_address(host: &str, found: IpAddr) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.parse().is_ok_and(|host: IpAddr| host != found)
}

/// Returns the trust anchor: the recorded fingerprint, the configured CA, or public CAs.
fn trust(name: &str, node: &PveNode, session: &Session) -> Result<Trust, DriverError> {
    if let Some(text) = &node.fingerprint {
        let fingerprint = Fingerprint::parse(text).ok_or_else(|| {
            DriverError::failed(format!(
                "The fingerprint in `nodes/{name}.yaml` is malformed."
            ))
            .hint(format!("homestak host trust {name}"))
        })?;
        return Ok(Trust::Pinned(fingerprint));
    }
    let Some(file) = &node.ca else {
        return Ok(Trust::WebPki);
    };
    let base = match &session.search.source {
        SiteSource::Directory(site) => site.as_path(),
        SiteSource::Stock => Path::new("."),
    };
    let path = base.join(file.as_str());
    let pem =
        fs_err::read_to_string(&path).map_err(|error| DriverError::file("read", &path, &error))?;
    Ok(Trust::Authority(pem))
}

fn token(name: &str, node: &PveNode, session: &Session) -> Result<ApiToken, DriverError> {
    let id = node.api_token.as_ref().map_or(name, |id| id.as_str());
    let secrets = session
        .catalog
        .secrets
        .as_ref()
        .and_then(|secrets| secrets.value.as_ref());
    let tokens = secrets.and_then(|secrets| secrets.api_tokens.as_ref());
    let token = tokens.and_then(|tokens| tokens.get(id)).ok_or_else(|| {
        DriverError::failed(format!("There is no API token `{id}` in the secrets.")).hint(format!(
            "homestak host role {name} prints how to make one; put it under `api_tokens.{id}`"
        ))
    })?;
    ApiToken::parse(token.expose()).map_err(|error| {
        DriverError::failed(format!("The API token `{id}` cannot be used: {error}."))
            .hint("copy it again as `pveum user token add` printed it")
    })
}
