//! One server: started, reloaded, stopped.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use homestak_api::certificate::certificates;
use homestak_api::publication::PublishDirectory;
use homestak_api::runtime::SharedClock;
use homestak_api::trust::TlsCredential;
use homestak_store::registry::Registry;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::error::ServerError;
use crate::listen;
use crate::settings::ServerSettings;
use crate::tls::ServerCertificates;

/// The file of the registry in the state directory.
const REGISTRY: &str = "server.db";

/// What a server is started with.
pub struct ServerOptions {
    /// Its settings.
    pub settings: ServerSettings,
    /// What the driver published.
    pub published: PathBuf,
    /// Where the server keeps its own state.
    pub state: PathBuf,
    /// A socket that listens already, as systemd passes one.
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
}

impl Server {
    /// Opens everything and listens. Nobody is answered before [`Self::run`].
    pub async fn open(options: ServerOptions) -> Result<Self, ServerError> {
        let ServerOptions { settings, .. } = &options;
        settings.check()?;
        fs_err::create_dir_all(&options.state).map_err(file("create", &options.state))?;
        let registry = Registry::open(&options.state.join(REGISTRY))?;
        let provided = provided(settings)?;
        let mut names = vec![options.hostname.clone()];
        names.extend(settings.names.iter().cloned());
        let certificates = ServerCertificates::new(provided, names)?;
        let address = SocketAddr::new(settings.bind, settings.port);
        let listen = |source| ServerError::Listen { address, source };
        let listener = match options.listener {
            Some(listener) => {
                listener.set_nonblocking(true).map_err(listen)?;
                TcpListener::from_std(listener).map_err(listen)?
            }
            None => TcpListener::bind(address).await.map_err(listen)?,
        };
        let address = listener.local_addr().map_err(listen)?;
        let directory = PublishDirectory::new(options.published);
        let app = App::open(
            options.settings,
            directory,
            registry,
            certificates,
            options.clock,
        )?;
        Ok(Self {
            app: Arc::new(app),
            listener,
            address,
        })
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns what reloads it.
    pub fn reloader(&self) -> impl Fn() -> Result<Vec<String>, ServerError> + Send + Sync + use<> {
        let app = self.app.clone();
        move || app.reload()
    }

    /// Answers requests until `stop`, and then until those in progress are answered.
    pub async fn run(self, stop: CancellationToken) {
        listen::serve(self.listener, self.app, stop).await;
    }
}

/// Reads the operator's own certificate.
fn provided(settings: &ServerSettings) -> Result<Option<TlsCredential>, ServerError> {
    let (Some(certificate), Some(key)) = (&settings.cert, &settings.key) else {
        return Ok(None);
    };
    let pem = fs_err::read_to_string(certificate).map_err(file("read", certificate))?;
    let private = fs_err::read(key).map_err(file("read", key))?;
    let private = PrivateKeyDer::from_pem_slice(&private).map_err(|_| {
        let source =
            std::io::Error::new(std::io::ErrorKind::InvalidData, "not a private key in PEM");
        file("read", key)(source)
    })?;
    Ok(Some((certificates(&pem)?, private)))
}

fn file<'a>(doing: &'static str, path: &'a Path) -> impl Fn(std::io::Error) -> ServerError + 'a {
    move |source| ServerError::File {
        doing,
        path: path.to_owned(),
        source,
    }
}
