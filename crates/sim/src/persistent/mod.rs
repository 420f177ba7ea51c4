//! Serves a simulator whose state is saved in a directory, so that the next server continues it.

mod directory;
mod nested;
mod stock;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use homestak_api::runtime::{Clock as _, WallClock};
use homestak_api::v1::SimEndpoint;
use jiff::{SignedDuration, Timestamp};
use thiserror::Error;

use crate::serve::{Handle, Identity, ServeError, serve_with_identity};
use crate::world::{Pace, RestoreError, World};

pub use directory::{Lock, create, endpoint, is_served, request_stop, reset};
pub use stock::stock;

use directory::{Directory, Secrets};
use nested::NestedServers;

/// How often the server checks for changes to save and for stop requests, in real time.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The least time between two saves.
const MIN_SAVE_INTERVAL: SignedDuration = SignedDuration::from_millis(250);
/// Saving may take at most one part in this many of the time.
const SAVE_SHARE: i32 = 20;

/// The owner and name of the token.
pub(crate) const TOKEN: &str = "root@pam!homestak";

/// Why a simulator with saved state cannot run.
#[derive(Debug, Error)]
pub enum PersistenceError {
    /// Another server uses the directory.
    #[error("serve {directory}: another server uses it")]
    Locked {
        /// The directory.
        directory: String,
    },
    /// A file could not be read or written.
    #[error("{doing} the simulator state in {directory}")]
    File {
        /// The operation: open, read or write.
        doing: &'static str,
        /// The directory.
        directory: String,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The saved state cannot be restored.
    #[error("{directory} does not contain a valid simulator state")]
    Restore {
        /// The directory.
        directory: String,
        /// The cause.
        #[source]
        source: RestoreError,
    },
    /// The server could not start.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// The settings of a server with saved state.
#[derive(Clone, Debug)]
pub struct PersistenceSettings {
    /// The state directory.
    pub directory: PathBuf,
    /// How long to run without calls and tasks; forever if absent.
    pub idle: Option<Duration>,
    /// Where to listen; if absent, on loopback, on the previous port if it is free.
    pub listen: Option<SocketAddr>,
    /// How simulated time advances.
    pub pace: Pace,
}

/// Why a server stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// It was requested to stop.
    Requested,
    /// There were no calls for the idle time.
    Idle,
    /// Its directory was deleted.
    DirectoryDeleted,
}

/// A server whose state is saved in a directory.
pub struct PersistentServer {
    directory: Directory,
    world: World,
    handle: Handle,
    secrets: Secrets,
    idle: Option<Duration>,
    servers: NestedServers,
    saved: Vec<u64>,
}

impl PersistentServer {
    /// Locks the directory, restores its state or creates one with `build`, and serves it.
    ///
    /// `build` receives the token with all privileges.
    pub async fn open(
        settings: PersistenceSettings,
        build: impl FnOnce(&str) -> World,
    ) -> Result<Self, PersistenceError> {
        let directory = Directory::take(&settings.directory)?;
        let secrets = directory.secrets()?;
        let world = match directory.world()? {
            Some(text) => World::restore(&text, settings.pace)
                .map_err(|source| directory.restore_error(source))?,
            None => build(&secrets.token),
        };
        world.allow_token(&secrets.token);
        let handle = match settings.listen {
            Some(address) => serve_with_identity(world.clone(), address, &secrets.identity).await?,
            None => serve_on_loopback(&world, secrets.port, &secrets.identity).await?,
        };
        let mut server = Self {
            servers: NestedServers::new(secrets.identity.clone(), secrets.token.clone()),
            secrets,
            directory,
            world,
            handle,
            idle: settings.idle,
            saved: Vec::new(),
        };
        server.secrets.port = server.handle.address.port();
        server.directory.write_secrets(&server.secrets)?;
        server.save()?;
        server.directory.write_endpoint(&server.endpoint())?;
        Ok(server)
    }

    /// Returns the simulated world.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Returns the URL and credentials of the server.
    pub fn endpoint(&self) -> SimEndpoint {
        SimEndpoint {
            url: self.handle.url(),
            fingerprint: self.handle.fingerprint.clone(),
            certificate: self.handle.certificate_pem.clone(),
            token: self.secrets.token.clone(),
            pid: std::process::id(),
            inside: self.servers.list(),
        }
    }

    fn save(&mut self) -> Result<(), PersistenceError> {
        let generation = self.world.generation();
        self.directory.write_world(&self.world.save())?;
        self.saved = generation;
        Ok(())
    }

    /// Serves until it is requested to stop, is idle, or its directory is deleted.
    pub async fn run(
        mut self,
        stop: impl Future<Output = ()>,
    ) -> Result<StopReason, PersistenceError> {
        let mut stop = std::pin::pin!(stop);
        let mut active = WallClock.now();
        let mut calls = 0;
        let mut next = active;
        let reason = loop {
            tokio::select! {
                // Cancel safety: the future is pinned outside and not dropped.
                () = &mut stop => break StopReason::Requested,
                // Cancel safety: a dropped sleep has no effect.
                () = WallClock.sleep(POLL_INTERVAL) => {}
            }
            if !self.directory.is_owned() {
                break StopReason::DirectoryDeleted;
            }
            if self.directory.stop_requested() {
                break StopReason::Requested;
            }
            self.reconcile().await;
            let now = WallClock.now();
            next = self.save_if_due(now, next);
            let (seen, busy) = self.world.activity();
            if busy || seen != calls {
                (active, calls) = (now, seen);
            }
            let quiet = now.duration_since(active);
            if self.idle.is_some_and(|idle| quiet >= signed(idle)) {
                break StopReason::Idle;
            }
        };
        self.handle.stop();
        self.servers.stop();
        if reason != StopReason::DirectoryDeleted {
            self.save()?;
            self.directory.remove_runtime_files();
        }
        Ok(reason)
    }

    /// Starts and stops the servers of nested hypervisors, and writes their endpoints.
    async fn reconcile(&mut self) {
        if !self.servers.reconcile(&self.world).await {
            return;
        }
        if let Err(error) = self.directory.write_endpoint(&self.endpoint()) {
            tracing::warn!(%error, "cannot write the endpoint");
        }
    }

    /// Saves the state if it changed and saving is due. Returns when saving is due next.
    fn save_if_due(&mut self, now: Timestamp, due: Timestamp) -> Timestamp {
        if now < due || self.world.generation() == self.saved {
            return due;
        }
        if let Err(error) = self.save() {
            tracing::warn!(%error, "cannot save the simulator state");
        }
        let after = WallClock.now();
        let pause = after
            .duration_since(now)
            .saturating_mul(SAVE_SHARE)
            .max(MIN_SAVE_INTERVAL);
        after.checked_add(pause).unwrap_or(after)
    }
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

/// Serves on loopback, on the given port or else on a free one.
async fn serve_on_loopback(
    world: &World,
    port: u16,
    identity: &Identity,
) -> Result<Handle, ServeError> {
    let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    match serve_with_identity(world.clone(), at(port), identity).await {
        Err(ServeError::Listen { .. }) if port != 0 => {
            serve_with_identity(world.clone(), at(0), identity).await
        }
        other => other,
    }
}
