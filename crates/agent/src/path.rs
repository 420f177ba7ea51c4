//! Path resolution that no unprivileged user can redirect.
//!
//! A path is walked one component at a time and the last directory is kept open: files are read,
//! written and deleted relative to that descriptor. A symbolic link is followed only when
//! root owns it and root alone can change every directory up to it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use homestak_api::durable::{self, Access};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat};
use rustix::fs::{Gid, Uid};
use rustix::io::Errno;

/// Symbolic links followed in one path, as in the kernel.
const MAX_LINKS: usize = 40;
/// The mode of parent directories that are created.
const PARENT_MODE: u32 = 0o755;

/// Who can change the target of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WritableBy {
    /// Root alone.
    Root,
    /// This user: they own one of the directories.
    User(u32),
    /// Several users: one of the directories is writable for a group or for everyone.
    Shared,
}

/// A path that is refused.
#[derive(Debug, thiserror::Error)]
#[error("`{}` {reason}", .path.display())]
struct Refusal {
    path: PathBuf,
    reason: RefusalReason,
}

#[derive(Debug)]
enum RefusalReason {
    Link,
    Owner(u32),
    Writable,
    Mount,
    Outside,
    Privileged,
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link => f.write_str("is a symbolic link that a user can change"),
            Self::Owner(id) => write!(f, "belongs to another user (id {id}); `chown` or remove it"),
            Self::Writable => f.write_str("can be changed by other users"),
            Self::Mount => f.write_str("is a mount point below a user's directory"),
            Self::Outside => f.write_str("leads out of a user's directory"),
            Self::Privileged => {
                f.write_str("can be changed by users: setuid and setgid files are refused there")
            }
        }
    }
}

/// A path could not be resolved, or is refused.
#[derive(Debug)]
pub(crate) struct PathError {
    pub(crate) source: io::Error,
    /// Whether anyone but root can have caused it.
    pub(crate) by_user: bool,
}

impl From<PathError> for io::Error {
    fn from(error: PathError) -> Self {
        error.source
    }
}

/// An entry of a directory.
#[derive(Debug)]
pub(crate) enum Entry {
    Nothing,
    File(File, Stat),
    Directory(Stat),
    Link(OsString),
    /// A pipe, a socket, a device, or a file that is busy.
    Other,
}

/// A directory that is kept open.
#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
    device: u64,
    writable_by: WritableBy,
    /// Whether everyone may enter it.
    open: bool,
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens the parent directory of a path, and returns it with the last component.
pub(crate) fn parent(path: &Path) -> Result<(Directory, OsString), PathError> {
    Walk::new(false).and_then(|walk| walk.parent(path))
}

/// The same; `None` if the parent directory is missing.
pub(crate) fn existing_parent(path: &Path) -> Result<Option<(Directory, OsString)>, PathError> {
    match parent(path).map_err(|error| (error.source.kind(), error)) {
        Err((ErrorKind::NotFound | ErrorKind::NotADirectory, _)) => Ok(None),
        Err((_, error)) => Err(error),
        Ok(opened) => Ok(Some(opened)),
    }
}

/// The same; missing directories are created and owned by root.
pub(crate) fn make_parent(path: &Path) -> Result<(Directory, OsString), PathError> {
    Walk::new(true).and_then(|walk| walk.parent(path))
}

/// Opens a directory.
pub(crate) fn directory(path: &Path) -> Result<Directory, PathError> {
    Walk::new(false).and_then(|walk| walk.directory(path))
}

/// Returns what is at a path; nothing if its parent directory is missing.
pub(crate) fn lookup(path: &Path) -> Result<Entry, PathError> {
    let Some((directory, name)) = existing_parent(path)? else {
        return Ok(Entry::Nothing);
    };
    let found = directory.lookup(&name);
    found.map_err(|source| directory.error(source))
}

/// Returns whether anyone but root can change what is at a path.
pub(crate) fn is_users(path: &Path) -> bool {
    match parent(path) {
        Ok((directory, _)) => directory.writable_by != WritableBy::Root,
        Err(error) => error.by_user,
    }
}

/// Reads a file up to a size; `None` if it is larger, even if it grows meanwhile.
pub(crate) fn read(file: &File, largest: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    file.take(largest + 1).read_to_end(&mut bytes)?;
    let fits = u64::try_from(bytes.len()).is_ok_and(|length| length <= largest);
    Ok(fits.then_some(bytes))
}

/// The resolution of a path.
struct Walk {
    /// Open directories, from the root directory to the current one.
    directories: Vec<Directory>,
    n_links: usize,
    creates: bool,
}

impl Walk {
    fn new(creates: bool) -> Result<Self, PathError> {
        let opened = rustix::fs::openat(CWD, "/", DIRECTORY, Mode::empty());
        let root = opened.map_err(io::Error::from).and_then(|fd| {
            let stat = rustix::fs::fstat(&fd)?;
            Ok(Directory {
                writable_by: next(WritableBy::Root, &stat).unwrap_or(WritableBy::Shared),
                path: PathBuf::from("/"),
                device: stat.st_dev,
                open: is_open(&stat),
                fd,
            })
        });
        let root = root.map_err(|source| PathError {
            source,
            by_user: false,
        })?;
        Ok(Self::from(root, creates))
    }

    fn from(root: Directory, creates: bool) -> Self {
        Self {
            directories: vec![root],
            n_links: 0,
            creates,
        }
    }

    fn writable_by(&self) -> WritableBy {
        self.directories
            .last()
            .map_or(WritableBy::Shared, |last| last.writable_by)
    }

    fn parent(self, path: &Path) -> Result<(Directory, OsString), PathError> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(PathError {
                source: ErrorKind::InvalidInput.into(),
                by_user: false,
            });
        };
        Ok((self.directory(parent)?, name.to_owned()))
    }

    fn directory(mut self, path: &Path) -> Result<Directory, PathError> {
        let done = self.resolve(path);
        let users = self.writable_by() != WritableBy::Root;
        let found = done.and_then(|()| {
            self.directories
                .pop()
                .ok_or_else(|| ErrorKind::NotFound.into())
        });
        found.map_err(|source| {
            let refused = source.get_ref().is_some_and(|inner| inner.is::<Refusal>());
            let by_user = users || refused;
            PathError { source, by_user }
        })
    }

    fn resolve(&mut self, path: &Path) -> io::Result<()> {
        for component in path.components() {
            match component {
                Component::RootDir | Component::Prefix(_) => self.directories.truncate(1),
                Component::CurDir => {}
                Component::ParentDir if self.writable_by() == WritableBy::Root => {
                    if self.directories.len() > 1 {
                        self.directories.pop();
                    }
                }
                Component::ParentDir => {
                    return Err(self.refuse(OsStr::new(".."), RefusalReason::Outside));
                }
                Component::Normal(name) => self.enter(name)?,
            }
        }
        Ok(())
    }

    fn refuse(&self, name: &OsStr, reason: RefusalReason) -> io::Error {
        let last = self.directories.last().map(|last| last.path.join(name));
        let path = last.unwrap_or_default();
        io::Error::other(Refusal { path, reason })
    }

    fn enter(&mut self, name: &OsStr) -> io::Result<()> {
        let Some(here) = self.directories.last() else {
            return Err(ErrorKind::NotFound.into());
        };
        let mut opened = here.open(name, DIRECTORY);
        if self.creates && opened.as_ref().is_err_and(|error| *error == Errno::NOENT) {
            match rustix::fs::mkdirat(here, name, Mode::from_raw_mode(PARENT_MODE)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            durable::sync(here.as_fd())?;
            opened = here.open(name, DIRECTORY);
            if let (WritableBy::User(user), Ok(fd)) = (here.writable_by, &opened) {
                chown_empty(fd, user, here)?;
            }
        }
        match opened {
            Ok(fd) => {
                let entered = here.hold(name, fd)?;
                self.directories.push(entered);
                Ok(())
            }
            Err(Errno::XDEV) => Err(self.refuse(name, RefusalReason::Mount)),
            Err(Errno::LOOP | Errno::NOTDIR) => self.follow(name),
            Err(error) => Err(error.into()),
        }
    }

    /// Follows a symbolic link that only root can have created.
    fn follow(&mut self, name: &OsStr) -> io::Result<()> {
        let Some(here) = self.directories.last() else {
            return Err(ErrorKind::NotFound.into());
        };
        let stat = rustix::fs::statat(here, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if kind(&stat) != FileType::Symlink {
            return Err(ErrorKind::NotADirectory.into());
        }
        if here.writable_by != WritableBy::Root || stat.st_uid != 0 {
            return Err(self.refuse(name, RefusalReason::Link));
        }
        self.n_links += 1;
        if self.n_links > MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        let target = rustix::fs::readlinkat(here, name, Vec::new())?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        self.resolve(&target)
    }
}

/// Changes the owner of a directory that was just created in a user's directory to that user. One that
/// is not empty was put there by the user meanwhile, and is left unchanged.
fn chown_empty(fd: &OwnedFd, user: u32, parent: &Directory) -> io::Result<()> {
    let is_root = rustix::fs::fstat(fd)?.st_uid == 0;
    let mut entries = Dir::read_from(fd)?;
    let is_inside = |name: &[u8]| name != b"." && name != b"..";
    let is_empty =
        !entries.any(|entry| entry.is_ok_and(|entry| is_inside(entry.file_name().to_bytes())));
    if is_root && is_empty {
        let group = rustix::fs::fstat(parent)?.st_gid;
        rustix::fs::fchown(fd, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
    }
    Ok(())
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// Does not block on a pipe or a lease, and does not acquire a terminal.
const FILE: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

pub(crate) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Returns the permission bits.
pub(crate) fn mode(stat: &Stat) -> u32 {
    stat.st_mode & 0o7777
}

fn is_writable(stat: &Stat) -> bool {
    // An access control list shows in the group bits.
    stat.st_mode & 0o022 != 0
}

fn is_open(stat: &Stat) -> bool {
    stat.st_mode & 0o001 != 0
}

/// Returns who can change the entries of a directory, given its parent. Below a directory of a user,
/// nothing counts as root's any more.
fn next(parent: WritableBy, stat: &Stat) -> Result<WritableBy, RefusalReason> {
    match (parent, stat.st_uid) {
        (WritableBy::Root, 0) if !is_writable(stat) => Ok(WritableBy::Root),
        (WritableBy::Root | WritableBy::Shared, 0) => Ok(WritableBy::Shared),
        (WritableBy::Root | WritableBy::Shared, user) => Ok(WritableBy::User(user)),
        (WritableBy::User(user), owner) if owner == user => Ok(parent),
        // A directory of root that a user moved here: its owner is not changed, and files in it are
        // the user's or root's. It is refused if others can write to it.
        (WritableBy::User(_), 0) if is_writable(stat) => Err(RefusalReason::Writable),
        (WritableBy::User(_), 0) => Ok(parent),
        (WritableBy::User(_), owner) => Err(RefusalReason::Owner(owner)),
    }
}

impl Directory {
    /// Returns who can change its entries.
    pub(crate) fn writable_by(&self) -> WritableBy {
        self.writable_by
    }

    /// Returns an error about one of its entries.
    pub(crate) fn error(&self, source: io::Error) -> PathError {
        let by_user = self.writable_by != WritableBy::Root;
        PathError { source, by_user }
    }

    /// Returns whether everyone may enter this directory and all of its parents.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Refuses files of other users in a user's directory.
    pub(crate) fn require_owner(&self, owner: u32) -> io::Result<()> {
        match self.writable_by {
            WritableBy::User(user) if owner != user && owner != 0 => {
                Err(io::Error::other(Refusal {
                    path: self.path.clone(),
                    reason: RefusalReason::Owner(user),
                }))
            }
            WritableBy::Root | WritableBy::Shared | WritableBy::User(_) => Ok(()),
        }
    }

    /// Refuses setuid and setgid files in a directory that a user can change.
    pub(crate) fn require_plain(&self, mode: u32) -> io::Result<()> {
        if self.writable_by == WritableBy::Root || mode & 0o6000 == 0 {
            return Ok(());
        }
        let (path, reason) = (self.path.clone(), RefusalReason::Privileged);
        Err(io::Error::other(Refusal { path, reason }))
    }

    /// Opens an entry without following a symbolic link.
    fn open(&self, name: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut resolve =
            ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::BENEATH;
        if self.writable_by != WritableBy::Root {
            // A user may mount a file system of their own here.
            resolve |= ResolveFlags::NO_XDEV;
        }
        match rustix::fs::openat2(self, name, flags, Mode::empty(), resolve) {
            // Kernels before 5.6, and containers that block the call.
            Err(Errno::NOSYS | Errno::PERM) => {}
            done => return done,
        }
        let fd = rustix::fs::openat(self, name, flags, Mode::empty())?;
        if self.writable_by != WritableBy::Root && rustix::fs::fstat(&fd)?.st_dev != self.device {
            return Err(Errno::XDEV);
        }
        Ok(fd)
    }

    fn hold(&self, name: &OsStr, fd: OwnedFd) -> io::Result<Self> {
        let stat = rustix::fs::fstat(&fd)?;
        let path = self.path.join(name);
        match next(self.writable_by, &stat) {
            Ok(writable_by) => Ok(Self {
                fd,
                path,
                device: stat.st_dev,
                writable_by,
                open: self.open && is_open(&stat),
            }),
            Err(reason) => Err(io::Error::other(Refusal { path, reason })),
        }
    }

    /// Opens a subdirectory.
    fn subdirectory(&self, name: &OsStr) -> io::Result<Self> {
        let fd = self.open(name, DIRECTORY)?;
        self.hold(name, fd)
    }

    /// Returns an entry. A file is open, and its metadata is that of the open file.
    pub(crate) fn lookup(&self, name: &OsStr) -> io::Result<Entry> {
        let stat = match rustix::fs::statat(self, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(Entry::Nothing),
            Err(error) => return Err(error.into()),
        };
        match kind(&stat) {
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(self, name, Vec::new())?;
                Ok(Entry::Link(OsString::from_vec(target.into_bytes())))
            }
            FileType::Directory => Ok(Entry::Directory(stat)),
            FileType::RegularFile => match self.open(name, FILE) {
                Ok(fd) => {
                    let stat = rustix::fs::fstat(&fd)?;
                    match kind(&stat) {
                        FileType::RegularFile => Ok(Entry::File(File::from(fd), stat)),
                        _ => Ok(Entry::Other),
                    }
                }
                // Replaced meanwhile, or its user holds a lease on it.
                Err(Errno::NOENT) => Ok(Entry::Nothing),
                Err(Errno::LOOP | Errno::AGAIN | Errno::NXIO) => Ok(Entry::Other),
                Err(error) => Err(error.into()),
            },
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => Ok(Entry::Other),
        }
    }

    /// Returns whether the content of a file may be read: a hard link that a user created may be a
    /// secret of root.
    pub(crate) fn is_readable(&self, stat: &Stat) -> bool {
        let owned = self.writable_by == WritableBy::User(stat.st_uid);
        self.writable_by == WritableBy::Root
            || owned
            || stat.st_nlink == 1
            || stat.st_mode & 0o004 != 0
    }

    /// Returns whether a file that the directory's user does not own has an access control list,
    /// which it may have inherited from the directory.
    pub(crate) fn has_access_list(&self, file: &File, stat: &Stat) -> bool {
        let mut empty = [0_u8; 0];
        self.writable_by != WritableBy::Root
            && self.writable_by != WritableBy::User(stat.st_uid)
            && rustix::fs::fgetxattr(file, durable::ACCESS_LIST, &mut empty).is_ok()
    }

    /// Lists its entries.
    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(self)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        }
        Ok(names)
    }

    /// Writes a temporary file that is to replace an entry.
    pub(crate) fn write_temporary(
        &self,
        name: &OsStr,
        content: &[u8],
        access: Access,
    ) -> io::Result<()> {
        let done = durable::create_at(self.as_fd(), &temporary(name), content, access);
        if done.is_err() {
            self.remove_temporary(name);
        }
        done
    }

    /// Removes a temporary file.
    pub(crate) fn remove_temporary(&self, name: &OsStr) {
        _ = rustix::fs::unlinkat(self, temporary(name), AtFlags::empty());
    }

    /// Moves a temporary file into place.
    pub(crate) fn commit(&self, name: &OsStr) -> io::Result<()> {
        match rustix::fs::renameat(self, temporary(name), self, name) {
            // A bind-mounted file cannot be replaced, only overwritten.
            Err(Errno::BUSY) if self.writable_by == WritableBy::Root => {
                let from = File::from(self.open(&temporary(name), FILE)?);
                let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let to = rustix::fs::openat(self, name, flags, Mode::empty())?;
                let mut to = File::from(to);
                io::copy(&mut &from, &mut to)?;
                to.sync_all()?;
                self.remove_temporary(name);
            }
            done => done?,
        }
        durable::sync(self.as_fd())
    }

    /// Writes a file atomically.
    pub(crate) fn write(&self, name: &OsStr, content: &[u8], access: Access) -> io::Result<()> {
        if let Some((owner, _)) = access.owner {
            self.require_owner(owner)?;
        }
        self.write_temporary(name, content, access)?;
        let done = self.commit(name);
        if done.is_err() {
            self.remove_temporary(name);
        }
        done
    }

    /// Creates a symbolic link atomically. Root's links are trusted, so none is created where a user
    /// could move it.
    pub(crate) fn link(&self, name: &OsStr, target: &OsStr) -> io::Result<()> {
        if self.writable_by != WritableBy::Root {
            let path = self.path.clone();
            let reason = RefusalReason::Writable;
            return Err(io::Error::other(Refusal { path, reason }));
        }
        self.remove_temporary(name);
        rustix::fs::symlinkat(target, self, temporary(name))?;
        rustix::fs::renameat_with(self, temporary(name), self, name, RenameFlags::empty())?;
        durable::sync(self.as_fd())
    }

    /// Removes a file, if it exists.
    pub(crate) fn remove(&self, name: &OsStr) -> io::Result<()> {
        match rustix::fs::unlinkat(self, name, AtFlags::empty()) {
            Ok(()) => durable::sync(self.as_fd()),
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the name of a temporary file, which sudo, sshd and others ignore.
pub(crate) fn temporary(name: &OsStr) -> OsString {
    durable::temporary(name, "")
}

mod tree;

#[cfg(test)]
mod tests;
