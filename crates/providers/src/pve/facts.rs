//! Fetches the facts for preflight checks. A fact that could not be fetched carries its error.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use homestak_engine::ports::{ObservedHost, ObservedStorage};
use serde_json::Value;

pub use super::capacity::StorageState;
use super::client::{Pve, Version};
use super::error::{PveError, Reason};
use super::image::StorageContent;
use super::preflight::Requirements;
use super::provider::has_quorum;
use super::quirks::{parse_bool, text_of};
use super::requests::{ApiCall, CLUSTER_STATUS, NODE_NETWORK, NODE_STATUS, PERMISSIONS};

/// A fact, or why it is not known.
#[derive(Clone, Debug)]
pub enum Fetched<T> {
    /// It is known.
    Known(T),
    /// It could not be fetched.
    Failed(PveError),
    /// Not queried.
    NotAsked,
}

impl<T> Fetched<T> {
    /// Returns the fact, where it is known.
    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Known(fact) => Some(fact),
            Self::Failed(_) | Self::NotAsked => None,
        }
    }

    fn from(result: Result<T, PveError>) -> Self {
        match result {
            Ok(fact) => Self::Known(fact),
            Err(error) => Self::Failed(error),
        }
    }
}

/// Privileges by path, each with whether it holds below the path too.
pub type Privileges = BTreeMap<String, BTreeMap<String, bool>>;

/// The facts about a Proxmox VE host or cluster.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The user or token id, without secret.
    pub user: String,
    /// The version; its failure is the address's or the token's.
    pub version: Fetched<(u32, u32)>,
    /// What we may do.
    pub privileges: Fetched<Privileges>,
    /// Hosts.
    pub hosts: Fetched<Vec<ObservedHost>>,
    /// Storages.
    pub storages: Fetched<Vec<ObservedStorage>>,
    /// What the wanted storages report of themselves, by host and storage.
    pub storage_states: BTreeMap<(String, String), Fetched<StorageState>>,
    /// Whether the cluster has quorum.
    pub quorum: Fetched<bool>,
    /// Files by host, storage and kind of content.
    pub files: BTreeMap<(String, String, String), Fetched<BTreeSet<String>>>,
    /// CPU flags by host.
    pub cpu_flags: BTreeMap<String, Fetched<BTreeSet<String>>>,
    /// Bridges by host.
    pub bridges: BTreeMap<String, Fetched<BTreeSet<String>>>,
    /// Whether a port for SSH answers.
    pub ssh: BTreeMap<SocketAddr, bool>,
}

impl Pve {
    /// Fetches the facts that the checks need.
    pub async fn facts(&self, wanted: &Requirements) -> Facts {
        let version = self.version().await.map(|Version { number, .. }| *number);
        let reachable = version.is_ok();
        let mut facts = Facts {
            user: self.settings.credential.user().to_owned(),
            version: Fetched::from(version),
            privileges: Fetched::NotAsked,
            hosts: Fetched::NotAsked,
            storages: Fetched::NotAsked,
            storage_states: BTreeMap::new(),
            quorum: Fetched::NotAsked,
            files: BTreeMap::new(),
            cpu_flags: BTreeMap::new(),
            bridges: BTreeMap::new(),
            ssh: BTreeMap::new(),
        };
        for address in &wanted.ssh {
            facts.ssh.insert(*address, self.answers(*address).await);
        }
        // If even the version is not available, the rest would fail for the same reason.
        if !reachable {
            return facts;
        }
        let privileges = self.ask(&ApiCall::to(&PERMISSIONS)).await;
        facts.privileges = Fetched::from(privileges.map(|data| parse_privileges(&data)));
        match self.observe_all().await {
            Ok(observed) => {
                facts.hosts = Fetched::Known(observed.hosts);
                facts.storages = Fetched::Known(observed.storages);
            }
            Err(error) => {
                facts.hosts = Fetched::Failed(error.clone());
                facts.storages = Fetched::Failed(error);
            }
        }
        facts.quorum = match self.ask(&ApiCall::to(&CLUSTER_STATUS)).await {
            Ok(data) => Fetched::Known(has_quorum(&data)),
            Err(error) if error.reason == Reason::Permission => Fetched::NotAsked,
            Err(error) => Fetched::Failed(error),
        };
        self.fetch_hosts(wanted, &mut facts).await;
        facts
    }

    async fn fetch_hosts(&self, wanted: &Requirements, facts: &mut Facts) {
        for need in &wanted.storages {
            let key = (need.host.clone(), need.storage.clone());
            if facts.storage_states.contains_key(&key) {
                continue;
            }
            let state = self.storage_state(&need.host, &need.storage).await;
            facts.storage_states.insert(key, Fetched::from(state));
        }
        for image in &wanted.images {
            let key = (
                image.host.clone(),
                image.storage.clone(),
                image.content.clone(),
            );
            if facts.files.contains_key(&key) {
                continue;
            }
            let content = StorageContent {
                node: &image.host,
                storage: &image.storage,
                kind: &image.content,
            };
            let files = self.files(&content).await;
            let names = files.map(|files| files.into_iter().map(|file| file.name).collect());
            facts.files.insert(key, Fetched::from(names));
        }
        for host in &wanted.nested {
            let data = self.ask(&ApiCall::to(&NODE_STATUS).at("node", host)).await;
            let flags = data.map(|data| cpu_flags(&data));
            facts.cpu_flags.insert(host.clone(), Fetched::from(flags));
        }
        for host in wanted
            .bridges
            .iter()
            .map(|(host, _)| host)
            .collect::<BTreeSet<_>>()
        {
            let data = self.ask(&ApiCall::to(&NODE_NETWORK).at("node", host)).await;
            facts
                .bridges
                .insert(host.clone(), Fetched::from(data.map(|data| bridges(&data))));
        }
    }

    /// Returns whether something accepts connections.
    async fn answers(&self, address: SocketAddr) -> bool {
        // Cancel safety: a connection that is dropped half-way is closed.
        tokio::select! {
            connected = tokio::net::TcpStream::connect(address) => connected.is_ok(),
            () = self.clock.sleep(self.settings.limits.connect) => false,
        }
    }
}

/// Reads what we may do.
pub fn parse_privileges(data: &Value) -> Privileges {
    let Some(paths) = data.as_object() else {
        return Privileges::new();
    };
    paths
        .iter()
        .map(|(path, held)| {
            let held = held.as_object().map(|held| {
                held.iter()
                    .map(|(name, below)| (name.clone(), parse_bool(below).unwrap_or(false)))
                    .collect()
            });
            (path.clone(), held.unwrap_or_default())
        })
        .collect()
}

/// Reads the flags of a host's CPU.
pub fn cpu_flags(data: &Value) -> BTreeSet<String> {
    let info = data.get("cpuinfo").unwrap_or(&Value::Null);
    text_of(info, "flags")
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

/// Reads the bridges of a host.
pub fn bridges(data: &Value) -> BTreeSet<String> {
    let rows = data.as_array().map(Vec::as_slice).unwrap_or_default();
    rows.iter()
        .filter(|row| matches!(text_of(row, "type").as_str(), "bridge" | "OVSBridge"))
        .map(|row| text_of(row, "iface"))
        .collect()
}
