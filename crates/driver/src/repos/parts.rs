//! Refuses repositories that have parts of others. One that was unpacked, and that nobody has looked
//! at, could name the objects or the git directory of a private one, which its owner may read.

use std::path::Path;

use super::error::RepoError;
use super::git::config_entries;
use super::source::{Owner, SMALL_BYTES, read_owned};

/// Refuses objects that are elsewhere.
pub(super) fn require_own_objects(common: &Path, owner: Owner) -> Result<(), RepoError> {
    let objects = common.join("objects");
    let borrowed = read_owned(&objects.join("info/alternates"), owner, SMALL_BYTES)?;
    if borrowed.is_some_and(|text| !text.is_empty()) {
        return Err(RepoError::unusable(
            "it borrows objects of another repository; `git repack -a -d` copies them, then remove \
             `objects/info/alternates` from its git directory",
        ));
    }
    // Packs and other objects are in directories below this one, and not deeper.
    require_plain(&objects, 1)
}

/// Refuses links, and what git would wait for, such as a named pipe.
fn require_plain(path: &Path, depth: usize) -> Result<(), RepoError> {
    let failed = RepoError::file("read", path);
    for entry in fs_err::read_dir(path).map_err(&failed)? {
        let entry = entry.map_err(&failed)?;
        let kind = entry.file_type().map_err(&failed)?;
        if kind.is_dir() && depth > 0 {
            require_plain(&entry.path(), depth - 1)?;
        }
        if kind.is_symlink() {
            return Err(RepoError::unusable(
                "there is a link among its objects, so that they could be those of another \
                 repository; `git clone` makes a copy without",
            ));
        }
        if !kind.is_dir() && !kind.is_file() {
            let path = entry.path();
            return Err(RepoError::unusable(format!(
                "`{}` is neither a file nor a directory; remove it",
                path.display()
            )));
        }
    }
    Ok(())
}

/// Refuses a git directory outside of a working tree that does not name that working tree, and one
/// that is not among the worktrees of the repository that it shares objects and references with.
pub(super) fn require_own_directory(
    tree: Option<&Path>,
    directory: &Path,
    common: &Path,
    owner: Owner,
) -> Result<(), RepoError> {
    if common != directory && directory.parent() != Some(&common.join("worktrees")) {
        return Err(RepoError::unusable(
            "its git directory is not among the worktrees of the repository that it names",
        ));
    }
    let Some(tree) = tree.filter(|tree| directory != tree.join(".git")) else {
        return Ok(());
    };
    let is_named = match read_owned(&directory.join("gitdir"), owner, SMALL_BYTES)? {
        Some(text) => {
            let named = directory.join(String::from_utf8_lossy(&text).trim_end_matches('\n'));
            fs_err::canonicalize(named).is_ok_and(|named| named == tree.join(".git"))
        }
        None => names(directory, tree, owner)?,
    };
    match is_named {
        true => Ok(()),
        false => Err(RepoError::unusable(
            "its `.git` names a git directory of another working tree; `git worktree repair`, or \
             `git config core.worktree PATH` where it is no worktree, records this one there",
        )),
    }
}

/// Returns whether the configuration names a working tree, as that of submodules does.
fn names(directory: &Path, tree: &Path, owner: Owner) -> Result<bool, RepoError> {
    for file in ["config", "config.worktree"] {
        let text = read_owned(&directory.join(file), owner, SMALL_BYTES)?.unwrap_or_default();
        for (key, value) in config_entries(&text, owner)? {
            let is_same = || fs_err::canonicalize(directory.join(value)).is_ok_and(|at| at == tree);
            if key == "core.worktree" && is_same() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
