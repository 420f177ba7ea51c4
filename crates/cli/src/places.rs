//! Where places are found: hosts of the site, the simulator, and hypervisors inside guests.
//!
//! In: names and addresses. Out: clients, one for each place, all heard by the hub.
//! Never: a connection without verification; a place that is guessed.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use homestak_api::runtime::leavable;
use homestak_api::trust::{Fingerprint, Trust};
use homestak_core::doc::timeouts::Limit;
use homestak_core::plan::USER;
use homestak_engine::events::Hub;
use homestak_engine::ports::{Class, Places, PortError, Provider, Sent};
use homestak_providers::local::Remote;
use homestak_providers::pve::{ApiToken, Credential, Endpoint, Limits, Pve, PveSettings};
use homestak_providers::ssh::{Keyring, Ssh};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::clock;
use crate::connect::{connect, connect_at};
use crate::error::CommandError;
use crate::inside::OverSsh;
use crate::local_host::{LOCAL, LocalPlace};
use crate::session::Session;
use crate::sim_host;

/// The host that is simulated.
pub(crate) const SIM: &str = "sim";
/// How long one try to connect may take. A guest that has just got its address answers the next.
const ONE_TRY: Duration = Duration::from_secs(3);

/// The places of a site.
pub(crate) struct SitePlaces {
    session: Arc<Session>,
    hub: Arc<Hub>,
    /// Where the simulator is kept, and how fast its time goes.
    sim: (PathBuf, f64),
    local: LocalPlace,
    keyring: Keyring,
    doors: Mutex<BTreeMap<String, Arc<dyn Provider>>>,
    /// The simulator, and where it was.
    simulator: Mutex<Option<(String, Arc<Pve>)>>,
}

impl SitePlaces {
    /// Finds places through a site's documents.
    pub(crate) fn new(
        session: Arc<Session>,
        hub: Arc<Hub>,
        sim: (PathBuf, f64),
        (local, keyring): (LocalPlace, Keyring),
    ) -> Self {
        Self {
            session,
            hub,
            sim,
            local,
            keyring,
            doors: Mutex::default(),
            simulator: Mutex::default(),
        }
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

    async fn simulator(&self) -> Result<Arc<Pve>, PortError> {
        let (directory, speed) = self.sim.clone();
        // Cancel safety: a server that was started goes on and is found by the next who asks.
        let ensured =
            tokio::task::spawn_blocking(move || sim_host::ensure(&directory, speed)).await;
        let endpoint = ensured
            .map_err(|error| PortError::bug("start the simulator", &error))?
            .map_err(|error| as_port("open the simulator", &error))?;
        let mut open = self
            .simulator
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match &*open {
            Some((url, pve)) if *url == endpoint.url => Ok(pve.clone()),
            _ => {
                let pve = self.simulated(&endpoint.url, &endpoint.fingerprint, &endpoint.token)?;
                let pve = Arc::new(pve.listening(self.hub.clone()));
                *open = Some((endpoint.url, pve.clone()));
                Ok(pve)
            }
        }
    }

    /// Returns the simulator, when it was opened before.
    fn open_simulator(&self) -> Option<Arc<Pve>> {
        let open = self.simulator.lock();
        let open = open.unwrap_or_else(PoisonError::into_inner);
        open.as_ref().map(|(_, pve)| pve.clone())
    }

    fn simulated(&self, url: &str, fingerprint: &str, token: &str) -> Result<Pve, PortError> {
        let doing = "open the simulator";
        let fingerprint = Fingerprint::parse(fingerprint)
            .ok_or_else(|| PortError::bug(doing, &"its fingerprint is malformed"))?;
        let token = ApiToken::parse(token).map_err(|error| PortError::bug(doing, &error))?;
        let endpoint = Endpoint {
            url: url.to_owned(),
            trust: Trust::Pinned(fingerprint),
        };
        let mut settings = PveSettings::new(endpoint, Credential::Token(token));
        settings.limits = Limits::from(&self.session.timeouts());
        Pve::new(clock::patient(settings), clock::shared())
    }

    fn heard(&self, pve: Pve) -> Arc<dyn Provider> {
        Arc::new(pve.listening(self.hub.clone()))
    }

    /// Opens the host inside a node of this machine, however deep.
    fn inside_here(&self, node: &str, address: IpAddr) -> Result<Arc<dyn Provider>, PortError> {
        let outermost = self.this_machine()?;
        let doing = format!("open the host inside `{node}`");
        let Some(uuid) = self.local.open()?.holder(address) else {
            return Err(PortError {
                class: Class::Unreachable { sent: Sent::No },
                ..PortError::refused(&doing, format!("nobody has {address}"), "")
            });
        };
        self.opened(format!("inside local {uuid}"), || {
            let defaults = self.session.catalog.defaults();
            let user = defaults.and_then(|defaults| defaults.vm_user.as_ref());
            let user = user.map_or(USER, |user| user.as_str());
            let ssh = Ssh::to(&self.keyring, address, user, uuid.as_str())
                .connecting(self.session.timeouts().of(Limit::Ssh));
            let carrier = Box::new(OverSsh::new(node, ssh));
            Ok(Arc::new(Remote::new(carrier, outermost)))
        })
    }

    /// Opens this machine.
    fn this_machine(&self) -> Result<Arc<dyn Provider>, PortError> {
        self.opened("local".to_owned(), || {
            Ok(Arc::new(self.local.open()?.listening(self.hub.clone())))
        })
    }
}

#[async_trait]
impl Places for SitePlaces {
    async fn host(&self, name: &str) -> Result<Arc<dyn Provider>, PortError> {
        if name == SIM {
            return Ok(self.simulator().await?);
        }
        if name == LOCAL {
            return self.this_machine();
        }
        self.opened(format!("host {name}"), || {
            let doing = format!("open host `{name}`");
            let pve = connect(name, &self.session).map_err(|error| as_port(&doing, &error))?;
            Ok(self.heard(pve))
        })
    }

    async fn inside(
        &self,
        host: &str,
        node: &str,
        address: IpAddr,
    ) -> Result<Arc<dyn Provider>, PortError> {
        let doing = format!("open the hypervisor in `{node}`");
        if host == SIM {
            let endpoint = homestak_sim::kept::Endpoint::read(&self.sim.0)
                .map_err(|error| PortError::bug(&doing, &error))?;
            let text = address.to_string();
            let inside = endpoint.iter().flat_map(|endpoint| &endpoint.inside);
            let mut inside = inside
                .filter(|inside| inside.name == node && inside.address.as_deref() == Some(&text));
            let Some(inside) = inside.next() else {
                return Err(PortError {
                    class: Class::Unreachable { sent: Sent::No },
                    ..PortError::refused(&doing, format!("nothing answers at {address} yet"), "")
                });
            };
            return self.opened(format!("sim {}", inside.url), || {
                let pve = self.simulated(&inside.url, &inside.fingerprint, &inside.token)?;
                Ok(self.heard(pve))
            });
        }
        if host == LOCAL {
            return self.inside_here(node, address);
        }
        if !self.session.catalog.nodes.contains_key(node) {
            return Err(PortError::refused(
                &doing,
                format!("the site has no `nodes/{node}.yaml`, so nobody knows its token"),
                format!(
                    "write `nodes/{node}.yaml` with `api_endpoint: https://{address}:8006`, run \
                     homestak host trust {node}, put its token under `api_tokens.{node}`, then \
                     homestak manifest resume"
                ),
            ));
        }
        self.opened(format!("inside {host} {node} {address}"), || {
            let pve = connect_at(node, Some(address), &self.session);
            Ok(self.heard(pve.map_err(|error| as_port(&doing, &error))?))
        })
    }

    fn door(&self, name: &str) -> String {
        let node = self.session.catalog.nodes.get(name);
        let node = node.and_then(|document| document.value.as_ref());
        let url = node.and_then(|node| node.api_endpoint.as_ref());
        url.map_or_else(
            || name.to_owned(),
            |url| url.as_str().trim_end_matches('/').to_owned(),
        )
    }

    async fn answers(&self, host: &str, address: IpAddr, ports: &[u16]) -> Result<bool, PortError> {
        if host == SIM {
            let pve = match self.open_simulator() {
                Some(pve) => pve,
                None => self.simulator().await?,
            };
            return pve.simulated_ssh(address).await;
        }
        for port in ports {
            let within = self.session.timeouts().of(Limit::Ssh);
            // Cancel safety: dropping the connection is all that happens.
            let greeted = greets(SocketAddr::new(address, *port), within);
            if matches!(leavable(Duration::ZERO, greeted).await, Ok(true)) {
                return Ok(true);
            }
        }
        Ok(false)
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

/// What a document lacks is refused: trying again changes nothing.
fn as_port(doing: &str, error: &CommandError) -> PortError {
    let detail = error.message.trim_end_matches('.').to_owned();
    PortError::refused(doing, detail, error.hints.join("; "))
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
