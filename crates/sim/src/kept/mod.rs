//! Serves a World that outlives the program: kept in a directory, found again by the next one.
//!
//! In: a directory and how to serve. Out: a server that writes down what changes and where it is.
//! Never: two servers for one directory; a World that is only in memory for long.

mod directory;
mod inside;
mod stock;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use homestak_api::runtime::{Clock as _, WallClock};
use jiff::{SignedDuration, Timestamp};
use thiserror::Error;

use crate::serve::{Handle, Identity, ServeError, serve_as};
use crate::world::{Pace, RestoreError, World};

pub use directory::{Endpoint, Lock, create, is_served, request_stop, reset};
pub use inside::Inside;
pub use stock::stock;

use directory::{Directory, Secrets};
use inside::Servers;

/// How often it is looked whether there is something to write, in real time.
const TICK: Duration = Duration::from_millis(100);
/// The least time between two writes.
const GAP: SignedDuration = SignedDuration::from_millis(250);
/// How much of the time may go into writing: one part in so many.
const SHARE: i32 = 20;

/// Who the token of a kept World belongs to.
pub(crate) const TOKEN: &str = "root@pam!homestak";

/// Why a World is not kept.
#[derive(Debug, Error)]
pub enum KeepError {
    /// Another server has the directory.
    #[error("serve {directory}: another server has it")]
    Held {
        /// The directory.
        directory: String,
    },
    /// A file could not be read or written.
    #[error("{doing} the World kept in {directory}")]
    File {
        /// What was done.
        doing: &'static str,
        /// The directory.
        directory: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// What is kept cannot be read.
    #[error("{directory} holds something else than a World")]
    Restore {
        /// The directory.
        directory: String,
        /// What is wrong with it.
        #[source]
        source: RestoreError,
    },
    /// It could not be served.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// How to keep a World.
#[derive(Clone, Debug)]
pub struct KeepSettings {
    /// Where it is kept.
    pub directory: PathBuf,
    /// How long to go on without a call and without a task; forever when absent.
    pub idle: Option<Duration>,
    /// Where to listen; a free port on loopback, the one of last time if possible, when absent.
    pub listen: Option<SocketAddr>,
    /// How time goes.
    pub pace: Pace,
}

/// Why a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to.
    Asked,
    /// Nobody had called for a while.
    Idle,
    /// Its directory is gone.
    Vanished,
}

/// A World that is kept and served.
pub struct Keeper {
    directory: Directory,
    world: World,
    handle: Handle,
    secrets: Secrets,
    idle: Option<Duration>,
    servers: Servers,
    saved: Vec<u64>,
}

impl Keeper {
    /// Takes the directory, finds the World in it or makes one with `build`, and serves it.
    ///
    /// `build` is given the token that may do everything.
    pub async fn open(
        settings: KeepSettings,
        build: impl FnOnce(&str) -> World,
    ) -> Result<Self, KeepError> {
        let directory = Directory::take(&settings.directory)?;
        let secrets = directory.secrets()?;
        let world = match directory.world()? {
            Some(text) => World::restore(&text, settings.pace)
                .map_err(|source| directory.not_a_world(source))?,
            None => build(&secrets.token),
        };
        world.admit(&secrets.token);
        let handle = match settings.listen {
            Some(address) => serve_as(world.clone(), address, &secrets.identity).await?,
            None => serve_near(&world, secrets.port, &secrets.identity).await?,
        };
        let mut keeper = Self {
            servers: Servers::new(secrets.identity.clone(), secrets.token.clone()),
            secrets,
            directory,
            world,
            handle,
            idle: settings.idle,
            saved: Vec::new(),
        };
        keeper.secrets.port = keeper.handle.address.port();
        keeper.directory.write_secrets(&keeper.secrets)?;
        keeper.save()?;
        keeper.directory.write_endpoint(&keeper.endpoint())?;
        Ok(keeper)
    }

    /// Returns the World.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Returns where it is served.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint {
            url: self.handle.url(),
            fingerprint: self.handle.fingerprint.clone(),
            certificate: self.handle.certificate_pem.clone(),
            token: self.secrets.token.clone(),
            pid: std::process::id(),
            inside: self.servers.list(),
        }
    }

    fn save(&mut self) -> Result<(), KeepError> {
        let generation = self.world.generation();
        self.directory.write_world(&self.world.save())?;
        self.saved = generation;
        Ok(())
    }

    /// Serves until it is asked to stop, idle for long, or without its directory.
    pub async fn run(mut self, stop: impl Future<Output = ()>) -> Result<Ended, KeepError> {
        let mut stop = std::pin::pin!(stop);
        let mut active = WallClock.now();
        let mut calls = 0;
        let mut next = active;
        let ended = loop {
            tokio::select! {
                // Cancel safety: it is only ever waited for.
                () = &mut stop => break Ended::Asked,
                // Cancel safety: a dropped sleep has no effect.
                () = WallClock.sleep(TICK) => {}
            }
            if !self.directory.is_ours() {
                break Ended::Vanished;
            }
            if self.directory.stop_is_wanted() {
                break Ended::Asked;
            }
            self.tend().await;
            let now = WallClock.now();
            next = self.save_if_due(now, next);
            let (seen, busy) = self.world.activity();
            if busy || seen != calls {
                (active, calls) = (now, seen);
            }
            let quiet = now.duration_since(active);
            if self.idle.is_some_and(|idle| quiet >= signed(idle)) {
                break Ended::Idle;
            }
        };
        self.handle.stop();
        self.servers.stop();
        if ended != Ended::Vanished {
            self.save()?;
            self.directory.leave();
        }
        Ok(ended)
    }

    /// Serves the hypervisors that run inside, and writes down where.
    async fn tend(&mut self) {
        if !self.servers.tend(&self.world).await {
            return;
        }
        if let Err(error) = self.directory.write_endpoint(&self.endpoint()) {
            tracing::warn!(%error, "the endpoint was not written");
        }
    }

    /// Writes the World when it changed and writing is due. Returns when it is due next.
    fn save_if_due(&mut self, now: Timestamp, due: Timestamp) -> Timestamp {
        if now < due || self.world.generation() == self.saved {
            return due;
        }
        if let Err(error) = self.save() {
            tracing::warn!(%error, "the World was not written");
        }
        let after = WallClock.now();
        let pause = after.duration_since(now).saturating_mul(SHARE).max(GAP);
        after.checked_add(pause).unwrap_or(after)
    }
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

/// Serves on the port of last time, or on a free one.
async fn serve_near(world: &World, port: u16, identity: &Identity) -> Result<Handle, ServeError> {
    let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    match serve_as(world.clone(), at(port), identity).await {
        Err(ServeError::Listen { .. }) if port != 0 => {
            serve_as(world.clone(), at(0), identity).await
        }
        other => other,
    }
}
