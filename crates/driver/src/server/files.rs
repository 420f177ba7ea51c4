//! Paths of a server: what is published for it, its own state, its process id and its log.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use homestak_core::doc::scalar::SiteId;

use super::PORT;
use crate::settings::DriverSettings;

/// The paths of the server of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// What the driver publishes; the server only reads it.
    pub published: PathBuf,
    /// The server's own state.
    pub state: PathBuf,
    /// Users of a server that ends with the last of them: each holds a shared lock.
    pub users: PathBuf,
    /// Locked while a process searches for a server and starts one.
    pub turn: PathBuf,
    /// Locked while published files are copied to a permanent server.
    pub copying: PathBuf,
    /// The process id. The server holds a lock on the file for as long as it runs.
    pub pid: PathBuf,
    /// The log of a server in the background.
    pub log: PathBuf,
}

impl ServerFiles {
    /// Returns the directory of what belongs to the server of the site.
    pub(crate) fn directory(&self) -> &Path {
        self.published.parent().unwrap_or(Path::new("/"))
    }

    /// Returns the arguments of `server start` for a process that listens. It opens no site, so that it
    /// knows none of its secrets.
    pub fn arguments(&self) -> Vec<OsString> {
        let pairs = [("--published", &self.published), ("--state", &self.state)];
        let words = pairs.into_iter();
        let words = words.flat_map(|(flag, path)| [flag.into(), path.clone().into()]);
        words.collect()
    }

    /// Returns the paths for a site and a port.
    pub fn new(settings: &DriverSettings, site: &SiteId, port: u16) -> Self {
        let directory = settings.state.join("server").join(site.to_string());
        let name = |ending: &str| match port {
            PORT => format!("server.{ending}"),
            port => format!("server-{port}.{ending}"),
        };
        let place = |system: &Option<PathBuf>, ending: &str| {
            let directory: &Path = system.as_deref().unwrap_or(&settings.state);
            directory.join(name(ending))
        };
        Self {
            published: directory.join("published"),
            state: directory.join("state"),
            users: directory.join("users.lock"),
            turn: directory.join("start.lock"),
            copying: directory.join("copy.lock"),
            pid: place(&settings.run_directory, "pid"),
            log: place(&settings.log_directory, "log"),
        }
    }
}
