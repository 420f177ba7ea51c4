//! The server that a run uses: one that serves the site already, or one that is started for it.
//!
//! Flow: a run holds a shared lock on a file. The server that a run starts tries to take the
//! exclusive lock of that file, and ends once it has it.
//! Guarantees: it is shared by runs at the same time, ends after the last of them, and is never left
//! behind, since the kernel releases the locks of a run that was killed.
//! When it goes wrong: a run that finds the server ending waits until it has ended, and starts
//! another; a server that died is started again by the run that notices it.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use homestak_api::lock;
use homestak_core::doc::timeouts::Limit;
use homestak_core::error::chain;
use jiff::Timestamp;
use tokio::sync::Mutex;

use super::process::{ServerState, send_reload, start, state};
use super::site::CONNECT_TIME;
use super::{ServerClient, ServerEndpoint, ServerFiles, SiteServer};
use crate::blocking::run_blocking;
use crate::error::DriverError;
use crate::session::Session;
use crate::settings::DriverSettings;

/// The interval of health checks after a reload of a server.
const RELOAD_PAUSE: Duration = Duration::from_millis(100);
/// How long a reload may take.
const RELOAD_TIME: Duration = Duration::from_secs(2);
/// How long a server that ends with its last user may take to end: its grace period, and some more.
const END_TIME: Duration = Duration::from_secs(15);

/// How long an operator's command waits for the server without a message.
const SILENT_TIME: Duration = Duration::from_secs(2);

/// The server of a site for one process. Nothing is opened before it is needed.
pub struct ServerLease {
    pub(super) session: Arc<Session>,
    pub(super) settings: DriverSettings,
    site: OnceLock<Arc<SiteServer>>,
    used: Mutex<Used>,
    opened: Timestamp,
    keeps_repos: bool,
}

/// What this process holds.
#[derive(Default)]
struct Used {
    /// The shared lock.
    lock: Option<File>,
    /// The server.
    client: Option<ServerClient>,
}

impl ServerLease {
    /// Uses the server of a site, once one is needed.
    pub fn new(session: Arc<Session>, settings: &DriverSettings) -> Self {
        Self {
            opened: settings.time.now(),
            session,
            settings: settings.clone(),
            site: OnceLock::new(),
            used: Mutex::default(),
            keeps_repos: false,
        }
    }

    /// Uses the server of a site for a command that only reads the server's records, or changes only
    /// these: the published copies of repositories stay as they are.
    pub fn for_records(session: Arc<Session>, settings: &DriverSettings) -> Self {
        Self {
            keeps_repos: true,
            ..Self::new(session, settings)
        }
    }

    /// Returns the site.
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Returns the settings of the driver.
    pub(crate) fn settings(&self) -> &DriverSettings {
        &self.settings
    }

    /// Returns whether the server ends with the commands that use it.
    pub(crate) async fn is_temporary(&self) -> Result<bool, DriverError> {
        let site = self.site().await?;
        if site.target.is_some() || site.endpoint.port().is_none() {
            return Ok(false);
        }
        let found = state_of(&site).await?;
        Ok(matches!(
            found,
            ServerState::Running {
                is_temporary: true,
                ..
            }
        ))
    }

    /// Returns when this process began to use the site.
    pub(super) fn opened(&self) -> Timestamp {
        self.opened
    }

    /// Returns the site's keys and what is published; they are opened once.
    pub(crate) async fn site(&self) -> Result<Arc<SiteServer>, DriverError> {
        if let Some(site) = self.site.get() {
            return Ok(site.clone());
        }
        let (session, settings) = (self.session.clone(), self.settings.clone());
        let opened = run_blocking(move || {
            let endpoint = ServerEndpoint::of_site(&session, &settings)?;
            SiteServer::open(&session, &settings, endpoint)
        });
        // Cancel safety: opening twice gives the same keys.
        let opened = Arc::new(opened.await?);
        Ok(self.site.get_or_init(|| opened).clone())
    }

    /// Returns a server that serves the site, if one answers. None is started.
    pub(crate) async fn running(&self) -> Result<Option<ServerClient>, DriverError> {
        let site = self.site().await?;
        let client = site.client()?;
        Ok(site.is_healthy(&client).await?.then_some(client))
    }

    /// Returns a server that serves the site; starts one if there is none. It stays until this
    /// process ends.
    pub async fn client(&self) -> Result<ServerClient, DriverError> {
        if !self.keeps_repos {
            return self.obtain().await;
        }
        let mut obtained = std::pin::pin!(self.obtain());
        tokio::select! {
            // Cancel safety: not dropped before it has ended.
            done = &mut obtained => return done,
            // Cancel safety: only waited for.
            () = tokio::time::sleep(SILENT_TIME) => {}
        }
        let url = self.site().await?.url();
        self.session
            .notices
            .notice(&format!("Waiting for the server at {url}."));
        obtained.await
    }

    async fn obtain(&self) -> Result<ServerClient, DriverError> {
        let mut used = self.used.lock().await;
        if let Some(client) = &used.client
            && client.is_healthy().await
        {
            return Ok(client.clone());
        }
        self.publish_site().await?;
        let site = self.site().await?;
        if used.lock.is_none() {
            let patience = self.session.timeouts().of(Limit::Lock);
            let path = site.files.users.clone();
            // Cancel safety: a lock whose result is dropped is released.
            let held = run_blocking(move || {
                let file = open_lock(&path)?;
                lock::lock_shared(&file, patience)
                    .map_err(|error| DriverError::file("lock", &path, &error))?;
                Ok(file)
            });
            used.lock = Some(held.await?);
        }
        let client = site.client()?;
        self.require(&site, &client).await?;
        tracing::debug!(url = %client.url(), "use the server");
        used.client = Some(client.clone());
        Ok(client)
    }

    /// Publishes the site and the agent, which a server needs to start.
    pub(super) async fn publish_site(&self) -> Result<(), DriverError> {
        let (site, settings) = (self.site().await?, self.settings.clone());
        let notices = self.session.notices.clone();
        let keeps_repos = self.keeps_repos;
        // Cancel safety: each file, and each copy of a repository, is replaced whole.
        run_blocking(move || {
            if !keeps_repos && let Some(report) = site.refresh_repos(&settings)? {
                let lines = report.changes().into_iter().chain(report.warnings());
                lines.for_each(|line| notices.notice(&line));
            }
            site.publish_site(settings.time.now())?;
            site.publish_agent(&settings)?;
            site.copy_to_server(&settings)
        })
        .await
    }

    /// Copies what is published to a permanent server, if there is one.
    pub(super) async fn copy_to_server(&self) -> Result<(), DriverError> {
        let (site, settings) = (self.site().await?, self.settings.clone());
        if site.target.is_none() {
            return Ok(());
        }
        // Cancel safety: each file is replaced whole.
        run_blocking(move || site.copy_to_server(&settings)).await
    }

    /// Finds a server, or starts one; one process at a time.
    async fn require(&self, site: &SiteServer, client: &ServerClient) -> Result<(), DriverError> {
        let _turn = take_turn(&site.files, self.session.timeouts().of(Limit::Lock)).await?;
        if site.is_healthy(client).await? {
            return Ok(());
        }
        if let Some(target) = &site.target {
            return Err(DriverError::failed(format!(
                "The server at {} does not answer, or does not accept this driver.",
                client.url()
            ))
            .hint(format!(
                "this site publishes to `{target}`: start the server that reads it, or reload it \
                 (systemctl reload-or-restart homestak-server)"
            ))
            .hint("homestak server status shows what answers there"));
        }
        let Some(port) = site.endpoint.port() else {
            let url = client.url();
            return Err(DriverError::failed(format!(
                "The server at {url} does not answer, or does not accept this driver."
            ))
            .hint("homestak server status shows the server of this machine")
            .hint("without HOMESTAK_SERVER and `server_url`, one is started on this machine"));
        };
        // It may not know this driver's new certificate yet.
        let files = site.files.clone();
        run_blocking(move || send_reload(&files)).await?;
        let mut waited = Duration::ZERO;
        while let ServerState::Running { is_temporary, .. } = state_of(site).await? {
            if client.is_healthy().await {
                return Ok(());
            }
            let limit = if is_temporary { END_TIME } else { RELOAD_TIME };
            if waited < limit {
                tokio::time::sleep(RELOAD_PAUSE).await;
                waited += RELOAD_PAUSE;
                continue;
            }
            let message = format!(
                "Another server has locked `{}`, and does not serve this site.",
                site.files.pid.display()
            );
            return Err(DriverError::refused(message)
                .hint(format!("homestak server stop --port {port} stops it"))
                .hint("HOMESTAK_SERVER=https://ADDRESS:PORT uses another port"));
        }
        let arguments = arguments(site, port);
        // Cancel safety: the process stays, and ends when this one has ended.
        let started = start(&site.files, &self.settings, &arguments, client).await;
        let Err(error) = started else {
            return Ok(());
        };
        if !is_answered(port).await {
            return Err(error);
        }
        let Err(why) = client.nodes().await else {
            return Ok(());
        };
        let why = chain(&why);
        Err(DriverError::refused(format!(
            "Port {port} of this machine is used by another program, or by a server that does not \
             serve this site, such as the server of another site: {why}."
        ))
        .hint(
            "`homestak server stop` with that site and state directory stops its server; if its \
             state directory was lost, end its process",
        )
        .hint("HOMESTAK_SERVER=https://ADDRESS:PORT uses another port"))
    }
}

/// Returns whether the server of a site runs on this machine.
async fn state_of(site: &SiteServer) -> Result<ServerState, DriverError> {
    let files = site.files.clone();
    // Cancel safety: only reads.
    run_blocking(move || state(&files)).await
}

/// Returns whether something accepts connections on a port of this machine.
async fn is_answered(port: u16) -> bool {
    // Cancel safety: nothing is sent.
    let connected = tokio::net::TcpStream::connect((std::net::Ipv4Addr::LOCALHOST, port));
    let answered = tokio::time::timeout(CONNECT_TIME, connected).await;
    matches!(answered, Ok(Ok(_)))
}

/// Returns the arguments of a server that ends with its last user.
fn arguments(site: &SiteServer, port: u16) -> Vec<OsString> {
    let mut all = site.files.arguments();
    all.extend(["--port".into(), port.to_string().into()]);
    all.extend(["--until-unused".into(), site.files.users.clone().into()]);
    all
}

/// Waits until no other process starts a server of the site, and returns the lock.
pub async fn take_turn(files: &ServerFiles, patience: Duration) -> Result<File, DriverError> {
    let path = files.turn.clone();
    // Cancel safety: a lock whose result is dropped is released.
    let turn = run_blocking(move || {
        let file = open_lock(&path)?;
        lock::lock(&file, patience, |_| ())
            .map_err(|error| DriverError::file("lock", &path, &error))?;
        Ok(file)
    });
    turn.await
}

pub(crate) fn open_lock(path: &Path) -> Result<File, DriverError> {
    let failed = |error: std::io::Error| DriverError::file("open", path, &error);
    if let Some(directory) = path.parent() {
        homestak_api::durable::create_private(directory).map_err(failed)?;
    }
    let mut options = fs_err::OpenOptions::new();
    let file = options.create(true).truncate(false).write(true).open(path);
    Ok(file.map_err(failed)?.into_parts().0)
}
