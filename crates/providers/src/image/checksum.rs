//! Checksum of a directory: paths, types, modes, owners and contents, but no times.

use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use homestak_core::hex;
use sha2::{Digest as _, Sha256};

/// The checksum and size of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TreeChecksum {
    /// The hash, in hexadecimal digits.
    pub(super) checksum: String,
    /// Bytes on the disk.
    pub(super) bytes: u64,
    /// Files, directories and everything else.
    pub(super) files: u64,
}

/// Computes the checksum of a directory, without its record file.
pub(super) fn sum(directory: &Path, without: &str) -> std::io::Result<TreeChecksum> {
    let mut total = TreeChecksum {
        checksum: String::new(),
        bytes: 0,
        files: 0,
    };
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    // Directories are walked in the order of names, so that the same tree gives the same hash.
    let mut open: Vec<PathBuf> = vec![PathBuf::new()];
    while let Some(path) = open.pop() {
        let whole = directory.join(&path);
        let data = fs_err::symlink_metadata(&whole)?;
        total.bytes += data.blocks() * 512;
        total.files += 1;
        // The directory itself may be moved to another owner's keeping; what is in it may not.
        if !path.as_os_str().is_empty() {
            hash.update(path.as_os_str().as_bytes());
            hash.update(format!(
                "\0{:o} {} {} ",
                data.mode(),
                data.uid(),
                data.gid()
            ));
        }
        let kind = data.file_type();
        if kind.is_dir() {
            let mut names: Vec<PathBuf> = fs_err::read_dir(&whole)?
                .map(|entry| entry.map(|entry| path.join(entry.file_name())))
                .collect::<std::io::Result<_>>()?;
            names.retain(|name| name != Path::new(without));
            names.sort();
            open.extend(names.into_iter().rev());
        } else if kind.is_symlink() {
            hash.update(fs_err::read_link(&whole)?.as_os_str().as_bytes());
        } else if kind.is_file() {
            hash.update(format!("{} ", data.len()));
            hash.update(contents(&whole, &mut buffer)?);
        } else if kind.is_char_device() || kind.is_block_device() {
            hash.update(format!("{}", data.rdev()));
        }
        hash.update(b"\n");
    }
    total.checksum = hex::encode(&hash.finalize());
    Ok(total)
}

/// Hashes a file. Its digest is hashed instead of its bytes, so that file boundaries are unambiguous.
fn contents(path: &Path, buffer: &mut [u8]) -> std::io::Result<[u8; 32]> {
    let mut file = fs_err::File::open(path)?;
    let mut hash = Sha256::new();
    loop {
        match file.read(buffer)? {
            0 => return Ok(hash.finalize().into()),
            read => hash.update(&buffer[..read]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn tree() -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        fs_err::create_dir(tree.path().join("etc")).unwrap();
        fs_err::write(tree.path().join("etc/a"), "one").unwrap();
        fs_err::write(tree.path().join("etc-b"), "two").unwrap();
        fs_err::os::unix::fs::symlink("a", tree.path().join("etc/link")).unwrap();
        tree
    }

    fn checksum(tree: &tempfile::TempDir) -> String {
        sum(tree.path(), "image.json").unwrap().checksum
    }

    #[test]
    fn the_same_tree_has_the_same_checksum() {
        let one = tree();
        assert_eq!(checksum(&one), checksum(&tree()));
        fs_err::write(one.path().join("image.json"), "{}").unwrap();
        assert_eq!(checksum(&one), checksum(&tree()));
        assert_eq!(sum(one.path(), "image.json").unwrap().files, 5);
    }

    #[test]
    fn every_change_changes_the_checksum() {
        let before = checksum(&tree());
        let changes: &[fn(&Path)] = &[
            |root| fs_err::write(root.join("etc/a"), "onf").unwrap(),
            |root| fs_err::write(root.join("etc/new"), "").unwrap(),
            |root| fs_err::create_dir(root.join("empty")).unwrap(),
            |root| fs_err::remove_file(root.join("etc-b")).unwrap(),
            |root| fs_err::rename(root.join("etc-b"), root.join("etc/b")).unwrap(),
            |root| {
                let mode = std::fs::Permissions::from_mode(0o4755);
                fs_err::set_permissions(root.join("etc/a"), mode).unwrap();
            },
            |root| {
                fs_err::remove_file(root.join("etc/link")).unwrap();
                fs_err::os::unix::fs::symlink("b", root.join("etc/link")).unwrap();
            },
            // A file below the top is part of the image, whatever its name.
            |root| fs_err::write(root.join("etc/image.json"), "{}").unwrap(),
        ];
        for (number, change) in changes.iter().enumerate() {
            let tree = tree();
            change(tree.path());
            assert_ne!(checksum(&tree), before, "change {number}");
        }
    }
}
