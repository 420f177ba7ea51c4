//! Directories: creation, ownership, removal with their content. Links are not followed, and the
//! owner of directories that a user moved is not changed.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd as _;

use homestak_api::durable;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::{DIRECTORY, Directory, Entry, Refusal, RefusalReason, WritableBy, temporary};

/// Maximum depth of a directory tree that is removed.
const MAX_DEPTH: usize = 200;

impl Directory {
    /// Returns an error if a file cannot be replaced or removed, because it is mounted read-only or
    /// immutable.
    pub(crate) fn require_writable(&self, name: &OsStr) -> io::Result<()> {
        let system = rustix::fs::fstatvfs(self)?;
        if system
            .f_flag
            .contains(rustix::fs::StatVfsMountFlags::RDONLY)
        {
            return Err(ErrorKind::ReadOnlyFilesystem.into());
        }
        if self.writable_by == WritableBy::Root
            && let Entry::File(..) = self.lookup(name)?
        {
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(self, name, flags, Mode::empty())?;
        }
        Ok(())
    }

    /// Removes an empty directory.
    pub(crate) fn remove_empty(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(self, name, AtFlags::REMOVEDIR)?)
    }

    /// Removes a directory and its content, but nothing that is mounted there.
    pub(crate) fn remove_all(&self, name: &OsStr) -> io::Result<()> {
        self.remove_tree(name, MAX_DEPTH)
    }

    fn remove_tree(&self, name: &OsStr, depth: usize) -> io::Result<()> {
        if depth == 0 {
            return Err(Errno::NAMETOOLONG.into());
        }
        let fd = self.open(name, DIRECTORY)?;
        let stat = rustix::fs::fstat(&fd)?;
        if stat.st_dev != self.device {
            return Err(Errno::XDEV.into());
        }
        // Its content is removed whoever owns it; no link in it is followed.
        let inner = Self {
            fd,
            path: self.path.join(name),
            device: stat.st_dev,
            writable_by: WritableBy::Shared,
            open: false,
        };
        for entry in inner.names()? {
            match rustix::fs::unlinkat(&inner, &entry, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR) => inner.remove_tree(&entry, depth - 1)?,
                Err(error) => return Err(error.into()),
            }
        }
        self.remove_empty(name)
    }

    /// Sets owner and mode of a directory, or creates it. Where a user could have moved a directory of
    /// someone else, including root, its owner is not changed.
    pub(crate) fn set_directory(
        &self,
        name: &OsStr,
        mode: u32,
        (user, group): (u32, u32),
    ) -> io::Result<()> {
        self.require_owner(user)?;
        let access = (mode, user, group);
        match self.open(name, DIRECTORY) {
            Err(Errno::NOENT) => self.create_directory(name, access),
            Err(error) => Err(error.into()),
            Ok(fd) => {
                let directory = self.hold(name, fd)?;
                let owner = rustix::fs::fstat(&directory)?.st_uid;
                if owner != user && self.writable_by != WritableBy::Root {
                    let (path, reason) = (directory.path, RefusalReason::Owner(owner));
                    return Err(io::Error::other(Refusal { path, reason }));
                }
                directory.set_access(access)
            }
        }
    }

    /// Creates a directory under a temporary name and renames it once it has its owner, so that a
    /// killed run leaves no directory of root behind.
    fn create_directory(&self, name: &OsStr, access: (u32, u32, u32)) -> io::Result<()> {
        let temporary = temporary(name);
        match rustix::fs::unlinkat(self, &temporary, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::NOTDIR) => self.remove_temporary(name),
            Err(error) => return Err(error.into()),
        }
        rustix::fs::mkdirat(self, &temporary, Mode::from_raw_mode(0o700))?;
        let directory = self.subdirectory(&temporary)?;
        let stat = rustix::fs::fstat(&directory)?;
        // A user may have replaced it meanwhile.
        if stat.st_uid != rustix::process::geteuid().as_raw() || !directory.names()?.is_empty() {
            let (path, reason) = (directory.path, RefusalReason::Owner(stat.st_uid));
            return Err(io::Error::other(Refusal { path, reason }));
        }
        directory.set_access(access)?;
        rustix::fs::renameat(self, &temporary, self, name)?;
        durable::sync(self.as_fd())
    }

    fn set_access(&self, (mode, user, group): (u32, u32, u32)) -> io::Result<()> {
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        rustix::fs::fchown(self, Some(user), Some(group))?;
        Ok(rustix::fs::fchmod(self, Mode::from_raw_mode(mode))?)
    }
}
