//! Who could lead a path elsewhere: the owners of the directories and links that it passes, and
//! those who can write to these directories.
//!
//! A link is a decision of its owner. A program with more rights must not follow it to what that user
//! cannot read or change.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat, readlinkat};

/// Most links that are followed, as in the kernel.
const LINKS: usize = 40;
/// The permission bits of others, of the group, and the one with which a directory lets users replace
/// only what is their own.
const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITE: u32 = 0o020;
const STICKY: u32 = 0o1000;

/// A path without links, and what was passed to find it.
#[derive(Debug)]
pub struct ResolvedPath {
    /// The path.
    pub path: PathBuf,
    /// Who it belongs to.
    pub owner: u32,
    passed: Vec<Passed>,
    found: Passed,
}

/// A directory or a link on the way.
#[derive(Debug)]
struct Passed {
    path: PathBuf,
    owner: u32,
    group: u32,
    mode: u32,
    is_link: bool,
}

/// Why a path is not trusted.
#[derive(Debug, thiserror::Error)]
pub enum Untrusted {
    /// A directory or link is another user's.
    #[error(
        "`{}` belongs to user {owner}, who could replace what is used here; \
         `chown -h OWNER` changes that, or use a path without it", path.display()
    )]
    Owner {
        /// The directory or link.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Other users can replace what is in a directory.
    #[error(
        "other users can write to `{}`, and could replace what is used here; \
         `chmod go-w` changes that", path.display()
    )]
    Writable {
        /// The directory.
        path: PathBuf,
    },
}

/// Finds where a path leads. Every part is opened on its own, so that what is returned about it is what
/// was used. Blocks on disk I/O.
pub fn resolve(path: &Path) -> io::Result<ResolvedPath> {
    let path = std::path::absolute(path)?;
    let mut left: VecDeque<OsString> = parts(&path);
    let mut open = vec![(open_part(None, OsStr::new("/"))?, PathBuf::from("/"))];
    let (mut passed, mut links) = (Vec::new(), 0);
    loop {
        let (directory, at) = open.last().ok_or(io::ErrorKind::InvalidInput)?;
        let Some(name) = left.pop_front() else {
            let found = Passed::of(directory, at.clone())?;
            return Ok(ResolvedPath {
                path: at.clone(),
                owner: found.owner,
                passed,
                found,
            });
        };
        if name == ".." {
            if open.len() > 1 {
                open.pop();
            }
            continue;
        }
        let next = at.join(&name);
        passed.push(Passed::of(directory, at.clone())?);
        let part = open_part(Some(directory), &name)?;
        let found = Passed::of(&part, next.clone())?;
        if !found.is_link {
            open.push((part, next));
            continue;
        }
        passed.push(found);
        links += 1;
        if links > LINKS {
            return Err(io::Error::other("there are too many links"));
        }
        let target = readlinkat(&part, "", Vec::new())?.into_bytes();
        let target = PathBuf::from(OsString::from_vec(target));
        if target.is_absolute() {
            open.truncate(1);
        }
        for part in parts(&target).into_iter().rev() {
            left.push_front(part);
        }
    }
}

fn parts(path: &Path) -> VecDeque<OsString> {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    });
    parts.collect()
}

fn open_part(directory: Option<&OwnedFd>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = match directory {
        Some(directory) => openat(directory, name, flags, Mode::empty()),
        None => openat(CWD, name, flags, Mode::empty()),
    };
    Ok(opened?)
}

impl Passed {
    fn of(part: &OwnedFd, path: PathBuf) -> io::Result<Self> {
        let found = fstat(part)?;
        Ok(Self {
            path,
            owner: found.st_uid,
            group: found.st_gid,
            mode: found.st_mode,
            is_link: FileType::from_raw_mode(found.st_mode) == FileType::Symlink,
        })
    }

    /// Returns whether others than some users can replace what is in it.
    fn is_shared(&self, users: &[u32]) -> bool {
        self.mode & STICKY == 0 && self.is_writable(users)
    }

    /// Returns whether others than some users can write to it.
    fn is_writable(&self, users: &[u32]) -> bool {
        let has_group = |user: &u32| is_own_group(self.group, *user);
        let is_of_group = self.mode & GROUP_WRITE != 0 && !users.iter().any(has_group);
        !self.is_link && (self.mode & OTHERS_WRITE != 0 || is_of_group)
    }
}

impl ResolvedPath {
    /// Requires that only root, this user and `user` could have led the path elsewhere. The mode of
    /// what was found is not examined.
    pub fn require_only(&self, user: u32) -> Result<(), Untrusted> {
        require(&self.passed, user)
    }

    /// Requires that only root and this user can replace it, or what is in it.
    pub fn require_own(&self) -> Result<(), Untrusted> {
        require(&self.passed, 0)?;
        require(std::slice::from_ref(&self.found), 0)
    }

    /// The same, and that nobody else can create anything in it.
    pub fn require_unshared(&self) -> Result<(), Untrusted> {
        self.require_own()?;
        match self.found.is_writable(&trusted(0)) {
            true => Err(Untrusted::Writable {
                path: self.found.path.clone(),
            }),
            false => Ok(()),
        }
    }
}

/// Returns the users who may lead a path to what is `user`'s.
fn trusted(user: u32) -> [u32; 3] {
    [0, rustix::process::geteuid().as_raw(), user]
}

fn require(all: &[Passed], user: u32) -> Result<(), Untrusted> {
    let trusted = trusted(user);
    for passed in all {
        let path = || passed.path.clone();
        if !trusted.contains(&passed.owner) {
            let (path, owner) = (path(), passed.owner);
            return Err(Untrusted::Owner { path, owner });
        }
        if passed.is_shared(&trusted) {
            return Err(Untrusted::Writable { path: path() });
        }
    }
    Ok(())
}

/// Returns whether a group is that of root, or has one user only: many systems create one of the same
/// name with each user.
fn is_own_group(group: u32, user: u32) -> bool {
    if group == 0 {
        return true;
    }
    let id = |field: Option<&&str>| field.and_then(|field| field.parse::<u32>().ok());
    let users = fs_err::read_to_string("/etc/passwd").unwrap_or_default();
    let users = users.lines().map(|line| line.split(':').collect());
    let mut users = users.filter(|fields: &Vec<&str>| id(fields.get(3)) == Some(group));
    let (Some(only), None) = (users.next(), users.next()) else {
        return false;
    };
    let groups = fs_err::read_to_string("/etc/group").unwrap_or_default();
    let mut groups = groups.lines().map(|line| line.split(':').collect());
    let found = groups.find(|fields: &Vec<&str>| id(fields.get(2)) == Some(group));
    let members = found.and_then(|fields| fields.get(3).copied());
    let members = members.unwrap_or_default();
    id(only.get(2)) == Some(user) && (members.is_empty() || only.first() == Some(&members))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, lchown, symlink};

    use super::*;

    const BOB: u32 = 61_001;
    const MALLORY: u32 = 61_002;

    fn directory(path: &Path, mode: u32) {
        fs_err::create_dir_all(path).expect("created");
        fs_err::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set");
    }

    #[test]
    fn links_and_parents_are_resolved_as_the_kernel_does() {
        let root = tempfile::tempdir().expect("a directory");
        let root = fs_err::canonicalize(root.path()).expect("found");
        directory(&root.join("a/b"), 0o755);
        symlink("a/b", root.join("relative")).expect("linked");
        symlink(root.join("relative"), root.join("absolute")).expect("linked");
        symlink("loop", root.join("loop")).expect("linked");
        for path in [
            "a/b",
            "relative",
            "absolute",
            "a/./b",
            "relative/../b",
            "absolute/../../a",
        ] {
            let resolved = resolve(&root.join(path)).expect("found");
            let expected = fs_err::canonicalize(root.join(path)).expect("found");
            assert_eq!(resolved.path, expected, "{path}");
            resolved.require_only(0).expect("trusted");
        }
        resolve(&root.join("loop")).expect_err("a loop");
        let error = resolve(&root.join("none")).expect_err("nothing there");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_directory_that_others_can_write_is_not_passed_unless_it_is_sticky() {
        let root = tempfile::tempdir().expect("a directory");
        let (shared, inner) = (root.path().join("shared"), root.path().join("shared/inner"));
        directory(&inner, 0o755);
        for (mode, is_trusted) in [
            (0o755, true),
            (0o777, false),
            (0o1777, true),
            (0o757, false),
        ] {
            directory(&shared, mode);
            let resolved = resolve(&inner).expect("found").require_only(0);
            assert_eq!(resolved.is_ok(), is_trusted, "{mode:o}: {resolved:?}");
        }
        // What is found may be shared.
        directory(&shared, 0o777);
        resolve(&shared)
            .expect("found")
            .require_only(0)
            .expect("trusted");
    }

    #[test]
    fn what_another_user_placed_is_not_passed() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let root = tempfile::tempdir().expect("a directory");
        let (home, target) = (root.path().join("bob"), root.path().join("target"));
        directory(&home.join("own"), 0o755);
        directory(&target, 0o700);
        symlink(&target, home.join("link")).expect("linked");
        chown(&home, Some(BOB), Some(BOB)).expect("changed");
        let of_link = || resolve(&home.join("link")).expect("found");
        let refused = of_link().require_only(0).expect_err("bob's directory");
        assert!(refused.to_string().contains("user 61001"), "{refused}");
        lchown(home.join("link"), Some(BOB), Some(BOB)).expect("changed");
        chown(&home, Some(0), Some(0)).expect("changed");
        of_link().require_only(0).expect_err("bob's link");
        of_link().require_only(BOB).expect("bob decides");
        of_link().require_only(MALLORY).expect_err("bob's link");
        chown(&target, Some(BOB), Some(BOB)).expect("changed");
        assert_eq!(of_link().owner, BOB);
    }

    #[test]
    fn a_group_without_a_known_user_is_not_that_of_one() {
        assert!(is_own_group(0, BOB));
        assert!(!is_own_group(BOB, BOB));
    }
}
