//! Errors of image builds and of the image cache.

use std::path::PathBuf;

use homestak_engine::ports::{ErrorClass, PortError, Sent};

/// How many lines of a program's output are kept.
pub(super) const LAST_LINES: usize = 12;

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// There is no recipe of that name.
    #[error("image `{name}` does not exist")]
    Unknown {
        /// The requested name.
        name: String,
        /// The names there are.
        known: Vec<&'static str>,
    },
    /// It is not in the cache.
    #[error("image `{name}` is not in `{}`", directory.display())]
    Absent {
        /// Its name.
        name: String,
        /// The directory of the cache.
        directory: PathBuf,
    },
    /// Only root can do it.
    #[error("{doing} needs root")]
    NotRoot {
        /// What was tried.
        doing: String,
    },
    /// A program or file is not installed.
    #[error("`{what}` is not installed")]
    Missing {
        /// The program or file.
        what: String,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// There is not enough disk space.
    #[error(
        "not enough space in `{}` to build `{name}`: {} MiB free, about {} MiB needed",
        path.display(), free >> 20, needed >> 20
    )]
    Full {
        /// What was built.
        name: String,
        /// Where.
        path: PathBuf,
        /// Free bytes when it was noticed.
        free: u64,
        /// Bytes that building takes.
        needed: u64,
    },
    /// Packages cannot be fetched.
    #[error("building `{name}`: cannot download packages from {mirror}")]
    Unreachable {
        /// What was built.
        name: String,
        /// Where packages come from.
        mirror: String,
        /// The last lines that were printed.
        log: Vec<String>,
    },
    /// The keys on this machine do not fit the archive.
    #[error("building `{name}`: cannot verify the signature of {mirror}")]
    Untrusted {
        /// What was built.
        name: String,
        /// Where packages come from.
        mirror: String,
        /// The last lines that were printed.
        log: Vec<String>,
    },
    /// A program failed in another way.
    #[error("building `{name}`: `{program}` failed: {status}")]
    Failed {
        /// What was built.
        name: String,
        /// The program.
        program: String,
        /// How it ended.
        status: String,
        /// The last lines that were printed.
        log: Vec<String>,
    },
    /// Nodes use it.
    #[error("image `{name}` is in use")]
    InUse {
        /// Its name with its key.
        name: String,
    },
    /// A file could not be read or written.
    #[error("cannot {doing} `{}`", path.display())]
    File {
        /// What was done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl ImageError {
    /// Returns what the user can do next.
    pub fn hint(&self) -> String {
        match self {
            Self::Unknown { known, .. } => format!("available: {}", known.join(", ")),
            Self::Absent { name, .. } => format!("homestak image build {name}"),
            Self::NotRoot { .. } => {
                "run it as root, or try `-H sim`, which needs no privileges".into()
            }
            Self::Missing { package, .. } => format!(
                "homestak local setup, or: apt-get install --no-install-recommends {package}"
            ),
            Self::Full { path, .. } => format!(
                "free space in `{}`, or remove images that are not needed: homestak image list",
                path.display()
            ),
            Self::Unreachable { .. } => "check the network and the Debian entries in /etc/apt; \
                set `HOMESTAK_DEBIAN_MIRROR` to use another mirror, `http_proxy` to use a proxy"
                .into(),
            Self::Untrusted { .. } => {
                "apt-get install debian-archive-keyring (update it if possible); \
                 the mirror must be a copy of the Debian archive"
                    .into()
            }
            Self::Failed { .. } => "see the lines above; the incomplete image was removed".into(),
            Self::InUse { .. } => {
                "destroy the nodes that use it first: homestak manifest status".into()
            }
            Self::File { source, path, .. } => match source.kind() {
                std::io::ErrorKind::PermissionDenied => "run it as root".into(),
                std::io::ErrorKind::StorageFull => format!("free space in `{}`", path.display()),
                _ => String::new(),
            },
        }
    }

    /// Returns the last lines of the program that failed, oldest first.
    pub fn log(&self) -> &[String] {
        match self {
            Self::Unreachable { log, .. }
            | Self::Untrusted { log, .. }
            | Self::Failed { log, .. } => log,
            Self::Unknown { .. }
            | Self::Absent { .. }
            | Self::NotRoot { .. }
            | Self::Missing { .. }
            | Self::Full { .. }
            | Self::InUse { .. }
            | Self::File { .. } => &[],
        }
    }

    /// Converts it to an error of the port.
    pub fn into_port_error(self, doing: &str) -> PortError {
        let class = match &self {
            Self::Unknown { .. } | Self::Absent { .. } => ErrorClass::Missing,
            Self::NotRoot { .. }
            | Self::Missing { .. }
            | Self::Full { .. }
            | Self::Untrusted { .. }
            | Self::Failed { .. } => ErrorClass::Refused,
            Self::Unreachable { .. } => ErrorClass::Unreachable { sent: Sent::No },
            Self::InUse { .. } => ErrorClass::Busy,
            Self::File { .. } => ErrorClass::Broken,
        };
        PortError {
            class,
            log: self.log().iter().map(|line| line.as_str().into()).collect(),
            ..PortError::refused(doing, homestak_core::error::chain(&self), self.hint())
        }
    }

    /// Classifies the failure of a build by its output.
    pub(super) fn from_build(
        name: &str,
        program: &str,
        status: &str,
        mirror: &str,
        log: Vec<String>,
        room: DiskSpace,
    ) -> Self {
        let mentions = |words: &[&str]| {
            log.iter()
                .any(|line| words.iter().any(|word| line.contains(word)))
        };
        let name = name.to_owned();
        if mentions(NO_ROOM) {
            return Self::Full {
                name,
                path: room.path,
                free: room.free,
                needed: room.needed,
            };
        }
        let mirror = mirror.to_owned();
        if mentions(NOT_SIGNED) {
            return Self::Untrusted {
                name,
                mirror,
                log: last(log),
            };
        }
        if mentions(NOT_FETCHED) {
            return Self::Unreachable {
                name,
                mirror,
                log: last(log),
            };
        }
        Self::Failed {
            name,
            program: program.to_owned(),
            status: status.to_owned(),
            log: last(log),
        }
    }
}

/// The disk space when a build failed.
pub(super) struct DiskSpace {
    pub(super) path: PathBuf,
    pub(super) free: u64,
    pub(super) needed: u64,
}

const NO_ROOM: &[&str] = &[
    "No space left on device",
    "You don't have enough free space",
    "Disk quota exceeded",
];

const NOT_SIGNED: &[&str] = &["NO_PUBKEY", "is not signed", "EXPKEYSIG", "BADSIG"];

const NOT_FETCHED: &[&str] = &[
    "Failed to fetch",
    "Could not connect",
    "Could not resolve",
    "Temporary failure resolving",
    "Connection timed out",
    "does not have a Release file",
    "Unable to connect",
];

fn last(mut log: Vec<String>) -> Vec<String> {
    log.retain(|line| !line.trim().is_empty());
    log.split_off(log.len().saturating_sub(LAST_LINES))
}
