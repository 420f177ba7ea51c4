//! Hosts of a site. Each kind of host is a module here and an entry in `KINDS`; settings may add
//! others. Kinds are distinguished nowhere else.

mod inside;
pub mod local;
pub mod pve;
pub mod sim;
mod ssh;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use homestak_api::runtime::interruptible;
use homestak_api::v1::HostDetail;
use homestak_core::doc::DocumentKind;
use homestak_core::doc::timeouts::Limit;
use homestak_core::host_kind::HostKindInfo;
use homestak_core::plan::Plan;
use homestak_engine::events::EventHub;
use homestak_engine::ports::{HostConnector, PortError, Provider};
use homestak_providers::finding::Finding;
use homestak_providers::ssh::Keyring;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::error::DriverError;
use crate::session::Session;
use crate::settings::DriverSettings;

pub use homestak_core::host_kind::HostTraits;

/// Every kind of host of this program.
pub const KINDS: &[&HostKind] = &[&pve::KIND, &local::KIND, &sim::KIND, &ssh::KIND];

/// How long an attempt to connect may take.
const ONE_TRY: Duration = Duration::from_secs(3);

/// A kind of host.
pub struct HostKind {
    /// Its name in documents.
    pub name: &'static str,
    /// Its label in lists.
    pub label: &'static str,
    /// The documents that are of this kind unless they name another; `None` for no documents.
    pub default_of: Option<DocumentKind>,
    /// Properties of its hosts.
    pub traits: HostTraits,
    /// Creates the driver of this kind.
    pub open: fn(&Arc<HostContext>) -> Arc<dyn HostDriver>,
    /// For a kind with one built-in host, named after the kind: the directory that exists once the
    /// host has data.
    pub data_directory: Option<fn(&DriverSettings) -> PathBuf>,
}

/// Returns the kinds as documents and plans need them.
pub fn kind_infos(kinds: &[&HostKind]) -> Vec<HostKindInfo> {
    let info = |kind: &&HostKind| HostKindInfo {
        name: kind.name,
        label: kind.label,
        is_built_in: kind.data_directory.is_some(),
        default_of: kind.default_of,
        traits: kind.traits,
    };
    kinds.iter().map(info).collect()
}

/// Returns the built-in host of the first kind with some trait.
pub fn built_in_host(
    settings: &DriverSettings,
    is_meant: impl Fn(&HostTraits) -> bool,
) -> Option<&'static str> {
    let mut kinds = settings.kinds.iter();
    let kind = kinds.find(|kind| kind.data_directory.is_some() && is_meant(&kind.traits));
    kind.map(|kind| kind.name)
}

/// Returns built-in hosts that have data.
pub fn hosts_with_data(settings: &DriverSettings) -> impl Iterator<Item = &'static str> {
    let has_data = |kind: &&&HostKind| kind.data_directory.is_some_and(|of| of(settings).exists());
    settings.kinds.iter().filter(has_data).map(|kind| kind.name)
}

/// Connects to hosts of one kind, and checks them.
#[async_trait]
pub trait HostDriver: Send + Sync {
    /// Connects to a host of the site.
    async fn host(&self, name: &str) -> Result<Arc<dyn Provider>, PortError>;
    /// Connects to the hypervisor inside a node on a host.
    async fn inside(
        &self,
        host: &str,
        node: &str,
        address: IpAddr,
    ) -> Result<Arc<dyn Provider>, PortError>;
    /// Returns the endpoint of a host; see [`HostConnector::endpoint`].
    fn endpoint(&self, name: &str) -> String {
        name.to_owned()
    }
    /// Returns whether SSH answers at one of some ports of a guest, without waiting.
    async fn ssh_answers(&self, address: IpAddr, ports: &[u16]) -> Result<bool, PortError>;
    /// Checks whether a host is ready, optionally for a plan.
    async fn check(&self, name: &str, plan: Option<&Plan>) -> Result<Vec<Finding>, DriverError>;
    /// Returns the configuration of a host and, unless `offline`, its state.
    async fn show(&self, name: &str, offline: bool) -> Result<HostDetail, DriverError>;
}

/// What the drivers of hosts share.
pub struct HostContext {
    session: Arc<Session>,
    hub: Arc<EventHub>,
    settings: DriverSettings,
    keyring: Keyring,
    doors: Mutex<BTreeMap<String, Arc<dyn Provider>>>,
}

impl HostContext {
    /// Returns the driver's settings.
    pub fn settings(&self) -> &DriverSettings {
        &self.settings
    }

    /// Connects once per key; later calls return the same client.
    fn opened(
        &self,
        key: String,
        open: impl FnOnce() -> Result<Arc<dyn Provider>, PortError>,
    ) -> Result<Arc<dyn Provider>, PortError> {
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(door) = doors.get(&key) {
            return Ok(door.clone());
        }
        let door = open()?;
        doors.insert(key, door.clone());
        Ok(door)
    }

    /// Returns whether an SSH server answers at one of some ports.
    async fn has_ssh_server(&self, address: IpAddr, ports: &[u16]) -> bool {
        let within = self.session.timeouts().of(Limit::Ssh);
        for port in ports {
            // Cancel safety: only closes a connection.
            let answers = has_ssh_server(SocketAddr::new(address, *port), within);
            if matches!(interruptible(Duration::ZERO, answers).await, Ok(true)) {
                return true;
            }
        }
        false
    }
}

/// The hosts of a site.
pub struct Hosts {
    site: Arc<HostContext>,
    kinds: BTreeMap<&'static str, Arc<dyn HostDriver>>,
}

impl Hosts {
    /// Connects to the hosts of a site.
    pub fn new(
        session: Arc<Session>,
        hub: Arc<EventHub>,
        settings: &DriverSettings,
        keyring: Keyring,
    ) -> Self {
        let site = Arc::new(HostContext {
            session,
            hub,
            settings: settings.clone(),
            keyring,
            doors: Mutex::default(),
        });
        let kinds = settings.kinds.iter();
        let kinds = kinds.map(|kind| (kind.name, (kind.open)(&site)));
        Self {
            kinds: kinds.collect(),
            site,
        }
    }

    /// Returns the driver of a host.
    pub fn of(&self, host: &str) -> Result<&dyn HostDriver, DriverError> {
        let kind = self.site.session.catalog.kind_of(host);
        let driver = kind.and_then(|kind| self.kinds.get(kind.name));
        driver.map(AsRef::as_ref).ok_or_else(|| {
            DriverError::failed(format!("No kind is registered for the host `{host}`."))
        })
    }

    fn connect(&self, host: &str) -> Result<&dyn HostDriver, PortError> {
        let driver = self.of(host);
        driver.map_err(|error| error.at_port(&format!("connect to `{host}`")))
    }
}

#[async_trait]
impl HostConnector for Hosts {
    async fn host(&self, name: &str) -> Result<Arc<dyn Provider>, PortError> {
        self.connect(name)?.host(name).await
    }

    async fn inside(
        &self,
        host: &str,
        node: &str,
        address: IpAddr,
    ) -> Result<Arc<dyn Provider>, PortError> {
        self.connect(host)?.inside(host, node, address).await
    }

    fn endpoint(&self, name: &str) -> String {
        let driver = self.of(name);
        driver.map_or_else(|_| name.to_owned(), |driver| driver.endpoint(name))
    }

    async fn ssh_answers(
        &self,
        host: &str,
        address: IpAddr,
        ports: &[u16],
    ) -> Result<bool, PortError> {
        self.connect(host)?.ssh_answers(address, ports).await
    }
}

/// Returns whether an SSH server answers at an address, within a time after connecting.
async fn has_ssh_server(address: SocketAddr, within: Duration) -> std::io::Result<bool> {
    // Cancel safety: as the caller's.
    let connected = timeout(ONE_TRY.min(within), TcpStream::connect(address));
    let mut stream = connected.await??;
    let mut greeting = [0; 4];
    timeout(within, stream.read_exact(&mut greeting)).await??;
    Ok(&greeting == b"SSH-")
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn each_document_has_one_kind_unless_it_names_another() {
        for document in [DocumentKind::Node, DocumentKind::Host] {
            let default = |kind: &&&HostKind| kind.default_of == Some(document);
            assert_eq!(KINDS.iter().filter(default).count(), 1, "{document:?}");
        }
        let with_documents = KINDS.iter().filter(|kind| kind.default_of.is_some());
        let mut built_in = with_documents.filter(|kind| kind.data_directory.is_some());
        assert!(built_in.next().is_none(), "a built-in host has no document");
    }

    #[tokio::test]
    async fn a_greeting_may_take_longer_than_connecting() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::time::sleep(ONE_TRY + Duration::from_millis(200)).await;
            stream.write_all(b"SSH-2.0-slow\r\n").await.unwrap();
            let (_silent, _) = listener.accept().await.unwrap();
            std::future::pending::<()>().await;
        };
        let client = async {
            assert!(
                has_ssh_server(address, Duration::from_secs(60))
                    .await
                    .unwrap()
            );
            assert!(
                has_ssh_server(address, Duration::from_millis(100))
                    .await
                    .is_err()
            );
        };
        tokio::select! { () = server => {}, () = client => {} }
    }
}
