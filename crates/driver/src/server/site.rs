//! The server of a site: the driver publishes for it, finds it and connects to it.

use std::collections::BTreeSet;
use std::time::Duration;

use homestak_api::certificate::Credential;
use homestak_api::durable;
use homestak_api::publication::PublishDirectory;
use homestak_core::catalog::Catalog;
use homestak_core::doc::timeouts::Limit;
use homestak_core::error::chain;
use homestak_core::resolve::tofu::signing_key;
use homestak_core::resolve::trigger::webhook_secrets;
use homestak_providers::push::AgentBinary;
use homestak_site::SiteSource;
use jiff::Timestamp;
use zeroize::Zeroizing;

use crate::repos::{RepoOptions, RepoPlaces, RepoRecord, RepoReport};

use super::process::{ServerState, state};
use super::{PublishTarget, ServerClient, ServerEndpoint, ServerFiles};
use crate::blocking::run_blocking;
use crate::error::DriverError;
use crate::publish::{PublishError, Publisher, SiteSecrets, SiteSettings};
use crate::session::Session;
use crate::settings::DriverSettings;
use crate::site_keys::{SiteKeyError, SiteKeys};

/// How long to wait for an answer of an address that a server is to use.
pub(super) const CONNECT_TIME: Duration = Duration::from_secs(2);
/// Hint for a port that the server of another site may use.
pub const OTHER_SITE: &str = "the server of another site may use the port: `homestak server stop` with \
     that site and state directory stops it; if its state directory was lost, end its process";
/// Hint for a port that cannot be used.
pub const OTHER_PORT: &str = "use --port for another port: other commands then need \
     HOMESTAK_SERVER=https://ADDRESS:PORT, and nodes on this machine (`-H local`) reach the ports 53, \
     80, 443 and 44443 only";

/// What follows from keys that are lost, and what to do.
const LOST_KEYS: &str = "nodes refuse servers, specs and agents with new keys until they enrol again: \
    restore a backup of the keys, or follow docs/guides/server.md, section \"When the server is lost\"";

/// The server of a site.
pub struct SiteServer {
    /// Signs and publishes.
    pub publisher: Publisher,
    /// Where its files are.
    pub files: ServerFiles,
    /// Where it is.
    pub endpoint: ServerEndpoint,
    /// What a permanent server reads; `None` when it reads the state directory of this driver.
    pub target: Option<PublishTarget>,
    /// Where repositories are searched.
    places: RepoPlaces,
}

impl SiteServer {
    /// Opens the keys of a site; generates them if there are none. A site without an id gets one.
    /// Blocks on disk I/O.
    pub fn open(
        session: &Session,
        settings: &DriverSettings,
        endpoint: ServerEndpoint,
    ) -> Result<Self, DriverError> {
        session.keep_id()?;
        let now = settings.time.now();
        let keys = SiteKeys::open(&settings.state, session.id()?, now);
        let server = Self::with_keys(keys, session, settings, endpoint)?;
        if server.has_lost_keys() {
            session.notices.notice(&format!(
                "warning: keys of this site were missing in {} although it is published; new ones were \
                 generated\n  {LOST_KEYS}",
                server.publisher.keys.directory().display()
            ));
        }
        let published = &server.publisher;
        if published.settings.secrets.is_none() {
            let kept = match published.directory.exists() {
                true => "stay as they were published",
                false => "are not published",
            };
            session.notices.notice(&format!(
                "warning: the secrets of this site cannot be read: the key of `token mint`, tokens of \
                 postures and secrets of webhooks {kept}\n  `homestak site validate` shows why"
            ));
        }
        Ok(server)
    }

    /// Opens the server of a site without changing anything. What it publishes with keys that are
    /// missing would be refused.
    pub fn inspect(
        session: &Session,
        settings: &DriverSettings,
        endpoint: ServerEndpoint,
    ) -> Result<Self, DriverError> {
        let keys = SiteKeys::inspect(&settings.state, session.id()?, settings.time.now());
        Self::with_keys(keys, session, settings, endpoint)
    }

    /// Returns whether the site is published with keys that were missing when this was opened.
    fn has_lost_keys(&self) -> bool {
        !self.publisher.keys.missing.is_empty() && self.publisher.directory.exists()
    }

    /// Returns why nodes would refuse what this driver signs: keys that are missing, or other than
    /// those that were published.
    pub fn key_problem(&self) -> Option<String> {
        let keys = &self.publisher.keys;
        let directory = keys.directory().display();
        if self.has_lost_keys() {
            let missing = keys.missing.join(" and ");
            return Some(format!("{directory}: {missing} missing; {LOST_KEYS}"));
        }
        let published = self.publisher.directory.exists();
        let published = published.then(|| self.publisher.directory.read().ok())??;
        let is_known = published.site.keys.contains(&keys.site_key.public());
        (!is_known).then(|| {
            format!("{directory}: the site is published with another site key; {LOST_KEYS}")
        })
    }

    fn with_keys(
        keys: Result<SiteKeys, SiteKeyError>,
        session: &Session,
        settings: &DriverSettings,
        endpoint: ServerEndpoint,
    ) -> Result<Self, DriverError> {
        let site = session.id()?.clone();
        let keys =
            keys.map_err(|error| DriverError::failed(format!("Cannot {}.", chain(&error))))?;
        let files = ServerFiles::new(settings, &site, endpoint.port().unwrap_or(super::PORT));
        let catalog = &session.catalog;
        let record = RepoRecord::read(files.directory())?;
        // An unreadable token is an error of what publishes it, and not of `server stop`.
        let digest = record.and_then(|record| record.token_digest(files.directory()).ok());
        let publisher = Publisher {
            site,
            keys,
            directory: PublishDirectory::new(&files.published),
            settings: SiteSettings {
                specs: catalog.specs.keys().cloned().collect::<BTreeSet<_>>(),
                trusted_networks: super::contact::trusted_networks(catalog),
                server_names: ServerEndpoint::name(session, settings)
                    .into_iter()
                    .collect(),
                repo_token_sha256: digest,
                secrets: secrets(catalog),
            },
        };
        Ok(Self {
            publisher,
            files,
            endpoint,
            target: PublishTarget::of_site(session, settings),
            places: places(session, settings),
        })
    }

    /// Records that repositories are served from now on, or that they are not.
    pub fn serve_repos(&mut self, options: Option<&RepoOptions>) -> Result<(), DriverError> {
        let directory = self.files.directory();
        self.publisher.settings.repo_token_sha256 = match options {
            None => RepoRecord::disable(directory).map(|()| None)?,
            Some(options) => {
                let record = RepoRecord::enable(directory, options)?;
                Some(record.token_digest(directory)?)
            }
        };
        Ok(())
    }

    /// Prepares the copies of the repositories that are served with these options, before they are
    /// recorded; without options, of those that are served already. If none can be prepared, what was
    /// served stays. Blocks on disk I/O.
    pub fn prepare_repos(
        &self,
        options: Option<&RepoOptions>,
        settings: &DriverSettings,
    ) -> Result<Option<RepoReport>, DriverError> {
        let directory = self.files.directory();
        let record = match options {
            Some(options) => Some(RepoRecord::of_options(directory, options)?),
            None => RepoRecord::read(directory)?,
        };
        let Some(record) = record else {
            return self.refresh_repos(settings);
        };
        let time = (settings.time.now(), settings.timeouts.of(Limit::Lock));
        let places = (&self.places, &record);
        crate::repos::prepare(&self.publisher.directory, directory, places, time).map(Some)
    }

    /// Brings the published copies of repositories up to date; `None` when none are served. It waits
    /// for the disk.
    pub fn refresh_repos(
        &self,
        settings: &DriverSettings,
    ) -> Result<Option<RepoReport>, DriverError> {
        let patience = settings.timeouts.of(Limit::Lock);
        crate::repos::refresh(
            &self.publisher.directory,
            self.files.directory(),
            &self.places,
            (settings.time.now(), patience),
        )
    }

    /// Writes the certificate of the site's authority for clients such as curl and git, and returns its file.
    pub fn write_authority(&self) -> Result<std::path::PathBuf, DriverError> {
        let path = self.files.directory().join("authority.pem");
        let chain = &self.publisher.keys.authority.issued().chain;
        if fs_err::read_to_string(&path).ok().as_ref() != Some(chain) {
            durable::write(&path, chain.as_bytes(), durable::Access::PUBLIC)
                .map_err(|error| DriverError::file("write", &path, &error))?;
        }
        Ok(path)
    }

    /// Returns why repositories could not be served, a line each; nothing is changed.
    pub fn repo_problems(&self) -> Vec<String> {
        let record = match RepoRecord::read(self.files.directory()) {
            Ok(None) => return Vec::new(),
            Ok(Some(record)) => record,
            Err(error) => return vec![error.message],
        };
        let token = record.token_digest(self.files.directory()).err();
        let token = token.map(|error| error.message);
        token
            .into_iter()
            .chain(crate::repos::problems(&record, &self.places))
            .collect()
    }

    /// Publishes what the server must know of the site.
    pub fn publish_site(&self, now: Timestamp) -> Result<(), DriverError> {
        if let Some(record) = RepoRecord::read(self.files.directory())? {
            record.token_digest(self.files.directory())?;
        }
        let published = self.publisher.publish_site(now);
        published.map_err(|error| failed(&error))?;
        self.write_authority().map(drop)
    }

    /// Publishes the agent's program for machines like this one, unless it is published.
    pub fn publish_agent(&self, settings: &DriverSettings) -> Result<(), DriverError> {
        let architecture = std::env::consts::ARCH;
        let cache = settings.state.join("agent.json");
        let read = AgentBinary::read(&settings.agent, &cache);
        let agent = read.map_err(|error| {
            let error = error.to_port_error("publish the agent's program");
            DriverError::failed(format!("Cannot {error}.")).hint(error.hint)
        })?;
        let keys = self.publisher.keys.public_keys();
        let known = self.publisher.directory.agent(architecture, &keys);
        if known.is_some_and(|known| known.sha256 == agent.digest()) {
            return Ok(());
        }
        let program = fs_err::read(&settings.agent)
            .map_err(|error| DriverError::file("read", &settings.agent, &error))?;
        let version = env!("CARGO_PKG_VERSION");
        let published = self
            .publisher
            .publish_agent(architecture, version, &program);
        published.map_err(|error| failed(&error))
    }

    /// Copies what is published to a permanent server, if there is one. Blocks on disk I/O and on
    /// the other machine.
    pub fn copy_to_server(&self, settings: &DriverSettings) -> Result<(), DriverError> {
        match &self.target {
            None => Ok(()),
            Some(target) => target.copy(&self.publisher.directory, &self.files.copying, settings),
        }
    }

    /// Returns the URL of the server, for this driver.
    pub fn url(&self) -> String {
        self.endpoint.url()
    }

    /// Returns a client of the server.
    pub fn client(&self) -> Result<ServerClient, DriverError> {
        self.client_as(&self.publisher.keys.operator)
    }

    fn client_as(&self, operator: &Credential) -> Result<ServerClient, DriverError> {
        ServerClient::new(&self.url(), &self.publisher.fingerprints(), operator)
            .map_err(|error| DriverError::failed(format!("Cannot {}.", chain(&error))))
    }

    /// Refuses a port of this machine that another program uses, or the server of another site. A
    /// server that is started waits for a while until its port is free, and would take it then.
    pub async fn require_port(&self) -> Result<(), DriverError> {
        let Some(address) = self.endpoint.socket() else {
            return Ok(());
        };
        // Cancel safety: nothing is sent.
        let connected = tokio::net::TcpStream::connect(address);
        let answered = tokio::time::timeout(CONNECT_TIME, connected).await;
        if !matches!(answered, Ok(Ok(_))) || self.is_healthy(&self.client()?).await? {
            return Ok(());
        }
        // A run may have started one meanwhile, which does not answer yet.
        let files = self.files.clone();
        // Cancel safety: only reads.
        if run_blocking(move || state(&files)).await? != ServerState::Stopped {
            return Ok(());
        }
        Err(DriverError::failed(format!(
            "The server did not start: {address} is used by another program, or by the server of \
             another site."
        ))
        .hint(OTHER_SITE)
        .hint(OTHER_PORT))
    }

    /// Returns whether the server answers and accepts this driver. A server that has only the
    /// previous certificate of this driver is reloaded first.
    pub async fn is_healthy(&self, client: &ServerClient) -> Result<bool, DriverError> {
        if client.is_healthy().await {
            return Ok(true);
        }
        let Some(previous) = &self.publisher.keys.previous_operator else {
            return Ok(false);
        };
        // Cancel safety: reloading twice changes nothing.
        let reloaded = self.client_as(previous)?.reload().await;
        Ok(reloaded.is_ok() && client.is_healthy().await)
    }
}

/// Returns what servers need of the secrets of a site; `None` if it has some that cannot be read.
fn secrets(catalog: &Catalog) -> Option<SiteSecrets> {
    let has_unopened = catalog
        .secrets
        .as_ref()
        .is_some_and(|secrets| secrets.value.is_none());
    let key = signing_key(catalog);
    (!has_unopened).then(|| SiteSecrets {
        signing_key: key.map(|key| Zeroizing::new(key.value.expose().to_owned())),
        webhooks: webhook_secrets(catalog),
    })
}

/// Returns where the repositories of a site are searched.
fn places(session: &Session, settings: &DriverSettings) -> RepoPlaces {
    let configured = session.catalog.site.as_ref();
    let configured = configured.and_then(|site| Some(&site.value.as_ref()?.repos.as_ref()?.value));
    let configured = configured.into_iter().flatten();
    RepoPlaces {
        configured: configured
            .map(|(name, path)| (name.clone(), path.value.as_str().into()))
            .collect(),
        root: settings.candidates.root.clone(),
        site: match &session.search.source {
            SiteSource::Directory(path) => Some(path.clone()),
            SiteSource::Stock => None,
        },
    }
}

/// Makes the error for something that could not be published.
pub(crate) fn failed(error: &PublishError) -> DriverError {
    DriverError::failed(format!("Cannot {}.", chain(error))).hint_if_full(error)
}
