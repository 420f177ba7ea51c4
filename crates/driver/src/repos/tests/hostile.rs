//! Repositories with secrets, and repositories that nobody trusts.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use super::super::copy::copy;
use super::super::temporary_repo::{ObjectFormat, TemporaryRepo};
use super::{TestRepo, assert_same, git_in};

#[test]
fn secrets_that_are_not_committed_are_left_out_with_a_notice() {
    let repo = TestRepo::committed();
    repo.write("secrets.yaml", "password: x\n");
    repo.write("deep/SECRETS.yml", "password: x\n");
    repo.write("sealed/secrets.yaml", "password: ENC[AES256_GCM,data:x]\n");
    repo.write("sealed/secrets.yaml.enc", "a: ENC[AES256_GCM,data:x]\n");
    for name in [
        "secrets.yaml~",
        "secrets.yaml.bak",
        "secrets.yaml.example",
        ".secrets.yaml.swp",
        "#Secrets.YAML#",
        "lab-secrets.yml.enc",
    ] {
        repo.write(name, "password: x\n");
    }
    repo.write("key", "-----BEGIN OPENSSH PRIVATE KEY-----\n");
    repo.write("age\u{1b}[31m.txt", "AGE-SECRET-KEY-1ABC\n");
    let copied = repo.copy();
    assert_eq!(
        repo.files(),
        [
            ".gitignore",
            "a",
            "gone",
            "sealed/secrets.yaml",
            "sealed/secrets.yaml.enc",
            "secrets.yaml.example"
        ]
    );
    assert_eq!(copied.notices.len(), 1);
    let notice = &copied.notices[0];
    for name in ["`#Secrets.YAML#`", "`.secrets.yaml.swp`", "and 4 more"] {
        assert!(notice.contains(name), "{notice}");
    }
    assert!(!notice.contains('\u{1b}'), "{notice}");
    // What was added is meant.
    repo.git(&["add", "secrets.yaml", "key"]);
    repo.copy();
    assert_eq!(repo.content("secrets.yaml"), "password: x");
    assert!(repo.files().contains(&"key".to_owned()));
}

#[test]
fn sealed_secrets_that_are_being_edited_are_served_as_they_were_sealed() {
    let sealed = |value: &str| format!("password: ENC[AES256_GCM,data:{value}]\n");
    let repo = TestRepo::committed();
    let files = ["secrets.yaml", "staged/secrets.yml", "x/secrets.yaml.enc"];
    for file in files {
        repo.write(file, &sealed("old"));
    }
    // The mark can be far from the start: comments are not always sealed.
    let comments = "# comment\n".repeat(10_000);
    repo.write("long/secrets.yaml", &format!("{comments}{}", sealed("old")));
    repo.write("plain/secrets.yaml", "password: old\n");
    repo.git(&["add", "-A"]);
    repo.git(&["commit", "-qm", "sealed"]);
    let head = repo.git(&["rev-parse", "HEAD"]);
    for file in files.iter().chain(&["long/secrets.yaml"]) {
        repo.write(file, "password: cleartext\n");
    }
    repo.git(&["add", "staged/secrets.yml"]);
    let before = repo.state();
    let copied = repo.copy();
    assert_same(&before, &repo.state());
    assert_eq!(copied.repo.working.as_ref(), Some(&head));
    assert_eq!(copied.notices.len(), 1, "{:?}", copied.notices);
    for file in files.iter().chain(&["long/secrets.yaml"]) {
        let name = format!("`{file}`");
        assert!(copied.notices[0].contains(&name), "{:?}", copied.notices);
    }
    // Other changes are served, and so is what was sealed since, or never.
    repo.write("staged/secrets.yml", "password: cleartext again\n");
    repo.write("plain/secrets.yaml", "password: new\n");
    repo.write("long/secrets.yaml", &sealed("new"));
    repo.write("a", "two\n");
    fs_err::remove_file(repo.work().join("x/secrets.yaml.enc")).expect("removed");
    // A version that was staged sealed is newer than what is committed.
    repo.write("secrets.yaml", &sealed("staged"));
    repo.git(&["add", "secrets.yaml"]);
    repo.write("secrets.yaml", "password: cleartext\n");
    let copied = repo.copy();
    assert!(copied.repo.modified);
    for (file, text) in [
        ("secrets.yaml", sealed("staged").as_str()),
        ("staged/secrets.yml", &sealed("old")),
        ("long/secrets.yaml", &sealed("new")),
        ("plain/secrets.yaml", "password: new"),
        ("a", "two"),
    ] {
        assert_eq!(repo.content(file), text.trim_end(), "{file}");
    }
    assert!(!repo.files().contains(&"x/secrets.yaml.enc".to_owned()));
    // Nor is the text in any object of the copy.
    let objects = repo.published(&["cat-file", "--batch-all-objects", "--batch"]);
    assert!(!objects.contains("cleartext"));
}

#[test]
fn a_malicious_repository_executes_nothing() {
    let repo = TestRepo::committed();
    let mark = repo.root.path().join("executed");
    let evil = repo.root.path().join("evil.sh");
    fs_err::write(&evil, format!("#!/bin/sh\ntouch {}\ncat\n", mark.display())).expect("written");
    fs_err::set_permissions(&evil, std::fs::Permissions::from_mode(0o755)).expect("set");
    let evil = evil.to_str().expect("text").to_owned();
    repo.write("nested/file", "x\n");
    git_in(&repo.work().join("nested"), &["init", "-q"]);
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
    let sub = repo.work().join("sub");
    for directory in [repo.work(), sub.clone(), repo.work().join("nested")] {
        for (key, value) in [
            ("core.fsmonitor", evil.as_str()),
            ("core.sshCommand", &evil),
            ("core.pager", &evil),
            ("core.editor", &evil),
            ("core.askPass", &evil),
            ("core.gitProxy", &evil),
            ("core.alternateRefsCommand", &evil),
            ("core.hooksPath", repo.root.path().to_str().expect("text")),
            ("filter.evil.clean", &evil),
            ("filter.evil.smudge", &evil),
            ("filter.evil.process", &evil),
            ("filter.evil.required", "true"),
            ("filter.lfs.clean", &evil),
            ("diff.evil.textconv", &evil),
            ("diff.evil.command", &evil),
            ("diff.external", &evil),
            ("merge.evil.driver", &evil),
            ("gpg.program", &evil),
            ("log.showSignature", "true"),
            ("credential.helper", &format!("!{evil}")),
            ("uploadpack.packObjectsHook", &evil),
            ("remote.origin.url", &format!("ext::{evil}")),
            ("remote.origin.uploadpack", &evil),
            ("alias.ls-files", &format!("!{evil}")),
            ("submodule.sub.update", &format!("!{evil}")),
            ("include.path", "/etc/shadow"),
        ] {
            let file = git_in(&directory, &["rev-parse", "--git-path", "config"]);
            let file = directory.join(file);
            git_in(
                &directory,
                &["config", "--file", file.to_str().expect("text"), key, value],
            );
        }
    }
    repo.write(
        ".gitattributes",
        "* filter=evil diff=evil merge=evil text\n*.x filter=lfs\n",
    );
    repo.write("f.x", "x\n");
    repo.write("a", "changed\r\n");
    fs_err::write(sub.join("a"), "changed\n").expect("written");
    fs_err::write(sub.join(".gitattributes"), "* filter=evil\n").expect("written");
    for hook in [
        "pre-commit",
        "post-index-change",
        "reference-transaction",
        "fsmonitor-watchman",
    ] {
        let path = repo.work().join(".git/hooks").join(hook);
        fs_err::create_dir_all(path.parent().expect("a directory")).expect("created");
        fs_err::copy(&evil, &path).expect("copied");
        fs_err::copy(&evil, repo.root.path().join(hook)).expect("copied");
    }
    repo.write(
        ".gitmodules",
        &format!("[submodule \"sub\"]\n\tpath = sub\n\turl = ext::{evil}\n"),
    );
    let before = repo.state();
    let copied = repo.copy();
    assert_same(&before, &repo.state());
    assert!(!mark.exists(), "something of the repository was executed");
    assert!(
        copied
            .notices
            .iter()
            .any(|notice| notice.contains("`nested/`"))
    );
    assert_eq!(repo.content("a"), "changed");
    let config = fs_err::read_to_string(repo.publish.repo_path("x").join("config"));
    assert!(!config.expect("a file").contains("evil"));
    repo.published(&["fsck", "--full"]);
    assert!(!mark.exists(), "something of the copy was executed");
}

#[test]
fn large_files_that_are_small_when_packed_need_little_memory() {
    const MEMORY: u64 = 256 << 20;
    let repo = TestRepo::committed();
    // Each is in a pack of its own, so that git would compare them with each other.
    for nth in 0..10 {
        let name = format!("large{nth}");
        let file = fs_err::File::create(repo.work().join(&name)).expect("created");
        file.set_len((32 << 20) + nth).expect("set");
        repo.git(&["-c", "core.bigFileThreshold=1m", "add", &name]);
    }
    repo.git(&["commit", "-qm", "large"]);
    let objects = repo.work().join(".git/objects");
    let temporary = TemporaryRepo::create(&objects, ObjectFormat::Sha1, None).expect("created");
    let revisions = repo.root.path().join("revisions");
    fs_err::write(&revisions, repo.git(&["rev-parse", "HEAD"]) + "\n").expect("written");
    let revisions = fs_err::File::open(&revisions).expect("opened");
    let packed = Command::new("prlimit")
        .arg(format!("--as={MEMORY}"))
        .args(["git", "pack-objects", "--revs", "--stdout", "-q"])
        .env("GIT_DIR", temporary.path())
        .stdin(revisions.into_parts().0)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .expect("it runs");
    let error = String::from_utf8_lossy(&packed.stderr);
    assert!(packed.status.success() && error.is_empty(), "{error}");
    repo.copy();
    let size = repo.published(&["cat-file", "-s", "_working:large9"]);
    assert_eq!(size, ((32 << 20) + 9).to_string());
}

#[test]
fn objects_and_references_are_read_only_where_they_belong() {
    let repo = TestRepo::committed();
    let other = TestRepo::committed();
    other.write("secret", "s\n");
    other.git(&["add", "-A"]);
    other.git(&["commit", "-qm", "secret"]);
    let stolen = other.git(&["rev-parse", "HEAD"]);
    repo.write(".git/refs/heads/stolen", &format!("{stolen}\n"));
    repo.write(".git/refs/heads/bad..name", &format!("{stolen}\n"));
    repo.write(".git/refs/heads/escape", "ref: ../../../etc/passwd\n");
    symlink("/etc/passwd", repo.work().join(".git/refs/heads/link")).expect("linked");
    let copied = repo.copy();
    let names: Vec<&str> = copied.repo.refs.keys().map(String::as_str).collect();
    assert_eq!(names, ["refs/heads/_working", "refs/heads/main"]);
    assert!(copied.notices[0].contains("stolen"), "{:?}", copied.notices);
    // Nothing is shared with the repository of the user.
    fs_err::remove_dir_all(repo.work().join(".git/objects")).expect("removed");
    repo.published(&["fsck", "--full", "--strict"]);
}

/// Returns a repository with a secret in it, and the commit.
fn private() -> (TestRepo, String) {
    let private = TestRepo::committed();
    private.write("secret", "s\n");
    private.git(&["add", "-A"]);
    private.git(&["commit", "-qm", "secret"]);
    let commit = private.git(&["rev-parse", "HEAD"]);
    (private, commit)
}

#[test]
fn objects_of_another_repository_of_the_same_owner_are_not_served() {
    let (private, stolen) = private();
    let theirs = private.work().join(".git/objects");
    let repo = TestRepo::committed();
    let ours = repo.work().join(".git/objects");
    repo.write(".git/refs/heads/x", &format!("{stolen}\n"));
    let alternates = ours.join("info/alternates");
    fs_err::write(&alternates, format!("{}\n", theirs.display())).expect("written");
    assert!(repo.refusal().contains("borrows objects"));
    fs_err::remove_file(&alternates).expect("removed");
    repo.copy();
    let file = format!("{}/{}", &stolen[..2], &stolen[2..]);
    fs_err::create_dir_all(ours.join("01")).expect("created");
    for (link, to) in [
        (alternates, theirs.join("info/alternates")),
        (ours.join("00"), theirs.join(&stolen[..2])),
        (ours.join("01").join(&stolen[2..]), theirs.join(file)),
        (ours.join("info/commit-graph"), theirs.join("info/x")),
        (ours.join("pack/pack-x.pack"), theirs.join("pack/x")),
        (ours.join("pack"), theirs.join("pack")),
    ] {
        _ = fs_err::remove_dir_all(&link);
        symlink(to, &link).expect("linked");
        let refused = repo.refusal();
        let reasons = ["a link among its objects", "not a regular file"];
        let is_reason = reasons.iter().any(|reason| refused.contains(reason));
        assert!(is_reason, "{}: {refused}", link.display());
        fs_err::remove_file(&link).expect("removed");
    }
    let copied = repo.copy();
    assert!(!copied.repo.refs.contains_key("refs/heads/x"));
}

#[test]
fn the_git_directory_of_another_repository_of_the_same_owner_is_not_served() {
    let (private, _) = private();
    private.git(&["worktree", "add", "-q", "-b", "side", "../side"]);
    let theirs = private.work().join(".git");
    let theirs = theirs.display();
    let repo = TestRepo::committed();
    let tree = repo.work();
    repo.write(".git/commondir", &format!("{theirs}\n"));
    assert!(repo.refusal().contains("not among the worktrees"));
    fs_err::remove_file(tree.join(".git/commondir")).expect("removed");
    fs_err::rename(tree.join(".git"), tree.join("real")).expect("renamed");
    for to in [
        theirs.to_string(),
        format!("{theirs}/worktrees/side"),
        "real".into(),
    ] {
        repo.write(".git", &format!("gitdir: {to}\n"));
        let refused = repo.refusal();
        assert!(refused.contains("another working tree"), "{to}: {refused}");
    }
    repo.write("real/gitdir", &format!("{}/.git\n", tree.display()));
    repo.copy();
    repo.write("real/commondir", &format!("{theirs}\n"));
    assert!(repo.refusal().contains("not among the worktrees"));
}

#[test]
fn git_directories_elsewhere_that_name_their_working_tree_are_served() {
    let repo = TestRepo::committed();
    let root = repo.root.path();
    let serve = |path: &str| copy(&repo.publish, "x", &root.join(path), 1000);
    repo.git(&["worktree", "add", "-q", "-b", "side", "../side"]);
    serve("side").expect("copied");
    fs_err::rename(root.join("side"), root.join("moved")).expect("renamed");
    serve("moved").expect_err("it is recorded elsewhere");
    repo.git(&["worktree", "repair", "../moved"]);
    serve("moved").expect("copied");

    let clone = ["clone", "-q", "--separate-git-dir=separate.git"];
    git_in(root, &[&clone[..], &["work", "separate"]].concat());
    serve("separate").expect_err("it is not recorded");
    let separate = root.join("separate");
    git_in(&separate, &["config", "core.worktree", "../separate"]);
    serve("separate").expect("copied");

    let always = ["-c", "protocol.file.allow=always"];
    let url = root.join("separate.git").display().to_string();
    let add = ["submodule", "add", "-q", &url, "sub"];
    repo.git(&[&always[..], &add].concat());
    serve("work/sub").expect("copied");
}

/// Makes a tree belong to a user, and its parents passable.
fn give(path: &Path, user: u32) {
    std::os::unix::fs::lchown(path, Some(user), Some(user)).expect("changed");
    if fs_err::symlink_metadata(path).is_ok_and(|found| found.is_dir()) {
        for entry in fs_err::read_dir(path).expect("read") {
            give(&entry.expect("an entry").path(), user);
        }
    }
}

#[test]
fn for_root_git_runs_as_the_owner_of_the_repository() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let repo = TestRepo::committed();
    let passable = std::fs::Permissions::from_mode(0o711);
    fs_err::set_permissions(repo.root.path(), passable).expect("set");
    repo.write("new", "x\n");
    give(&repo.work(), NOBODY);
    assert!(repo.copy().repo.modified);
    assert_eq!(repo.content("new"), "x");
    // A git directory of another user is not read.
    let private = TestRepo::committed();
    fs_err::remove_dir_all(repo.work().join(".git")).expect("removed");
    repo.write(
        ".git",
        &format!("gitdir: {}\n", private.work().join(".git").display()),
    );
    give(&repo.work(), NOBODY);
    assert!(repo.refusal().contains("belongs to another user"));
}

#[test]
fn a_path_that_another_user_placed_leads_to_no_repository_of_root() {
    const BOB: u32 = 61_001;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let repo = TestRepo::committed();
    let passable = std::fs::Permissions::from_mode(0o755);
    fs_err::set_permissions(repo.root.path(), passable.clone()).expect("set");
    let theirs = repo.root.path().join("bob");
    fs_err::create_dir(&theirs).expect("created");
    let link = theirs.join("link");
    symlink(repo.work(), &link).expect("linked");
    give(&theirs, BOB);
    let serve = |path: &Path| copy(&repo.publish, "x", path, 1000).map_err(|e| e.to_string());
    let refused = serve(&link).expect_err("bob's link");
    assert!(refused.contains("belongs to user 61001"), "{refused}");
    // Nor does a directory that everyone can write.
    let shared = repo.root.path().join("shared");
    fs_err::create_dir(&shared).expect("created");
    let everyone = std::fs::Permissions::from_mode(0o777);
    fs_err::set_permissions(&shared, everyone).expect("set");
    symlink(repo.work(), shared.join("link")).expect("linked");
    let refused = serve(&shared.join("link")).expect_err("everyone's directory");
    assert!(refused.contains("other users can write"), "{refused}");
    // A link may lead to a repository of its owner.
    serve(&repo.work()).expect("copied");
    give(&repo.work(), BOB);
    serve(&link).expect("copied");
}

#[test]
fn a_git_directory_is_not_found_through_the_directory_of_another_user() {
    const BOB: u32 = 61_001;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let repo = TestRepo::committed();
    let theirs = repo.root.path().join("bob");
    fs_err::create_dir(&theirs).expect("created");
    let real = theirs.join("real.git");
    fs_err::rename(repo.work().join(".git"), &real).expect("renamed");
    repo.write(".git", &format!("gitdir: {}\n", real.display()));
    fs_err::write(
        real.join("gitdir"),
        repo.work().join(".git").display().to_string(),
    )
    .expect("written");
    repo.copy();
    std::os::unix::fs::chown(&theirs, Some(BOB), Some(BOB)).expect("changed");
    assert!(repo.refusal().contains("belongs to user 61001"));
}

#[test]
fn what_git_would_wait_for_among_the_objects_is_refused() {
    let repo = TestRepo::committed();
    let fifo = repo.work().join(".git/objects/pack/pack-x.idx");
    let made = Command::new("mkfifo").arg(&fifo).status();
    assert!(made.expect("it runs").success());
    assert!(repo.refusal().contains("neither a file nor a directory"));
}

#[test]
fn parts_of_an_index_have_names_of_git_and_one_limit_of_their_size() {
    const LIMIT: u64 = 128 << 20;
    let repo = TestRepo::committed();
    let part = |name: &str, size: u64| {
        let path = repo.work().join(".git").join(format!("sharedindex.{name}"));
        fs_err::write(&path, "").expect("written");
        let file = fs_err::OpenOptions::new().write(true).open(&path);
        file.expect("opened").set_len(size).expect("set");
    };
    for name in ["x", "", &"A".repeat(40), &"0".repeat(41)] {
        part(name, LIMIT + 1);
    }
    repo.copy();
    part(&"a".repeat(40), LIMIT / 2);
    part(&"0".repeat(64), LIMIT / 4);
    repo.copy();
    part(&"b".repeat(40), LIMIT / 2);
    assert!(repo.refusal().contains("too large"));
}

#[test]
fn references_that_a_clone_could_not_store_are_left_out_with_a_notice() {
    let repo = TestRepo::committed();
    let head = repo.git(&["rev-parse", "HEAD"]);
    let mut packed = String::new();
    for name in ["heads/_working/x", "heads/a", "heads/a/b", "tags/a/b"] {
        packed += &format!("{head} refs/{name}\n");
    }
    repo.write(".git/packed-refs", &packed);
    let copied = repo.copy();
    let names: Vec<&str> = copied.repo.refs.keys().map(String::as_str).collect();
    let expected = [
        "refs/heads/_working",
        "refs/heads/a",
        "refs/heads/main",
        "refs/tags/a/b",
    ];
    assert_eq!(names, expected);
    let notice = &copied.notices[0];
    for name in ["`refs/heads/_working/x`", "`refs/heads/a/b`"] {
        assert!(notice.contains(name), "{notice}");
    }
    let copy = repo.publish.repo_path("x");
    let words = ["clone", "-q", copy.to_str().expect("text"), "clone"];
    git_in(repo.root.path(), &words);
}
