//! The host `sim`: a simulated Proxmox VE in a process of its own, started when needed. A directory
//! has one server, even when several commands start at once.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use homestak_api::probe;
use homestak_api::runtime::pause;
use homestak_api::trust::{Fingerprint, Trust};
use homestak_api::v1::{HostDetail, SimEndpoint, SimHost, SimReport};
use homestak_core::plan::Plan;
use homestak_engine::context::run_blocking;
use homestak_engine::ports::{PortError, Provider};
use homestak_providers::finding::{Finding, FindingSeverity};
use homestak_providers::pve::{self, ApiToken, Credential, Pve, PveSettings};
use homestak_sim::persistent::{self, Lock};

use super::pve::client;
use super::{HostContext, HostDriver, HostKind, HostTraits};
use crate::error::DriverError;
use crate::process;
use crate::settings::DriverSettings;

/// The name of the host, and of its kind.
pub const SIM: &str = "sim";

/// The host that is simulated.
pub(super) const KIND: HostKind = HostKind {
    name: SIM,
    label: "built in",
    default_of: None,
    traits: HostTraits {
        is_simulated: true,
        ..HostTraits::PROXMOX_VE
    },
    open: |site| {
        Arc::new(Simulator {
            site: site.clone(),
            open: Mutex::default(),
        })
    },
    data_directory: Some(directory),
};

struct Simulator {
    site: Arc<HostContext>,
    /// The client, and the URL it is connected to.
    open: Mutex<Option<(String, Arc<Pve>)>>,
}

impl Simulator {
    async fn client(&self) -> Result<Arc<Pve>, PortError> {
        let settings = self.site.settings.clone();
        // Cancel safety: a started server keeps running and is found by the next command.
        let endpoint = run_blocking("start the simulator", move || {
            ensure(&directory(&settings), &settings)
                .map_err(|error| error.at_port("open the simulator"))
        })
        .await?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        match &*open {
            Some((url, pve)) if *url == endpoint.url => Ok(pve.clone()),
            _ => {
                let pve = self.at(&endpoint.url, &endpoint.fingerprint, &endpoint.token)?;
                let pve = Arc::new(pve);
                *open = Some((endpoint.url, pve.clone()));
                Ok(pve)
            }
        }
    }

    /// Returns the client, if connected.
    fn opened(&self) -> Option<Arc<Pve>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.as_ref().map(|(_, pve)| pve.clone())
    }

    fn at(&self, url: &str, fingerprint: &str, token: &str) -> Result<Pve, PortError> {
        let doing = "open the simulator";
        let fingerprint = Fingerprint::parse(fingerprint)
            .ok_or_else(|| PortError::bug(doing, &"its fingerprint is malformed"))?;
        let token = ApiToken::parse(token).map_err(|error| PortError::bug(doing, &error))?;
        let endpoint = pve::Endpoint {
            url: url.to_owned(),
            trust: Trust::Pinned(fingerprint),
        };
        let settings = PveSettings::new(endpoint, Credential::Token(token));
        let pve = client(settings, &self.site.session)?;
        Ok(pve.listening(self.site.hub.clone()))
    }
}

#[async_trait]
impl HostDriver for Simulator {
    async fn host(&self, _: &str) -> Result<Arc<dyn Provider>, PortError> {
        Ok(self.client().await?)
    }

    async fn inside(
        &self,
        _: &str,
        node: &str,
        address: IpAddr,
    ) -> Result<Arc<dyn Provider>, PortError> {
        let doing = format!("open the hypervisor in `{node}`");
        let directory = directory(&self.site.settings);
        // Cancel safety: only reads.
        let read = run_blocking(&doing, move || {
            let endpoint = persistent::endpoint(&directory);
            endpoint.map_err(|error| PortError::bug("open the simulator", &error))
        });
        let endpoint = read.await?;
        let text = address.to_string();
        let inside = endpoint.iter().flat_map(|endpoint| &endpoint.inside);
        let mut inside =
            inside.filter(|inside| inside.name == node && inside.address.as_deref() == Some(&text));
        let Some(inside) = inside.next() else {
            return Err(PortError::unreachable(
                &doing,
                format!("nothing answers at {address} yet"),
                "",
            ));
        };
        self.site.opened(format!("sim {}", inside.url), || {
            let pve = self.at(&inside.url, &inside.fingerprint, &inside.token)?;
            Ok(Arc::new(pve))
        })
    }

    async fn ssh_answers(&self, address: IpAddr, _: &[u16]) -> Result<bool, PortError> {
        let pve = match self.opened() {
            Some(pve) => pve,
            None => self.client().await?,
        };
        pve.simulated_ssh(address).await
    }

    async fn check(&self, _: &str, _: Option<&Plan>) -> Result<Vec<Finding>, DriverError> {
        Ok(vec![Finding {
            severity: FindingSeverity::Good,
            check: SIM,
            detail: "the simulator provides everything that manifests need".to_owned(),
            fix: String::new(),
        }])
    }

    async fn show(&self, name: &str, offline: bool) -> Result<HostDetail, DriverError> {
        let directory = directory(&self.site.settings);
        let shown = directory.display().to_string();
        let report = match offline {
            true => None,
            false => {
                let endpoint = crate::blocking::run_blocking(move || answering(&directory)).await?;
                Some(SimReport {
                    running: endpoint.is_some(),
                    api_endpoint: endpoint.map(|endpoint| endpoint.url),
                })
            }
        };
        Ok(HostDetail::Sim(SimHost {
            name: name.to_owned(),
            host_kind: "simulator".to_owned(),
            directory: shown,
            report,
        }))
    }
}

/// How often the state of a server is polled: for thirty seconds in total.
const LOOKS: u32 = 1_200;
const BETWEEN: Duration = Duration::from_millis(25);
/// How long a server started by a command stays without requests, in seconds.
const IDLE: u32 = 120;

/// Returns the default directory of the simulator.
pub fn directory(settings: &DriverSettings) -> PathBuf {
    settings.state.join("sim")
}

/// Returns the endpoint of the server for a directory, and starts one if there is none, with the
/// configured speed. A running server keeps its speed.
pub fn ensure(directory: &Path, settings: &DriverSettings) -> Result<SimEndpoint, DriverError> {
    let failed = |error: std::io::Error| DriverError::file("use", directory, &error);
    persistent::create(directory).map_err(failed)?;
    // Of two commands at once, the second finds the server of the first.
    let _turn = Lock::take(&directory.join("ensure.lock"), LOOKS * BETWEEN * 2).map_err(failed)?;
    if let Some(endpoint) = answering(directory)? {
        return Ok(endpoint);
    }
    let log = directory.join("serve.log");
    let mut arguments: Vec<OsString> = ["sim", "serve", "--state"].map(OsString::from).into();
    arguments.push(absolute(directory)?.into());
    let speed = settings.sim_speed.to_string();
    let numbers = ["--idle", &IDLE.to_string(), "--speed", &speed].map(OsString::from);
    arguments.extend(numbers);
    let mut server = process::start_again(&settings.program, &arguments, &log)
        .map_err(|error| DriverError::failed(format!("Cannot start the simulator: {error}.")))?;
    for _ in 0..LOOKS {
        if let Some(endpoint) = answering(directory)? {
            return Ok(endpoint);
        }
        let ended = server.child.try_wait().ok().flatten();
        if let Some(status) = ended
            && !persistent::is_served(directory).map_err(failed)?
        {
            let failure = server.failure();
            let why = failure.map_or_else(|| format!("{status}."), |failure| failure.message);
            return Err(did_not_start(&why, &log));
        }
        pause(BETWEEN).map_err(failed)?;
    }
    Err(DriverError::failed(format!(
        "The simulator of `{}` does not answer.",
        directory.display()
    ))
    .hint(format!("see its log: {}", log.display())))
}

/// Returns the endpoint of the running server, if it answers.
pub fn answering(directory: &Path) -> Result<Option<SimEndpoint>, DriverError> {
    let endpoint = persistent::endpoint(directory)
        .map_err(|error| DriverError::file("read", &directory.join("endpoint.json"), &error))?;
    Ok(endpoint.filter(|endpoint| {
        // Another program may use the port by now; only the server has the certificate.
        let port = endpoint.url.rsplit_once(':').map(|(_, port)| port.parse());
        let Some(Ok(port)) = port else {
            return false;
        };
        probe::fingerprint("127.0.0.1", port)
            .is_ok_and(|found| found.to_string() == endpoint.fingerprint)
    }))
}

/// Stops the server of a directory and waits for its end. Returns whether there was one.
pub fn stop(directory: &Path) -> Result<bool, DriverError> {
    let failed = |error: std::io::Error| DriverError::file("use", directory, &error);
    if !persistent::is_served(directory).map_err(failed)? {
        return Ok(false);
    }
    for _ in 0..LOOKS {
        // Repeated: a server that was just starting ignores earlier requests.
        persistent::request_stop(directory).map_err(failed)?;
        pause(BETWEEN).map_err(failed)?;
        if !persistent::is_served(directory).map_err(failed)? {
            return Ok(true);
        }
    }
    let pid = persistent::endpoint(directory).ok().flatten();
    let error = DriverError::failed(format!(
        "The simulator of `{}` does not end.",
        directory.display()
    ));
    Err(match pid {
        Some(endpoint) => error.hint(format!("kill -9 {}", endpoint.pid)),
        None => error,
    })
}

fn absolute(directory: &Path) -> Result<PathBuf, DriverError> {
    std::path::absolute(directory).map_err(|error| DriverError::file("find", directory, &error))
}

fn did_not_start(why: &str, log: &Path) -> DriverError {
    DriverError::failed(format!("The simulator did not start: {why}"))
        .hint(format!("see its log: {}", log.display()))
        .hint("homestak sim reset starts over")
}
