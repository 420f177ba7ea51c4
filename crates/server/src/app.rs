//! The state that all requests share: what was published, the registry, and failed attempts.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use homestak_api::certificate::certificates;
use homestak_api::publication::PublishDirectory;
use homestak_api::runtime::SharedClock;
use homestak_api::trust::{Fingerprint, TlsCredential};
use homestak_store::registry::{NodeEntry, Registry, TokenEntry};
use jiff::Timestamp;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::account::Accounts;
use crate::caller::{Caller, Nodes};
use crate::connections::ConnectionClass;
use crate::error::ServerError;
use crate::job::Jobs;
use crate::line_limit::LineLimit;
use crate::listen::Peer;
use crate::published::{ServedSpec, ServedState};
use crate::rate::Rates;
use crate::settings::{Limits, ServerSettings, SettingsError};
use crate::throttle::Throttle;
use crate::tls::ServerCertificates;
use crate::tokens::Tokens;
use crate::watch::NodeWatches;

/// How long reports and jobs of a guest are kept after it was destroyed, in seconds.
const HISTORY: i64 = 30 * 24 * 3600;

/// Reads the settings, at start and on reload.
pub(crate) type LoadSettings = Box<dyn Fn() -> Result<ServerSettings, SettingsError> + Send + Sync>;

/// The settings, and the certificates that they decide.
#[derive(Clone)]
struct Settings {
    values: Arc<ServerSettings>,
    certificates: Arc<ServerCertificates>,
    /// The fingerprint of the operator's own certificate.
    own: Option<Fingerprint>,
}

/// Everything a request needs.
pub(crate) struct App {
    pub(crate) clock: SharedClock,
    pub(crate) registry: Arc<Registry>,
    pub(crate) nodes: Nodes,
    pub(crate) accounts: Accounts,
    pub(crate) jobs: Jobs,
    pub(crate) tokens: Tokens,
    pub(crate) throttle: Throttle,
    pub(crate) rates: Rates,
    /// Of refused requests and failed connections.
    pub(crate) refusals: LineLimit,
    /// Of proofs of first contact that are valid.
    pub(crate) proofs: LineLimit,
    /// Of connections of operators.
    pub(crate) operators: LineLimit,
    /// Of certificates that were issued again.
    pub(crate) certificates: LineLimit,
    /// Those who wait for reports.
    pub(crate) reports: NodeWatches,
    /// Changes with every reload.
    pub(crate) reloads: watch::Sender<()>,
    /// Held by a reload.
    reloading: Mutex<()>,
    /// Ends waits for jobs and reports: the server stops.
    pub(crate) stopping: CancellationToken,
    settings: RwLock<Settings>,
    load: LoadSettings,
    hostname: String,
    directory: PublishDirectory,
    served: RwLock<Arc<ServedState>>,
}

impl App {
    /// Opens the registry and reads what was published.
    pub(crate) fn open(
        (values, load): (ServerSettings, LoadSettings),
        hostname: String,
        directory: PublishDirectory,
        registry: Registry,
        clock: SharedClock,
    ) -> Result<Self, ServerError> {
        let registry = Arc::new(registry);
        let settings = Settings::new(values, &hostname)?;
        let app = Self {
            nodes: Nodes::open(registry.clone())?,
            accounts: Accounts::open(&registry)?,
            jobs: Jobs::new(registry.clone()),
            tokens: Tokens::open(registry.clone())?,
            served: RwLock::new(Arc::new(ServedState::read(&directory, None)?)),
            throttle: Throttle::default(),
            rates: Rates::default(),
            refusals: LineLimit::new("failures"),
            proofs: LineLimit::new("proofs of first contact"),
            operators: LineLimit::new("connections of operators"),
            certificates: LineLimit::new("certificates that were issued again"),
            reports: NodeWatches::default(),
            reloads: watch::Sender::new(()),
            reloading: Mutex::default(),
            stopping: CancellationToken::new(),
            settings: RwLock::new(settings),
            load,
            hostname,
            clock,
            registry,
            directory,
        };
        app.record_published()?;
        Ok(app)
    }

    /// Logs how many lines were left out in a minute that is over.
    pub(crate) fn end_minute(&self) {
        for limit in [
            &self.refusals,
            &self.proofs,
            &self.operators,
            &self.certificates,
        ] {
            limit.end_minute(self.now());
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn settings(&self) -> Settings {
        self.settings
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn limits(&self) -> Limits {
        self.settings().values.limits
    }

    /// Returns how many reports are kept of each node.
    pub(crate) fn reports_per_node(&self) -> u32 {
        self.settings().values.reports_per_node
    }

    /// Returns how many jobs are kept of each node.
    pub(crate) fn jobs_per_node(&self) -> u32 {
        self.settings().values.jobs_per_node
    }

    /// Returns the shortest time between checks of a repository.
    pub(crate) fn shortest_poll(&self) -> Duration {
        Duration::from_secs(self.settings().values.shortest_poll.into())
    }

    /// Returns what is served now.
    pub(crate) fn served(&self) -> Arc<ServedState> {
        self.served
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Reads settings and published files again, and returns what changed. If anything cannot be
    /// read, everything stays as it was. One at a time: what was read earlier must not replace what
    /// was read later, and revoke a node that was created again meanwhile.
    pub(crate) fn reload(&self) -> Result<Vec<String>, ServerError> {
        let _turn = self
            .reloading
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let settings = Settings::new((self.load)()?, &self.hostname)?;
        let new = Arc::new(ServedState::read(&self.directory, Some(&self.served()))?);
        let mut changes = {
            let mut current = self
                .settings
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            let mut changes = settings.values.changes_since(&current.values);
            // The certificate may have been replaced in its file.
            match settings.own {
                _ if settings.own == current.own => {}
                Some(own) => changes.push(format!("certificate: now {own}")),
                None => changes.push("certificate: now issued by the site".to_owned()),
            }
            *current = settings;
            changes
        };
        let old = {
            let mut served = self.served.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *served, new.clone())
        };
        changes.extend(new.changes_since(&old));
        let recorded = self.record_published();
        self.reloads.send_replace(());
        changes.extend(recorded?);
        Ok(changes)
    }

    /// Records published nodes, revocations, withdrawals and tokens. A guest that was replaced by a new
    /// one loses its certificate. Returns which nodes are concerned, a line each.
    fn record_published(&self) -> Result<Vec<String>, ServerError> {
        let mut changes = Vec::new();
        let served = self.served();
        let places = served.specs().map(|spec| {
            let of = &spec.statement;
            ((&*of.manifest, &*of.host, &*of.node), of.uuid.as_str())
        });
        let current: HashMap<_, &str> = places.collect();
        for entry in self.nodes.all() {
            let place = (&*entry.manifest, &*entry.host, &*entry.name);
            let is_replaced = current.get(&place).is_some_and(|uuid| *uuid != entry.uuid);
            if is_replaced && entry.revoked.is_none() {
                tracing::info!(
                    node = entry.name,
                    uuid = entry.uuid,
                    "replaced by a new guest"
                );
                let at = self.now().as_second();
                self.revoke(&entry.uuid, (at, "replaced".to_owned()))?;
                changes.push(format!("`{}` replaced by a new guest", entry.name));
            }
        }
        for (guest, why) in &served.withdrawn {
            let uuid = guest.as_str();
            // Those of a node that has not enrolled too.
            self.tokens.revoke_of(uuid, self.now().as_second())?;
            if self.revoke(uuid, (why.at, why.reason.clone()))?
                && let Some(entry) = self.nodes.by_uuid(uuid)
            {
                tracing::info!(
                    node = entry.name,
                    uuid,
                    reason = why.reason,
                    "spec withdrawn, certificate revoked"
                );
                changes.push(format!("`{}` revoked", entry.name));
            }
        }
        for spec in served.specs() {
            let (statement, spec) = (&spec.statement, &spec.published);
            let uuid = statement.uuid.as_str();
            if let Some(revoked) = &spec.revoked
                && self.revoke(uuid, (revoked.at, revoked.reason.clone()))?
            {
                changes.push(format!("`{}` revoked", statement.node));
            }
            if let Some(token) = &spec.token {
                if !self.tokens.has(&token.id) {
                    // Those of an earlier guest with the same UUID.
                    self.tokens.revoke_of(uuid, self.now().as_second())?;
                    if self.expect_enrolment(uuid)? {
                        changes.push(format!("`{}` may enrol again", statement.node));
                    }
                }
                self.tokens.add(TokenEntry {
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
        self.delete_old(&served)?;
        Ok(changes)
    }

    /// Deletes reports and jobs of guests that were destroyed long ago, and requests of webhooks that no
    /// longer exist.
    fn delete_old(&self, served: &ServedState) -> Result<(), ServerError> {
        let (nodes, now) = (self.nodes.all(), self.now().as_second());
        let is_gone = |entry: &&Arc<NodeEntry>| {
            let revoked = entry.revoked.as_ref();
            let is_old = revoked.is_some_and(|(at, _)| at.saturating_add(HISTORY) < now);
            // One whose spec is published may be accepted again.
            is_old && served.of_guest(&entry.uuid).is_none()
        };
        let gone = nodes.iter().filter(is_gone);
        let gone: Vec<&str> = gone.map(|entry| entry.uuid.as_str()).collect();
        self.registry.delete_history(&gone, now)?;
        let hooks = served.secrets.webhooks.keys();
        let hooks: Vec<&str> = hooks.map(String::as_str).collect();
        self.registry.delete_other_hooks(&hooks, now)?;
        Ok(())
    }

    /// Revokes a node. Returns whether it was accepted before.
    fn revoke(&self, uuid: &str, revoked: (i64, String)) -> Result<bool, ServerError> {
        let changed = self.nodes.change(uuid, |entry| {
            entry.revoked.is_none().then(|| NodeEntry {
                revoked: Some(revoked),
                ..entry.clone()
            })
        })?;
        if changed.is_some() {
            let at = self.now().as_second();
            self.tokens.revoke_of(uuid, at)?;
            self.jobs.cancel_of(uuid, at)?;
        }
        Ok(changed.is_some())
    }

    /// Ends the enrolment of a guest for which a new token was issued: it is another machine with the
    /// same UUID, since identities are derived from names, or it is to enrol again. Returns whether it
    /// had enrolled.
    fn expect_enrolment(&self, uuid: &str) -> Result<bool, ServerError> {
        let changed = self.nodes.change(uuid, |entry| {
            let is_known = entry.certificate.is_some() || entry.revoked.is_some();
            is_known.then(|| NodeEntry {
                certificate: None,
                public_key: None,
                replaced: None,
                replaced_until: None,
                renewed_late: false,
                enrolled: None,
                revoked: None,
                ..entry.clone()
            })
        })?;
        if let Some(entry) = &changed {
            tracing::info!(
                node = entry.name,
                uuid,
                "to enrol again: the certificate it had is no longer accepted"
            );
            self.accounts.forget(uuid);
            self.jobs.cancel_of(uuid, self.now().as_second())?;
        }
        Ok(changed.is_some())
    }

    /// Returns who is at the other end of a connection, now.
    pub(crate) fn caller(&self, peer: Peer) -> Caller {
        let Some(certificate) = peer.certificate else {
            return Caller::Anonymous;
        };
        let served = self.served();
        let operators = &served.site.operators;
        match operators.get(&certificate.to_string()) {
            Some(name) if self.is_valid(peer) => Caller::Operator(name.clone()),
            Some(_) => Caller::Refused("the certificate of the operator has expired"),
            None => self.nodes.identify(certificate, self.now()),
        }
    }

    /// Returns whether the certificate of a peer has not expired.
    fn is_valid(&self, peer: Peer) -> bool {
        let now = self.now().as_second();
        peer.not_after.is_some_and(|not_after| now < not_after)
    }

    /// Returns how useful the connections of a peer are.
    pub(crate) fn class(&self, peer: Peer) -> ConnectionClass {
        let Some(certificate) = peer.certificate else {
            return ConnectionClass::Unknown;
        };
        let served = self.served();
        let operators = &served.site.operators;
        match operators.contains_key(&certificate.to_string()) {
            true if self.is_valid(peer) => ConnectionClass::Operator,
            true => ConnectionClass::Unknown,
            false if self.nodes.has(certificate) => ConnectionClass::Node,
            false => ConnectionClass::Unknown,
        }
    }

    /// Returns the spec of a guest that has not enrolled yet.
    pub(crate) fn expected(&self, uuid: &str) -> Option<Arc<ServedSpec>> {
        match self.nodes.by_uuid(uuid) {
            Some(_) => None,
            None => self.served().of_guest(uuid),
        }
    }

    /// Returns whether an address is in a network that the site trusts.
    pub(crate) fn is_trusted(&self, address: IpAddr) -> bool {
        self.served().site.trusts(address)
    }

    /// Returns the TLS configuration for connections to an address of this machine.
    pub(crate) fn tls(&self, address: IpAddr) -> Result<Arc<ServerConfig>, ServerError> {
        let served = self.served();
        let issuer = &served.secrets.intermediate;
        let names = &served.site.server_names;
        let certificates = self.settings().certificates;
        certificates.config(address, names, issuer, self.now())
    }
}

impl Settings {
    fn new(values: ServerSettings, hostname: &str) -> Result<Self, ServerError> {
        let mut names = vec![hostname.to_owned()];
        names.extend(values.names.iter().cloned());
        let provided = provided(&values)?;
        let own = provided.as_ref().and_then(|(chain, _)| chain.first());
        Ok(Self {
            own: own.map(|own| Fingerprint::of(own)),
            certificates: Arc::new(ServerCertificates::new(provided, names).map_err(
                |error| match (error, &values.cert, &values.key) {
                    (
                        ServerError::Tls(rustls::Error::InconsistentKeys(_)),
                        Some(certificate),
                        Some(key),
                    ) => ServerError::KeyMismatch {
                        certificate: certificate.clone(),
                        key: key.clone(),
                    },
                    (error, _, _) => error,
                },
            )?),
            values: Arc::new(values),
        })
    }
}

/// Checks that a server can use the operator's own certificate: both files can be read, and the key is
/// that of the certificate.
pub fn check_certificate(settings: &ServerSettings) -> Result<(), ServerError> {
    Settings::new(settings.clone(), "localhost").map(drop)
}

/// Reads the operator's own certificate.
fn provided(settings: &ServerSettings) -> Result<Option<TlsCredential>, ServerError> {
    let (Some(certificate), Some(key)) = (&settings.cert, &settings.key) else {
        return Ok(None);
    };
    let pem =
        fs_err::read_to_string(certificate).map_err(ServerError::file("read", certificate))?;
    let private = fs_err::read(key).map_err(ServerError::file("read", key))?;
    let private = PrivateKeyDer::from_pem_slice(&private).map_err(|_| {
        let source =
            std::io::Error::new(std::io::ErrorKind::InvalidData, "not a private key in PEM");
        ServerError::file("read", key)(source)
    })?;
    let chain = certificates(&pem).map_err(|_| {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidData, "no certificate in PEM");
        ServerError::file("read", certificate)(source)
    })?;
    Ok(Some((chain, private)))
}
