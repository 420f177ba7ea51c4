//! Starts, reloads and stops a server.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fs_err::os::unix::fs::OpenOptionsExt as _;
use homestak_api::durable;
use homestak_api::publication::PublishDirectory;
use homestak_api::runtime::{SharedClock, Spawner};
use homestak_store::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::error::ServerError;
use crate::heartbeat::Heartbeat;
use crate::listen;
use crate::settings::{ServerSettings, SettingsError};
use crate::trigger::poll;

/// The file of the registry in the state directory.
const REGISTRY: &str = "server.db";
/// The directory of checks of repositories in the state directory.
const CHECKS: &str = "checks";

/// What a server is started with.
pub struct ServerOptions {
    /// Reads its settings: at start, and again on reload.
    pub settings: Box<dyn Fn() -> Result<ServerSettings, SettingsError> + Send + Sync>,
    /// What the driver published.
    pub published: PathBuf,
    /// The state directory of the server.
    pub state: PathBuf,
    /// A listening socket passed by systemd.
    pub listener: Option<std::net::TcpListener>,
    /// The clock.
    pub clock: SharedClock,
    /// The host's name.
    pub hostname: String,
}

/// A server that listens.
pub struct Server {
    app: Arc<App>,
    listener: TcpListener,
    address: SocketAddr,
    /// Where repositories are checked.
    checks: PathBuf,
    heartbeat: Arc<Heartbeat>,
}

impl Server {
    /// Opens everything and listens. Requests are processed from [`Self::run`] on.
    pub async fn open(options: ServerOptions) -> Result<Self, ServerError> {
        let settings = (options.settings)()?;
        settings.check()?;
        let state = &options.state;
        durable::create_private(state).map_err(ServerError::file("create", state))?;
        let registry = state.join(REGISTRY);
        make_private(&registry).map_err(ServerError::file("create", &registry))?;
        let registry = Registry::open(&registry)?;
        let address = SocketAddr::new(settings.bind, settings.port);
        let listen = |source| ServerError::Listen { address, source };
        let listener = match options.listener {
            Some(listener) => {
                listener.set_nonblocking(true).map_err(listen)?;
                TcpListener::from_std(listener).map_err(listen)?
            }
            None => bind(address).await.map_err(listen)?,
        };
        let address = listener.local_addr().map_err(listen)?;
        let directory = PublishDirectory::new(options.published);
        let app = App::open(
            (settings, options.settings),
            options.hostname,
            directory,
            registry,
            options.clock,
        )?;
        Ok(Self {
            app: Arc::new(app),
            listener,
            address,
            checks: state.join(CHECKS),
            heartbeat: Arc::new(Heartbeat::new()),
        })
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns what shows that it accepts connections.
    pub fn heartbeat(&self) -> Arc<Heartbeat> {
        self.heartbeat.clone()
    }

    /// Returns what reloads it.
    pub fn reloader(&self) -> impl Fn() -> Result<Vec<String>, ServerError> + Send + Sync + use<> {
        let app = self.app.clone();
        move || app.reload()
    }

    /// Answers requests until `stop`, and then until those in progress are answered.
    pub async fn run(self, stop: CancellationToken) {
        let tasks = Spawner::default();
        let polling = poll::run(self.app.clone(), self.checks, stop.clone());
        // Cancel safety: it ends with `stop`.
        tasks.spawn("checks of repositories", polling);
        listen::serve(self.listener, (self.app, &self.heartbeat), stop).await;
        tasks.wait().await;
    }
}

/// Creates a file that only its owner can read, before SQLite creates it for everyone; its log and its
/// index get the same mode. One that exists is made so. It is not opened: closing it would release
/// the locks of SQLite.
fn make_private(path: &Path) -> io::Result<()> {
    let mut options = fs_err::OpenOptions::new();
    match options.write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        created => return created.map(drop),
    }
    let mode = fs_err::metadata(path)?.permissions().mode();
    match mode & 0o077 {
        0 => Ok(()),
        _ => fs_err::set_permissions(path, std::fs::Permissions::from_mode(0o600)),
    }
}

/// How long a server that is stopping may still hold the port.
const PORT_WAIT: Duration = Duration::from_secs(5);

/// Listens on an address; waits for a server that is stopping.
async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let pause = Duration::from_millis(100);
    let mut waited = Duration::ZERO;
    loop {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && waited < PORT_WAIT => {
                if waited.is_zero() {
                    tracing::info!(%address, "the port is in use: waiting until it is free");
                }
                // Cancel safety: nothing is held while it sleeps.
                tokio::time::sleep(pause).await;
                waited += pause;
            }
            bound => return bound,
        }
    }
}
