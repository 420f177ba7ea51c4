//! The host `local`: this machine.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use homestak_api::limit::monotonic;
use homestak_api::runtime::interruptible;
use homestak_api::v1::{HostDetail, LocalHost};
use homestak_core::doc::timeouts::Limit;
use homestak_core::plan::{DEFAULT_USER, NodeLocation, Plan, Verb};
use homestak_core::units::Bytes;
use homestak_engine::context::run_blocking;
use homestak_engine::ports::Provider;
use homestak_providers::finding::Finding;
use homestak_providers::local::{self, FirstBoot, Instance, LocalSettings, PlanNeeds, RemoteHost};
use homestak_providers::ssh::Ssh;

use super::inside::SshCarrier;
use super::{HostContext, HostDriver, HostKind, HostTraits};
use crate::error::DriverError;
use crate::preflight::made;
use crate::settings::DriverSettings;
use crate::wire;

pub use homestak_engine::ports::PortError;
pub use homestak_providers::image::{ImageError, ImageInfo, ImageVerification, Images};
pub use homestak_providers::local::{Engine, Local, Node, RemoteCall, RemoteReply};

/// The name of the host, and of its kind.
pub const LOCAL: &str = "local";

/// How long SSH of a node is tried before its power state is checked again, and the
/// pause between two tries.
const TRYING: Duration = Duration::from_secs(2);
const BETWEEN: Duration = Duration::from_millis(50);

/// The host that is this machine.
pub(super) const KIND: HostKind = HostKind {
    name: LOCAL,
    label: "built in",
    default_of: None,
    traits: HostTraits {
        seeds_containers: true,
        // A hypervisor on this machine is a homestak host; Proxmox VE in its spec is ignored.
        configures_hypervisors: false,
        has_direct_shell: true,
        is_this_machine: true,
        has_storages: false,
        ..HostTraits::PROXMOX_VE
    },
    open: |site| Arc::new(ThisMachine(site.clone())),
    data_directory: Some(|settings| settings.local_root.join("nodes")),
};

struct ThisMachine(Arc<HostContext>);

impl ThisMachine {
    /// Checks this machine, whether requested addresses are free, and what a plan needs. Runs
    /// programs.
    async fn findings(
        &self,
        asked: Vec<(String, IpAddr)>,
        needs: PlanNeeds,
    ) -> Result<Vec<Finding>, DriverError> {
        let settings = self.0.settings.clone();
        let found = run_blocking("check this machine", move || {
            let instance = Instance::at(&settings.local_root)?;
            let mut findings = local::check(&instance);
            let asked: Vec<_> = asked
                .iter()
                .map(|(name, at)| (name.as_str(), *at))
                .collect();
            findings.extend(local::check_addresses(&instance, &asked));
            findings.extend(local::check_needs(&instance, &needs));
            Ok(findings)
        });
        found
            .await
            .map_err(|error| DriverError::of_host(LOCAL, &error))
    }
}

#[async_trait]
impl HostDriver for ThisMachine {
    async fn host(&self, name: &str) -> Result<Arc<dyn Provider>, PortError> {
        let (site, key) = (self.0.clone(), name.to_owned());
        // Cancel safety: only opens the host.
        run_blocking("open this machine", move || {
            site.opened(key, || {
                let mut settings = site.settings.clone();
                settings.timeouts = site.session.timeouts();
                let local = open(&settings)?;
                Ok(Arc::new(local.listening(site.hub.clone())))
            })
        })
        .await
    }

    /// Connects to the host inside a node, at any depth.
    async fn inside(
        &self,
        host: &str,
        node: &str,
        address: IpAddr,
    ) -> Result<Arc<dyn Provider>, PortError> {
        let outermost = self.host(host).await?;
        let doing = format!("open the host inside `{node}`");
        let settings = self.0.settings.clone();
        // Cancel safety: only reads.
        let found = run_blocking(&doing, move || Ok(open(&settings)?.holder(address)));
        let Some(uuid) = found.await? else {
            return Err(PortError::unreachable(
                &doing,
                format!("no node has {address}"),
                "",
            ));
        };
        let session = &self.0.session;
        self.0.opened(format!("inside local {uuid}"), || {
            let defaults = session.catalog.defaults();
            let user = defaults.and_then(|defaults| defaults.vm_user.as_ref());
            let user = user.map_or(DEFAULT_USER, |user| user.as_str());
            let ssh = Ssh::to(&self.0.keyring, address, user, uuid.as_str())
                .with_connect_timeout(session.timeouts().of(Limit::Ssh));
            let carrier = Box::new(SshCarrier::new(node, ssh));
            Ok(Arc::new(RemoteHost::new(carrier, outermost)))
        })
    }

    async fn ssh_answers(&self, address: IpAddr, ports: &[u16]) -> Result<bool, PortError> {
        // Nodes of this machine boot within seconds, and a try costs no other host anything.
        let begun = monotonic();
        loop {
            if self.0.has_ssh_server(address, ports).await {
                return Ok(true);
            }
            if monotonic().saturating_sub(begun) >= TRYING {
                return Ok(false);
            }
            interruptible(Duration::ZERO, tokio::time::sleep(BETWEEN)).await;
        }
    }

    async fn check(&self, name: &str, plan: Option<&Plan>) -> Result<Vec<Finding>, DriverError> {
        let here = NodeLocation::Host(name.to_owned());
        let made = made(plan, name);
        let images = plan.iter().flat_map(|plan| &plan.images);
        let images = images.filter(|image| image.location == here);
        let needs = PlanNeeds {
            images: images.map(|image| image.name.clone()).collect(),
            memory: made.iter().map(|guest| guest.memory).max(),
            disks: Bytes(made.iter().map(|guest| Bytes::from(guest.disk).0).sum()),
        };
        let nodes = plan.filter(|plan| plan.verb == Verb::Apply);
        let nodes = nodes.iter().flat_map(|plan| &plan.nodes);
        let nodes = nodes.filter(|node| node.location == here);
        let asked: Vec<_> = nodes
            .filter_map(|node| Some((node.name.clone(), node.wanted.as_ref()?.nic.address?.0)))
            .collect();
        self.findings(asked, needs).await
    }

    async fn show(&self, name: &str, offline: bool) -> Result<HostDetail, DriverError> {
        let report = match offline {
            true => None,
            false => {
                let found = self.findings(Vec::new(), PlanNeeds::default()).await?;
                Some(wire::host::local_report(&found))
            }
        };
        Ok(HostDetail::Local(LocalHost {
            name: name.to_owned(),
            host_kind: "this machine".to_owned(),
            root: self.0.settings.local_root.display().to_string(),
            report,
        }))
    }
}

/// Opens this machine as a host.
pub fn open(settings: &DriverSettings) -> Result<Local, PortError> {
    let local = LocalSettings {
        vm_engine: settings.vm_engine,
        first_boot: match settings.cloud_init {
            true => FirstBoot::CloudInit,
            false => FirstBoot::Direct,
        },
        mirror: settings.debian_mirror.clone(),
        // Hosts inside nodes run the same program.
        program: settings.program.clone(),
    };
    let instance = Instance::at(&settings.local_root)?;
    let patience = settings.timeouts.of(Limit::Lock);
    Ok(Local::open(instance.with_lock_timeout(patience), local))
}

fn instance(settings: &DriverSettings) -> Result<Arc<Instance>, DriverError> {
    let instance = Instance::at(&settings.local_root).map(Arc::new);
    instance.map_err(|error| DriverError::of_host(LOCAL, &error))
}

/// Checks what this machine has and lacks.
pub fn check(settings: &DriverSettings) -> Result<Vec<Finding>, DriverError> {
    Ok(local::check(&*instance(settings)?))
}

/// Returns the images of this machine.
pub fn images(settings: &DriverSettings) -> Images {
    Images::new(settings.local_root.join("images")).with_mirror(settings.debian_mirror.clone())
}

/// Creates the directory for nodes and images, and refuses one that is used for something else.
pub fn claim(settings: &DriverSettings) -> Result<(), DriverError> {
    let claimed = instance(settings)?.claim();
    claimed.map_err(|error| DriverError::of_host(LOCAL, &error))
}

/// Installs missing packages, and returns their names.
pub fn install() -> Result<Vec<&'static str>, DriverError> {
    if !rustix::process::geteuid().is_root() {
        return Err(
            DriverError::refused("Installing packages needs root.").hint("repeat it with sudo")
        );
    }
    local::setup().map_err(|error| {
        DriverError::failed(format!("Cannot install what is missing: {error}."))
            .hint("check that the package archive is reachable: apt-get update")
            .hint("-H sim simulates a host and needs nothing")
    })
}
