//! A temporary git directory for one repository, deleted at the end. It reads the objects of the
//! repository as alternates, and its configuration contains no commands.
//!
//! New objects go to an object directory without alternates: when git writes an object that exists in
//! an alternate, it changes the time of that file.
//!
//! Git may run as another user, who must not be able to redirect what this program writes. So the
//! directories belong to this program; each file is created, written through its descriptor and never
//! opened again. Git writes to two directories only. They are filled before their owner is changed, and
//! afterwards accessed by name only to delete them.

use std::io::Write as _;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown, fchown,
};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use homestak_api::trusted_path;

use super::error::RepoError;
use super::source::Owner;

/// How the name of a directory begins.
const NAME: &str = "homestak-repo-";
/// When a directory is that of a process that was killed: a copy takes less time.
const OLD: Duration = Duration::from_secs(3600);

/// The hash function of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectFormat {
    Sha1,
    Sha256,
}

impl ObjectFormat {
    /// Returns the length of an object's name in hexadecimal.
    pub(super) fn digits(self) -> usize {
        match self {
            Self::Sha1 => 40,
            Self::Sha256 => 64,
        }
    }

    /// Returns the start of a configuration file.
    fn config(self) -> &'static str {
        match self {
            Self::Sha1 => "[core]\n\trepositoryformatversion = 0\n",
            Self::Sha256 => {
                "[extensions]\n\tobjectFormat = sha256\n[core]\n\trepositoryformatversion = 1\n"
            }
        }
    }
}

/// What keeps git from starting programs, connecting anywhere, changing anything else, and using much
/// memory: when it packs, each thread has ten objects in memory, however large they are. Files above
/// the threshold are read in parts, and not compared with others.
const SAFE: &str = "\
\tfsmonitor = false
\tuntrackedCache = false
\tsplitIndex = false
\thooksPath = /dev/null
\tattributesFile = /dev/null
\texcludesFile = /dev/null
\tlogAllRefUpdates = false
\tbigFileThreshold = 16m
\tpackedGitWindowSize = 32m
\tpackedGitLimit = 256m
\tdeltaBaseCacheLimit = 64m
[gc]
\tauto = 0
[maintenance]
\tauto = false
[protocol]
\tallow = never
[pack]
\twriteReverseIndex = false
\tthreads = 2
\twindowMemory = 64m
\tdeltaCacheSize = 32m
[submodule]
\trecurse = false
";

/// The directories of a git directory, parents first.
const FOLDERS: &[&str] = &[
    "objects",
    "objects/info",
    "objects/pack",
    "refs",
    "refs/heads",
    "refs/tags",
    "info",
];

/// Returns the files of an empty git directory, with their text.
fn files(format: ObjectFormat, is_bare: bool) -> [(&'static str, String); 2] {
    let config = format!("{}\tbare = {is_bare}\n{SAFE}", format.config());
    let head = "ref: refs/heads/_working\n".to_owned();
    [("config", config), ("HEAD", head)]
}

/// Writes the files of an empty git directory.
pub(super) fn write_layout(
    directory: &Path,
    format: ObjectFormat,
    is_bare: bool,
) -> Result<(), RepoError> {
    for folder in FOLDERS {
        let path = directory.join(folder);
        fs_err::create_dir_all(&path).map_err(RepoError::file("create", &path))?;
    }
    for (name, text) in files(format, is_bare) {
        let path = directory.join(name);
        fs_err::write(&path, text).map_err(RepoError::file("write", &path))?;
    }
    Ok(())
}

/// Returns the file with the index of a git directory of ours.
pub(super) fn index_path(directory: &Path) -> PathBuf {
    directory.join("staged/index")
}

/// Returns the directory for temporary files. Files are created by name, so that nobody else may be
/// able to put a link in the place of a directory on the way.
fn own_directory(base: &Path) -> Result<PathBuf, RepoError> {
    let resolved = trusted_path::resolve(base).map_err(RepoError::file("open", base))?;
    match resolved.require_own() {
        Ok(()) => Ok(resolved.path),
        Err(why) => Err(RepoError::unusable(format!(
            "the directory for temporary files (TMPDIR) is not safe: {why}"
        ))),
    }
}

/// Removes the directories of processes that were killed: older ones than that which was just created.
fn remove_old(base: &Path, new: &Path) {
    let user = rustix::process::geteuid().as_raw();
    let changed = |path: &Path| fs_err::symlink_metadata(path).and_then(|found| found.modified());
    let Ok(now) = changed(new) else {
        return;
    };
    let entries = fs_err::read_dir(base).into_iter().flatten().flatten();
    for entry in entries {
        let is_ours = entry.file_name().to_string_lossy().starts_with(NAME);
        let is_old = || {
            let found = entry.metadata().ok().filter(|found| found.uid() == user)?;
            let age = now.duration_since(found.modified().ok()?).ok()?;
            found.is_dir().then_some(age > OLD)
        };
        if is_ours && is_old() == Some(true) {
            // Another process may remove it, too.
            _ = fs_err::remove_dir_all(entry.path());
        }
    }
}

/// The directory; dropping it deletes it.
pub(super) struct TemporaryRepo {
    path: PathBuf,
    owner: Option<Owner>,
}

impl TemporaryRepo {
    /// Creates it for objects of a repository. `owner` is who git runs as, if not this user.
    pub(super) fn create(
        objects: &Path,
        format: ObjectFormat,
        owner: Option<Owner>,
    ) -> Result<Self, RepoError> {
        Self::create_below(&std::env::temp_dir(), objects, format, owner)
    }

    fn create_below(
        base: &Path,
        objects: &Path,
        format: ObjectFormat,
        owner: Option<Owner>,
    ) -> Result<Self, RepoError> {
        let base = own_directory(base)?;
        let path = base.join(format!("{NAME}{}", uuid::Uuid::new_v4()));
        let created = std::fs::DirBuilder::new().mode(0o700).create(&path);
        created.map_err(RepoError::file("create", &path))?;
        remove_old(&base, &path);
        let temporary = Self { path, owner };
        for folder in FOLDERS {
            temporary.create_folder(folder)?;
        }
        for (name, text) in files(format, false) {
            temporary.write(name, text.as_bytes())?;
        }
        let objects = objects.to_str().filter(|text| !text.contains('\n'));
        let objects = objects
            .ok_or_else(|| RepoError::unusable("its path has characters that git cannot use"))?;
        let new = temporary.new_objects();
        let borrowed = format!("{}\n{objects}\n", new.display());
        temporary.write("objects/info/alternates", borrowed.as_bytes())?;
        for folder in ["new", "new/info", "new/pack"] {
            temporary.create_folder(folder)?;
        }
        // Parents last: what is in them is not used by name afterwards.
        for folder in ["new/info", "new/pack", "new"] {
            temporary.hand_over(folder)?;
        }
        temporary.make_passable(&temporary.path)?;
        Ok(temporary)
    }

    /// Returns the directory that new objects are written to.
    pub(super) fn new_objects(&self) -> PathBuf {
        self.path.join("new")
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file that git reads.
    pub(super) fn write(&self, name: &str, content: &[u8]) -> Result<(), RepoError> {
        self.create_file(name, content, None)
    }

    /// Lets git write an index; it starts with what another had at a time.
    pub(super) fn start_index(&self, index: Option<(&[u8], SystemTime)>) -> Result<(), RepoError> {
        self.create_folder("staged")?;
        if let Some((content, written)) = index {
            // git compares it with the times of files, to see which may have changed in between.
            self.create_file("staged/index", content, Some(written))?;
        }
        self.hand_over("staged")
    }

    /// Creates a file in a directory that was not handed over. A link in its place is an error.
    fn create_file(
        &self,
        name: &str,
        content: &[u8],
        written: Option<SystemTime>,
    ) -> Result<(), RepoError> {
        let path = self.path.join(name);
        let create = || {
            let mut options = std::fs::OpenOptions::new();
            let mut file = options
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)?;
            file.write_all(content)?;
            if let Some(written) = written {
                file.set_times(std::fs::FileTimes::new().set_modified(written))?;
            }
            match self.owner {
                Some(owner) => fchown(&file, Some(owner.user), Some(owner.group)),
                None => Ok(()),
            }
        };
        create().map_err(RepoError::file("write", &path))
    }

    /// Creates a directory in one that was not handed over.
    fn create_folder(&self, name: &str) -> Result<(), RepoError> {
        let path = self.path.join(name);
        fs_err::create_dir(&path).map_err(RepoError::file("create", &path))?;
        self.make_passable(&path)
    }

    /// Lets git pass through a directory of this program, if it runs as another user. The files in it
    /// are private to that user.
    fn make_passable(&self, path: &Path) -> Result<(), RepoError> {
        let mode = match self.owner {
            // Their names are known, or of packs.
            Some(_) if path != self.path => 0o755,
            Some(_) => 0o711,
            None => 0o700,
        };
        let mode = std::fs::Permissions::from_mode(mode);
        fs_err::set_permissions(path, mode).map_err(RepoError::file("change the mode of", path))
    }

    /// Gives a directory to the user that git runs as. The directory above it still belongs to this
    /// program, so that no link can be in its place.
    fn hand_over(&self, name: &str) -> Result<(), RepoError> {
        let path = self.path.join(name);
        let private = std::fs::Permissions::from_mode(0o700);
        let changed = fs_err::set_permissions(&path, private);
        changed.map_err(RepoError::file("change the mode of", &path))?;
        match self.owner {
            None => Ok(()),
            Some(owner) => chown(&path, Some(owner.user), Some(owner.group))
                .map_err(RepoError::file("change the owner of", &path)),
        }
    }
}

impl Drop for TemporaryRepo {
    fn drop(&mut self) {
        // What stays is in the directory for temporary files, and private.
        _ = fs_err::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "the test runs programs of another user"
)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use super::super::git::Git;
    use super::*;

    const NOBODY: u32 = 65534;
    /// Puts links in the place of everything that is written, as far as it can.
    const PLANT: &str = r#"
        cd "$1" || exit 1
        for name in config HEAD index revisions sharedindex.x info/exclude objects/info/alternates \
            staged/index new/info staged new info objects; do
            rm -rf "$name"
            ln -sfn "$2" "$name"
        done 2>/dev/null
        mv "$1" "$1.moved" 2>/dev/null && ln -s "$2" "$1"
        exit 0
    "#;

    fn plant(temporary: &TemporaryRepo, target: &Path) {
        let planted = Command::new("sh")
            .args(["-c", PLANT, "sh"])
            .args([temporary.path(), target])
            .uid(NOBODY)
            .gid(NOBODY)
            .status();
        assert!(planted.expect("sh runs").success());
    }

    #[test]
    fn the_owner_of_a_repository_cannot_redirect_what_root_writes() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let root = tempfile::tempdir().expect("a directory");
        let passable = std::fs::Permissions::from_mode(0o711);
        fs_err::set_permissions(root.path(), passable).expect("set");
        let target = root.path().join("target");
        fs_err::write(&target, "of root").expect("written");
        let bare = root.path().join("bare.git");
        write_layout(&bare, ObjectFormat::Sha1, true).expect("written");
        let owner = Owner {
            user: NOBODY,
            group: NOBODY,
        };
        let objects = root.path().join("objects");
        let temporary =
            TemporaryRepo::create(&objects, ObjectFormat::Sha1, Some(owner)).expect("created");
        plant(&temporary, &target);
        temporary
            .write("info/exclude", b"of the user")
            .expect("written");
        plant(&temporary, &target);
        let index = (&b"of the user"[..], SystemTime::UNIX_EPOCH);
        temporary.start_index(Some(index)).expect("written");
        plant(&temporary, &target);
        temporary
            .write("sharedindex.x", b"of the user")
            .expect("written");
        plant(&temporary, &target);
        // It may fail, since its directories were replaced.
        _ = Git::new(temporary.path(), Some(owner)).pack_into(&Git::new(&bare, None), "\n");
        assert_eq!(fs_err::read(&target).expect("read"), b"of root");
        let found = fs_err::metadata(&target).expect("found");
        assert_eq!((found.uid(), found.nlink()), (0, 1));
        // Others than the owner cannot read what is copied from the repository.
        for file in ["info/exclude", "sharedindex.x", "config"] {
            let found = fs_err::symlink_metadata(temporary.path().join(file)).expect("found");
            assert_eq!(
                (found.uid(), found.mode() & 0o7777),
                (NOBODY, 0o600),
                "{file}"
            );
        }
        let path = temporary.path().to_owned();
        drop(temporary);
        assert!(!path.exists());
        assert_eq!(fs_err::read(&target).expect("read"), b"of root");
    }

    #[test]
    fn a_file_of_the_temporary_repository_is_written_once_and_never_through_a_link() {
        let root = tempfile::tempdir().expect("a directory");
        let target = root.path().join("target");
        let temporary =
            TemporaryRepo::create(root.path(), ObjectFormat::Sha1, None).expect("created");
        std::os::unix::fs::symlink(&target, temporary.path().join("info/exclude")).expect("linked");
        temporary.write("info/exclude", b"x").expect_err("a link");
        temporary.write("config", b"x").expect_err("written before");
        assert!(!target.exists());
    }

    #[test]
    fn a_directory_in_which_another_user_can_replace_it_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let root = tempfile::tempdir().expect("a directory");
        let create = |path: &Path| {
            TemporaryRepo::create_below(path, path, ObjectFormat::Sha1, None).map(drop)
        };
        let of_user = root.path().join("of-user");
        fs_err::create_dir(&of_user).expect("created");
        create(&of_user).expect("of root");
        chown(&of_user, Some(NOBODY), Some(NOBODY)).expect("changed");
        let refused = create(&of_user).expect_err("of another user").to_string();
        assert!(refused.contains("TMPDIR"), "{refused}");
        let shared = root.path().join("shared");
        fs_err::create_dir(&shared).expect("created");
        for (mode, is_usable) in [(0o1777, true), (0o777, false)] {
            let mode = std::fs::Permissions::from_mode(mode);
            fs_err::set_permissions(&shared, mode).expect("set");
            assert_eq!(create(&shared).is_ok(), is_usable);
        }
    }

    #[test]
    fn what_a_killed_process_left_is_removed() {
        let root = tempfile::tempdir().expect("a directory");
        let (old, new) = (
            root.path().join("homestak-repo-1"),
            root.path().join("homestak-repo-2"),
        );
        let other = root.path().join("other");
        for path in [&old, &new, &other] {
            fs_err::create_dir_all(path.join("objects")).expect("created");
        }
        for path in [&old, &other] {
            let now = fs_err::metadata(path)
                .and_then(|found| found.modified())
                .expect("a time");
            let before = now - std::time::Duration::from_secs(7200);
            let times = std::fs::FileTimes::new().set_modified(before);
            let directory = std::fs::File::open(path).expect("opened");
            directory.set_times(times).expect("set");
        }
        let created =
            TemporaryRepo::create_below(root.path(), root.path(), ObjectFormat::Sha1, None);
        created.expect("created");
        assert!(!old.exists());
        assert!(new.exists() && other.exists());
    }
}
