//! Copies of repositories that a driver publishes: bare, packed, without configuration of others.
//!
//! Flow: the driver writes a copy beside the current one and exchanges both; the server sends files
//! of a copy. Only files with names of a fixed form belong to a copy, see [`PublishDirectory`].

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{PublishDirectory, SETGID};
use crate::durable;

/// The directory of all copies.
pub(super) const REPOS: &str = "repos";
/// How the name of a copy ends.
const GIT: &str = ".git";
/// The description of a copy, in its directory. It is not served.
const DESCRIPTION: &str = "homestak.json";

/// The branch with the working tree.
pub const WORKING: &str = "refs/heads/_working";

/// A published copy of a repository.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PublishedRepo {
    /// Its name, without `.git`.
    pub name: String,
    /// The commit of the branch `_working`; `None` in a repository without commits and files.
    pub working: Option<String>,
    /// Whether the working tree differs from its last commit.
    pub modified: bool,
    /// Branches and tags with their objects, `_working` included.
    pub refs: BTreeMap<String, String>,
    /// Packs of what is committed, the oldest first.
    pub packs: Vec<PublishedPack>,
    /// The pack of what is not committed.
    pub working_pack: Option<String>,
    /// Packs that are kept for clients that have begun to clone, and since when, in seconds.
    pub old_packs: BTreeMap<String, i64>,
    /// The size of all packs in bytes.
    pub size: u64,
}

/// A pack with committed objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedPack {
    /// Its name, such as `pack-` and 40 hexadecimal digits.
    pub name: String,
    /// The commits and tags that it was packed for: with the packs before, it has all they need.
    pub tips: Vec<String>,
}

/// Returns whether a name can be one of a repository: a letter or digit, and then letters, digits,
/// `.`, `_` and `-`, 64 in all; no `..`, and no `.git` at the end.
pub fn is_repo_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        && !name.contains("..")
        && !name.to_ascii_lowercase().ends_with(".git")
        && !name.ends_with('.')
}

impl PublishDirectory {
    /// Returns the directory of all copies of repositories.
    pub fn repos_path(&self) -> PathBuf {
        self.0.join(REPOS)
    }

    /// Returns the directory of the copy of a repository.
    pub fn repo_path(&self, name: &str) -> PathBuf {
        self.0.join(REPOS).join(format!("{name}{GIT}"))
    }

    /// Returns the published repositories, by name. Ones that are being written are left out.
    pub fn repos(&self) -> io::Result<Vec<PublishedRepo>> {
        let mut repos = Vec::new();
        for path in self.files(REPOS)? {
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.and_then(|name| name.strip_suffix(GIT));
            let Some(name) = name.filter(|name| is_repo_name(name)) else {
                continue;
            };
            if let Some(repo) = self.repo(name)? {
                repos.push(repo);
            }
        }
        Ok(repos)
    }

    /// Returns the published copy of a repository; `None` if there is none that is complete.
    pub fn repo(&self, name: &str) -> io::Result<Option<PublishedRepo>> {
        let path = self.repo_path(name).join(DESCRIPTION);
        let text = match fs_err::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        let repo = serde_json::from_slice::<PublishedRepo>(&text).ok();
        Ok(repo.filter(|repo| repo.name == name))
    }

    /// Writes the description of a copy that is at `path`.
    pub fn put_repo(&self, path: &Path, repo: &PublishedRepo) -> io::Result<()> {
        let text = serde_json::to_string_pretty(repo).map_err(io::Error::other)?;
        durable::write(
            &path.join(DESCRIPTION),
            text.as_bytes(),
            durable::Access::PRIVATE,
        )
    }

    /// Returns the paths of the files of all copies, relative to the directory: what others refer to
    /// comes before them.
    pub(super) fn repo_files(&self) -> io::Result<Vec<PathBuf>> {
        let mut all = Vec::new();
        for repo in self.repos()? {
            let copy = Path::new(REPOS).join(format!("{}{GIT}", repo.name));
            let names = repo.packs.iter().map(|pack| &pack.name);
            let names = names.chain(&repo.working_pack).chain(repo.old_packs.keys());
            for name in names {
                for ending in ["pack", "idx"] {
                    all.push(copy.join(format!("objects/pack/{name}.{ending}")));
                }
            }
            let small = ["config", "objects/info/packs", "packed-refs", "info/refs"];
            let last = [WORKING, "HEAD", DESCRIPTION];
            all.extend(small.iter().chain(&last).map(|name| copy.join(name)));
        }
        all.retain(|file| self.0.join(file).exists());
        Ok(all)
    }

    /// Makes the copies of repositories equal to those of another directory. Packs are never changed
    /// under their name, so one of the same size is the same.
    pub(super) fn copy_repos_from(&self, other: &Self) -> io::Result<bool> {
        let (files, before) = (other.repo_files()?, self.repo_files()?);
        let mut is_changed = false;
        for file in &files {
            let (from, to) = (other.0.join(file), self.0.join(file));
            let is_pack = file.parent().is_some_and(|parent| parent.ends_with("pack"));
            if !is_pack {
                let content = fs_err::read(&from)?;
                if fs_err::read(&to).ok().as_ref() != Some(&content) {
                    self.create_parents(file)?;
                    self.write(file, &content)?;
                    is_changed = true;
                }
                continue;
            }
            let length = |path: &Path| fs_err::metadata(path).map(|found| found.len());
            if length(&to).ok() != Some(length(&from)?) {
                self.create_parents(file)?;
                self.copy_file(&from, file)?;
                is_changed = true;
            }
        }
        for file in before {
            let is_plain = file
                .components()
                .all(|part| matches!(part, std::path::Component::Normal(_)));
            if !files.contains(&file) && is_plain {
                fs_err::remove_file(self.0.join(&file))?;
                is_changed = true;
            }
        }
        Ok(is_changed)
    }

    /// Creates the directories of a file: private, or as in [`PublishDirectory`] with the setgid bit.
    fn create_parents(&self, file: &Path) -> io::Result<()> {
        use std::os::unix::fs::MetadataExt as _;
        durable::create_private(&self.0)?;
        let root = fs_err::metadata(&self.0)?;
        let mut at = self.0.clone();
        for part in file.parent().into_iter().flat_map(Path::components) {
            at.push(part);
            if at.exists() {
                continue;
            }
            durable::create_private(&at)?;
            if root.mode() & SETGID != 0 {
                std::os::unix::fs::chown(&at, None, Some(root.gid()))?;
                let mode = std::fs::Permissions::from_mode(SETGID | 0o750);
                fs_err::set_permissions(&at, mode)?;
            }
        }
        Ok(())
    }

    /// Copies a large file in bounded memory; it appears when it is complete.
    fn copy_file(&self, from: &Path, file: &Path) -> io::Result<()> {
        use std::os::unix::fs::MetadataExt as _;
        let path = self.0.join(file);
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let new = path.with_file_name(format!(".{name}{}", durable::TEMPORARY));
        fs_err::copy(from, &new)?;
        let root = fs_err::metadata(&self.0)?;
        let is_shared = root.mode() & SETGID != 0;
        if is_shared {
            std::os::unix::fs::chown(&new, None, Some(root.gid()))?;
        }
        let mode = if is_shared { 0o640 } else { 0o600 };
        fs_err::set_permissions(&new, std::fs::Permissions::from_mode(mode))?;
        fs_err::File::open(&new)?.sync_all()?;
        durable::rename(&new, &path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_repositories_are_single_plain_words() {
        for name in ["ansible", "iac-driver", "a", "a.b_c", "9"] {
            assert!(is_repo_name(name), "{name}");
        }
        for name in [
            "", ".", "..", ".git", "a.git", "a.GIT", "-a", "a/b", "a b", "a..b", "ä", "a\n", "a.",
            "a%2fb", "_a",
        ] {
            assert!(!is_repo_name(name), "{name:?}");
        }
        assert!(!is_repo_name(&"a".repeat(65)));
    }

    /// Publishes a copy with one pack.
    fn publish(directory: &PublishDirectory, pack: &str) {
        let copy = directory.repo_path("x");
        fs_err::create_dir_all(copy.join("objects/pack")).expect("created");
        for ending in ["pack", "idx"] {
            let file = copy.join(format!("objects/pack/{pack}.{ending}"));
            fs_err::write(file, pack).expect("written");
        }
        fs_err::write(copy.join("HEAD"), "ref: refs/heads/_working\n").expect("written");
        fs_err::write(copy.join("packed-refs"), pack).expect("written");
        let repo = PublishedRepo {
            name: "x".to_owned(),
            working_pack: Some(pack.to_owned()),
            ..PublishedRepo::default()
        };
        directory.put_repo(&copy, &repo).expect("written");
    }

    #[test]
    fn copies_are_copied_to_a_permanent_server_and_removed_there() {
        let root = tempfile::tempdir().expect("a directory");
        let own = PublishDirectory::new(root.path().join("own"));
        let other = PublishDirectory::new(root.path().join("other"));
        fs_err::create_dir(other.path()).expect("created");
        let setgid = std::fs::Permissions::from_mode(0o2750);
        fs_err::set_permissions(other.path(), setgid).expect("set");
        publish(&own, "pack-1");
        assert!(other.copy_from(&own).expect("copied"));
        assert!(!other.copy_from(&own).expect("copied"), "nothing changed");
        let file = |name: &str| other.repo_path("x").join(name);
        let mode = |path: &Path| fs_err::metadata(path).expect("there").permissions().mode();
        assert_eq!(mode(&file("objects/pack/pack-1.pack")) & 0o7777, 0o640);
        assert_eq!(mode(&file("objects/pack")) & 0o7777, 0o2750);
        assert_eq!(other.repos().expect("read"), own.repos().expect("read"));

        publish(&own, "pack-2");
        assert!(other.copy_from(&own).expect("copied"));
        assert!(!file("objects/pack/pack-1.pack").exists());
        assert_eq!(
            fs_err::read_to_string(file("packed-refs")).expect("read"),
            "pack-2"
        );

        fs_err::remove_dir_all(own.repo_path("x")).expect("removed");
        assert!(other.copy_from(&own).expect("copied"));
        assert_eq!(other.repos().expect("read"), []);
        assert!(!file("objects/pack/pack-2.pack").exists());
    }
}
