//! The settings of a server: one TOML file, in which unknown keys are errors.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

/// The default port.
pub const PORT: u16 = 44443;

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
    /// The file is not valid.
    #[error("the settings `{}` are not valid", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
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
    /// A certificate chain in PEM to show instead of one issued by the site.
    pub cert: Option<PathBuf>,
    /// The private key of `cert`, in PEM.
    pub key: Option<PathBuf>,
    /// Names and addresses by which nodes reach this server, beside its own.
    pub names: Vec<String>,
    /// Reports that are kept of each node.
    pub reports_per_node: u32,
    /// Limits on connections and requests.
    pub limits: Limits,
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
            limits: Limits::default(),
        }
    }
}

/// Limits on connections and requests. Times are in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Connections in all; beyond it the least useful one is closed.
    pub connections: usize,
    /// Connections from one address.
    pub connections_per_address: usize,
    /// How long a TLS handshake may take.
    pub handshake: u32,
    /// How long a connection may be idle, and the head of a request may take to arrive.
    pub idle: u32,
    /// How long the body of a request may take to arrive, and its answer to be made.
    pub request: u32,
    /// How long a client may read nothing of an answer.
    pub write: u32,
    /// How long requests may go on when the server is stopped.
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
            // `server stop` waits this long before it kills the process.
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
        let settings: Self = toml::from_str(&text).map_err(|source| SettingsError::Parse {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        settings.check()?;
        Ok(settings)
    }

    /// Checks values that their types do not.
    pub fn check(&self) -> Result<(), SettingsError> {
        let wrong = |key, value: &dyn ToString, expected| {
            Err(SettingsError::Value {
                key,
                value: value.to_string(),
                expected,
            })
        };
        if let (Some(_), None) | (None, Some(_)) = (&self.cert, &self.key) {
            return wrong(
                "cert",
                &"set without `key` or the reverse",
                "set together with `key`",
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
                return wrong(key, &value, "between 1 and 3600 seconds");
            }
        }
        if limits.connections == 0 || limits.connections_per_address == 0 {
            return wrong("limits.connections", &0, "at least 1");
        }
        if !(1 << 10..=16 << 20).contains(&limits.body_bytes) {
            return wrong(
                "limits.body_bytes",
                &limits.body_bytes,
                "between 1 KiB and 16 MiB",
            );
        }
        Ok(())
    }
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
            ("[limits]\nidle = 0", "limits.idle"),
            ("[limits]\nbody_bytes = 1", "body_bytes"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
