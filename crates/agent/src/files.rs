//! Files, all of them or none: written beside their places, checked, then moved there.
//!
//! Never: a file half written; a rule of sudo or a setting of sshd that was not checked; a path
//! resolved by anything but `path`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use homestak_api::durable::{self, Access};
use homestak_core::converge::{SSHD, SSHD_D, SUDOERS, Step};

use crate::error::AgentError;
use crate::gather::Accounts;
use crate::path::{self, Directory, Fault, Keeper};
use crate::process;
use crate::sound::visudo;

fn failed(path: &str) -> impl Fn(std::io::Error) -> AgentError + '_ {
    move |source| AgentError::Write {
        path: path.to_owned(),
        source,
    }
}

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
    pub(crate) fn add<'a>(
        &mut self,
        steps: impl Iterator<Item = &'a Step>,
    ) -> Result<(), AgentError> {
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
        if let Step::Directory {
            path,
            mode,
            owner,
            group,
        } = step
        {
            let (directory, name) = path::make_parent(Path::new(path))?;
            let done = ids(accounts, owner, group)
                .and_then(|owner| directory.set_directory(&name, *mode, owner));
            return done.map_err(|source| fault(&directory, source));
        }
        if let Step::Write {
            path,
            content,
            mode,
            owner,
            group,
        } = step
        {
            let (directory, name) = path::make_parent(Path::new(path))?;
            let done = ids(accounts, owner, group).and_then(|owner| {
                directory.require_writable(&name)?;
                directory.require_owner(owner.0)?;
                directory.require_plain(*mode)?;
                let mode = *mode;
                let owner = Some(owner);
                directory.write_beside(&name, content.as_bytes(), Access { mode, owner })
            });
            done.map_err(|source| fault(&directory, source))?;
            let path = path.clone();
            self.files.push(Beside {
                path,
                directory,
                name,
            });
        }
        if let Step::Delete { path } = step {
            return match path::parent(Path::new(path)) {
                Ok((directory, name)) => {
                    let done = directory.require_writable(&name);
                    done.map_err(|source| fault(&directory, source))
                }
                Err(fault) if path::is_missing(&fault.source) => Ok(()),
                Err(fault) => Err(fault),
            };
        }
        Ok(())
    }

    /// What a user can cause keeps that user's file from being written, and nothing else.
    fn skip(&mut self, path: &str, fault: Fault) -> Result<(), AgentError> {
        if !fault.by_user {
            return Err(failed(path)(fault.source));
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
                let fault = fault(&file.directory, source);
                self.skip(path, fault)
            }
        }
    }

    /// Deletes a file; one that is gone is fine.
    pub(crate) fn delete(&mut self, path: &str) -> Result<(), AgentError> {
        delete(Path::new(path)).or_else(|fault| self.skip(path, fault))
    }
}

fn fault(directory: &Directory, source: std::io::Error) -> Fault {
    let by_user = directory.keeper() != Keeper::Root;
    Fault { source, by_user }
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
    let (directory, name) = match path::parent(path) {
        Err(fault) if path::is_missing(&fault.source) => return Ok(()),
        opened => opened?,
    };
    let done = directory.remove(&name);
    done.map_err(|source| fault(&directory, source))
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

/// Checks the SSH server's configuration as it will be, in a directory of its own.
pub(crate) fn check_sshd(texts: &BTreeMap<String, Option<String>>) -> Result<(), AgentError> {
    let place = PathBuf::from(format!("/run/homestak-sshd-{}", std::process::id()));
    let result = check_sshd_in(&place, texts);
    _ = fs_err::remove_dir_all(&place);
    result
}

fn check_sshd_in(place: &Path, texts: &BTreeMap<String, Option<String>>) -> Result<(), AgentError> {
    let parts = place.join("parts");
    fs_err::create_dir_all(&parts).map_err(failed(SSHD))?;
    // The server itself makes this at its start, and its check wants it.
    fs_err::create_dir_all("/run/sshd").map_err(failed("/run/sshd"))?;
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    let own = fs_err::read_dir(SSHD_D).into_iter().flatten().flatten();
    let found = own.filter_map(|entry| entry.path().to_str().map(str::to_owned));
    for path in found.chain([SSHD.to_owned()]) {
        if let Ok(text) = fs_err::read_to_string(&path) {
            all.insert(path, text);
        }
    }
    for (path, text) in texts {
        match text {
            Some(text) => all.insert(path.clone(), text.clone()),
            None => all.remove(path),
        };
    }
    for (path, text) in &all {
        let inner = path
            .strip_prefix(SSHD_D)
            .and_then(|rest| rest.strip_prefix('/'));
        let to = match inner {
            Some(name) => parts.join(name),
            None if path == SSHD => place.join("sshd_config"),
            None => continue,
        };
        let text = text.replace(&format!("{SSHD_D}/"), &format!("{}/", parts.display()));
        durable::write(&to, text.as_bytes(), Access::PRIVATE).map_err(failed(path))?;
    }
    let main = place.join("sshd_config");
    let ended = process::run(&["/usr/sbin/sshd", "-t", "-f", &main.to_string_lossy()])?;
    if ended.code == Some(0) {
        return Ok(());
    }
    let said = ended.said();
    let said = said.replace(&*parts.to_string_lossy(), SSHD_D);
    Err(AgentError::Unsound {
        path: SSHD.to_owned(),
        said: said.replace(&*main.to_string_lossy(), SSHD),
    })
}
