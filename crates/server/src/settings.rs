//! The settings of a server: one TOML file, in which unknown keys are errors.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

/// The default port.
pub const PORT: u16 = 44443;

/// How many characters of a line an error shows.
const MAX_LINE: usize = 80;

/// Why settings could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file could not be read.
    #[error("read the settings `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not TOML, or has an unknown key or a value of another type.
    #[error("the settings `{}` are not valid: {reason}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why, in one line.
        reason: String,
    },
    /// The file has a value that is out of range.
    #[error("the settings `{}` are not valid", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Which value.
        source: Box<Self>,
    },
    /// A value is out of range.
    #[error("`{key}` is {value}; it must be {expected}")]
    Value {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// What is allowed.
        expected: &'static str,
    },
}

/// The settings of a server.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerSettings {
    /// The address to listen on.
    pub bind: IpAddr,
    /// The port to listen on.
    pub port: u16,
    /// A certificate chain in PEM to use instead of one issued by the site.
    pub cert: Option<PathBuf>,
    /// The private key of `cert`, in PEM.
    pub key: Option<PathBuf>,
    /// Names and addresses by which nodes reach this server, in addition to those of this machine.
    pub names: Vec<String>,
    /// How many reports of each node are kept.
    pub reports_per_node: u32,
    /// How many ended jobs of each node are kept. Jobs that have not ended are always kept.
    pub jobs_per_node: u32,
    /// The shortest time between two checks of a repository for new commits that start runs, in seconds.
    pub shortest_poll: u32,
    /// Limits on connections and requests.
    pub limits: Limits,
    /// Repositories that `server start` publishes. The server serves whatever was published.
    pub repos: RepoSettings,
}

/// Which repositories are served, and to whom.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RepoSettings {
    /// Whether repositories are served.
    pub serve: bool,
    /// Directory in which repositories of known names are found.
    pub directory: Option<PathBuf>,
    /// File with the token that clients need.
    pub token_file: Option<PathBuf>,
    /// Names that are not served.
    pub exclude: Vec<String>,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            bind: IpAddr::from([0, 0, 0, 0]),
            port: PORT,
            cert: None,
            key: None,
            names: Vec::new(),
            reports_per_node: 50,
            jobs_per_node: 50,
            shortest_poll: 30,
            limits: Limits::default(),
            repos: RepoSettings::default(),
        }
    }
}

/// Limits on connections and requests. Times are in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Connections in total. At the limit, the least useful connection is closed for a new one.
    pub connections: usize,
    /// Connections from one address.
    pub connections_per_address: usize,
    /// How long a TLS handshake may take.
    pub handshake: u32,
    /// How long a connection may be idle, and how long the head of a request may take to arrive.
    pub idle: u32,
    /// How long the body of a request may take to arrive, and how long processing it may take.
    pub request: u32,
    /// How long sending a response may make no progress.
    pub write: u32,
    /// How long requests in progress may continue when the server is stopped.
    pub grace: u32,
    /// The largest body of a request, in bytes.
    pub body_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_000,
            // Nodes behind one router share its address.
            connections_per_address: 4_000,
            handshake: 10,
            idle: 30,
            request: 30,
            write: 30,
            // `server stop` waits a little longer before it kills the process.
            grace: 5,
            body_bytes: 64 << 10,
        }
    }
}

const fn seconds(number: u32) -> Duration {
    Duration::from_secs(number as u64)
}

impl Limits {
    pub(crate) fn handshake(&self) -> Duration {
        seconds(self.handshake)
    }

    pub(crate) fn idle(&self) -> Duration {
        seconds(self.idle)
    }

    pub(crate) fn request(&self) -> Duration {
        seconds(self.request)
    }

    pub(crate) fn write(&self) -> Duration {
        seconds(self.write)
    }

    pub(crate) fn grace(&self) -> Duration {
        seconds(self.grace)
    }
}

impl ServerSettings {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, SettingsError> {
        let text = fs_err::read_to_string(path).map_err(|source| SettingsError::Read {
            path: path.to_owned(),
            source,
        })?;
        let settings: Self = toml::from_str(&text).map_err(|error| SettingsError::Parse {
            path: path.to_owned(),
            reason: reason(&text, &error),
        })?;
        // Only the flag may be 0, for tests: the system chooses a port then, which nodes cannot know.
        let checked = match settings.port {
            0 => invalid("port", &0, "between 1 and 65535"),
            _ => settings.check(),
        };
        checked.map_err(|source| SettingsError::File {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        Ok(settings)
    }

    /// Returns the differences from the settings before a reload, a line each. The address to listen on
    /// takes effect only at the start.
    pub(crate) fn changes_since(&self, before: &Self) -> Vec<String> {
        let mut changes = Vec::new();
        if (self.bind, self.port) != (before.bind, before.port) {
            changes.push("`bind` or `port`: takes effect when the server is restarted".to_owned());
        }
        for (name, is_same) in [
            ("cert", self.cert == before.cert),
            ("key", self.key == before.key),
            ("names", self.names == before.names),
            (
                "reports_per_node",
                self.reports_per_node == before.reports_per_node,
            ),
            ("jobs_per_node", self.jobs_per_node == before.jobs_per_node),
            ("shortest_poll", self.shortest_poll == before.shortest_poll),
            ("limits", self.limits == before.limits),
            ("repos", self.repos == before.repos),
        ] {
            if !is_same {
                changes.push(format!("setting `{name}`"));
            }
        }
        changes
    }

    /// Checks what the types of the settings do not: ranges, and settings that require each other.
    pub fn check(&self) -> Result<(), SettingsError> {
        if let (Some(_), None) | (None, Some(_)) = (&self.cert, &self.key) {
            return invalid(
                "cert",
                &"set without `key` or the reverse",
                "set together with `key`",
            );
        }
        let is_name = |name: &String| {
            !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control())
        };
        if let Some(name) = self.names.iter().find(|name| !is_name(name)) {
            let shown = format!("{name:?}");
            return invalid("names", &shown, "names and addresses without spaces");
        }
        for (key, value) in [
            ("reports_per_node", self.reports_per_node),
            ("jobs_per_node", self.jobs_per_node),
        ] {
            if !(1..=10_000).contains(&value) {
                return invalid(key, &value, "between 1 and 10000");
            }
        }
        if !(1..=86_400).contains(&self.shortest_poll) {
            return invalid(
                "shortest_poll",
                &self.shortest_poll,
                "between 1 and 86400 seconds",
            );
        }
        let limits = &self.limits;
        for (key, value) in [
            ("limits.handshake", limits.handshake),
            ("limits.idle", limits.idle),
            ("limits.request", limits.request),
            ("limits.write", limits.write),
        ] {
            if value == 0 || value > 3600 {
                return invalid(key, &value, "between 1 and 3600 seconds");
            }
        }
        if limits.grace > 3600 {
            return invalid("limits.grace", &limits.grace, "at most 3600 seconds");
        }
        for (key, value) in [
            ("limits.connections", limits.connections),
            (
                "limits.connections_per_address",
                limits.connections_per_address,
            ),
        ] {
            if !(1..=1_000_000).contains(&value) {
                return invalid(key, &value, "between 1 and 1000000");
            }
        }
        if !(1 << 10..=16 << 20).contains(&limits.body_bytes) {
            return invalid(
                "limits.body_bytes",
                &limits.body_bytes,
                "between 1 KiB and 16 MiB",
            );
        }
        Ok(())
    }
}

/// Returns the error for a value that is not allowed.
fn invalid(
    key: &'static str,
    value: &dyn ToString,
    expected: &'static str,
) -> Result<(), SettingsError> {
    Err(SettingsError::Value {
        key,
        value: value.to_string(),
        expected,
    })
}

/// Returns where and why a text is not valid, in one line: it becomes part of messages and responses.
fn reason(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().trim().replace('\n', ", ");
    let Some(span) = error.span() else {
        return message;
    };
    let before = text.get(..span.start).unwrap_or(text);
    let number = before.matches('\n').count() + 1;
    let line = text.lines().nth(number - 1).unwrap_or_default().trim();
    let shown: String = line.chars().take(MAX_LINE).collect();
    format!("line {number}, `{shown}`: {message}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ServerSettings, String> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("server.toml");
        fs_err::write(&path, text).expect("written");
        ServerSettings::read(&path).map_err(|error| homestak_core::error::chain(&error))
    }

    #[test]
    fn an_empty_file_gives_the_defaults() {
        let settings = read("").expect("valid");
        assert_eq!(settings, ServerSettings::default());
        assert_eq!(settings.port, 44443);
    }

    #[test]
    fn unknown_keys_and_wrong_values_are_errors_that_name_them() {
        for (text, named) in [
            ("prt = 1", "prt"),
            ("[limits]\nidel = 3", "idel"),
            ("port = 70000", "port"),
            ("bind = \"here\"", "bind"),
            ("cert = \"a.pem\"", "key"),
            ("port = 0", "port"),
            ("names = [\"\"]", "names"),
            ("names = [\"a b\"]", "names"),
            ("reports_per_node = 0", "reports_per_node"),
            ("[limits]\ngrace = 3601", "limits.grace"),
            ("[limits]\nconnections = 0", "limits.connections"),
            ("[limits]\nconnections = 1000001", "limits.connections"),
            (
                "[limits]\nconnections_per_address = 0",
                "limits.connections_per_address",
            ),
            ("jobs_per_node = 0", "jobs_per_node"),
            ("jobs_per_node = 10001", "jobs_per_node"),
            ("jobs_per_node = -1", "jobs_per_node"),
            ("shortest_poll = 0", "shortest_poll"),
            ("[limits]\nidle = 0", "limits.idle"),
            ("[limits]\nbody_bytes = 1", "body_bytes"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(named), "{text}: {error}");
            assert!(error.contains("server.toml` are not valid: "), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
