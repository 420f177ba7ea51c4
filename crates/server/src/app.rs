//! The state that all requests share: what was published, the registry, and failed attempts.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use homestak_api::publication::PublishDirectory;
use homestak_api::runtime::SharedClock;
use homestak_core::token::TokenKeys;
use homestak_store::registry::{Registry, TokenEntry};
use jiff::Timestamp;
use rustls::ServerConfig;
use tokio::sync::watch;

use crate::caller::{Caller, Nodes};
use crate::error::ServerError;
use crate::listen::Peer;
use crate::published::Served;
use crate::settings::{Limits, ServerSettings};
use crate::throttle::Throttle;
use crate::tls::ServerCertificates;

/// Everything a request needs.
pub(crate) struct App {
    pub(crate) settings: ServerSettings,
    pub(crate) clock: SharedClock,
    pub(crate) registry: Arc<Registry>,
    pub(crate) nodes: Nodes,
    pub(crate) throttle: Throttle,
    /// The number of the last report that arrived.
    pub(crate) reports: watch::Sender<i64>,
    certificates: ServerCertificates,
    directory: PublishDirectory,
    served: RwLock<Arc<Served>>,
}

impl App {
    /// Opens the registry and reads what was published.
    pub(crate) fn open(
        settings: ServerSettings,
        directory: PublishDirectory,
        registry: Registry,
        certificates: ServerCertificates,
        clock: SharedClock,
    ) -> Result<Self, ServerError> {
        let registry = Arc::new(registry);
        let app = Self {
            nodes: Nodes::open(registry.clone())?,
            served: RwLock::new(Arc::new(Served::read(&directory)?)),
            throttle: Throttle::default(),
            reports: watch::Sender::new(0),
            certificates,
            settings,
            clock,
            registry,
            directory,
        };
        app.record_published()?;
        Ok(app)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn limits(&self) -> Limits {
        self.settings.limits
    }

    /// Returns what is served now.
    pub(crate) fn served(&self) -> Arc<Served> {
        self.served
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Reads again what was published, and returns what changed. What cannot be read changes nothing.
    pub(crate) fn reload(&self) -> Result<Vec<String>, ServerError> {
        let new = Arc::new(Served::read(&self.directory)?);
        let old = {
            let mut served = self.served.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *served, new.clone())
        };
        self.certificates.renew();
        self.record_published()?;
        Ok(new.changes_since(&old))
    }

    /// Records nodes and tokens that were published. A guest that another one took the place of
    /// loses its certificate.
    fn record_published(&self) -> Result<(), ServerError> {
        let served = self.served();
        let specs = || served.published.specs.values();
        let current: HashMap<_, &str> = specs()
            .map(|(spec, _)| {
                (
                    (&*spec.manifest, &*spec.host, &*spec.node),
                    spec.uuid.as_str(),
                )
            })
            .collect();
        for entry in self.nodes.all() {
            let place = (&*entry.manifest, &*entry.host, &*entry.name);
            let is_replaced = current.get(&place).is_some_and(|uuid| *uuid != entry.uuid);
            if is_replaced && entry.revoked.is_none() {
                tracing::info!(
                    node = entry.name,
                    uuid = entry.uuid,
                    "replaced by a new guest"
                );
                let mut replaced = (*entry).clone();
                replaced.revoked = Some((self.now().as_second(), "replaced".to_owned()));
                self.nodes.put(replaced)?;
            }
        }
        for (statement, spec) in specs() {
            let uuid = statement.uuid.as_str();
            if let Some(token) = &spec.token {
                self.registry.add_token(&TokenEntry {
                    id: token.id.clone(),
                    uuid: uuid.to_owned(),
                    node: statement.node.clone(),
                    issued: token.issued,
                    expires: Some(token.expires),
                    used: None,
                    revoked: None,
                })?;
            }
        }
        Ok(())
    }

    /// Returns who is at the other end of a connection, now.
    pub(crate) fn caller(&self, peer: Peer) -> Caller {
        let Some(certificate) = peer.certificate else {
            return Caller::Anonymous;
        };
        let served = self.served();
        let operators = &served.published.site.operators;
        match operators.get(&certificate.to_string()) {
            Some(name) => Caller::Operator(name.clone()),
            None => self.nodes.identify(certificate, self.now()),
        }
    }

    /// Returns the keys that tokens are verified with.
    pub(crate) fn token_keys(&self) -> Arc<TokenKeys> {
        self.served().token_keys.clone()
    }

    /// Tells whether an address is in a network that the site trusts.
    pub(crate) fn is_trusted(&self, address: IpAddr) -> bool {
        self.served().published.site.trusts(address)
    }

    /// Returns the TLS configuration for connections to an address of this machine.
    pub(crate) fn tls(&self, address: IpAddr) -> Result<Arc<ServerConfig>, ServerError> {
        let served = self.served();
        let issuer = &served.published.secrets.intermediate;
        self.certificates.config(address, issuer, self.now())
    }
}
