//! Writes files so that a power failure leaves the old content or the new one, never a part.
//!
//! The only module that replaces files: content goes to a temporary file in the same directory, which
//! is synced and renamed, and then the directory is synced, because a rename is only on the disk
//! once its directory is.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;

/// How the name of a temporary file ends. Together with the leading dot it is a name that sudo,
/// sshd, cron and git (`.gitignore` of a new site) skip.
pub const TEMPORARY: &str = ".homestak-new";

/// The extended attribute of an access control list, which can grant more than the mode of a file.
pub const ACCESS_LIST: &str = "system.posix_acl_access";

/// Who may do what with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The permission bits.
    pub mode: u32,
    /// User and group ids; none for those of this process.
    pub owner: Option<(u32, u32)>,
}

impl Access {
    /// A file that only its owner can read.
    pub const PRIVATE: Self = Self::mode(0o600);
    /// A file that everyone can read.
    pub const PUBLIC: Self = Self::mode(0o644);

    /// A file of this process's user.
    pub const fn mode(mode: u32) -> Self {
        Self { mode, owner: None }
    }
}

/// Replaces a file, or creates it. The directory must exist.
pub fn write(path: &Path, content: &[u8], access: Access) -> io::Result<()> {
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))?;
    let directory = open_directory(parent(path))?;
    // Two writers of one file, in this process or another, must not share a temporary one.
    let number = WRITES.fetch_add(1, Ordering::Relaxed);
    let temporary = temporary(name, &format!(".{}-{number}", std::process::id()));
    write_at(directory.as_fd(), name, &temporary, content, access)
}

/// Replaces a file in an open directory, or creates it, through a temporary file there.
///
/// An existing file with the temporary name is removed: a caller that holds a lock uses a fixed name,
/// so that a killed process leaves no more than one file.
pub fn write_at(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    temporary: &OsStr,
    content: &[u8],
    access: Access,
) -> io::Result<()> {
    let done = create_at(directory, temporary, content, access).and_then(|()| {
        rustix::fs::renameat(directory, temporary, directory, name)?;
        sync(directory)
    });
    if done.is_err() {
        _ = rustix::fs::unlinkat(directory, temporary, AtFlags::empty());
    }
    done
}

/// Creates a synced file in an open directory; an existing one is removed first.
pub fn create_at(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    content: &[u8],
    access: Access,
) -> io::Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o600))?;
    let mut file = File::from(file);
    // A list inherited from the directory would take effect with the mode.
    match rustix::fs::fremovexattr(&file, ACCESS_LIST) {
        Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
        Err(error) => return Err(error.into()),
    }
    file.write_all(content)?;
    if let Some((user, group)) = access.owner {
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        rustix::fs::fchown(&file, Some(user), Some(group))?;
    }
    // After the owner: changing it clears set-user-id bits.
    rustix::fs::fchmod(&file, Mode::from_raw_mode(access.mode))?;
    file.sync_all()
}

/// Renames a file or directory and syncs the directories on both sides.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    let source = open_directory(parent(from))?;
    let target = open_directory(parent(to))?;
    rustix::fs::renameat(CWD, from, CWD, to)?;
    sync(target.as_fd())?;
    sync(source.as_fd())
}

/// Exchanges two files or directories of one directory, and syncs it.
pub fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    let directory = open_directory(parent(one))?;
    rustix::fs::renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?;
    sync(directory.as_fd())
}

/// Returns the temporary name for a file; `writer` distinguishes concurrent writers.
pub fn temporary(name: &OsStr, writer: &str) -> OsString {
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(writer);
    temporary.push(TEMPORARY);
    temporary
}

/// Syncs a directory: what was created, renamed or removed in it is on the disk afterwards.
pub fn sync(directory: BorrowedFd<'_>) -> io::Result<()> {
    match rustix::fs::fsync(directory) {
        // Some file systems (of containers, of network shares) cannot sync a directory.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Creates a directory that only its owner can use, and missing parents. An existing one keeps its
/// mode.
pub fn create_private(directory: &Path) -> io::Result<()> {
    let created = std::fs::DirBuilder::new()
        .recursive(true) // tidy: a method of the standard library
        .mode(0o700)
        .create(directory);
    created.map_err(|error| {
        let message = format!("{}: {error}", directory.display());
        io::Error::new(error.kind(), message)
    })
}

/// Opens a directory in order to sync it.
pub fn open_directory(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    Ok(File::from(directory))
}

fn parent(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use rustix::fs::XattrFlags;
    use rustix::io::Errno;

    use super::{ACCESS_LIST, Access, write};

    #[test]
    fn a_file_is_replaced_with_its_mode_without_leftovers() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a");
        write(&file, b"one", Access::PUBLIC).unwrap();
        write(&file, b"two", Access::PRIVATE).unwrap();
        assert_eq!(fs_err::read(&file).unwrap(), b"two");
        let mode = fs_err::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert_eq!(fs_err::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_gets_no_access_control_list_from_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        // user::rwx, user:61001:rwx, group::rwx, mask::rwx, other::---
        let entries = [
            (0x01, 7, u32::MAX),
            (0x02, 7, 61_001),
            (0x04, 7, u32::MAX),
            (0x10, 7, u32::MAX),
            (0x20, 0, u32::MAX),
        ];
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (tag, access, id) in entries {
            list.extend(u16::to_le_bytes(tag));
            list.extend(u16::to_le_bytes(access));
            list.extend(u32::to_le_bytes(id));
        }
        let default = "system.posix_acl_default";
        match rustix::fs::setxattr(directory.path(), default, &list, XattrFlags::empty()) {
            // Not every file system has such lists.
            Err(Errno::OPNOTSUPP) => return,
            set => set.unwrap(),
        }
        let file = directory.path().join("a");
        write(&file, b"secret", Access::mode(0o640)).unwrap();
        let found = rustix::fs::getxattr(&file, ACCESS_LIST, &mut [0_u8; 0]);
        assert_eq!(found, Err(Errno::NODATA));
        let mode = fs_err::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o640);
    }

    #[test]
    fn a_failed_write_keeps_the_old_content_without_leftovers() {
        let directory = tempfile::tempdir().unwrap();
        let taken = directory.path().join("a");
        fs_err::create_dir(&taken).unwrap();
        assert!(write(&taken, b"one", Access::PRIVATE).is_err());
        assert!(taken.is_dir());
        assert_eq!(fs_err::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn concurrent_writers_leave_the_content_of_one_of_them() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a");
        std::thread::scope(|scope| {
            for writer in 0..8_u8 {
                let file = &file;
                scope.spawn(move || {
                    for _ in 0..20 {
                        write(file, &[writer; 4096], Access::PRIVATE).unwrap();
                    }
                });
            }
        });
        let content = fs_err::read(&file).unwrap();
        assert_eq!(content.len(), 4096);
        assert!(content.iter().all(|byte| *byte == content[0]));
    }
}
