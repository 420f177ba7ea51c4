//! Directories that only their owner can read.
//!
//! Trees of nodes and images contain setuid programs, keys and passwords of nodes: other users of
//! the machine must not have access.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Creates a directory that only its owner can access. The permissions of an existing one are
/// restricted, unless the file system is read-only.
pub(crate) fn directory(path: &Path) -> io::Result<()> {
    fs_err::create_dir_all(path)?;
    close(path, 0o700)
}

/// Removes the permissions of others on a file or directory.
pub(crate) fn close(path: &Path, mode: u32) -> io::Result<()> {
    if fs_err::metadata(path)?.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    match fs_err::set_permissions(path, std::fs::Permissions::from_mode(mode)) {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(()),
        other => other,
    }
}
