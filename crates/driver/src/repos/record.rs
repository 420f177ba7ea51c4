//! Whether repositories are served, which, and with which token: recorded beside what is published,
//! so that every command that publishes does the same.

use std::io;
use std::path::{Path, PathBuf};

use homestak_api::durable::{self, Access};
use homestak_api::publication::sha256;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::error::DriverError;

/// The file that records it.
const RECORD: &str = "repos.json";
/// The file with the token, if none is given.
const TOKEN: &str = "repo-token";
/// The shortest token: as long as the shortest secret of a webhook.
const MIN_TOKEN_BYTES: usize = 16;
/// The longest token.
const TOKEN_BYTES: usize = 1024;

/// Which token clients of repositories need.
#[derive(Clone)]
pub enum TokenChoice {
    /// The one that is stored; a random one if there is none.
    Stored,
    /// The content of a file.
    File(PathBuf),
    /// This one.
    Given(Zeroizing<String>),
}

/// How repositories are served.
#[derive(Clone)]
pub struct RepoOptions {
    /// Directory that known repositories are in.
    pub directory: Option<PathBuf>,
    /// Names that are not served.
    pub exclude: Vec<String>,
    /// The token.
    pub token: TokenChoice,
}

/// How repositories are served, as it is recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RepoRecord {
    /// Directory that known repositories are in.
    pub directory: Option<PathBuf>,
    /// Names that are not served.
    pub exclude: Vec<String>,
    /// A file of the user with the token; the stored one without.
    pub token_file: Option<PathBuf>,
}

impl RepoRecord {
    /// Reads it; `None` when repositories are not served.
    pub fn read(server: &Path) -> Result<Option<Self>, DriverError> {
        let path = server.join(RECORD);
        let failed = |error: io::Error| DriverError::file("read", &path, &error);
        match fs_err::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|error| failed(error.into())),
        }
    }

    /// Returns what `enable` would record; nothing is written. The token must be usable.
    pub fn of_options(server: &Path, options: &RepoOptions) -> Result<Self, DriverError> {
        let mut record = Self {
            directory: options.directory.clone(),
            exclude: options.exclude.clone(),
            token_file: None,
        };
        match &options.token {
            TokenChoice::Stored if server.join(TOKEN).exists() => {
                record.token_digest(server)?;
            }
            // One is generated.
            TokenChoice::Stored => {}
            TokenChoice::Given(token) => {
                checked(token, "`--repo-token`")?;
            }
            TokenChoice::File(path) => {
                record.token_file = Some(path.clone());
                record.token_digest(server)?;
            }
        }
        Ok(record)
    }

    /// Records that repositories are served. The token must be usable.
    pub fn enable(server: &Path, options: &RepoOptions) -> Result<Self, DriverError> {
        let record = Self::of_options(server, options)?;
        durable::create_private(server)
            .map_err(|error| DriverError::file("create", server, &error))?;
        let stored = server.join(TOKEN);
        let store = |token: &str| {
            let content = Zeroizing::new(format!("{token}\n"));
            durable::write(&stored, content.as_bytes(), Access::PRIVATE)
                .map_err(|error| DriverError::file("write", &stored, &error))
        };
        match &options.token {
            TokenChoice::Stored if stored.exists() => {}
            TokenChoice::Stored => {
                let random = || uuid::Uuid::new_v4().simple().to_string();
                store(&Zeroizing::new(random() + &random()))?;
            }
            TokenChoice::Given(token) => store(checked(token, "`--repo-token`")?)?,
            TokenChoice::File(_) => {}
        }
        record.token_digest(server)?;
        let path = server.join(RECORD);
        let text = serde_json::to_string_pretty(&record).unwrap_or_default();
        durable::write(&path, text.as_bytes(), Access::PRIVATE)
            .map_err(|error| DriverError::file("write", &path, &error))?;
        Ok(record)
    }

    /// Records that repositories are not served. The stored token stays for the next time.
    pub fn disable(server: &Path) -> Result<(), DriverError> {
        let path = server.join(RECORD);
        match fs_err::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(DriverError::file("remove", &path, &error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Returns the file with the token.
    pub fn token_path(&self, server: &Path) -> PathBuf {
        let stored = || server.join(TOKEN);
        self.token_file.clone().unwrap_or_else(stored)
    }

    /// Returns the SHA-256 of the token, in hexadecimal.
    pub fn token_digest(&self, server: &Path) -> Result<String, DriverError> {
        let path = self.token_path(server);
        let text = fs_err::read_to_string(&path).map(Zeroizing::new);
        let text = text.map_err(|error| DriverError::file("read", &path, &error))?;
        let token = checked(&text, &format!("`{}`", path.display()))?;
        Ok(sha256(token.as_bytes()))
    }
}

/// Returns a token without the line break at its end.
fn checked<'t>(text: &'t str, named: &str) -> Result<&'t str, DriverError> {
    let token = text.trim();
    if token.is_empty() {
        return Err(DriverError::failed(format!(
            "The token for repositories in {named} is empty."
        ))
        .hint("without a token option, a random token is generated"));
    }
    let is_plain = token.len() <= TOKEN_BYTES && token.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_plain {
        return Err(DriverError::failed(format!(
            "The token for repositories in {named} must be one line of at most {TOKEN_BYTES} \
             visible ASCII characters."
        )));
    }
    if token.len() < MIN_TOKEN_BYTES {
        return Err(DriverError::failed(format!(
            "The token for repositories in {named} is too short: it must have at least \
             {MIN_TOKEN_BYTES} characters."
        ))
        .hint("without a token option, a random token is generated"));
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_a_least_length() {
        for (token, is_good) in [
            ("", false),
            ("x", false),
            ("fifteen-letters", false),
            ("sixteen-letters!\n", true),
            ("sixteen letters!", false),
        ] {
            assert_eq!(checked(token, "a test").is_ok(), is_good, "{token}");
        }
        let short = checked("x", "`--repo-token`").expect_err("too short");
        assert!(
            short.message.contains("at least 16 characters"),
            "{}",
            short.message
        );
    }
}
