//! The working tree of a repository as a commit, without touching the repository.
//!
//! A copy of the index is brought up to date and written as a tree. Submodules are taken out of it
//! meanwhile: git would enter them, and read their configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use homestak_core::foreign::ForeignText;

use super::error::RepoError;
use super::git::Git;
use super::secrets::is_secret;
use super::source::Source;
use super::temporary_repo::ObjectFormat;

/// Most files that a notice names.
const NAMED: usize = 5;
/// How files are taken into the index.
const ADD: &[&str] = &[
    "update-index",
    "-z",
    "--add",
    "--remove",
    "--replace",
    "--stdin",
];
/// How files are taken out of it.
const REMOVE: &[&str] = &["update-index", "-z", "--force-remove", "--stdin"];

/// Paths as git prints them.
pub(super) type Paths = BTreeSet<Vec<u8>>;

/// A working tree, and the copy of its index.
pub(super) struct WorkingTree<'a> {
    /// Reads all objects.
    pub(super) git: &'a Git,
    /// Writes objects, and sees only new ones.
    pub(super) writing: &'a Git,
    pub(super) source: &'a Source,
    pub(super) tree: &'a Path,
    pub(super) format: ObjectFormat,
}

impl WorkingTree<'_> {
    /// Brings the copy of the index up to date, and commits it; `None` if it does not differ from
    /// `head`.
    pub(super) fn commit(
        &self,
        head: Option<&str>,
        notices: &mut Vec<String>,
    ) -> Result<Option<String>, RepoError> {
        let submodules = self.submodules()?;
        self.update(REMOVE, &submodules.keys().cloned().collect())?;
        let (deleted, mut changed) = self.changes()?;
        self.update(REMOVE, &deleted)?;
        self.keep_sealed(head, &mut changed, notices)?;
        changed.extend(self.new_files(&submodules, notices)?);
        self.update(ADD, &changed)?;
        self.add_submodules(&submodules)?;
        // What was not changed is not among the new objects.
        let written = self.writing.line(&["write-tree", "--missing-ok"], b"")?;
        let before = match head {
            Some(head) => Some(
                self.git
                    .line(&["rev-parse", &format!("{head}^{{tree}}")], b"")?,
            ),
            None => None,
        };
        let is_empty = head.is_none() && self.git.list(&["ls-files", "-z"])?.is_empty();
        if before.as_ref() == Some(&written) || is_empty {
            return Ok(None);
        }
        let text = self.commit_text(&written, head)?;
        let words = ["hash-object", "-t", "commit", "-w", "--stdin"];
        self.writing.line(&words, text.as_bytes()).map(Some)
    }

    /// Returns tracked files that were deleted, and those that were changed.
    fn changes(&self) -> Result<(Paths, Paths), RepoError> {
        let words = [
            "diff-files",
            "-z",
            "--name-status",
            "--no-renames",
            "--ignore-submodules=all",
        ];
        let listed = self.git.list(&words)?;
        let (mut deleted, mut changed) = (BTreeSet::new(), BTreeSet::new());
        for pair in listed.chunks(2) {
            if let [status, path] = pair {
                match status.first() {
                    Some(b'D') => deleted.insert(path.clone()),
                    _ => changed.insert(path.clone()),
                };
            }
        }
        deleted.retain(|path| !changed.contains(path));
        Ok((deleted, changed))
    }

    /// Returns the commit of a tree. The same tree and parent give the same commit, so that nothing is
    /// published again without a change: its date is that of the parent.
    fn commit_text(&self, tree: &str, parent: Option<&str>) -> Result<String, RepoError> {
        let date = match parent {
            Some(parent) => {
                let words = ["show", "--no-patch", "--no-notes", "--format=%ct", parent];
                self.git.line(&words, b"")?
            }
            None => "0".to_owned(),
        };
        let mut text = format!("tree {tree}\n");
        if let Some(parent) = parent {
            text += &format!("parent {parent}\n");
        }
        let by = format!("homestak-server <server@localhost> {} +0000", date.trim());
        text += &format!("author {by}\ncommitter {by}\n\nWorking tree with uncommitted changes\n");
        Ok(text)
    }

    fn update(&self, words: &[&str], paths: &Paths) -> Result<(), RepoError> {
        if paths.is_empty() {
            return Ok(());
        }
        let mut input = Vec::new();
        for path in paths {
            input.extend_from_slice(path);
            input.push(0);
        }
        self.writing.run(words, &input).map(drop)
    }

    /// Returns the files that git does not know and does not ignore, without secrets.
    fn new_files(
        &self,
        submodules: &BTreeMap<Vec<u8>, String>,
        notices: &mut Vec<String>,
    ) -> Result<Paths, RepoError> {
        let others = ["ls-files", "-z", "--others", "--exclude-standard"];
        let (mut files, mut secrets, mut nested) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for path in self.git.list(&others)? {
            let name = PathBuf::from(OsStr::from_bytes(&path));
            match path.strip_suffix(b"/") {
                Some(directory) if submodules.contains_key(directory) => {}
                Some(_) => _ = nested.insert(name.to_string_lossy().into_owned()),
                None if is_secret(&self.tree.join(&name)) => {
                    secrets.insert(name.to_string_lossy().into_owned());
                }
                None => _ = files.insert(path),
            }
        }
        if !secrets.is_empty() {
            let named = named(&secrets);
            notices.push(format!(
                "left out, since they contain secrets and are not committed: {named}"
            ));
        }
        if !nested.is_empty() {
            let named = named(&nested);
            notices.push(format!(
                "left out, since they are repositories and not submodules: {named}"
            ));
        }
        Ok(files)
    }

    /// Returns the submodules of the index with their commits.
    fn submodules(&self) -> Result<BTreeMap<Vec<u8>, String>, RepoError> {
        let mut submodules = BTreeMap::new();
        for entry in self.git.list(&["ls-files", "-z", "--stage"])? {
            let Some(at) = entry.iter().position(|byte| *byte == b'\t') else {
                continue;
            };
            let fields = String::from_utf8_lossy(&entry[..at]).into_owned();
            if let Some(commit) = fields.strip_prefix("160000 ") {
                let commit = commit.split(' ').next().unwrap_or_default();
                submodules.insert(entry[at + 1..].to_vec(), commit.to_owned());
            }
        }
        Ok(submodules)
    }

    /// Records what submodules have checked out, if their directories are there. What is not
    /// committed in them is not included.
    fn add_submodules(&self, submodules: &BTreeMap<Vec<u8>, String>) -> Result<(), RepoError> {
        let mut lines = Vec::new();
        for (path, commit) in submodules {
            let at = Path::new(OsStr::from_bytes(path));
            if !self.source.has_directory(at) {
                continue;
            }
            let head = self.source.submodule_head(at, self.format);
            let head = head.as_ref().unwrap_or(commit);
            lines.extend_from_slice(format!("160000 {head}\t").as_bytes());
            lines.extend_from_slice(path);
            lines.push(0);
        }
        self.put(&lines)
    }

    /// Puts entries into the index.
    pub(super) fn put(&self, lines: &[u8]) -> Result<(), RepoError> {
        if lines.is_empty() {
            return Ok(());
        }
        let words = ["update-index", "-z", "--index-info"];
        self.writing.run(&words, lines).map(drop)
    }
}

/// Returns names for a notice, with those of files escaped.
pub(super) fn named(names: &BTreeSet<String>) -> String {
    let first = names.iter().take(NAMED);
    let first = first.map(|name| format!("`{}`", ForeignText::line(name).as_str()));
    let mut text = first.collect::<Vec<_>>().join(", ");
    if names.len() > NAMED {
        text += &format!(" and {} more", names.len() - NAMED);
    }
    text
}
