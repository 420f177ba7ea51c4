//! Files and directories watched with inotify. Every directory on the way to a path is watched for
//! the next one, so that what is missing is seen when it is created.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use crate::path::{self, Directory, Keeper};

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
    /// Not there while users of this machine have taken all that the kernel gives out.
    inotify: Option<OwnedFd>,
    watches: BTreeMap<i32, Names>,
}

/// What came of watching.
#[derive(Debug, Default)]
pub(super) struct Aimed {
    /// Whether something is watched that was not before: something may have happened there.
    pub(super) fresh: bool,
    /// Why not everything is watched.
    pub(super) missed: Option<std::io::Error>,
}

impl Paths {
    pub(super) fn new() -> Self {
        Self {
            inotify: None,
            watches: BTreeMap::new(),
        }
    }

    /// Watches exactly these, as far as the kernel lets us: those that only root can change come
    /// first, so that no user keeps us from watching them.
    pub(super) fn aim(
        &mut self,
        files: &BTreeSet<String>,
        directories: &BTreeSet<String>,
    ) -> Aimed {
        let mut aimed = Aimed::default();
        if self.inotify.is_none() {
            match inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK) {
                Ok(inotify) => self.inotify = Some(inotify),
                Err(error) => {
                    aimed.missed = Some(error.into());
                    return aimed;
                }
            }
        }
        let Some(inotify) = &self.inotify else {
            return aimed;
        };
        let flags = WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        let mut watches: BTreeMap<i32, Names> = BTreeMap::new();
        let places = places(files, directories, |path| {
            path::directory(Path::new(path)).is_ok()
        });
        // By the descriptor: no link of a user makes us watch something else.
        let mut held: Vec<(Directory, Names)> = places
            .into_iter()
            .filter_map(|(path, names)| Some((path::directory(Path::new(&path)).ok()?, names)))
            .collect();
        held.sort_by_key(|(directory, _)| directory.keeper() != Keeper::Root);
        for (held, names) in held {
            let at = format!("/proc/self/fd/{}", held.as_fd().as_raw_fd());
            match inotify::add_watch(inotify, at, flags) {
                Ok(watch) => {
                    // Two ways may lead to one directory.
                    let all = watches.entry(watch).or_default();
                    all.every |= names.every;
                    all.some.extend(names.some);
                    aimed.fresh |= !self.watches.contains_key(&watch);
                }
                // Gone this moment; its parent tells when it is back.
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                // Others may be watched already, or be in reach of another limit.
                Err(error) => aimed.missed = Some(error.into()),
            }
        }
        for watch in self.watches.keys() {
            if !watches.contains_key(watch) {
                // It may be gone by itself, with its directory.
                _ = inotify::remove_watch(inotify, *watch);
            }
        }
        self.watches = watches;
        aimed
    }

    /// Takes what has happened, and tells whether it is of interest.
    pub(super) fn take(&mut self) -> std::io::Result<bool> {
        let mut room = [MaybeUninit::uninit(); 4096];
        let Some(inotify) = &self.inotify else {
            return Ok(false);
        };
        let mut reader = Reader::new(inotify, &mut room);
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

impl Paths {
    /// Returns what can be waited for.
    pub(super) fn source(&self) -> Option<&OwnedFd> {
        self.inotify.as_ref()
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
        let mut paths = Paths::new();
        let files: BTreeSet<String> = [at("one"), at("deep/er/two")].into();
        assert!(paths.aim(&files, &BTreeSet::new()).fresh);
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
        assert!(paths.aim(&files, &BTreeSet::new()).fresh);
        assert!(!paths.aim(&files, &BTreeSet::new()).fresh);
        fs_err::write(at("deep/er/two"), "x").unwrap();
        assert!(paths.take().unwrap());
        fs_err::rename(at("deep"), at("away")).unwrap();
        assert!(paths.take().unwrap());
        assert!(paths.aim(&files, &BTreeSet::new()).missed.is_none());
        _ = paths.take().unwrap();
        // What moved away is watched no more.
        fs_err::write(at("away/er/two"), "y").unwrap();
        assert!(!paths.take().unwrap());
    }

    #[test]
    fn what_the_kernel_does_not_let_us_watch_is_said_and_does_not_stop_anything() {
        let place = tempfile::tempdir().unwrap();
        let files: BTreeSet<String> = [place.path().join("one").display().to_string()].into();
        // Adding a watch fails, as it does when all are taken.
        let other = fs_err::File::open("/dev/null").unwrap().into_file();
        let mut paths = Paths {
            inotify: Some(other.into()),
            ..Paths::new()
        };
        let aimed = paths.aim(&files, &BTreeSet::new());
        assert!(aimed.missed.is_some() && !aimed.fresh);
        // Once it can be watched, it is.
        paths.inotify = None;
        assert!(paths.source().is_none() && !paths.take().unwrap());
        let aimed = paths.aim(&files, &BTreeSet::new());
        assert!(aimed.missed.is_none() && aimed.fresh);
    }
}
