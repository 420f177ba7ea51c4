//! Errors of SQLite and of files, with hints. No hint advises to delete a file.

use homestak_engine::journal::JournalError;
use rusqlite::ErrorCode;

use super::file::File;

/// An error, before the operation is added.
#[derive(Debug)]
pub(crate) enum StoreError {
    /// Error of SQLite.
    Sql(rusqlite::Error),
    /// Error of a file.
    Io(std::io::Error),
    /// The journal is intact, and refused the request.
    Answer(JournalError),
    /// Another error, as text.
    Other {
        /// The message.
        detail: String,
        /// What the user can do.
        hint: String,
    },
}

/// What the user can do once the cause of an error is removed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Retry {
    /// Repeat the command.
    Command,
    /// Resume the run.
    Resume,
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<std::io::Error> for StoreError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl StoreError {
    /// Makes an error from text.
    pub(super) fn other(detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Other {
            detail: detail.into(),
            hint: hint.into(),
        }
    }

    /// Makes an error for a value in the file that is not understood.
    pub(super) fn corrupt(detail: impl std::fmt::Display) -> Self {
        Self::Other {
            detail: detail.to_string(),
            hint: MOVE_AWAY.to_owned(),
        }
    }

    /// Returns whether waiting may help.
    pub(super) fn is_busy(&self) -> bool {
        match self {
            Self::Sql(error) => matches!(
                error.sqlite_error_code(),
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
            ),
            Self::Io(_) | Self::Answer(_) | Self::Other { .. } => false,
        }
    }

    /// Adds the part of the operation in which it happened.
    pub(super) fn during(self, part: &str) -> Self {
        match self.words() {
            Ok((detail, hint)) => Self::other(format!("{part}: {detail}"), hint),
            Err(error) => Self::Answer(error),
        }
    }

    /// Returns message and hint.
    fn words(self) -> Result<(String, String), JournalError> {
        Ok(match self {
            Self::Answer(error) => return Err(error),
            Self::Other { detail, hint } => (detail, hint),
            Self::Io(error) => (error.to_string(), io_hint(&error).to_owned()),
            Self::Sql(error) => (error.to_string(), sql_hint(&error).to_owned()),
        })
    }

    /// Adds the operation.
    pub(super) fn into_journal_error(self, doing: &str, retry: Retry, file: &File) -> JournalError {
        let (detail, hint) = match self.words() {
            Ok(words) => words,
            Err(error) => return error,
        };
        let next = match retry {
            Retry::Command => "repeat the command",
            Retry::Resume => "run `homestak manifest resume`",
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

/// Returns whether an error is that of SQLite for a full disk. Its causes are not searched.
pub fn is_disk_full(error: &(dyn std::error::Error + 'static)) -> bool {
    let error = error.downcast_ref::<rusqlite::Error>();
    error.and_then(rusqlite::Error::sqlite_error_code) == Some(ErrorCode::DiskFull)
}

const FULL: &str = "the disk of `FILE` is full: free space and NEXT";
const REFUSED: &str =
    "make `FILE` and its directory writable, or set `HOMESTAK_STATE` to another directory";
const MOVE_AWAY: &str = "move `FILE`, `FILE-wal` and `FILE-shm` away and keep them; then `homestak state rebuild` records \
     the guests again";
const BUSY: &str = "another program has locked `FILE`: close it and try again";
const DISK: &str = "the disk of `FILE` may be full: free space and NEXT; otherwise check `dmesg`";
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
        // Not from SQLite itself: a column has an unexpected type.
        None => MOVE_AWAY,
    }
}
