//! What went wrong, in words for a person.
//!
//! In: errors of SQLite and of files. Out: [`JournalError`], with what to do next.
//! Never: advice to delete a file; what cannot be read today may be read tomorrow.

use homestak_engine::journal::JournalError;
use rusqlite::ErrorCode;

use super::file::File;

/// Why something was not done, before it is said what that was.
#[derive(Debug)]
pub(super) enum Fault {
    /// SQLite said no.
    Sql(rusqlite::Error),
    /// A file could not be read or made.
    Io(std::io::Error),
    /// The journal is fine and the answer is no.
    Answer(JournalError),
    /// Something else, in words.
    Said {
        /// What it is.
        detail: String,
        /// What a person can do.
        hint: String,
    },
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl Fault {
    /// Makes one in words.
    pub(super) fn said(detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Said {
            detail: detail.into(),
            hint: hint.into(),
        }
    }

    /// Makes one about something in the file that makes no sense.
    pub(super) fn nonsense(detail: impl std::fmt::Display) -> Self {
        Self::Said {
            detail: detail.to_string(),
            hint: MOVE_AWAY.to_owned(),
        }
    }

    /// Tells whether waiting may help.
    pub(super) fn is_busy(&self) -> bool {
        match self {
            Self::Sql(error) => matches!(
                error.sqlite_error_code(),
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
            ),
            Self::Io(_) | Self::Answer(_) | Self::Said { .. } => false,
        }
    }

    /// Says in which part of something larger it happened.
    pub(super) fn during(self, part: &str) -> Self {
        match self.words() {
            Ok((detail, hint)) => Self::said(format!("{part}: {detail}"), hint),
            Err(error) => Self::Answer(error),
        }
    }

    /// Says what it is, and what a person can do.
    fn words(self) -> Result<(String, String), JournalError> {
        Ok(match self {
            Self::Answer(error) => return Err(error),
            Self::Said { detail, hint } => (detail, hint),
            Self::Io(error) => (error.to_string(), io_hint(&error).to_owned()),
            Self::Sql(error) => (error.to_string(), sql_hint(&error).to_owned()),
        })
    }

    /// Says what was being done, and what to do now.
    pub(super) fn told(self, doing: &str, file: &File) -> JournalError {
        let (detail, hint) = match self.words() {
            Ok(words) => words,
            Err(error) => return error,
        };
        // What is written of a run is continued; anything else is asked for again.
        let next = match doing.strip_prefix("write down ") {
            Some(what) if what.contains("of run") => "run `homestak manifest resume`",
            _ => "repeat the command",
        };
        JournalError::Broken {
            doing: doing.to_owned(),
            detail,
            hint: hint
                .replace("NEXT", next)
                .replace("FILE", &file.to_string()),
        }
    }
}

const FULL: &str = "is the disk of `FILE` full? free space and NEXT";
const REFUSED: &str =
    "make `FILE` and its directory writable for yourself, or name another with `HOMESTAK_STATE`";
const MOVE_AWAY: &str = "move `FILE`, `FILE-wal` and `FILE-shm` away and keep them; then `homestak state rebuild` records \
     the guests again";
const BUSY: &str = "another program has `FILE` open and locked: close it and try again";
const DISK: &str =
    "is the disk of `FILE` full? free space and NEXT; if it is not full, look at `dmesg` first";
const BUG: &str = "this is a bug of homestak; please report it";

fn io_hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => FULL,
        std::io::ErrorKind::PermissionDenied
        | std::io::ErrorKind::ReadOnlyFilesystem
        | std::io::ErrorKind::NotADirectory
        | std::io::ErrorKind::AlreadyExists
        | std::io::ErrorKind::IsADirectory => REFUSED,
        _ => DISK,
    }
}

fn sql_hint(error: &rusqlite::Error) -> &'static str {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => FULL,
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => REFUSED,
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => MOVE_AWAY,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => BUSY,
        Some(ErrorCode::SystemIoFailure) => DISK,
        Some(_) => BUG,
        // Not from SQLite itself: a column has another type than we write.
        None => MOVE_AWAY,
    }
}
