//! Why a repository could not be prepared.

use std::io;
use std::path::{Path, PathBuf};

use homestak_core::foreign::ForeignText;

/// Why a repository could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum RepoError {
    /// It is of a kind that is not supported, or not a repository.
    #[error("{0}")]
    Unusable(String),
    /// A file could not be used.
    #[error("{doing} `{}`", path.display())]
    File {
        /// What was being done.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// `git` could not be run.
    #[error("run `git {command}`")]
    Run {
        /// Its first argument.
        command: String,
        /// Why.
        source: io::Error,
    },
    /// `git` failed.
    #[error("`git {command}` failed: {message}")]
    Git {
        /// Its first argument.
        command: String,
        /// The last line that it printed.
        message: String,
    },
}

impl RepoError {
    pub(super) fn unusable(why: impl Into<String>) -> Self {
        Self::Unusable(why.into())
    }

    pub(super) fn file<'a>(
        doing: &'static str,
        path: &'a Path,
    ) -> impl Fn(io::Error) -> Self + use<'a> {
        move |source| Self::File {
            doing,
            path: path.to_owned(),
            source,
        }
    }

    /// Makes the error for a failed `git`, with what it printed: text of a repository.
    pub(super) fn git(command: &str, printed: &[u8]) -> Self {
        let text = String::from_utf8_lossy(printed);
        let line = text.lines().rev().find(|line| !line.trim().is_empty());
        Self::Git {
            command: command.to_owned(),
            message: ForeignText::line(line.unwrap_or("no reason given"))
                .as_str()
                .to_owned(),
        }
    }
}
