//! The published copy of a repository: packs of what is committed, and one of the working tree.
//!
//! Flow: a new directory is filled beside the current one, and both are exchanged.
//! Guarantees: a copy is complete at any time. Committed objects are in packs that stay, so that a
//! client downloads only new ones; those of the working tree are in a pack of their own that is
//! replaced. Packs that are replaced stay readable for clients that have begun.
//! When it goes wrong: the current copy stays; what was being written is deleted the next time.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;

use homestak_api::durable::{self, Access};
use homestak_api::publication::{PublishDirectory, PublishedPack, PublishedRepo, WORKING};

use super::error::RepoError;
use super::git::Git;
use super::snapshot::Snapshot;
use super::source::Source;
use super::temporary_repo::write_layout;

/// How long packs that were replaced stay, in seconds: longer than a client needs between reading
/// the list of references and the last pack.
const KEPT: i64 = 600;
/// Most packs of committed objects: a client downloads the index of each.
const PACKS: usize = 8;

/// A copy that was brought up to date.
#[derive(Clone, Debug)]
pub(super) struct Copied {
    pub(super) repo: PublishedRepo,
    pub(super) changed: bool,
    pub(super) notices: Vec<String>,
}

/// Brings the published copy of a repository up to date. Blocks on disk I/O.
pub(super) fn copy(
    publish: &PublishDirectory,
    name: &str,
    path: &Path,
    now: i64,
) -> Result<Copied, RepoError> {
    let source = Source::open(path)?;
    let snapshot = Snapshot::take(&source)?;
    let target = publish.repo_path(name);
    let before = publish.repo(name).ok().flatten();
    let before = before.filter(|before| is_complete(&target, before));
    let mut refs = snapshot.references.refs.clone();
    if let Some(working) = &snapshot.working {
        refs.insert(WORKING.to_owned(), working.clone());
    }
    let is_same = |before: &PublishedRepo| {
        let is_expired = before.old_packs.values().any(|since| since + KEPT <= now);
        before.refs == refs && !is_expired
    };
    if let Some(before) = before.clone().filter(is_same) {
        return Ok(Copied {
            repo: before,
            changed: false,
            notices: snapshot.notices,
        });
    }
    let changed = before.as_ref().is_none_or(|before| before.refs != refs);
    let new = publish.repos_path().join(format!(".{name}.git.new"));
    remove(&new)?;
    let written = NewCopy {
        snapshot: &snapshot,
        before: before.as_ref(),
        current: &target,
        new: &new,
        now,
    };
    let repo = PublishedRepo {
        name: name.to_owned(),
        working: snapshot.working.clone(),
        modified: snapshot.working != snapshot.references.head,
        refs,
        ..PublishedRepo::default()
    };
    let repo = written.write(repo)?;
    publish
        .put_repo(&new, &repo)
        .map_err(RepoError::file("write", &new))?;
    exchange(&new, &target)?;
    Ok(Copied {
        repo,
        changed,
        notices: snapshot.notices,
    })
}

/// Removes a copy.
pub(super) fn remove_copy(publish: &PublishDirectory, name: &str) -> Result<(), RepoError> {
    let old = publish.repos_path().join(format!(".{name}.git.new"));
    remove(&old)?;
    let target = publish.repo_path(name);
    durable::rename(&target, &old).map_err(RepoError::file("remove", &target))?;
    remove(&old)
}

fn remove(path: &Path) -> Result<(), RepoError> {
    match fs_err::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(RepoError::file("remove", path)(error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Puts a directory in the place of another, which may not exist.
fn exchange(new: &Path, target: &Path) -> Result<(), RepoError> {
    let failed = RepoError::file("replace", target);
    if !target.exists() {
        return durable::rename(new, target).map_err(failed);
    }
    match durable::exchange(new, target) {
        Ok(()) => remove(new),
        // A file system that cannot exchange: there is a moment without a copy.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::InvalidInput | ErrorKind::Unsupported
            ) =>
        {
            remove(target)?;
            durable::rename(new, target).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

fn packs_of(repo: &PublishedRepo) -> impl Iterator<Item = &String> {
    let names = repo.packs.iter().map(|pack| &pack.name);
    names.chain(&repo.working_pack)
}

/// Returns whether all packs of a copy exist.
fn is_complete(path: &Path, repo: &PublishedRepo) -> bool {
    let file = |name: &String, ending| path.join(format!("objects/pack/{name}.{ending}"));
    packs_of(repo).all(|name| {
        ["pack", "idx"]
            .iter()
            .all(|ending| file(name, ending).is_file())
    })
}

/// A copy that is being written.
struct NewCopy<'a> {
    snapshot: &'a Snapshot,
    before: Option<&'a PublishedRepo>,
    current: &'a Path,
    new: &'a Path,
    now: i64,
}

impl NewCopy<'_> {
    fn write(&self, mut repo: PublishedRepo) -> Result<PublishedRepo, RepoError> {
        durable::create_private(self.new).map_err(RepoError::file("create", self.new))?;
        write_layout(self.new, self.snapshot.format, true)?;
        let git = self.snapshot.git.in_copy(self.new);
        let tips = self.snapshot.tips();
        repo.packs = self.committed(&git, &tips)?;
        repo.working_pack = self.uncommitted(&git, &tips)?;
        let mut lines = String::new();
        for (name, object) in &repo.refs {
            lines += &format!("{object} {name}\n");
        }
        let packed = self.new.join("packed-refs");
        let written = durable::write(&packed, lines.as_bytes(), Access::PRIVATE);
        written.map_err(RepoError::file("write", &packed))?;
        if let Some(working) = &repo.working {
            // As a file, too: git needs the directory of it in a copy that is copied file by file.
            let path = self.new.join(WORKING);
            let text = format!("{working}\n");
            let written = durable::write(&path, text.as_bytes(), Access::PRIVATE);
            written.map_err(RepoError::file("write", &path))?;
        }
        git.run(&["update-server-info"], b"")?;
        // After the list of packs was written: they are for clients that have read the one before.
        repo.old_packs = self.keep_old(&repo)?;
        let mut size = 0;
        for name in packs_of(&repo) {
            let path = self.new.join(format!("objects/pack/{name}.pack"));
            let found = fs_err::metadata(&path).map_err(RepoError::file("read", &path))?;
            size += found.len();
        }
        repo.size = size;
        Ok(repo)
    }

    /// Packs what is committed and was not before; all of it when commits were removed, or when there
    /// are many packs.
    fn committed(
        &self,
        git: &Git,
        tips: &BTreeSet<String>,
    ) -> Result<Vec<PublishedPack>, RepoError> {
        let known = self.before.map(|before| before.packs.as_slice());
        let known = known.unwrap_or_default();
        let old: BTreeSet<String> = known.iter().flat_map(|pack| pack.tips.clone()).collect();
        let is_kept = !known.is_empty() && self.contains(tips, &old);
        if is_kept && self.contains(&old, tips) {
            return self.keep(known).map(|()| known.to_vec());
        }
        let mut packs = Vec::new();
        let mut revisions: String = tips.iter().map(|tip| format!("{tip}\n")).collect();
        if is_kept && known.len() < PACKS {
            self.keep(known)?;
            packs.extend_from_slice(known);
            revisions.extend(old.iter().map(|tip| format!("^{tip}\n")));
        }
        if !tips.is_empty() {
            let name = self.snapshot.git.pack_into(git, &revisions)?;
            let tips = tips.iter().cloned().collect();
            packs.push(PublishedPack { name, tips });
        }
        Ok(packs)
    }

    /// Packs what only the working tree has.
    fn uncommitted(&self, git: &Git, tips: &BTreeSet<String>) -> Result<Option<String>, RepoError> {
        let working = self.snapshot.working.as_ref();
        let Some(working) = working.filter(|working| !tips.contains(*working)) else {
            return Ok(None);
        };
        let mut revisions = format!("{working}\n");
        revisions.extend(tips.iter().map(|tip| format!("^{tip}\n")));
        self.snapshot.git.pack_into(git, &revisions).map(Some)
    }

    /// Returns whether everything that is reachable from `inner` is so from `outer`, too.
    fn contains(&self, outer: &BTreeSet<String>, inner: &BTreeSet<String>) -> bool {
        let mut input: String = inner.iter().map(|tip| format!("{tip}\n")).collect();
        input.extend(outer.iter().map(|tip| format!("^{tip}\n")));
        let words = ["rev-list", "--objects", "--max-count=1", "--stdin"];
        // An object that is missing by now is not contained.
        let printed = self.snapshot.git.run(&words, input.as_bytes());
        printed.is_ok_and(|printed| printed.is_empty())
    }

    fn keep(&self, packs: &[PublishedPack]) -> Result<(), RepoError> {
        packs.iter().try_for_each(|pack| self.link(&pack.name))
    }

    /// Links a pack of the current copy; both copies are ours, and packs are never changed.
    fn link(&self, name: &str) -> Result<(), RepoError> {
        for ending in ["pack", "idx"] {
            let file = format!("objects/pack/{name}.{ending}");
            let (from, to) = (self.current.join(&file), self.new.join(&file));
            match fs_err::hard_link(&from, &to) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(RepoError::file("link", &from)(error));
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Keeps packs that are no longer needed for a while.
    fn keep_old(&self, repo: &PublishedRepo) -> Result<BTreeMap<String, i64>, RepoError> {
        let Some(before) = self.before else {
            return Ok(BTreeMap::new());
        };
        let mut old: BTreeMap<String, i64> = before.old_packs.clone();
        for name in packs_of(before) {
            old.entry(name.clone()).or_insert(self.now);
        }
        old.retain(|name, since| {
            let is_current = packs_of(repo).any(|current| current == name);
            !is_current && *since + KEPT > self.now
        });
        old.retain(|name, _| {
            self.current
                .join(format!("objects/pack/{name}.idx"))
                .is_file()
        });
        old.keys().try_for_each(|name| self.link(name))?;
        Ok(old)
    }
}
