//! Files, replaced atomically: all of a set are staged as temporary files and checked before the
//! first is moved into place. Paths are resolved by `path` alone.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use homestak_api::durable::Access;
use homestak_core::converge::{ConvergeStep, SSHD, SUDOERS};

use crate::config_check::{check_sshd, visudo};
use crate::error::AgentError;
use crate::facts::Accounts;
use crate::path::{self, Directory, PathError};

/// A temporary file, in a directory that is kept open until the file is moved into place.
struct StagedFile {
    path: String,
    directory: Directory,
    name: OsString,
}

/// A set of staged files. Those that are not moved into place are removed.
#[derive(Default)]
pub(crate) struct Staged {
    files: Vec<StagedFile>,
    /// The new content of every file of the set; `None` for one that is deleted.
    texts: BTreeMap<String, Option<String>>,
    /// Paths that a user prevented from being written, and the reason.
    skipped: BTreeMap<String, String>,
}

impl Drop for Staged {
    fn drop(&mut self) {
        for file in &self.files {
            file.directory.remove_temporary(&file.name);
        }
    }
}

impl Staged {
    /// Stages files, and checks them and that they can be moved into place.
    pub(crate) fn add(&mut self, steps: &[&ConvergeStep]) -> Result<(), AgentError> {
        let first = self.files.len();
        let accounts = Accounts::read()?;
        let mut sshd = false;
        for step in steps {
            let (path, text) = match step {
                ConvergeStep::Directory { path, .. } => (path, None),
                ConvergeStep::Write { path, content, .. } => (path, Some(Some(content.clone()))),
                ConvergeStep::Delete { path } => (path, Some(None)),
                _ => continue,
            };
            match self.stage(step, &accounts) {
                Ok(()) => {}
                Err(error) => {
                    self.skip(path, error)?;
                    continue;
                }
            }
            if let Some(text) = text {
                sshd |= path.starts_with(SSHD);
                self.texts.insert(path.clone(), text);
            }
        }
        check_sudoers(&self.files[first..])?;
        if sshd {
            check_sshd(&self.texts)?;
        }
        Ok(())
    }

    fn stage(&mut self, step: &ConvergeStep, accounts: &Accounts) -> Result<(), PathError> {
        match step {
            ConvergeStep::Directory {
                path,
                mode,
                owner,
                group,
            } => {
                let (directory, name) = path::make_parent(Path::new(path))?;
                let done = ids(accounts, owner, group)
                    .and_then(|owner| directory.set_directory(&name, *mode, owner));
                done.map_err(|source| directory.error(source))
            }
            ConvergeStep::Write {
                path,
                content,
                mode,
                owner,
                group,
            } => {
                let (directory, name) = path::make_parent(Path::new(path))?;
                let mode = *mode;
                let done = ids(accounts, owner, group).and_then(|owner| {
                    directory.require_writable(&name)?;
                    directory.require_owner(owner.0)?;
                    directory.require_plain(mode)?;
                    let owner = Some(owner);
                    directory.write_temporary(&name, content.as_bytes(), Access { mode, owner })
                });
                done.map_err(|source| directory.error(source))?;
                let path = path.clone();
                self.files.push(StagedFile {
                    path,
                    directory,
                    name,
                });
                Ok(())
            }
            ConvergeStep::Delete { path } => match path::existing_parent(Path::new(path))? {
                Some((directory, name)) => {
                    let done = directory.require_writable(&name);
                    done.map_err(|source| directory.error(source))
                }
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// An error that a user can cause skips that user's file, and nothing else.
    fn skip(&mut self, path: &str, error: PathError) -> Result<(), AgentError> {
        if !error.by_user {
            return Err(AgentError::write(path)(error.source));
        }
        self.skipped
            .insert(path.to_owned(), error.source.to_string());
        Ok(())
    }

    /// Returns the paths that a user prevented from being written or deleted, and the reasons.
    pub(crate) fn skipped(&self) -> &BTreeMap<String, String> {
        &self.skipped
    }

    /// Moves one file into place.
    pub(crate) fn commit(&mut self, path: &str) -> Result<(), AgentError> {
        let Some(nth) = self.files.iter().position(|file| file.path == path) else {
            return Ok(());
        };
        let file = &self.files[nth];
        match file.directory.commit(&file.name) {
            Ok(()) => {
                self.files.remove(nth);
                Ok(())
            }
            Err(source) => {
                let error = file.directory.error(source);
                self.skip(path, error)
            }
        }
    }

    /// Deletes a file, if it exists.
    pub(crate) fn delete(&mut self, path: &str) -> Result<(), AgentError> {
        delete(Path::new(path)).or_else(|error| self.skip(path, error))
    }
}

fn ids(accounts: &Accounts, owner: &str, group: &str) -> std::io::Result<(u32, u32)> {
    let unknown = || {
        let what = format!("user `{owner}` or group `{group}` does not exist");
        std::io::Error::new(std::io::ErrorKind::InvalidInput, what)
    };
    accounts.ids(owner, group).ok_or_else(unknown)
}

/// Deletes a file, if it exists.
pub(crate) fn remove(path: &Path) -> std::io::Result<()> {
    Ok(delete(path)?)
}

fn delete(path: &Path) -> Result<(), PathError> {
    let Some((directory, name)) = path::existing_parent(path)? else {
        return Ok(());
    };
    let done = directory.remove(&name);
    done.map_err(|source| directory.error(source))
}

/// Writes a file of root atomically, and creates missing parent directories.
pub(crate) fn write(path: &Path, content: &[u8], mode: u32) -> std::io::Result<()> {
    put(path, content, mode, (0, 0))
}

/// Writes a file atomically. Owner and group are numbers, since their names may be deleted.
pub(crate) fn put(
    path: &Path,
    content: &[u8],
    mode: u32,
    owner: (u32, u32),
) -> std::io::Result<()> {
    let (directory, name) = path::make_parent(path)?;
    let owner = Some(owner);
    directory.write(&name, content, Access { mode, owner })
}

/// Creates a symbolic link atomically.
pub(crate) fn link(path: &str, target: &str) -> std::io::Result<()> {
    let (directory, name) = path::make_parent(Path::new(path))?;
    directory.link(&name, OsStr::new(target))
}

fn check_sudoers(files: &[StagedFile]) -> Result<(), AgentError> {
    for StagedFile { path, name, .. } in files {
        if !path.starts_with(SUDOERS) {
            continue;
        }
        let temporary = Path::new(path).with_file_name(path::temporary(name));
        if let Some(reason) = visudo(&temporary.to_string_lossy(), path)? {
            return Err(AgentError::InvalidFile {
                path: path.clone(),
                reason,
            });
        }
    }
    Ok(())
}
