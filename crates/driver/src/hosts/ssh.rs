//! Hosts of kind `ssh`: machines without an API, on which no guests can be created.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use homestak_api::v1::{HostDetail, SshHost, SshReport};
use homestak_core::doc::DocumentKind;
use homestak_core::doc::host::Host;
use homestak_core::plan::Plan;
use homestak_engine::ports::{PortError, Provider};
use homestak_providers::finding::{Finding, FindingSeverity};

use super::pve::document;
use super::{HostContext, HostDriver, HostKind, HostTraits};
use crate::error::DriverError;

/// Timeout of a connection.
const PATIENCE: Duration = Duration::from_secs(3);

/// Hosts that are reached over SSH alone.
pub(super) const KIND: HostKind = HostKind {
    name: "ssh",
    label: "SSH only",
    default_of: Some(DocumentKind::Host),
    traits: HostTraits {
        creates_guests: false,
        ..HostTraits::PROXMOX_VE
    },
    open: |site| Arc::new(SshHosts(site.clone())),
    data_directory: None,
};

struct SshHosts(Arc<HostContext>);

impl SshHosts {
    /// Returns the SSH address of a host.
    fn address(&self, name: &str) -> Option<SocketAddr> {
        let host: &Host = self.0.session.catalog.hosts.get(name)?.value.as_ref()?;
        let access = host.access.as_ref();
        let port = access
            .and_then(|access| access.ssh_port.as_ref())
            .and_then(|port| u16::try_from(port.value.0).ok());
        Some(SocketAddr::new(host.ip.as_ref()?.value, port.unwrap_or(22)))
    }
}

#[async_trait]
impl HostDriver for SshHosts {
    async fn host(&self, name: &str) -> Result<Arc<dyn Provider>, PortError> {
        let doing = format!("open host `{name}`");
        match document(name, &self.0.session) {
            Err(error) => Err(error.at_port(&doing)),
            Ok(_) => Err(PortError::bug(&doing, &"it has an API")),
        }
    }

    async fn inside(&self, host: &str, _: &str, _: IpAddr) -> Result<Arc<dyn Provider>, PortError> {
        self.host(host).await
    }

    async fn ssh_answers(&self, address: IpAddr, ports: &[u16]) -> Result<bool, PortError> {
        Ok(self.0.has_ssh_server(address, ports).await)
    }

    /// No guests can be created on it, whether SSH answers or not.
    async fn check(&self, name: &str, _: Option<&Plan>) -> Result<Vec<Finding>, DriverError> {
        let of = |severity, check, detail, fix: &str| Finding {
            severity,
            check,
            detail,
            fix: fix.to_owned(),
        };
        let ssh = match self.address(name) {
            None => of(
                FindingSeverity::Unknown,
                "ssh",
                format!("`hosts/{name}.yaml` has no `ip`"),
                "write its address there",
            ),
            Some(address) if accepts(address).await => of(
                FindingSeverity::Good,
                "ssh",
                format!("{address} answers"),
                "",
            ),
            Some(address) => of(
                FindingSeverity::Failure,
                "ssh",
                format!("{address} does not answer"),
                "systemctl status ssh   # on the node: is it running, is the port open?",
            ),
        };
        let api = of(
            FindingSeverity::Failure,
            "api",
            format!("there is no `nodes/{name}.yaml`, so that guests cannot be created there"),
            "write that file with its `api_endpoint`; `homestak host role` prints the token's commands",
        );
        Ok(vec![ssh, api])
    }

    async fn show(&self, name: &str, offline: bool) -> Result<HostDetail, DriverError> {
        let address = self.address(name);
        let report = match address.filter(|_| !offline) {
            None => None,
            Some(address) => Some(SshReport {
                ssh: accepts(address).await,
            }),
        };
        Ok(HostDetail::Ssh(SshHost {
            name: name.to_owned(),
            host_kind: "SSH only".to_owned(),
            address: address.map(|address| address.to_string()),
            report,
        }))
    }
}

/// Returns whether the address accepts connections.
async fn accepts(address: SocketAddr) -> bool {
    // Cancel safety: a connection that is dropped half-way is closed.
    let connected = tokio::time::timeout(PATIENCE, tokio::net::TcpStream::connect(address)).await;
    matches!(connected, Ok(Ok(_)))
}
