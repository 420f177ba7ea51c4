//! A repository of a user: where its parts are, whom it belongs to, and its references. Files are
//! read without following links, and only if they belong to the owner of the repository.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use homestak_api::publication::WORKING;
use homestak_api::trusted_path::{self, ResolvedPath};
use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::io::Errno;

use super::error::RepoError;
use super::parts::{require_own_directory, require_own_objects};
use super::temporary_repo::ObjectFormat;

/// The largest file with references, in bytes: about 100,000 of them.
const REFS_BYTES: u64 = 8 << 20;
/// The largest other small file.
pub(super) const SMALL_BYTES: u64 = 1 << 20;
/// The largest index with all its parts, in bytes: of more than a million files.
const INDEX_BYTES: u64 = 128 << 20;
/// Most references.
const REFS: usize = 100_000;
/// How deep directories of references may be.
const DEPTH: usize = 16;

/// The group of users who are not in `/etc/passwd`, as of Debian.
const NO_GROUP: u32 = 65534;

/// Who a repository belongs to, and the group of that user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) user: u32,
    pub(super) group: u32,
}

impl Owner {
    /// Returns a user with the group that the user has anyway. That of a directory may be another:
    /// `chown USER` leaves it as it was, and a program of that user would have its rights.
    fn of(user: u32) -> Self {
        let group = account_of(user).map_or(NO_GROUP, |(group, _)| group);
        Self { user, group }
    }

    /// Returns the owner if git must run as another user than this one.
    pub(super) fn if_other(self) -> Option<Self> {
        let is_root = rustix::process::geteuid().is_root();
        (is_root && self.user != 0).then_some(self)
    }
}

/// Returns the group and the home directory of a user of this machine.
pub(super) fn account_of(user: u32) -> Option<(u32, PathBuf)> {
    let users = fs_err::read_to_string("/etc/passwd").ok()?;
    let mut lines = users.lines();
    lines.find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let is_user = fields.get(2)?.parse() == Ok(user);
        let group = fields.get(3)?.parse().ok()?;
        is_user.then(|| Some((group, PathBuf::from(fields.get(5)?))))?
    })
}

/// A repository.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// The working tree; `None` for a bare repository.
    pub(super) tree: Option<PathBuf>,
    /// The git directory, with `HEAD` and the index.
    pub(super) directory: PathBuf,
    /// The git directory with objects and references, which worktrees share.
    pub(super) common: PathBuf,
    pub(super) owner: Owner,
}

/// Where `HEAD` points to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct References {
    /// The commit of `HEAD`; `None` before the first commit.
    pub(super) head: Option<String>,
    /// Branches and tags with the names of their objects.
    pub(super) refs: BTreeMap<String, String>,
    /// Names that git cannot store beside others.
    pub(super) conflicting: BTreeSet<String>,
}

impl Source {
    /// Finds the parts of a repository.
    pub(super) fn open(path: &Path) -> Result<Self, RepoError> {
        let source = Self::locate(path)?;
        require_own_objects(&source.common, source.owner)?;
        Ok(source)
    }

    /// Finds the parts of a repository whose objects are not read.
    fn locate(path: &Path) -> Result<Self, RepoError> {
        let resolved = trusted_path::resolve(path).map_err(RepoError::file("open", path))?;
        if !resolved.path.is_dir() {
            return Err(RepoError::unusable("it is not a directory"));
        }
        let owner = Owner::of(resolved.owner);
        let path = trusted(resolved, owner)?;
        require_readable(&path, owner, rustix::process::geteuid().as_raw())?;
        let inside = path.join(".git");
        let kind = fs_err::symlink_metadata(&inside).ok();
        let (tree, directory) = match kind.map(|kind| kind.file_type()) {
            Some(kind) if kind.is_dir() => (Some(path), inside),
            Some(kind) if kind.is_file() => {
                let text = read_owned(&inside, owner, SMALL_BYTES)?.unwrap_or_default();
                let text = String::from_utf8_lossy(&text).into_owned();
                let to = text.trim_end_matches('\n').strip_prefix("gitdir: ");
                let to =
                    to.ok_or_else(|| RepoError::unusable("its `.git` is not a git directory"))?;
                let to = resolve(&path.join(to), owner)?;
                (Some(path), to)
            }
            Some(_) => return Err(RepoError::unusable("its `.git` is a link")),
            None if path.join("objects").is_dir() && path.join("HEAD").is_file() => (None, path),
            None => return Err(RepoError::unusable("it is not a git repository")),
        };
        let common = match read_owned(&directory.join("commondir"), owner, SMALL_BYTES)? {
            None => directory.clone(),
            Some(text) => {
                let to = directory.join(String::from_utf8_lossy(&text).trim_end_matches('\n'));
                resolve(&to, owner)?
            }
        };
        for part in [&directory, &common, &common.join("objects")] {
            let found = fs_err::symlink_metadata(part).map_err(RepoError::file("open", part))?;
            if !found.is_dir() {
                return Err(RepoError::unusable("its git directory is not complete"));
            }
            if found.uid() != owner.user {
                return Err(RepoError::unusable(
                    "its git directory belongs to another user than its working tree",
                ));
            }
        }
        require_own_directory(tree.as_deref(), &directory, &common, owner)?;
        let source = Self {
            tree,
            directory,
            common,
            owner,
        };
        if source.read("shallow")?.is_some_and(|text| !text.is_empty()) {
            return Err(RepoError::unusable(
                "it is a shallow clone; `git fetch --unshallow` makes it complete",
            ));
        }
        Ok(source)
    }

    /// Returns a small file of the shared git directory.
    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, RepoError> {
        read_owned(&self.common.join(name), self.owner, SMALL_BYTES)
    }

    /// Returns the index, with when it was written.
    pub(super) fn index(&self) -> Result<Option<(Vec<u8>, std::time::SystemTime)>, RepoError> {
        let path = self.directory.join("index");
        let Some(content) = read_owned(&path, self.owner, INDEX_BYTES)? else {
            return Ok(None);
        };
        let found = fs_err::symlink_metadata(&path).and_then(|found| found.modified());
        Ok(Some((
            content,
            found.map_err(RepoError::file("read", &path))?,
        )))
    }

    /// Returns parts of an index of some bytes that are in files of their own, by name.
    pub(super) fn shared_indexes(&self, index: usize) -> Result<Vec<(String, Vec<u8>)>, RepoError> {
        let mut all = Vec::new();
        let mut left = INDEX_BYTES.saturating_sub(index as u64);
        let failed = RepoError::file("read", &self.directory);
        for entry in fs_err::read_dir(&self.directory).map_err(&failed)? {
            let entry = entry.map_err(&failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_part = name.strip_prefix("sharedindex.").is_some_and(|digest| {
                [ObjectFormat::Sha1, ObjectFormat::Sha256]
                    .iter()
                    .any(|format| is_object(digest, *format))
            });
            if is_part && let Some(content) = read_owned(&entry.path(), self.owner, left)? {
                left = left.saturating_sub(content.len() as u64);
                all.push((name, content));
            }
        }
        Ok(all)
    }

    /// Reads `HEAD`, branches and tags.
    pub(super) fn references(&self, format: ObjectFormat) -> Result<References, RepoError> {
        let mut refs = BTreeMap::new();
        let packed = read_owned(&self.common.join("packed-refs"), self.owner, REFS_BYTES)?;
        let packed = packed.unwrap_or_default();
        for line in String::from_utf8_lossy(&packed).lines() {
            if let Some((object, name)) = line.split_once(' ') {
                add(&mut refs, name, object, format);
            }
        }
        for kind in ["refs/heads", "refs/tags"] {
            self.walk(kind, 0, format, &mut refs)?;
        }
        if refs.len() > REFS {
            let why = format!("it has more than {REFS} branches and tags");
            return Err(RepoError::unusable(why));
        }
        let head = read_owned(&self.directory.join("HEAD"), self.owner, SMALL_BYTES)?;
        let head = String::from_utf8_lossy(&head.unwrap_or_default())
            .trim()
            .to_owned();
        let head = match head.strip_prefix("ref: ") {
            Some(name) => refs.get(name.trim()).cloned(),
            None if is_object(&head, format) => Some(head),
            None => return Err(RepoError::unusable("its `HEAD` cannot be read")),
        };
        refs.remove(WORKING);
        // Of `a` and `a/b`, git can store one only, and a clone would fail.
        let is_taken = |name: &str| name == WORKING || refs.contains_key(name);
        let is_below = |name: &&String| {
            let mut parts = name.match_indices('/');
            parts.any(|(at, _)| is_taken(&name[..at]))
        };
        let conflicting: BTreeSet<String> = refs.keys().filter(is_below).cloned().collect();
        refs.retain(|name, _| !conflicting.contains(name));
        Ok(References {
            head,
            refs,
            conflicting,
        })
    }

    fn walk(
        &self,
        name: &str,
        depth: usize,
        format: ObjectFormat,
        refs: &mut BTreeMap<String, String>,
    ) -> Result<(), RepoError> {
        let path = self.common.join(name);
        let is_directory = fs_err::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
        if !is_directory || depth > DEPTH {
            return Ok(());
        }
        let failed = RepoError::file("read", &path);
        for entry in fs_err::read_dir(&path).map_err(&failed)? {
            let entry = entry.map_err(&failed)?;
            let Some(file) = entry.file_name().to_str().map(str::to_owned) else {
                continue;
            };
            let name = format!("{name}/{file}");
            let kind = entry.file_type().map_err(&failed)?;
            if kind.is_dir() {
                self.walk(&name, depth + 1, format, refs)?;
            } else if kind.is_file()
                && refs.len() <= REFS
                && let Some(text) = read_owned(&entry.path(), self.owner, SMALL_BYTES)?
            {
                add(refs, &name, String::from_utf8_lossy(&text).trim(), format);
            }
        }
        Ok(())
    }

    /// Returns whether the working tree has a directory.
    pub(super) fn has_directory(&self, path: &Path) -> bool {
        let found = self.tree.as_ref().map(|tree| tree.join(path));
        let found = found.and_then(|path| fs_err::symlink_metadata(path).ok());
        found.is_some_and(|found| found.is_dir())
    }

    /// Returns the commit that a submodule has checked out; `None` if it has none.
    pub(super) fn submodule_head(&self, path: &Path, format: ObjectFormat) -> Option<String> {
        let tree = self.tree.as_ref()?;
        let inside = Self::locate(&tree.join(path)).ok()?;
        // Not a directory without a `.git` of its own, nor one outside.
        let is_inside = inside
            .tree
            .as_ref()
            .is_some_and(|found| *found == tree.join(path));
        let is_same = inside.owner == self.owner && is_inside;
        let references = is_same.then(|| inside.references(format).ok())??;
        references.head
    }
}

/// Returns where a path leads.
fn resolve(path: &Path, owner: Owner) -> Result<PathBuf, RepoError> {
    let resolved = trusted_path::resolve(path).map_err(RepoError::file("open", path))?;
    trusted(resolved, owner)
}

/// Refuses a path that others than root, this user and the owner of the repository could have led
/// there: a link in the place of their own repository would have this one published.
fn trusted(resolved: ResolvedPath, owner: Owner) -> Result<PathBuf, RepoError> {
    let only = resolved.require_only(owner.user);
    only.map_err(|why| RepoError::unusable(why.to_string()))?;
    Ok(resolved.path)
}

/// Refuses the repository of another user, unless git can run as that user: it could borrow objects
/// that only this user may read, and have them published.
fn require_readable(path: &Path, owner: Owner, caller: u32) -> Result<(), RepoError> {
    if caller == 0 || owner.user == caller {
        return Ok(());
    }
    Err(RepoError::unusable(format!(
        "it belongs to user {}, and this command runs as user {caller}; use a clone of your own, or \
         run it as root (`ls -ld {}` shows the owner)",
        owner.user,
        path.display()
    )))
}

fn is_object(text: &str, format: ObjectFormat) -> bool {
    text.len() == format.digits()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Adds a branch or tag, unless its name is one that git would not accept.
fn add(refs: &mut BTreeMap<String, String>, name: &str, object: &str, format: ObjectFormat) {
    let is_kind = name.starts_with("refs/heads/") || name.starts_with("refs/tags/");
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && !part.ends_with('.')
            && !part.ends_with(".lock")
            && !part.contains("..")
            && !part.contains("@{")
            && !part
                .chars()
                .any(|c| c.is_control() || " ~^:?*[\\".contains(c))
    };
    if is_kind && name.len() <= 1024 && name.split('/').all(is_part) && is_object(object, format) {
        refs.insert(name.to_owned(), object.to_owned());
    }
}

/// Opens a regular file for reading, without following a link in its last part; `None` if there is
/// none. What it is, is known before: opening a device can have effects.
pub(super) fn open_regular(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let found = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(found) => found,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if FileType::from_raw_mode(fstat(&found)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is not a regular file"));
    }
    let same = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::open(same, flags, Mode::empty())?;
    Ok(Some(File::from(file)))
}

/// Reads a regular file of the owner; `None` if there is none.
pub(super) fn read_owned(
    path: &Path,
    owner: Owner,
    most: u64,
) -> Result<Option<Vec<u8>>, RepoError> {
    let failed = RepoError::file("read", path);
    let Some(file) = open_regular(path).map_err(&failed)? else {
        return Ok(None);
    };
    let found = file.metadata().map_err(&failed)?;
    let wrong = |why: &str| failed(io::Error::other(why.to_owned()));
    if found.uid() != owner.user {
        return Err(wrong("it belongs to another user than the repository"));
    }
    let mut content = Vec::new();
    file.take(most + 1)
        .read_to_end(&mut content)
        .map_err(&failed)?;
    match content.len() as u64 > most {
        true => Err(wrong("it is too large")),
        false => Ok(Some(content)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_of_another_user_is_refused_unless_root_asks() {
        let owner = |user| Owner { user, group: 100 };
        let path = Path::new("/srv/git/x");
        for (user, caller) in [(1000, 1000), (1000, 0), (0, 0)] {
            require_readable(path, owner(user), caller).expect("readable");
        }
        for (user, caller) in [(1001, 1000), (0, 1000)] {
            let error = require_readable(path, owner(user), caller).expect_err("another user");
            let error = error.to_string();
            assert!(
                error.contains(&format!("belongs to user {user}")),
                "{error}"
            );
        }
    }

    #[test]
    fn git_does_not_get_the_group_of_a_directory() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let root = tempfile::tempdir().expect("a directory");
        let repo = root.path().join("x.git");
        fs_err::create_dir_all(repo.join("objects")).expect("created");
        fs_err::write(repo.join("HEAD"), "ref: refs/heads/main\n").expect("written");
        for path in [&repo, &repo.join("objects"), &repo.join("HEAD")] {
            std::os::unix::fs::chown(path, Some(NO_GROUP), Some(0)).expect("changed");
        }
        let source = Source::open(&repo).expect("opened");
        let expected = Owner {
            user: 65534,
            group: 65534,
        };
        assert_eq!(source.owner.if_other(), Some(expected));
    }

    #[test]
    fn only_regular_files_are_opened() {
        let root = tempfile::tempdir().expect("a directory");
        let file = root.path().join("file");
        fs_err::write(&file, "x").expect("written");
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&file, &link).expect("linked");
        assert!(open_regular(&file).expect("opened").is_some());
        assert!(
            open_regular(&root.path().join("none"))
                .expect("none")
                .is_none()
        );
        assert!(open_regular(&file.join("none")).expect("none").is_none());
        // Opening a device, such as a watchdog, could have an effect.
        for path in [link.as_path(), root.path(), Path::new("/dev/null")] {
            let error = open_regular(path).expect_err("not regular");
            assert!(error.to_string().contains("regular"), "{error}");
        }
    }
}
