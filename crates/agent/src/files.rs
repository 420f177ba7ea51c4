//! Files, all of them or none: written beside their places, checked, then moved there.
//!
//! In: the steps that are about files. Out: files in place, whole.
//! Never: a file half written; a rule of sudo or a setting of sshd that was not checked.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use fs_err::os::unix::fs::OpenOptionsExt as _;
use homestak_core::converge::{SSHD, SSHD_D, SUDOERS, Step};

use crate::error::AgentError;
use crate::process;

fn failed(path: &str) -> impl Fn(std::io::Error) -> AgentError + '_ {
    move |source| AgentError::Write {
        path: path.to_owned(),
        source,
    }
}

/// A set of files that are written beside their places. What is not moved is removed.
#[derive(Default)]
pub(crate) struct Staged {
    files: Vec<(String, PathBuf)>,
    /// Every file of the set as it will be; `None` for one that goes.
    texts: BTreeMap<String, Option<String>>,
}

impl Drop for Staged {
    fn drop(&mut self) {
        for (_, beside) in &self.files {
            _ = fs_err::remove_file(beside);
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
        let mut sshd = false;
        for step in steps {
            if let Step::Directory {
                path,
                mode,
                owner,
                group,
            } = step
            {
                directory(path, *mode, owner, group)?;
            }
            if let Step::Write {
                path,
                content,
                mode,
                owner,
                group,
            } = step
            {
                require_writable(path)?;
                let beside = beside(Path::new(path));
                if let Some(parent) = beside.parent() {
                    fs_err::create_dir_all(parent).map_err(failed(path))?;
                }
                self.files.push((path.clone(), beside.clone()));
                write_new(&beside, content.as_bytes(), *mode).map_err(failed(path))?;
                give(&beside, owner, group)?;
                sshd |= path.starts_with(SSHD);
                self.texts.insert(path.clone(), Some(content.clone()));
            }
            if let Step::Delete { path } = step {
                require_writable(path)?;
                sshd |= path.starts_with(SSHD);
                self.texts.insert(path.clone(), None);
            }
        }
        check_sudoers(&self.files[first..])?;
        if sshd {
            check_sshd(&self.texts)?;
        }
        Ok(())
    }

    /// Moves one file to its place.
    pub(crate) fn place(&mut self, path: &str) -> Result<(), AgentError> {
        let Some(nth) = self.files.iter().position(|(place, _)| place == path) else {
            return Ok(());
        };
        let (_, beside) = &self.files[nth];
        replace(beside, Path::new(path)).map_err(failed(path))?;
        self.files.remove(nth);
        Ok(())
    }
}

fn replace(beside: &Path, path: &Path) -> std::io::Result<()> {
    match fs_err::rename(beside, path) {
        // A file that is mounted by itself cannot be replaced, only filled.
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
            fs_err::write(path, fs_err::read(beside)?)?;
            fs_err::remove_file(beside)
        }
        done => done,
    }
}

/// Finds out whether a file can be replaced or removed: one that is mounted read-only, or that may
/// not be changed, is found before the first file is moved.
fn require_writable(path: &str) -> Result<(), AgentError> {
    match fs_err::symlink_metadata(path) {
        Ok(meta) if meta.is_file() => {
            let open = fs_err::OpenOptions::new().write(true).open(path);
            open.map_err(failed(path))?;
        }
        _ => {}
    }
    let Some((parent, _)) = path.rsplit_once('/') else {
        return Ok(());
    };
    let read_only = rustix::fs::statvfs(parent).is_ok_and(|system| {
        system
            .f_flag
            .contains(rustix::fs::StatVfsMountFlags::RDONLY)
    });
    if read_only {
        return Err(failed(path)(ErrorKind::ReadOnlyFilesystem.into()));
    }
    Ok(())
}

/// Puts a file where it was, with numbers for owner and group: names may have gone.
pub(crate) fn put_back(
    path: &Path,
    content: &[u8],
    mode: u32,
    (user, group): (u32, u32),
) -> std::io::Result<()> {
    let beside = beside(path);
    if let Some(parent) = path.parent() {
        fs_err::create_dir_all(parent)?;
    }
    let done = write_new(&beside, content, 0o600)
        .and_then(|()| std::os::unix::fs::chown(&beside, Some(user), Some(group)))
        .and_then(|()| fs_err::set_permissions(&beside, std::fs::Permissions::from_mode(mode)))
        .and_then(|()| replace(&beside, path));
    if done.is_err() {
        _ = fs_err::remove_file(&beside);
    }
    done
}

/// Writes a file atomically.
pub(crate) fn write_whole(path: &Path, content: &str, mode: u32) -> std::io::Result<()> {
    let beside = beside(path);
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    if let Some(parent) = parent {
        fs_err::create_dir_all(parent)?;
    }
    let done =
        write_new(&beside, content.as_bytes(), mode).and_then(|()| fs_err::rename(&beside, path));
    if done.is_err() {
        _ = fs_err::remove_file(&beside);
    }
    done
}

/// Makes a symbolic link atomically.
pub(crate) fn link(path: &str, target: &str) -> Result<(), AgentError> {
    let beside = beside(Path::new(path));
    _ = fs_err::remove_file(&beside);
    fs_err::os::unix::fs::symlink(target, &beside)
        .and_then(|()| fs_err::rename(&beside, path))
        .map_err(failed(path))
}

/// Removes a file; one that is gone is fine.
pub(crate) fn delete(path: &str) -> Result<(), AgentError> {
    match fs_err::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(path)(error)),
        _ => Ok(()),
    }
}

/// The name has dots and an end that nobody reads: sudo, sshd and others skip it.
fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.homestak-new"))
}

fn write_new(path: &Path, content: &[u8], mode: u32) -> std::io::Result<()> {
    _ = fs_err::remove_file(path);
    let mut file = fs_err::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(content)?;
    file.set_permissions(std::fs::Permissions::from_mode(mode))?;
    file.sync_all()
}

fn directory(path: &str, mode: u32, owner: &str, group: &str) -> Result<(), AgentError> {
    fs_err::create_dir_all(path).map_err(failed(path))?;
    give(Path::new(path), owner, group)?;
    let mode = std::fs::Permissions::from_mode(mode);
    fs_err::set_permissions(path, mode).map_err(failed(path))
}

fn give(path: &Path, owner: &str, group: &str) -> Result<(), AgentError> {
    if owner == "root" && group == "root" {
        return Ok(());
    }
    let to = format!("{owner}:{group}");
    let path = path.to_string_lossy();
    process::must(&["chown", "--no-dereference", &to, &path])?;
    Ok(())
}

fn check_sudoers(files: &[(String, PathBuf)]) -> Result<(), AgentError> {
    for (path, beside) in files {
        if !path.starts_with(SUDOERS) {
            continue;
        }
        let beside = beside.to_string_lossy();
        let ended = process::run(&["visudo", "--check", "--quiet", "--file", &beside])?;
        if ended.code != Some(0) {
            return Err(AgentError::Unsound {
                path: path.clone(),
                said: ended.said(),
            });
        }
    }
    Ok(())
}

/// Checks the SSH server's configuration as it will be, in a directory of its own.
fn check_sshd(texts: &BTreeMap<String, Option<String>>) -> Result<(), AgentError> {
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
        write_new(&to, text.as_bytes(), 0o600).map_err(failed(path))?;
    }
    let main = place.join("sshd_config");
    let ended = process::run(&["/usr/sbin/sshd", "-t", "-f", &main.to_string_lossy()])?;
    if ended.code == Some(0) {
        return Ok(());
    }
    Err(AgentError::Unsound {
        path: SSHD.to_owned(),
        said: ended.said(),
    })
}
