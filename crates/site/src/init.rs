//! Creates a new site from the stock site, with a random id and signing key, in an empty directory.

use std::path::{Path, PathBuf};

use homestak_api::durable::{self, Access};
use homestak_core::hex;

use crate::stock;

/// Why no site was created.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The directory is not empty.
    #[error("`{0}` is not empty")]
    NotEmpty(PathBuf),
    /// A file could not be written.
    #[error("write the site to `{0}`")]
    Write(PathBuf, #[source] std::io::Error),
    /// The id could not be written.
    #[error(transparent)]
    Id(#[from] crate::id::IdError),
    /// The system random number generator failed.
    #[error("generate a signing key: {0}")]
    Random(getrandom::Error),
}

/// Writes the stock site to `directory` and returns the files written.
pub fn init(directory: &Path) -> Result<Vec<PathBuf>, InitError> {
    let failed = |error| InitError::Write(directory.to_owned(), error);
    if directory.exists() {
        let mut entries = fs_err::read_dir(directory).map_err(failed)?;
        if entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() != ".git")) {
            return Err(InitError::NotEmpty(directory.to_owned()));
        }
    }
    let mut written = Vec::new();
    for (name, text) in stock::FILES {
        // A file named `.gitignore` would apply to the source tree.
        let path = directory.join(if *name == "gitignore" {
            ".gitignore"
        } else {
            name
        });
        if let Some(parent) = path.parent() {
            fs_err::create_dir_all(parent).map_err(failed)?;
        }
        fs_err::write(&path, text).map_err(failed)?;
        written.push(path);
    }
    crate::id::add(directory, &crate::id::random()?)?;
    let secrets = directory.join("secrets.yaml");
    write_secrets(&secrets)?;
    written.push(secrets);
    Ok(written)
}

fn write_secrets(path: &Path) -> Result<(), InitError> {
    let mut key = [0u8; 32];
    getrandom::fill(&mut key).map_err(InitError::Random)?;
    let key = hex::encode(&key);
    let text = format!(
        "# Never commit this file unencrypted. To encrypt it: homestak secrets encrypt\n\
         api_tokens: {{}}\n\
         passwords:\n  vm_root: \"\"\n\
         ssh_keys: {{}}\n\
         auth:\n  signing_key: \"{key}\"\n"
    );
    durable::write(path, text.as_bytes(), Access::PRIVATE)
        .map_err(|error| InitError::Write(path.to_owned(), error))
}
