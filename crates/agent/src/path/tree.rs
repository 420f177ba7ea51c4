//! Directories created, given to their owners, and removed with everything in them. What a user
//! moved there is given to nobody, and no link in it is followed.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd as _;

use homestak_api::durable;
use rustix::fs::{AtFlags, Gid, Mode, Uid};
use rustix::io::Errno;

use super::{DIRECTORY, Directory, Keeper, Refusal, Why, beside};

/// So deep may directories be nested that are removed with everything in them.
const DEEPEST: usize = 200;

impl Directory {
    /// Removes a directory that is empty.
    pub(crate) fn remove_empty(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(self, name, AtFlags::REMOVEDIR)?)
    }

    /// Removes a directory with everything in it, and nothing that is mounted there.
    pub(crate) fn remove_all(&self, name: &OsStr) -> io::Result<()> {
        self.remove_tree(name, DEEPEST)
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
        // Whoever owns what is inside, it goes: no name in it is followed.
        let inner = Self {
            fd,
            path: self.path.join(name),
            device: stat.st_dev,
            keeper: Keeper::Shared,
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

    /// Gives a directory that is here owner and mode, or creates it. Where a user could have put a
    /// directory of someone else, root's included, it stays theirs with what is in it.
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
                if owner != user && self.keeper != Keeper::Root {
                    let (path, why) = (directory.path, Why::Owner(owner));
                    return Err(io::Error::other(Refusal { path, why }));
                }
                directory.give(access)
            }
        }
    }

    /// Creates a directory beside its place, and moves it there once it belongs to its owner:
    /// whoever dies in between leaves no directory of root there.
    fn create_directory(&self, name: &OsStr, access: (u32, u32, u32)) -> io::Result<()> {
        let beside = beside(name);
        match rustix::fs::unlinkat(self, &beside, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::NOTDIR) => self.remove_beside(name),
            Err(error) => return Err(error.into()),
        }
        rustix::fs::mkdirat(self, &beside, Mode::from_raw_mode(0o700))?;
        let directory = self.subdirectory(&beside)?;
        let stat = rustix::fs::fstat(&directory)?;
        // A user may have swapped it meanwhile.
        if stat.st_uid != rustix::process::geteuid().as_raw() || !directory.names()?.is_empty() {
            let (path, why) = (directory.path, Why::Owner(stat.st_uid));
            return Err(io::Error::other(Refusal { path, why }));
        }
        directory.give(access)?;
        rustix::fs::renameat(self, &beside, self, name)?;
        durable::sync(self.as_fd())
    }

    fn give(&self, (mode, user, group): (u32, u32, u32)) -> io::Result<()> {
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        rustix::fs::fchown(self, Some(user), Some(group))?;
        Ok(rustix::fs::fchmod(self, Mode::from_raw_mode(mode))?)
    }
}
