//! Files and directories watched with inotify.
//!
//! In: paths. Out: whether something happened to one of them.
//! Never: a path that is watched only while it exists: every directory on the way to it is watched
//! for the next one.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use crate::path;

/// What files are called while they are written beside their places.
const UNFINISHED: &str = ".homestak-new";

/// So many events are taken at once: more than the kernel keeps.
const MOST_EVENTS: usize = 50_000;

/// What is of interest in a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Names {
    every: bool,
    some: BTreeSet<String>,
}

impl Names {
    fn has(&self, name: &str) -> bool {
        !name.ends_with(UNFINISHED) && (self.every || self.some.contains(name))
    }
}

/// Watches of files and directories.
pub(super) struct Paths {
    inotify: OwnedFd,
    watches: BTreeMap<i32, Names>,
}

impl Paths {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            inotify: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            watches: BTreeMap::new(),
        })
    }

    /// Watches exactly these, and tells whether there is a directory among them that was not
    /// watched before: something may have happened in it.
    pub(super) fn aim(
        &mut self,
        files: &BTreeSet<String>,
        directories: &BTreeSet<String>,
    ) -> std::io::Result<bool> {
        let flags = WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        let mut watches: BTreeMap<i32, Names> = BTreeMap::new();
        let mut fresh = false;
        for (directory, names) in places(files, directories, |path| {
            path::directory(Path::new(path)).is_ok()
        }) {
            // By the descriptor: no link of a user makes us watch something else.
            let Ok(held) = path::directory(Path::new(&directory)) else {
                continue;
            };
            let at = format!("/proc/self/fd/{}", held.as_fd().as_raw_fd());
            match inotify::add_watch(&self.inotify, at, flags) {
                Ok(watch) => {
                    // Two ways may lead to one directory.
                    let all = watches.entry(watch).or_default();
                    all.every |= names.every;
                    all.some.extend(names.some);
                    fresh |= !self.watches.contains_key(&watch);
                }
                // Gone this moment; its parent tells when it is back.
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        for watch in self.watches.keys() {
            if !watches.contains_key(watch) {
                // It may be gone by itself, with its directory.
                _ = inotify::remove_watch(&self.inotify, *watch);
            }
        }
        self.watches = watches;
        Ok(fresh)
    }

    /// Takes what has happened, and tells whether it is of interest.
    pub(super) fn take(&mut self) -> std::io::Result<bool> {
        let mut room = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.inotify, &mut room);
        let mut any = false;
        // Whoever makes events faster than they are read does not keep us from looking.
        for _ in 0..MOST_EVENTS {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return Ok(any),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let lost = ReadFlags::QUEUE_OVERFLOW | ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF;
            if event.events().intersects(lost) {
                any = true;
                continue;
            }
            let Some(names) = self.watches.get(&event.wd()) else {
                continue;
            };
            let name = event.file_name().map(|name| name.to_string_lossy());
            any |= name.is_some_and(|name| names.has(&name));
        }
        Ok(any)
    }
}

impl AsFd for Paths {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// Returns the directories to watch, and what to look for in each.
fn places(
    files: &BTreeSet<String>,
    directories: &BTreeSet<String>,
    is_directory: impl Fn(&str) -> bool,
) -> BTreeMap<String, Names> {
    let mut places: BTreeMap<String, Names> = BTreeMap::new();
    for directory in directories {
        if is_directory(directory) {
            places.entry(directory.clone()).or_default().every = true;
        }
    }
    for path in files.iter().chain(directories) {
        let mut path = path.as_str();
        while let Some((parent, name)) = path.rsplit_once('/') {
            let parent = if parent.is_empty() { "/" } else { parent };
            // All the way up: a directory on the way may be moved, or be missing.
            if is_directory(parent) {
                let names = places.entry(parent.to_owned()).or_default();
                names.some.insert(name.to_owned());
            }
            if parent == "/" {
                break;
            }
            path = parent;
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Paths, places};

    fn set(paths: &[&str]) -> BTreeSet<String> {
        paths.iter().map(|path| (*path).to_owned()).collect()
    }

    #[test]
    fn what_is_missing_is_waited_for_in_directories_that_are_there() {
        let there = set(&["/", "/etc", "/etc/ssh"]);
        let found = places(
            &set(&["/etc/motd", "/etc/a/b/c", "/x", "/etc/ssh/d/own.conf"]),
            &set(&["/etc/ssh/d", "/etc/ssh"]),
            |path| there.contains(path),
        );
        let some = |path: &str| found[path].some.clone();
        assert_eq!(some("/etc"), set(&["motd", "a", "ssh"]));
        assert_eq!(some("/"), set(&["x", "etc"]));
        assert_eq!(some("/etc/ssh"), set(&["d"]));
        assert!(found["/etc/ssh"].every && !found["/etc"].every);
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn writes_renames_links_modes_and_removals_are_seen_and_neighbours_are_not() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name).display().to_string();
        let mut paths = Paths::new().unwrap();
        let files: BTreeSet<String> = [at("one"), at("deep/er/two")].into();
        assert!(paths.aim(&files, &BTreeSet::new()).unwrap());
        let mut sees = |expected: bool, what: &str| {
            assert_eq!(paths.take().unwrap(), expected, "{what}");
        };
        fs_err::write(at("other"), "x").unwrap();
        fs_err::write(at(".one.homestak-new"), "x").unwrap();
        sees(false, "neighbours");
        fs_err::write(at("one"), "x").unwrap();
        sees(true, "a write");
        fs_err::read_to_string(at("one")).unwrap();
        sees(false, "a look");
        fs_err::rename(at("other"), at("one")).unwrap();
        sees(true, "a rename");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs_err::set_permissions(at("one"), mode).unwrap();
        sees(true, "a mode");
        fs_err::remove_file(at("one")).unwrap();
        sees(true, "a removal");
        fs_err::os::unix::fs::symlink("/", at("one")).unwrap();
        sees(true, "a link");
        fs_err::create_dir_all(at("deep/er")).unwrap();
        sees(true, "a directory on the way");
        assert!(paths.aim(&files, &BTreeSet::new()).unwrap());
        assert!(!paths.aim(&files, &BTreeSet::new()).unwrap());
        fs_err::write(at("deep/er/two"), "x").unwrap();
        assert!(paths.take().unwrap());
        fs_err::rename(at("deep"), at("away")).unwrap();
        assert!(paths.take().unwrap());
        paths.aim(&files, &BTreeSet::new()).unwrap();
        _ = paths.take().unwrap();
        // What moved away is watched no more.
        fs_err::write(at("away/er/two"), "y").unwrap();
        assert!(!paths.take().unwrap());
    }
}
