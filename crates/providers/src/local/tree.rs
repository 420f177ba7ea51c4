//! Walks directories that a node may have created. Only one directory is open at a time and paths do
//! not grow with the depth, so that deep trees cannot exhaust descriptors or exceed the path limit.
//! Links in them are not followed.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;
use rustix::path::Arg;

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Opens a directory below another, by the names that lead there. None of them may be a link.
pub(super) fn open(top: &Path, below: &str) -> io::Result<OwnedFd> {
    // A link to the top directory is followed: only we can have created it.
    let top = rustix::fs::open(top, DIRECTORY.difference(OFlags::NOFOLLOW), Mode::empty())?;
    let mut names = below.split('/').filter(|name| !name.is_empty());
    let found = names.try_fold(top, |directory, name| enter(&directory, name));
    Ok(found?)
}

/// Opens a directory in another.
pub(super) fn enter(directory: impl AsFd, name: impl Arg) -> Result<OwnedFd, Errno> {
    openat(directory, name, DIRECTORY, Mode::empty())
}

/// Returns what is in a directory.
pub(super) fn entries(directory: impl AsFd) -> io::Result<Vec<(CString, FileType)>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            found.push((name.to_owned(), entry.file_type()));
        }
    }
    Ok(found)
}

/// Goes through a directory and all below it. `visit` returns the names of the directories to go
/// on with, or none to end here; `leave` is called with each that is done, by the one it is in.
/// Returns whether it was ended.
pub(super) fn walk(
    top: OwnedFd,
    visit: &mut dyn FnMut(&OwnedFd) -> io::Result<Option<Vec<CString>>>,
    leave: &mut dyn FnMut(&OwnedFd, &CStr) -> io::Result<()>,
) -> io::Result<bool> {
    let mut here = top;
    let Some(first) = visit(&here)? else {
        return Ok(true);
    };
    let mut entered: Vec<CString> = Vec::new();
    let mut left = vec![first];
    while let Some(names) = left.last_mut() {
        if let Some(name) = names.pop() {
            match enter(&here, &*name) {
                Ok(inner) => here = inner,
                // It was removed meanwhile, or is no directory.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(error) => return Err(error.into()),
            }
            let Some(names) = visit(&here)? else {
                return Ok(true);
            };
            entered.push(name);
            left.push(names);
            continue;
        }
        left.pop();
        if let Some(name) = entered.pop() {
            here = enter(&here, c"..")?;
            leave(&here, &name)?;
        }
    }
    Ok(false)
}

/// Removes an entry of a directory with its content; a missing one is no error.
pub(super) fn remove(directory: impl AsFd, name: &CStr) -> io::Result<()> {
    let top = match enter(&directory, name) {
        Ok(top) => top,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
            return unlink(directory, name, AtFlags::empty());
        }
        Err(error) => return Err(named(error.into(), name)),
    };
    let mut empty = |here: &OwnedFd| {
        let mut inner = Vec::new();
        for (name, kind) in entries(here)? {
            if kind == FileType::Directory {
                inner.push(name);
                continue;
            }
            match unlinkat(here, &*name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                // Not every file system reports the type of an entry.
                Err(Errno::ISDIR) => inner.push(name),
                Err(error) => return Err(named(error.into(), &name)),
            }
        }
        Ok(Some(inner))
    };
    let mut leave = |here: &OwnedFd, name: &CStr| unlink(here, name, AtFlags::REMOVEDIR);
    walk(top, &mut empty, &mut leave)?;
    unlink(directory, name, AtFlags::REMOVEDIR)
}

fn unlink(directory: impl AsFd, name: &CStr, how: AtFlags) -> io::Result<()> {
    match unlinkat(directory, name, how) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(named(error.into(), name)),
    }
}

fn named(error: io::Error, name: &CStr) -> io::Error {
    let text = format!("remove `{}`: {error}", name.to_string_lossy());
    io::Error::new(error.kind(), text)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Makes directories within directories, and calls something in the innermost.
    pub(in crate::local) fn nest(top: &Path, depth: usize, inside: impl FnOnce(&OwnedFd)) {
        let mut here = open(top, "").expect("the first");
        for _ in 0..depth {
            rustix::fs::mkdirat(&here, c"d", Mode::RWXU).expect("created");
            here = enter(&here, c"d").expect("opened");
        }
        inside(&here);
    }

    pub(in crate::local) fn write(directory: &OwnedFd, name: &CStr, text: &str) {
        let how = OFlags::WRONLY | OFlags::CREATE;
        let file = openat(directory, name, how, Mode::RUSR | Mode::WUSR).expect("created");
        rustix::io::write(&file, text.as_bytes()).expect("written");
    }

    #[test]
    fn directories_deeper_than_files_can_be_open_are_removed() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let before = getrlimit(Resource::Nofile);
        let few = Rlimit {
            current: Some(512),
            ..before
        };
        setrlimit(Resource::Nofile, few).expect("limited");
        let place = tempfile::tempdir().expect("a directory");
        let top = place.path().join("top");
        fs_err::create_dir_all(top.join("other/one")).expect("created");
        nest(&top, 1_500, |here| write(here, c"file", "text"));
        super::super::node::remove_tree(&top).expect("removed");
        assert!(!top.exists());
        super::super::node::remove_tree(&top).expect("nothing to remove");
        setrlimit(Resource::Nofile, before).expect("as before");
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let place = tempfile::tempdir().expect("a directory");
        let (top, other) = (place.path().join("top"), place.path().join("other"));
        fs_err::create_dir_all(other.join("nocloud")).expect("created");
        fs_err::write(other.join("nocloud/kept"), "").expect("written");
        fs_err::create_dir_all(&top).expect("created");
        fs_err::os::unix::fs::symlink(&other, top.join("link")).expect("linked");
        assert!(open(&top, "link/nocloud").is_err(), "a link leads there");
        assert!(open(&other, "nocloud").is_ok());
        super::super::node::remove_tree(&top).expect("removed");
        assert!(!top.exists() && other.join("nocloud/kept").exists());
        // A link itself, too.
        fs_err::os::unix::fs::symlink(&other, &top).expect("linked");
        super::super::node::remove_tree(&top).expect("removed");
        assert!(!top.is_symlink() && other.join("nocloud/kept").exists());
    }
}
