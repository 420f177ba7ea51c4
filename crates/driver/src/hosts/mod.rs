//! Hosts of a site, by kind: each kind is one module here and one line in `KINDS`.
//!
//! In: names and addresses. Out: clients, one for each place, all heard by the hub.
//! Never: a place that is guessed; a kind told apart anywhere else.

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
use homestak_api::runtime::leavable;
use homestak_core::catalog::Catalog;
use homestak_core::doc::timeouts::Limit;
use homestak_core::plan::Plan;
use homestak_engine::events::Hub;
use homestak_engine::ports::{Places, PortError, Provider};
use homestak_providers::finding::Finding;
use homestak_providers::ssh::Keyring;
use serde_json::Value as Json;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::error::DriverError;
use crate::session::Session;
use crate::settings::DriverSettings;

/// Every kind of host, and the only place that lists them.
const KINDS: &[&Kind] = &[&pve::KIND, &local::KIND, &sim::KIND, &ssh::KIND];

/// How long one try to connect may take. A guest that has just got its address answers the next.
const ONE_TRY: Duration = Duration::from_secs(3);

/// A kind of host.
pub struct Kind {
    /// Its word in documents.
    pub word: &'static str,
    /// What differs between nodes on it and nodes elsewhere.
    pub traits: Traits,
    /// Makes what opens hosts of this kind.
    open: fn(&Arc<Site>) -> Arc<dyn HostKind>,
    /// Returns the directory that exists once a host that needs no document has anything.
    kept: Option<fn(&DriverSettings) -> PathBuf>,
}

/// What differs between nodes on hosts of a kind and nodes elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Whether there is nothing inside its nodes: no SSH, no spec.
    pub is_simulated: bool,
    /// Whether containers are told who they are on first boot, as machines are.
    pub seeds_containers: bool,
    /// Whether nodes of type `pve` on it are configured by their spec.
    pub configures_hypervisors: bool,
    /// Whether its nodes are entered from here without SSH.
    pub is_entered: bool,
}

/// Returns the kind of a host.
pub fn kind(catalog: &Catalog, host: &str) -> &'static Kind {
    let word = catalog.kind_of(host);
    let found = KINDS.iter().find(|kind| kind.word == word);
    found.copied().unwrap_or(&pve::KIND)
}

/// Returns hosts that need no document and have something.
pub fn kept(settings: &DriverSettings) -> impl Iterator<Item = &'static str> {
    let kept = |kind: &&&Kind| kind.kept.is_some_and(|of| of(settings).exists());
    KINDS.iter().filter(kept).map(|kind| kind.word)
}

/// Opens and checks hosts of one kind.
#[async_trait]
pub trait HostKind: Send + Sync {
    /// Opens a host of the site.
    async fn host(&self, name: &str) -> Result<Arc<dyn Provider>, PortError>;
    /// Opens the hypervisor that runs in a node on a host.
    async fn inside(
        &self,
        host: &str,
        node: &str,
        address: IpAddr,
    ) -> Result<Arc<dyn Provider>, PortError>;
    /// Returns where a host is looked at; see [`Places::door`].
    fn door(&self, name: &str) -> String {
        name.to_owned()
    }
    /// Looks once whether SSH answers at one of some ports of a guest.
    async fn answers(&self, address: IpAddr, ports: &[u16]) -> Result<bool, PortError>;
    /// Checks whether a host is ready, and for a plan.
    async fn check(&self, name: &str, plan: Option<&Plan>) -> Result<Vec<Finding>, DriverError>;
    /// Returns what the site says of a host, and what the host says, unless nobody asks it.
    async fn show(&self, name: &str, offline: bool) -> Result<Json, DriverError>;
}

/// What opening a host needs.
pub struct Site {
    session: Arc<Session>,
    hub: Arc<Hub>,
    settings: DriverSettings,
    keyring: Keyring,
    doors: Mutex<BTreeMap<String, Arc<dyn Provider>>>,
}

impl Site {
    /// Opens a door once; every later call has the same client, with what it knows.
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

    /// Looks once whether SSH greets at one of some ports.
    async fn greets(&self, address: IpAddr, ports: &[u16]) -> bool {
        let within = self.session.timeouts().of(Limit::Ssh);
        for port in ports {
            // Cancel safety: dropping the connection is all that happens.
            let greeted = greets(SocketAddr::new(address, *port), within);
            if matches!(leavable(Duration::ZERO, greeted).await, Ok(true)) {
                return true;
            }
        }
        false
    }
}

/// The hosts of a site.
pub struct Hosts {
    site: Arc<Site>,
    kinds: BTreeMap<&'static str, Arc<dyn HostKind>>,
}

impl Hosts {
    /// Finds hosts through a site's documents.
    pub fn new(
        session: Arc<Session>,
        hub: Arc<Hub>,
        settings: &DriverSettings,
        keyring: Keyring,
    ) -> Self {
        let site = Arc::new(Site {
            session,
            hub,
            settings: settings.clone(),
            keyring,
            doors: Mutex::default(),
        });
        let kinds = KINDS.iter().map(|kind| (kind.word, (kind.open)(&site)));
        Self {
            kinds: kinds.collect(),
            site,
        }
    }

    /// Returns what opens a host.
    pub fn of(&self, host: &str) -> &dyn HostKind {
        self.kinds[kind(&self.site.session.catalog, host).word].as_ref()
    }
}

#[async_trait]
impl Places for Hosts {
    async fn host(&self, name: &str) -> Result<Arc<dyn Provider>, PortError> {
        self.of(name).host(name).await
    }

    async fn inside(
        &self,
        host: &str,
        node: &str,
        address: IpAddr,
    ) -> Result<Arc<dyn Provider>, PortError> {
        self.of(host).inside(host, node, address).await
    }

    fn door(&self, name: &str) -> String {
        self.of(name).door(name)
    }

    async fn answers(&self, host: &str, address: IpAddr, ports: &[u16]) -> Result<bool, PortError> {
        self.of(host).answers(address, ports).await
    }
}

/// Tells whether SSH greets whoever comes to an address, within a time once it is connected.
async fn greets(address: SocketAddr, within: Duration) -> std::io::Result<bool> {
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

    #[tokio::test]
    async fn a_greeting_that_takes_longer_than_one_try_to_connect_is_waited_for() {
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
            assert!(greets(address, Duration::from_secs(60)).await.unwrap());
            assert!(greets(address, Duration::from_millis(100)).await.is_err());
        };
        tokio::select! { () = server => {}, () = client => {} }
    }
}
