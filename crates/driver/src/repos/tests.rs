//! Real repositories are prepared, and cloned from the copy.
#![expect(clippy::disallowed_methods, reason = "the tests run git")]

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use homestak_api::publication::PublishDirectory;

use super::copy::{Copied, copy};

mod hostile;

/// A repository of a user, and where it is published.
struct TestRepo {
    root: tempfile::TempDir,
    publish: PublishDirectory,
}

fn git_in(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .args(arguments)
        .current_dir(directory)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .envs([
            // Nothing happens in the background.
            ("GIT_CONFIG_COUNT", "1"),
            ("GIT_CONFIG_KEY_0", "maintenance.auto"),
            ("GIT_CONFIG_VALUE_0", "false"),
            ("GIT_AUTHOR_NAME", "a"),
            ("GIT_AUTHOR_EMAIL", "a@example.org"),
            ("GIT_COMMITTER_NAME", "a"),
            ("GIT_COMMITTER_EMAIL", "a@example.org"),
        ])
        .output()
        .expect("git runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "git {arguments:?}: {error}");
    String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned()
}

impl TestRepo {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let publish = PublishDirectory::new(root.path().join("published"));
        fs_err::create_dir_all(publish.repos_path()).expect("created");
        fs_err::create_dir(root.path().join("work")).expect("created");
        let repo = Self { root, publish };
        repo.git(&["init", "-q", "-b", "main"]);
        repo
    }

    fn committed() -> Self {
        let repo = Self::new();
        repo.write("a", "one\n");
        repo.write("gone", "one\n");
        repo.write(".gitignore", "*.log\n");
        repo.git(&["add", "-A"]);
        repo.git(&["commit", "-qm", "one"]);
        repo
    }

    fn work(&self) -> PathBuf {
        self.root.path().join("work")
    }

    fn git(&self, arguments: &[&str]) -> String {
        git_in(&self.work(), arguments)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.work().join(name);
        let parent = path.parent().expect("a directory");
        fs_err::create_dir_all(parent).expect("created");
        fs_err::write(path, text).expect("written");
    }

    fn copy_at(&self, now: i64) -> Copied {
        copy(&self.publish, "x", &self.work(), now).expect("copied")
    }

    fn copy(&self) -> Copied {
        self.copy_at(1000)
    }

    fn refusal(&self) -> String {
        let error = copy(&self.publish, "x", &self.work(), 1000).expect_err("refused");
        homestak_core::error::chain(&error)
    }

    /// Runs git in the copy.
    fn published(&self, arguments: &[&str]) -> String {
        git_in(&self.publish.repo_path("x"), arguments)
    }

    fn files(&self) -> Vec<String> {
        let listed = self.published(&["ls-tree", "-r", "-z", "--name-only", "_working"]);
        let names = listed.split('\0').filter(|name| !name.is_empty());
        names.map(str::to_owned).collect()
    }

    fn content(&self, file: &str) -> String {
        self.published(&["cat-file", "blob", &format!("_working:{file}")])
    }

    /// Everything in the git directory of the user, with times.
    fn state(&self) -> Vec<(PathBuf, Vec<u8>, std::time::SystemTime)> {
        let mut all = Vec::new();
        let mut left = vec![self.work()];
        while let Some(directory) = left.pop() {
            for entry in fs_err::read_dir(&directory).expect("read") {
                let entry = entry.expect("an entry");
                let found = fs_err::symlink_metadata(entry.path()).expect("found");
                let changed = found.modified().expect("a time");
                if found.is_dir() {
                    left.push(entry.path());
                    all.push((entry.path(), Vec::new(), changed));
                } else if found.is_file() {
                    let content = fs_err::read(entry.path()).expect("read");
                    all.push((entry.path(), content, changed));
                }
            }
        }
        all.sort();
        all
    }
}

/// What is in a directory, with times.
type State = [(PathBuf, Vec<u8>, std::time::SystemTime)];

fn assert_same(before: &State, after: &State) {
    let names = |of: &State, other: &State| {
        let differing = of.iter().filter(|one| !other.contains(one));
        differing.map(|one| one.0.clone()).collect::<Vec<_>>()
    };
    let changed = [names(before, after), names(after, before)];
    assert_eq!(
        changed,
        [Vec::<PathBuf>::new(), Vec::new()],
        "the repository changed"
    );
}

#[test]
fn a_clean_repository_has_its_last_commit_as_the_working_branch() {
    let repo = TestRepo::committed();
    let head = repo.git(&["rev-parse", "HEAD"]);
    repo.git(&["tag", "-a", "v1", "-m", "v1"]);
    let copied = repo.copy();
    assert_eq!(copied.repo.working.as_ref(), Some(&head));
    assert!(copied.changed && !copied.repo.modified);
    assert_eq!(copied.repo.packs.len(), 1);
    assert_eq!(copied.repo.working_pack, None);
    let references = repo.published(&["for-each-ref", "--format=%(refname)"]);
    assert_eq!(
        references,
        "refs/heads/_working\nrefs/heads/main\nrefs/tags/v1"
    );
    assert_eq!(
        repo.published(&["symbolic-ref", "HEAD"]),
        "refs/heads/_working"
    );
    repo.published(&["fsck", "--full", "--strict"]);
    assert!(!repo.copy().changed, "nothing changed");
}

#[test]
fn uncommitted_changes_are_in_the_working_branch_and_the_repository_stays_byte_for_byte() {
    let repo = TestRepo::committed();
    repo.write("dir/tracked", "one\n");
    repo.git(&["add", "dir/tracked"]);
    repo.git(&["commit", "-qm", "two"]);
    repo.write("stashed", "x\n");
    repo.git(&["add", "-A"]);
    repo.git(&["stash", "-q"]);
    let head = repo.git(&["rev-parse", "HEAD"]);
    repo.write("a", "two\n");
    repo.write("staged", "staged\n");
    repo.git(&["add", "staged"]);
    repo.write("staged", "and changed\n");
    fs_err::remove_file(repo.work().join("gone")).expect("removed");
    repo.write("new file", "x\n");
    repo.write("ä\nb", "x\n");
    repo.write("run.sh", "#!/bin/sh\n");
    let executable = std::fs::Permissions::from_mode(0o755);
    fs_err::set_permissions(repo.work().join("run.sh"), executable).expect("set");
    symlink("/etc/passwd", repo.work().join("link")).expect("linked");
    fs_err::remove_dir_all(repo.work().join("dir")).expect("removed");
    symlink("/etc", repo.work().join("dir")).expect("linked");
    repo.write("debug.log", "ignored\n");
    repo.write(".git/info/exclude", "private\n");
    repo.write("private", "ignored\n");
    let before = repo.state();
    let copied = repo.copy();
    assert_same(&before, &repo.state());
    assert!(copied.repo.modified);
    let mut files = repo.files();
    files.sort();
    assert_eq!(
        files,
        [
            ".gitignore",
            "a",
            "dir",
            "link",
            "new file",
            "run.sh",
            "staged",
            "ä\nb"
        ]
    );
    assert_eq!(repo.content("a"), "two");
    assert_eq!(repo.content("staged"), "and changed");
    assert_eq!(repo.content("link"), "/etc/passwd");
    let modes = repo.published(&["ls-tree", "_working", "run.sh", "link", "dir"]);
    assert!(modes.contains("100755 blob") && modes.matches("120000 blob").count() == 2);
    assert_eq!(repo.published(&["rev-parse", "_working^"]), head);
    assert_eq!(repo.published(&["rev-parse", "main"]), head);
    assert_eq!(
        repo.published(&["log", "-1", "--format=%an <%ae>", "_working"]),
        "homestak-server <server@localhost>"
    );
    repo.published(&["fsck", "--full", "--strict"]);
    assert!(!repo.copy().changed, "the same tree gives the same commit");
}

#[test]
fn what_is_committed_later_is_in_a_pack_of_its_own_and_old_packs_stay_for_a_while() {
    let repo = TestRepo::committed();
    repo.write("a", "uncommitted one\n");
    let first = repo.copy_at(1000).repo;
    repo.git(&["commit", "-qam", "two"]);
    repo.write("a", "uncommitted two\n");
    let second = repo.copy_at(1010).repo;
    assert_eq!(second.packs.len(), 2);
    assert_eq!(second.packs[0], first.packs[0]);
    let old = first.working_pack.expect("a pack");
    assert_eq!(second.old_packs.keys().collect::<Vec<_>>(), [&old]);
    let listed = fs_err::read_to_string(repo.publish.repo_path("x").join("objects/info/packs"));
    let listed = listed.expect("a list");
    assert!(!listed.contains(&old) && listed.matches("P pack-").count() == 3);
    let file = repo
        .publish
        .repo_path("x")
        .join(format!("objects/pack/{old}.pack"));
    assert!(file.exists());
    repo.copy_at(1020);
    assert!(file.exists());
    repo.copy_at(1611);
    assert!(!file.exists(), "kept for ten minutes only");
    repo.published(&["fsck", "--full", "--strict"]);
    // A commit that was undone is not published any more.
    let undone = repo.git(&["rev-parse", "HEAD"]);
    repo.git(&["reset", "-q", "--hard", "HEAD~1"]);
    assert_eq!(repo.copy_at(1700).repo.packs.len(), 1);
    repo.copy_at(2301);
    let found = Command::new("git")
        .args(["cat-file", "-e", &undone])
        .current_dir(repo.publish.repo_path("x"))
        .output();
    assert!(!found.expect("git runs").status.success());
}

#[test]
fn many_small_packs_become_one() {
    let repo = TestRepo::committed();
    for nth in 0..12 {
        repo.write("a", &format!("{nth}\n"));
        repo.git(&["commit", "-qam", "next"]);
        assert!(repo.copy_at(1000 + nth).repo.packs.len() <= 8);
    }
    repo.published(&["fsck", "--full", "--strict"]);
    assert_eq!(repo.published(&["rev-list", "--count", "main"]), "13");
}

#[test]
fn repositories_without_commits_detached_heads_worktrees_and_bare_ones_are_copied() {
    let empty = TestRepo::new();
    let copied = empty.copy();
    assert_eq!(copied.repo.working, None);
    let target = empty.root.path().join("clone");
    let from = empty.publish.repo_path("x");
    let words = [
        "clone",
        "-q",
        from.to_str().expect("text"),
        target.to_str().expect("text"),
    ];
    git_in(empty.root.path(), &words);

    let files_only = TestRepo::new();
    files_only.write("a", "one\n");
    assert!(files_only.copy().repo.modified);
    assert_eq!(files_only.files(), ["a"]);

    let detached = TestRepo::committed();
    detached.git(&["checkout", "-q", "--detach"]);
    detached.write("a", "detached\n");
    detached.git(&["commit", "-qam", "detached"]);
    let head = detached.git(&["rev-parse", "HEAD"]);
    assert_eq!(detached.copy().repo.working, Some(head));

    let repo = TestRepo::committed();
    repo.git(&["worktree", "add", "-q", "-b", "side", "../side"]);
    let side = repo.root.path().join("side");
    fs_err::write(side.join("a"), "changed in the worktree\n").expect("written");
    let copied = copy(&repo.publish, "x", &side, 1000).expect("copied");
    assert!(copied.repo.modified && copied.repo.refs.contains_key("refs/heads/main"));
    assert_eq!(repo.content("a"), "changed in the worktree");

    git_in(
        repo.root.path(),
        &["clone", "-q", "--bare", "work", "bare.git"],
    );
    let bare = repo.root.path().join("bare.git");
    let copied = copy(&repo.publish, "bare", &bare, 1000).expect("copied");
    assert!(!copied.repo.modified && copied.repo.working.is_some());
}

#[test]
fn what_cannot_be_served_is_refused_with_a_reason() {
    let repo = TestRepo::committed();
    let origin = format!("file://{}", repo.work().display());
    git_in(
        repo.root.path(),
        &["clone", "-q", "--depth", "1", &origin, "shallow"],
    );
    repo.write("a", "two\n");
    repo.git(&["commit", "-qam", "two"]);
    git_in(
        repo.root.path(),
        &["clone", "-q", "--depth", "1", &origin, "shallow2"],
    );
    let reason = |path: &str| {
        let error = copy(&repo.publish, "x", &repo.root.path().join(path), 0);
        homestak_core::error::chain(&error.expect_err("refused"))
    };
    assert!(reason("shallow2").contains("git fetch --unshallow"));
    assert!(reason("none").contains("none"));
    fs_err::create_dir(repo.root.path().join("plain")).expect("created");
    assert!(reason("plain").contains("not a git repository"));
    fs_err::create_dir(repo.root.path().join("linked")).expect("created");
    symlink(
        repo.work().join(".git"),
        repo.root.path().join("linked/.git"),
    )
    .expect("linked");
    assert!(reason("linked").contains("is a link"));
    repo.git(&["config", "extensions.partialClone", "origin"]);
    assert!(repo.refusal().contains("partial clone"));
}

#[test]
fn submodules_are_recorded_with_what_they_have_checked_out() {
    let repo = TestRepo::committed();
    let other = TestRepo::committed();
    let url = other.work();
    let url = url.to_str().expect("text");
    repo.git(&[
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "add",
        "-q",
        url,
        "sub",
    ]);
    repo.git(&["commit", "-qm", "submodule"]);
    assert!(!repo.copy().repo.modified);
    let sub = repo.work().join("sub");
    fs_err::write(sub.join("a"), "dirty\n").expect("written");
    assert!(
        !repo.copy().repo.modified,
        "what is not committed there stays there"
    );
    git_in(&sub, &["commit", "-qam", "in the submodule"]);
    let head = git_in(&sub, &["rev-parse", "HEAD"]);
    assert!(repo.copy().repo.modified);
    assert!(
        repo.published(&["ls-tree", "_working", "sub"])
            .contains(&head)
    );
    // One that is not checked out keeps what is committed.
    fs_err::remove_dir_all(&sub).expect("removed");
    fs_err::create_dir(&sub).expect("created");
    assert!(!repo.copy().repo.modified);
}

#[test]
fn sha_256_repositories_split_indexes_and_unresolved_conflicts_are_copied() {
    let repo = TestRepo::new();
    fs_err::remove_dir_all(repo.work().join(".git")).expect("removed");
    repo.git(&["init", "-q", "-b", "main", "--object-format=sha256"]);
    repo.write("a", "one\n");
    repo.git(&["add", "-A"]);
    repo.git(&["commit", "-qm", "one"]);
    repo.git(&["update-index", "--split-index"]);
    repo.write("a", "two\n");
    let copied = repo.copy();
    assert_eq!(copied.repo.working.expect("a commit").len(), 64);
    assert_eq!(repo.content("a"), "two");

    let repo = TestRepo::committed();
    repo.git(&["checkout", "-q", "-b", "side"]);
    repo.write("a", "side\n");
    repo.git(&["commit", "-qam", "side"]);
    repo.git(&["checkout", "-q", "main"]);
    repo.write("a", "main\n");
    repo.git(&["commit", "-qam", "main"]);
    let merge = Command::new("git")
        .args(["-c", "maintenance.auto=false", "merge", "-q", "side"])
        .current_dir(repo.work())
        .output();
    assert!(
        !merge.expect("git runs").status.success(),
        "there is a conflict"
    );
    let before = repo.state();
    repo.copy();
    assert_same(&before, &repo.state());
    assert!(repo.content("a").contains("<<<<<<<"));
}
