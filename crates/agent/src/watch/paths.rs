//! Files and directories watched with inotify. Every directory on the way to a path is watched for
//! the next one, so that what is missing is seen when it is created.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use crate::path::{self, Directory, WritableBy};

/// The suffix of temporary files, which are renamed when they are complete.
const TEMPORARY: &str = ".homestak-new";

/// Events read at once: more than the kernel queues.
const MAX_EVENTS: usize = 50_000;

/// The entries of interest in a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entries {
    all: bool,
    names: BTreeSet<String>,
}

impl Entries {
    fn contains(&self, name: &str) -> bool {
        !name.ends_with(TEMPORARY) && (self.all || self.names.contains(name))
    }
}

/// Watches of files and directories.
pub(super) struct Paths {
    /// `None` while users of this machine have exhausted the kernel's limit of instances.
    inotify: Option<OwnedFd>,
    watches: BTreeMap<i32, Entries>,
}

/// The result of changing what is watched.
#[derive(Debug, Default)]
pub(super) struct WatchUpdate {
    /// Whether something is watched that was not before: changes may have been missed there.
    pub(super) added: bool,
    /// Why not everything is watched.
    pub(super) error: Option<std::io::Error>,
}

impl Paths {
    pub(super) fn new() -> Self {
        Self {
            inotify: None,
            watches: BTreeMap::new(),
        }
    }

    /// Watches exactly these paths, as far as the kernel's limits allow. Directories that only root can
    /// change come first, so that no user can prevent watching them.
    pub(super) fn update(
        &mut self,
        files: &BTreeSet<String>,
        directories: &BTreeSet<String>,
    ) -> WatchUpdate {
        let mut update = WatchUpdate::default();
        if self.inotify.is_none() {
            match inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK) {
                Ok(inotify) => self.inotify = Some(inotify),
                Err(error) => {
                    update.error = Some(error.into());
                    return update;
                }
            }
        }
        let Some(inotify) = &self.inotify else {
            return update;
        };
        let flags = WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        let mut watches: BTreeMap<i32, Entries> = BTreeMap::new();
        let entries = entries(files, directories, |path| {
            path::directory(Path::new(path)).is_ok()
        });
        // By descriptor, so that no link of a user redirects a watch.
        let mut opened: Vec<(Directory, Entries)> = entries
            .into_iter()
            .filter_map(|(path, names)| Some((path::directory(Path::new(&path)).ok()?, names)))
            .collect();
        opened.sort_by_key(|(directory, _)| directory.writable_by() != WritableBy::Root);
        for (directory, entries) in opened {
            let at = format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd());
            match inotify::add_watch(inotify, at, flags) {
                Ok(watch) => {
                    // Two paths may lead to one directory.
                    let all = watches.entry(watch).or_default();
                    all.all |= entries.all;
                    all.names.extend(entries.names);
                    update.added |= !self.watches.contains_key(&watch);
                }
                // Deleted meanwhile; its parent is watched.
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                // Others may be watched already, or count towards another limit.
                Err(error) => update.error = Some(error.into()),
            }
        }
        for watch in self.watches.keys() {
            if !watches.contains_key(watch) {
                // The kernel removes it with its directory.
                _ = inotify::remove_watch(inotify, *watch);
            }
        }
        self.watches = watches;
        update
    }

    /// Reads all events, and returns whether any is of interest.
    pub(super) fn read_events(&mut self) -> std::io::Result<bool> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let Some(inotify) = &self.inotify else {
            return Ok(false);
        };
        let mut reader = Reader::new(inotify, &mut buffer);
        let mut any = false;
        // Bounded: a user may cause events faster than they are read.
        for _ in 0..MAX_EVENTS {
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
            let Some(entries) = self.watches.get(&event.wd()) else {
                continue;
            };
            let name = event.file_name().map(|name| name.to_string_lossy());
            any |= name.is_some_and(|name| entries.contains(&name));
        }
        Ok(any)
    }
}

impl Paths {
    /// Returns the descriptor to wait for.
    pub(super) fn inotify(&self) -> Option<&OwnedFd> {
        self.inotify.as_ref()
    }
}

/// Returns the directories to watch, and the entries of interest in each.
fn entries(
    files: &BTreeSet<String>,
    directories: &BTreeSet<String>,
    is_directory: impl Fn(&str) -> bool,
) -> BTreeMap<String, Entries> {
    let mut entries: BTreeMap<String, Entries> = BTreeMap::new();
    for directory in directories {
        if is_directory(directory) {
            entries.entry(directory.clone()).or_default().all = true;
        }
    }
    for path in files.iter().chain(directories) {
        let mut path = path.as_str();
        while let Some((parent, name)) = path.rsplit_once('/') {
            let parent = if parent.is_empty() { "/" } else { parent };
            // Up to the root: any directory of the path may be moved, or be missing.
            if is_directory(parent) {
                let entry = entries.entry(parent.to_owned()).or_default();
                entry.names.insert(name.to_owned());
            }
            if parent == "/" {
                break;
            }
            path = parent;
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Paths, entries};

    fn set(paths: &[&str]) -> BTreeSet<String> {
        paths.iter().map(|path| (*path).to_owned()).collect()
    }

    #[test]
    fn missing_paths_are_watched_in_their_existing_ancestors() {
        let existing = set(&["/", "/etc", "/etc/ssh"]);
        let found = entries(
            &set(&["/etc/motd", "/etc/a/b/c", "/x", "/etc/ssh/d/own.conf"]),
            &set(&["/etc/ssh/d", "/etc/ssh"]),
            |path| existing.contains(path),
        );
        let names = |path: &str| found[path].names.clone();
        assert_eq!(names("/etc"), set(&["motd", "a", "ssh"]));
        assert_eq!(names("/"), set(&["x", "etc"]));
        assert_eq!(names("/etc/ssh"), set(&["d"]));
        assert!(found["/etc/ssh"].all && !found["/etc"].all);
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn writes_renames_links_modes_and_removals_are_reported_and_other_entries_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).display().to_string();
        let mut paths = Paths::new();
        let files: BTreeSet<String> = [at("one"), at("deep/er/two")].into();
        assert!(paths.update(&files, &BTreeSet::new()).added);
        let mut expect = |expected: bool, what: &str| {
            assert_eq!(paths.read_events().unwrap(), expected, "{what}");
        };
        fs_err::write(at("other"), "x").unwrap();
        fs_err::write(at(".one.homestak-new"), "x").unwrap();
        expect(false, "other entries");
        fs_err::write(at("one"), "x").unwrap();
        expect(true, "a write");
        fs_err::read_to_string(at("one")).unwrap();
        expect(false, "a read");
        fs_err::rename(at("other"), at("one")).unwrap();
        expect(true, "a rename");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs_err::set_permissions(at("one"), mode).unwrap();
        expect(true, "a change of mode");
        fs_err::remove_file(at("one")).unwrap();
        expect(true, "a removal");
        fs_err::os::unix::fs::symlink("/", at("one")).unwrap();
        expect(true, "a link");
        fs_err::create_dir_all(at("deep/er")).unwrap();
        expect(true, "a parent directory");
        assert!(paths.update(&files, &BTreeSet::new()).added);
        assert!(!paths.update(&files, &BTreeSet::new()).added);
        fs_err::write(at("deep/er/two"), "x").unwrap();
        assert!(paths.read_events().unwrap());
        fs_err::rename(at("deep"), at("away")).unwrap();
        assert!(paths.read_events().unwrap());
        assert!(paths.update(&files, &BTreeSet::new()).error.is_none());
        _ = paths.read_events().unwrap();
        // What was moved away is no longer watched.
        fs_err::write(at("away/er/two"), "y").unwrap();
        assert!(!paths.read_events().unwrap());
    }

    #[test]
    fn a_watch_that_the_kernel_refuses_is_reported_and_retried() {
        let directory = tempfile::tempdir().unwrap();
        let files: BTreeSet<String> = [directory.path().join("one").display().to_string()].into();
        // Adding a watch fails, as it does at the limit.
        let other = fs_err::File::open("/dev/null").unwrap().into_file();
        let mut paths = Paths {
            inotify: Some(other.into()),
            ..Paths::new()
        };
        let update = paths.update(&files, &BTreeSet::new());
        assert!(update.error.is_some() && !update.added);
        paths.inotify = None;
        assert!(paths.inotify().is_none() && !paths.read_events().unwrap());
        let update = paths.update(&files, &BTreeSet::new());
        assert!(update.error.is_none() && update.added);
    }
}
