//! Hosts of a site, by kind: each kind is one module here and one line in `KINDS`; settings may
//! add others.
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
use homestak_core::doc::timeouts::Limit;
use homestak_core::host_kind::HostKindInfo;
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

pub use homestak_core::host_kind::HostTraits;

/// Every kind of host that the program has, and the only place that lists them.
pub const KINDS: &[&Kind] = &[&pve::KIND, &local::KIND, &sim::KIND, &ssh::KIND];

/// How long one try to connect may take. A guest that has just got its address answers the next.
const ONE_TRY: Duration = Duration::from_secs(3);

/// A kind of host.
pub struct Kind {
    /// Its word in documents.
    pub word: &'static str,
    /// What its hosts are called in lists.
    pub label: &'static str,
    /// What its hosts are like.
    pub traits: HostTraits,
    /// Makes what opens hosts of this kind.
    pub open: fn(&Arc<Site>) -> Arc<dyn HostKind>,
    /// Returns the directory that exists once its host has anything, for a kind with one host that
    /// needs no document and is called as the kind.
    pub kept: Option<fn(&DriverSettings) -> PathBuf>,
}

/// Returns kinds as documents and plans know them.
pub fn known(kinds: &[&Kind]) -> Vec<HostKindInfo> {
    let known = |kind: &&Kind| HostKindInfo {
        name: kind.word,
        label: kind.label,
        is_built_in: kind.kept.is_some(),
        traits: kind.traits,
    };
    kinds.iter().map(known).collect()
}

/// Returns hosts that need no document and have something.
pub fn kept(settings: &DriverSettings) -> impl Iterator<Item = &'static str> {
    let kept = |kind: &&&Kind| kind.kept.is_some_and(|of| of(settings).exists());
    settings.kinds.iter().filter(kept).map(|kind| kind.word)
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
    /// Returns the driver's settings.
    pub fn settings(&self) -> &DriverSettings {
        &self.settings
    }

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
        let kinds = settings.kinds.iter();
        let kinds = kinds.map(|kind| (kind.word, (kind.open)(&site)));
        Self {
            kinds: kinds.collect(),
            site,
        }
    }

    /// Returns what opens a host.
    pub fn of(&self, host: &str) -> &dyn HostKind {
        self.kinds[self.site.session.catalog.kind_of(host)].as_ref()
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
