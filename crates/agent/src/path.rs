//! Paths resolved so that no unprivileged user decides where root ends up.
//!
//! A path is walked one component at a time and the last directory is held open: whatever is read,
//! written or deleted is named relative to that descriptor. A symbolic link is followed only when
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

/// So many links are followed in one path, as the kernel does.
const LONGEST_CHAIN: usize = 40;
/// The mode of directories that are created on the way to a file.
const USUAL: u32 = 0o755;

/// Who can change what a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeper {
    /// Root alone.
    Root,
    /// This user: one of the directories belongs to them.
    User(u32),
    /// Several users: one of the directories is writable for a group or for everyone.
    Shared,
}

/// Why a path is not used.
#[derive(Debug, thiserror::Error)]
#[error("`{}` {why}", .path.display())]
struct Refusal {
    path: PathBuf,
    why: Why,
}

#[derive(Debug)]
enum Why {
    Link,
    Owner(u32),
    Writable,
    Mount,
    Detour,
    Privileged,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link => f.write_str("is a symbolic link that a user can change"),
            Self::Owner(id) => write!(f, "belongs to another user (id {id}); `chown` or remove it"),
            Self::Writable => f.write_str("can be changed by other users"),
            Self::Mount => f.write_str("is a mount point below a user's directory"),
            Self::Detour => f.write_str("leads out of a user's directory"),
            Self::Privileged => {
                f.write_str("can be changed by users, so no setuid or setgid file is put there")
            }
        }
    }
}

/// A path that could not be resolved, or is not used.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) source: io::Error,
    /// Whether someone else than root can have caused it.
    pub(crate) by_user: bool,
}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> Self {
        fault.source
    }
}

/// What is at a path.
#[derive(Debug)]
pub(crate) enum Found {
    Nothing,
    File(File, Stat),
    Directory(Stat),
    Link(OsString),
    /// A pipe, a socket, a device, or a file that is busy.
    Other,
}

/// A directory that is held open.
#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
    device: u64,
    keeper: Keeper,
    /// Whether everyone may get here.
    open: bool,
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens the directory of a path, and returns it with the last component.
pub(crate) fn parent(path: &Path) -> Result<(Directory, OsString), Fault> {
    Walk::new(false).and_then(|walk| walk.parent(path))
}

/// The same; `None` where that directory is missing.
pub(crate) fn existing_parent(path: &Path) -> Result<Option<(Directory, OsString)>, Fault> {
    match parent(path).map_err(|fault| (fault.source.kind(), fault)) {
        Err((ErrorKind::NotFound | ErrorKind::NotADirectory, _)) => Ok(None),
        Err((_, fault)) => Err(fault),
        Ok(opened) => Ok(Some(opened)),
    }
}

/// The same; directories that are missing are created, for root.
pub(crate) fn make_parent(path: &Path) -> Result<(Directory, OsString), Fault> {
    Walk::new(true).and_then(|walk| walk.parent(path))
}

/// Opens a directory.
pub(crate) fn directory(path: &Path) -> Result<Directory, Fault> {
    Walk::new(false).and_then(|walk| walk.directory(path))
}

/// Returns what is at a path; nothing where its directory is missing.
pub(crate) fn look(path: &Path) -> Result<Found, Fault> {
    let Some((directory, name)) = existing_parent(path)? else {
        return Ok(Found::Nothing);
    };
    let found = directory.look(&name);
    found.map_err(|source| directory.fault(source))
}

/// Tells whether someone else than root can change what is at a path.
pub(crate) fn is_users(path: &Path) -> bool {
    match parent(path) {
        Ok((directory, _)) => directory.keeper != Keeper::Root,
        Err(fault) => fault.by_user,
    }
}

/// Reads a file up to a size; `None` when it is larger, however it grows meanwhile.
pub(crate) fn read(file: &File, largest: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    file.take(largest + 1).read_to_end(&mut bytes)?;
    let fits = u64::try_from(bytes.len()).is_ok_and(|length| length <= largest);
    Ok(fits.then_some(bytes))
}

/// The way to a directory.
struct Walk {
    /// Directories from the root one to where we are.
    held: Vec<Directory>,
    n_links: usize,
    creates: bool,
}

impl Walk {
    fn new(creates: bool) -> Result<Self, Fault> {
        let opened = rustix::fs::openat(CWD, "/", DIRECTORY, Mode::empty());
        let root = opened.map_err(io::Error::from).and_then(|fd| {
            let stat = rustix::fs::fstat(&fd)?;
            Ok(Directory {
                keeper: next(Keeper::Root, &stat).unwrap_or(Keeper::Shared),
                path: PathBuf::from("/"),
                device: stat.st_dev,
                open: is_open(&stat),
                fd,
            })
        });
        let root = root.map_err(|source| Fault {
            source,
            by_user: false,
        })?;
        Ok(Self::from(root, creates))
    }

    fn from(root: Directory, creates: bool) -> Self {
        Self {
            held: vec![root],
            n_links: 0,
            creates,
        }
    }

    fn keeper(&self) -> Keeper {
        self.held.last().map_or(Keeper::Shared, |last| last.keeper)
    }

    fn parent(self, path: &Path) -> Result<(Directory, OsString), Fault> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Fault {
                source: ErrorKind::InvalidInput.into(),
                by_user: false,
            });
        };
        Ok((self.directory(parent)?, name.to_owned()))
    }

    fn directory(mut self, path: &Path) -> Result<Directory, Fault> {
        let done = self.go(path);
        let users = self.keeper() != Keeper::Root;
        let found = done.and_then(|()| self.held.pop().ok_or_else(|| ErrorKind::NotFound.into()));
        found.map_err(|source| {
            let refused = source.get_ref().is_some_and(|inner| inner.is::<Refusal>());
            let by_user = users || refused;
            Fault { source, by_user }
        })
    }

    fn go(&mut self, path: &Path) -> io::Result<()> {
        for component in path.components() {
            match component {
                Component::RootDir | Component::Prefix(_) => self.held.truncate(1),
                Component::CurDir => {}
                Component::ParentDir if self.keeper() == Keeper::Root => {
                    if self.held.len() > 1 {
                        self.held.pop();
                    }
                }
                Component::ParentDir => return Err(self.refuse(OsStr::new(".."), Why::Detour)),
                Component::Normal(name) => self.enter(name)?,
            }
        }
        Ok(())
    }

    fn refuse(&self, name: &OsStr, why: Why) -> io::Error {
        let last = self.held.last().map(|last| last.path.join(name));
        let path = last.unwrap_or_default();
        io::Error::other(Refusal { path, why })
    }

    fn enter(&mut self, name: &OsStr) -> io::Result<()> {
        let Some(here) = self.held.last() else {
            return Err(ErrorKind::NotFound.into());
        };
        let mut opened = here.open(name, DIRECTORY);
        if self.creates && opened.as_ref().is_err_and(|error| *error == Errno::NOENT) {
            match rustix::fs::mkdirat(here, name, Mode::from_raw_mode(USUAL)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            durable::sync(here.as_fd())?;
            opened = here.open(name, DIRECTORY);
            if let (Keeper::User(user), Ok(fd)) = (here.keeper, &opened) {
                give_empty(fd, user, here)?;
            }
        }
        match opened {
            Ok(fd) => {
                let entered = here.hold(name, fd)?;
                self.held.push(entered);
                Ok(())
            }
            Err(Errno::XDEV) => Err(self.refuse(name, Why::Mount)),
            Err(Errno::LOOP | Errno::NOTDIR) => self.follow(name),
            Err(error) => Err(error.into()),
        }
    }

    /// Follows a link that only root can have put there.
    fn follow(&mut self, name: &OsStr) -> io::Result<()> {
        let Some(here) = self.held.last() else {
            return Err(ErrorKind::NotFound.into());
        };
        let stat = rustix::fs::statat(here, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if kind(&stat) != FileType::Symlink {
            return Err(ErrorKind::NotADirectory.into());
        }
        if here.keeper != Keeper::Root || stat.st_uid != 0 {
            return Err(self.refuse(name, Why::Link));
        }
        self.n_links += 1;
        if self.n_links > LONGEST_CHAIN {
            return Err(Errno::LOOP.into());
        }
        let target = rustix::fs::readlinkat(here, name, Vec::new())?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        self.go(&target)
    }
}

/// Gives a directory that was just created in a user's directory to that user. One that has
/// something in it is another that the user put into its place, and stays whose it is.
fn give_empty(fd: &OwnedFd, user: u32, above: &Directory) -> io::Result<()> {
    let is_root = rustix::fs::fstat(fd)?.st_uid == 0;
    let mut entries = Dir::read_from(fd)?;
    let is_inside = |name: &[u8]| name != b"." && name != b"..";
    let is_empty =
        !entries.any(|entry| entry.is_ok_and(|entry| is_inside(entry.file_name().to_bytes())));
    if is_root && is_empty {
        let group = rustix::fs::fstat(above)?.st_gid;
        rustix::fs::fchown(fd, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
    }
    Ok(())
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// A pipe is not waited for, a terminal not taken, and a lease that a user holds is not waited for.
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
    // Access control lists show in the bits of the group.
    stat.st_mode & 0o022 != 0
}

fn is_open(stat: &Stat) -> bool {
    stat.st_mode & 0o001 != 0
}

/// Returns who can change what is in a directory, seen from the one above it. Nothing gives a path
/// back that once was in the hands of a user.
fn next(above: Keeper, stat: &Stat) -> Result<Keeper, Why> {
    match (above, stat.st_uid) {
        (Keeper::Root, 0) if !is_writable(stat) => Ok(Keeper::Root),
        (Keeper::Root | Keeper::Shared, 0) => Ok(Keeper::Shared),
        (Keeper::Root | Keeper::Shared, user) => Ok(Keeper::User(user)),
        (Keeper::User(user), owner) if owner == user => Ok(above),
        // A directory of root that a user moved here stays root's: nobody is given it, and what is
        // written into it is a user's or root's own. One that others can write to is not entered.
        (Keeper::User(_), 0) if is_writable(stat) => Err(Why::Writable),
        (Keeper::User(_), 0) => Ok(above),
        (Keeper::User(_), owner) => Err(Why::Owner(owner)),
    }
}

impl Directory {
    /// Tells who can change what is here.
    pub(crate) fn keeper(&self) -> Keeper {
        self.keeper
    }

    /// Returns an error about what is here with who can have caused it.
    pub(crate) fn fault(&self, source: io::Error) -> Fault {
        let by_user = self.keeper != Keeper::Root;
        Fault { source, by_user }
    }

    /// Tells whether everyone may enter this directory, and all those on the way to it.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Refuses files of users who have no business in this directory.
    pub(crate) fn require_owner(&self, owner: u32) -> io::Result<()> {
        match self.keeper {
            Keeper::User(user) if owner != user && owner != 0 => Err(io::Error::other(Refusal {
                path: self.path.clone(),
                why: Why::Owner(user),
            })),
            Keeper::Root | Keeper::Shared | Keeper::User(_) => Ok(()),
        }
    }

    /// Refuses setuid and setgid files in a directory that a user can change.
    pub(crate) fn require_plain(&self, mode: u32) -> io::Result<()> {
        if self.keeper == Keeper::Root || mode & 0o6000 == 0 {
            return Ok(());
        }
        let (path, why) = (self.path.clone(), Why::Privileged);
        Err(io::Error::other(Refusal { path, why }))
    }

    /// Opens what has a name here, and never what a link leads to.
    fn open(&self, name: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut resolve =
            ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::BENEATH;
        if self.keeper != Keeper::Root {
            // What a user mounts answers as the user likes.
            resolve |= ResolveFlags::NO_XDEV;
        }
        match rustix::fs::openat2(self, name, flags, Mode::empty(), resolve) {
            // Kernels before 5.6, and containers that do not know the call.
            Err(Errno::NOSYS | Errno::PERM) => {}
            done => return done,
        }
        let fd = rustix::fs::openat(self, name, flags, Mode::empty())?;
        if self.keeper != Keeper::Root && rustix::fs::fstat(&fd)?.st_dev != self.device {
            return Err(Errno::XDEV);
        }
        Ok(fd)
    }

    fn hold(&self, name: &OsStr, fd: OwnedFd) -> io::Result<Self> {
        let stat = rustix::fs::fstat(&fd)?;
        let path = self.path.join(name);
        match next(self.keeper, &stat) {
            Ok(keeper) => Ok(Self {
                fd,
                path,
                device: stat.st_dev,
                keeper,
                open: self.open && is_open(&stat),
            }),
            Err(why) => Err(io::Error::other(Refusal { path, why })),
        }
    }

    /// Opens a directory that is here.
    fn subdirectory(&self, name: &OsStr) -> io::Result<Self> {
        let fd = self.open(name, DIRECTORY)?;
        self.hold(name, fd)
    }

    /// Returns what has a name here. Files are open, and what is said of them is said of what is
    /// open.
    pub(crate) fn look(&self, name: &OsStr) -> io::Result<Found> {
        let stat = match rustix::fs::statat(self, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(Found::Nothing),
            Err(error) => return Err(error.into()),
        };
        match kind(&stat) {
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(self, name, Vec::new())?;
                Ok(Found::Link(OsString::from_vec(target.into_bytes())))
            }
            FileType::Directory => Ok(Found::Directory(stat)),
            FileType::RegularFile => match self.open(name, FILE) {
                Ok(fd) => {
                    let stat = rustix::fs::fstat(&fd)?;
                    match kind(&stat) {
                        FileType::RegularFile => Ok(Found::File(File::from(fd), stat)),
                        _ => Ok(Found::Other),
                    }
                }
                // It was swapped meanwhile, or its user holds a lease on it.
                Err(Errno::NOENT) => Ok(Found::Nothing),
                Err(Errno::LOOP | Errno::AGAIN | Errno::NXIO) => Ok(Found::Other),
                Err(error) => Err(error.into()),
            },
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => Ok(Found::Other),
        }
    }

    /// Tells whether the content of a file may be read on behalf of others: one that a user gave a
    /// second name here may be a secret of root.
    pub(crate) fn is_readable(&self, stat: &Stat) -> bool {
        let owned = self.keeper == Keeper::User(stat.st_uid);
        self.keeper == Keeper::Root || owned || stat.st_nlink == 1 || stat.st_mode & 0o004 != 0
    }

    /// Tells whether a file here that is not its keeper's own has an access control list, which
    /// users can hand down to it from their directories.
    pub(crate) fn is_listed(&self, file: &File, stat: &Stat) -> bool {
        let mut nothing = [0_u8; 0];
        self.keeper != Keeper::Root
            && self.keeper != Keeper::User(stat.st_uid)
            && rustix::fs::fgetxattr(file, durable::ACCESS_LIST, &mut nothing).is_ok()
    }

    /// Lists what is here.
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

    /// Writes a file beside its place.
    pub(crate) fn write_beside(
        &self,
        name: &OsStr,
        content: &[u8],
        access: Access,
    ) -> io::Result<()> {
        let done = durable::create_at(self.as_fd(), &beside(name), content, access);
        if done.is_err() {
            self.remove_beside(name);
        }
        done
    }

    /// Removes what was written beside a place.
    pub(crate) fn remove_beside(&self, name: &OsStr) {
        _ = rustix::fs::unlinkat(self, beside(name), AtFlags::empty());
    }

    /// Moves what was written beside a place there.
    pub(crate) fn place(&self, name: &OsStr) -> io::Result<()> {
        match rustix::fs::renameat(self, beside(name), self, name) {
            // A file that is mounted by itself cannot be replaced, only filled.
            Err(Errno::BUSY) if self.keeper == Keeper::Root => {
                let from = File::from(self.open(&beside(name), FILE)?);
                let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let to = rustix::fs::openat(self, name, flags, Mode::empty())?;
                let mut to = File::from(to);
                io::copy(&mut &from, &mut to)?;
                to.sync_all()?;
                self.remove_beside(name);
            }
            done => done?,
        }
        durable::sync(self.as_fd())
    }

    /// Writes a file, whole.
    pub(crate) fn write(&self, name: &OsStr, content: &[u8], access: Access) -> io::Result<()> {
        if let Some((owner, _)) = access.owner {
            self.require_owner(owner)?;
        }
        self.write_beside(name, content, access)?;
        let done = self.place(name);
        if done.is_err() {
            self.remove_beside(name);
        }
        done
    }

    /// Creates a symbolic link, whole. Root's links are trusted elsewhere, so that none is left
    /// where a user could move it.
    pub(crate) fn link(&self, name: &OsStr, target: &OsStr) -> io::Result<()> {
        if self.keeper != Keeper::Root {
            let path = self.path.clone();
            let why = Why::Writable;
            return Err(io::Error::other(Refusal { path, why }));
        }
        self.remove_beside(name);
        rustix::fs::symlinkat(target, self, beside(name))?;
        rustix::fs::renameat_with(self, beside(name), self, name, RenameFlags::empty())?;
        durable::sync(self.as_fd())
    }

    /// Removes a file; one that is gone is fine.
    pub(crate) fn remove(&self, name: &OsStr) -> io::Result<()> {
        match rustix::fs::unlinkat(self, name, AtFlags::empty()) {
            Ok(()) => durable::sync(self.as_fd()),
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Finds out whether a file can be replaced or removed: one that is mounted read-only, or that
    /// may not be changed, is found before the first file is moved.
    pub(crate) fn require_writable(&self, name: &OsStr) -> io::Result<()> {
        let system = rustix::fs::fstatvfs(self)?;
        if system
            .f_flag
            .contains(rustix::fs::StatVfsMountFlags::RDONLY)
        {
            return Err(ErrorKind::ReadOnlyFilesystem.into());
        }
        if self.keeper == Keeper::Root
            && let Found::File(..) = self.look(name)?
        {
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(self, name, flags, Mode::empty())?;
        }
        Ok(())
    }
}

/// The name has dots and an end that nobody reads: sudo, sshd and others skip it.
pub(crate) fn beside(name: &OsStr) -> OsString {
    durable::temporary(name, "")
}

mod tree;

#[cfg(test)]
mod tests;
