//! Files, all of them or none: written beside their places, checked, then moved there.
//!
//! Never: a file half written; a rule of sudo or a setting of sshd that was not checked; a path
//! resolved by anything but `path`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use homestak_api::durable::Access;
use homestak_core::converge::{SSHD, SUDOERS, Step};

use crate::error::AgentError;
use crate::gather::Accounts;
use crate::path::{self, Directory, Fault};
use crate::sound::{check_sshd, visudo};

/// A file that is written beside its place, in a directory that is held until it is moved.
struct Beside {
    path: String,
    directory: Directory,
    name: OsString,
}

/// A set of files that are written beside their places. What is not moved is removed.
#[derive(Default)]
pub(crate) struct Staged {
    files: Vec<Beside>,
    /// Every file of the set as it will be; `None` for one that goes.
    texts: BTreeMap<String, Option<String>>,
    /// Paths that a user kept from being written, and how.
    skipped: BTreeMap<String, String>,
}

impl Drop for Staged {
    fn drop(&mut self) {
        for file in &self.files {
            file.directory.remove_beside(&file.name);
        }
    }
}

impl Staged {
    /// Writes files beside their places and checks them, and that they can be moved there.
    pub(crate) fn add(&mut self, steps: &[&Step]) -> Result<(), AgentError> {
        let first = self.files.len();
        let accounts = Accounts::read()?;
        let mut sshd = false;
        for step in steps {
            let (path, text) = match step {
                Step::Directory { path, .. } => (path, None),
                Step::Write { path, content, .. } => (path, Some(Some(content.clone()))),
                Step::Delete { path } => (path, Some(None)),
                _ => continue,
            };
            match self.stage(step, &accounts) {
                Ok(()) => {}
                Err(fault) => {
                    self.skip(path, fault)?;
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

    fn stage(&mut self, step: &Step, accounts: &Accounts) -> Result<(), Fault> {
        match step {
            Step::Directory {
                path,
                mode,
                owner,
                group,
            } => {
                let (directory, name) = path::make_parent(Path::new(path))?;
                let done = ids(accounts, owner, group)
                    .and_then(|owner| directory.set_directory(&name, *mode, owner));
                done.map_err(|source| directory.fault(source))
            }
            Step::Write {
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
                    directory.write_beside(&name, content.as_bytes(), Access { mode, owner })
                });
                done.map_err(|source| directory.fault(source))?;
                let path = path.clone();
                self.files.push(Beside {
                    path,
                    directory,
                    name,
                });
                Ok(())
            }
            Step::Delete { path } => match path::existing_parent(Path::new(path))? {
                Some((directory, name)) => {
                    let done = directory.require_writable(&name);
                    done.map_err(|source| directory.fault(source))
                }
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// What a user can cause keeps that user's file from being written, and nothing else.
    fn skip(&mut self, path: &str, fault: Fault) -> Result<(), AgentError> {
        if !fault.by_user {
            return Err(AgentError::write(path)(fault.source));
        }
        self.skipped
            .insert(path.to_owned(), fault.source.to_string());
        Ok(())
    }

    /// Returns the paths that a user kept from being written or deleted, and how.
    pub(crate) fn skipped(&self) -> &BTreeMap<String, String> {
        &self.skipped
    }

    /// Moves one file to its place.
    pub(crate) fn place(&mut self, path: &str) -> Result<(), AgentError> {
        let Some(nth) = self.files.iter().position(|file| file.path == path) else {
            return Ok(());
        };
        let file = &self.files[nth];
        match file.directory.place(&file.name) {
            Ok(()) => {
                self.files.remove(nth);
                Ok(())
            }
            Err(source) => {
                let fault = file.directory.fault(source);
                self.skip(path, fault)
            }
        }
    }

    /// Deletes a file; one that is gone is fine.
    pub(crate) fn delete(&mut self, path: &str) -> Result<(), AgentError> {
        delete(Path::new(path)).or_else(|fault| self.skip(path, fault))
    }
}

fn ids(accounts: &Accounts, owner: &str, group: &str) -> std::io::Result<(u32, u32)> {
    let unknown = || {
        let what = format!("there is no user `{owner}` or no group `{group}`");
        std::io::Error::new(std::io::ErrorKind::InvalidInput, what)
    };
    accounts.ids(owner, group).ok_or_else(unknown)
}

/// Deletes a file; one that is gone is fine.
pub(crate) fn remove(path: &Path) -> std::io::Result<()> {
    Ok(delete(path)?)
}

fn delete(path: &Path) -> Result<(), Fault> {
    let Some((directory, name)) = path::existing_parent(path)? else {
        return Ok(());
    };
    let done = directory.remove(&name);
    done.map_err(|source| directory.fault(source))
}

/// Writes a file of root, whole, with the directories on the way to it.
pub(crate) fn write(path: &Path, content: &[u8], mode: u32) -> std::io::Result<()> {
    put(path, content, mode, (0, 0))
}

/// Writes a file, whole, with numbers for owner and group: names may have gone.
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

/// Makes a symbolic link atomically.
pub(crate) fn link(path: &str, target: &str) -> std::io::Result<()> {
    let (directory, name) = path::make_parent(Path::new(path))?;
    directory.link(&name, OsStr::new(target))
}

fn check_sudoers(files: &[Beside]) -> Result<(), AgentError> {
    for Beside { path, name, .. } in files {
        if !path.starts_with(SUDOERS) {
            continue;
        }
        let beside = Path::new(path).with_file_name(path::beside(name));
        if let Some(said) = visudo(&beside.to_string_lossy(), path)? {
            return Err(AgentError::Unsound {
                path: path.clone(),
                said,
            });
        }
    }
    Ok(())
}
