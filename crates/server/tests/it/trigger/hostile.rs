//! Repositories that cannot be read, are large, do not answer, or would have programs run.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::{Followed, origin, run};
use crate::site::WEB;

#[tokio::test]
async fn repositories_that_cannot_be_read_are_errors_and_start_nothing() {
    let all = Followed::prepare().await;
    let missing = all.files.path().join("missing");
    all.follow(WEB, "web", &missing, Some("main"), None);
    (all.site.reload)();
    let status = all
        .wait("an error", |status| status["error"].is_string())
        .await;
    let error = status["error"].as_str().expect("text");
    assert!(
        error.contains("missing") && !error.contains('\n'),
        "{error}"
    );
    assert_eq!(status["commit"], Value::Null);
    // A link in the place of a branch is not followed to what it is.
    let linked = all.files.path().join("linked");
    run(
        all.files.path(),
        "git",
        &["init", "-q", "-b", "main", "linked"],
    );
    std::os::unix::fs::symlink("/etc/passwd", linked.join(".git/refs/heads/main")).expect("linked");
    all.follow(WEB, "web", &linked, Some("main"), None);
    (all.site.reload)();
    let status = all
        .wait("a link", |status| {
            status["repo"]
                .as_str()
                .is_some_and(|repo| repo.ends_with("linked"))
                && status["error"].is_string()
        })
        .await;
    assert!(!status["error"].to_string().contains("root"), "{status}");
    // Nobody listens there.
    all.follow(
        WEB,
        "web",
        Path::new("https://127.0.0.1:1/site"),
        None,
        None,
    );
    (all.site.reload)();
    all.wait("no server", |status| {
        status["repo"] == "https://127.0.0.1:1/site" && status["error"].is_string()
    })
    .await;
    assert_eq!(all.jobs().await, [""; 0]);
}

#[tokio::test]
async fn a_repository_with_too_large_files_is_not_fetched_in_full() {
    let all = Followed::prepare().await;
    let signers = Some(vec![all.key("good")]);
    all.follow(WEB, "web", &all.repo(), Some("main"), signers);
    _ = all.site.enrolled(WEB, "web").await;
    (all.site.reload)();
    let first = all.commit_id();
    all.wait("the first check", |status| {
        status["commit"] == first.as_str()
    })
    .await;
    let random = [
        "if=/dev/urandom",
        "of=large",
        "bs=1M",
        "count=70",
        "status=none",
    ];
    run(&all.repo(), "dd", &random);
    all.git(&["add", "large"]);
    all.commit(Some("good"));
    let status = all
        .wait("an error", |status| status["error"].is_string())
        .await;
    assert_eq!(
        status["error"],
        "its commit with all files is larger than 64 MiB, or not valid"
    );
    // A server that can send the commit alone does so.
    all.git(&["config", "uploadpack.allowFilter", "true"]);
    (all.site.reload)();
    let commit = all.commit_id();
    all.wait("the commit", |status| status["commit"] == commit.as_str())
        .await;
    assert_eq!(all.jobs().await, [origin(&commit)]);
}

#[tokio::test]
async fn a_commit_that_needs_much_memory_is_an_error_and_a_large_file_does_not_need_it() {
    const MEBIBYTES: usize = 300;
    let all = Followed::prepare().await;
    let signers = Some(vec![all.key("good")]);
    all.follow(WEB, "web", &all.repo(), Some("main"), signers);
    _ = all.site.enrolled(WEB, "web").await;
    (all.site.reload)();
    let first = all.commit_id();
    all.wait("the first check", |status| {
        status["commit"] == first.as_str()
    })
    .await;
    // Both are sent as less than one MiB.
    let size = format!("{MEBIBYTES}M");
    run(&all.repo(), "truncate", &["-s", &size, "large"]);
    all.git(&["add", "large"]);
    let second = all.commit(Some("good"));
    all.wait("the second", |status| status["commit"] == second.as_str())
        .await;
    let mut file = fs_err::File::create(all.files.path().join("commit")).expect("created");
    let tree = all.git(&["rev-parse", "HEAD^{tree}"]);
    let people = "author a <a@b> 0 +0000\ncommitter a <a@b> 0 +0000\n\n";
    write!(file, "tree {tree}\nparent {second}\n{people}").expect("written");
    for _ in 0..MEBIBYTES {
        file.write_all(&[b'x'; 1 << 20]).expect("written");
    }
    let third = all.git(&["hash-object", "-t", "commit", "-w", "../commit"]);
    all.git(&["update-ref", "refs/heads/main", &third]);
    all.wait("an error", |status| status["error"].is_string())
        .await;
    assert_eq!(all.jobs().await, [origin(&second)]);
    // A later commit is read again.
    all.cancel_all().await;
    all.git(&["update-ref", "refs/heads/main", &second]);
    let fourth = all.commit(Some("good"));
    (all.site.reload)();
    all.wait("the fourth", |status| status["commit"] == fourth.as_str())
        .await;
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_repository_that_does_not_answer() {
    let mut all = Followed::prepare().await;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let url = format!("https://{}/site", silent.local_addr().expect("an address"));
    all.follow(WEB, "web", Path::new(&url), None, None);
    (all.site.reload)();
    // Git has connected, and waits.
    let connection = silent.accept().await.expect("a connection");
    let stopped = all.site.stop();
    let stopped = tokio::time::timeout(Duration::from_secs(10), stopped).await;
    stopped
        .expect("it ends before git would")
        .expect("without a panic");
    drop(connection);
}

#[tokio::test]
async fn addresses_that_would_run_programs_are_not_checked() {
    let all = Followed::prepare().await;
    let mark = all.files.path().join("mark");
    for address in [
        format!("ext::touch {}", mark.display()),
        format!("--upload-pack=touch {}", mark.display()),
        "-x".to_owned(),
        "file:///srv/git".to_owned(),
        "http://127.0.0.1/site".to_owned(),
        "ssh://-oProxyCommand=touch/x".to_owned(),
    ] {
        all.follow(WEB, "web", Path::new(&address), Some("main"), None);
        (all.site.reload)();
        assert_eq!(
            all.get("/v1/triggers").await["repositories"],
            serde_json::json!([]),
            "{address}"
        );
    }
    all.follow(WEB, "web", &all.repo(), Some("--output=x"), None);
    (all.site.reload)();
    assert_eq!(
        all.get("/v1/triggers").await["repositories"],
        serde_json::json!([])
    );
    assert!(!mark.exists());
}

#[tokio::test]
async fn nothing_that_a_repository_configures_is_run() {
    let all = Followed::prepare().await;
    let mark = all.files.path().join("mark");
    let touch = format!("touch {}", mark.display());
    for key in [
        "core.fsmonitor",
        "core.sshCommand",
        "core.gitProxy",
        "core.alternateRefsCommand",
        "uploadpack.packObjectsHook",
        "gpg.ssh.program",
        "gpg.program",
        "credential.helper",
        "core.askPass",
    ] {
        all.git(&["config", key, &touch]);
    }
    let hooks = all.repo().join(".git/hooks");
    fs_err::create_dir_all(&hooks).expect("created");
    for hook in [
        "pre-upload",
        "post-checkout",
        "reference-transaction",
        "post-upload-pack",
    ] {
        fs_err::write(hooks.join(hook), format!("#!/bin/sh\n{touch}\n")).expect("written");
        run(&hooks, "chmod", &["+x", hook]);
    }
    let signers = Some(vec![all.key("good")]);
    all.follow(WEB, "web", &all.repo(), Some("main"), signers);
    _ = all.site.enrolled(WEB, "web").await;
    (all.site.reload)();
    let first = all.commit_id();
    all.wait("the first check", |status| {
        status["commit"] == first.as_str()
    })
    .await;
    // The commit is made elsewhere, where that configuration does not count.
    run(all.files.path(), "git", &["clone", "-q", "repo", "clone"]);
    let key = format!(
        "user.signingkey={}",
        all.files.path().join("good").display()
    );
    _ = fs_err::remove_file(&mark);
    let clone = all.files.path().join("clone");
    run(
        &clone,
        "git",
        &[
            "-c",
            "gpg.format=ssh",
            "-c",
            &key,
            "commit",
            "-q",
            "-S",
            "--allow-empty",
            "-m",
            "two",
        ],
    );
    let second = run(&clone, "git", &["rev-parse", "HEAD"]);
    let objects = all.repo().join(".git/objects/info");
    fs_err::create_dir_all(&objects).expect("created");
    fs_err::write(
        objects.join("alternates"),
        format!("{}\n", clone.join(".git/objects").display()),
    )
    .expect("written");
    fs_err::write(
        all.repo().join(".git/refs/heads/main"),
        format!("{second}\n"),
    )
    .expect("written");
    all.wait("the second", |status| status["commit"] == second.as_str())
        .await;
    assert_eq!(all.jobs().await, [origin(&second)]);
    assert!(!mark.exists());
}

#[tokio::test]
async fn an_object_that_is_missing_is_not_fetched_with_commands_of_the_repository() {
    let all = Followed::prepare().await;
    let mark = all.files.path().join("mark");
    let touch = format!("touch {}; false", mark.display());
    let elsewhere = all.repo().display().to_string();
    for (key, value) in [
        ("core.repositoryFormatVersion", "1"),
        ("extensions.partialClone", "x"),
        ("remote.x.promisor", "true"),
        ("remote.x.url", &elsewhere),
        ("remote.x.uploadpack", &touch),
    ] {
        all.git(&["config", key, value]);
    }
    let signers = Some(vec![all.key("good")]);
    all.follow(WEB, "web", &all.repo(), Some("main"), signers);
    _ = all.site.enrolled(WEB, "web").await;
    (all.site.reload)();
    let first = all.commit_id();
    all.wait("the first check", |status| {
        status["commit"] == first.as_str()
    })
    .await;
    let second = all.commit(Some("good"));
    let object = format!(".git/objects/{}/{}", &second[..2], &second[2..]);
    fs_err::remove_file(all.repo().join(object)).expect("removed");
    let status = all
        .wait("an error", |status| status["error"].is_string())
        .await;
    assert_eq!(status["commit"], first.as_str(), "{status}");
    assert_eq!(all.jobs().await, [""; 0]);
    assert!(!mark.exists());
}

#[tokio::test]
async fn for_root_a_repository_is_read_with_the_rights_of_its_owner() {
    const BOB: u32 = 61_001;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let all = Followed::prepare().await;
    run(all.files.path(), "chmod", &["711", "."]);
    run(
        all.files.path(),
        "chown",
        &["-R", &format!("{BOB}:{BOB}"), "repo"],
    );
    let branch = all.repo().join(".git/refs/heads/main");
    // Only root may read the commit of the branch.
    std::os::unix::fs::chown(&branch, Some(0), Some(0)).expect("changed");
    run(&all.repo(), "chmod", &["600", ".git/refs/heads/main"]);
    all.follow(WEB, "web", &all.repo(), Some("main"), None);
    (all.site.reload)();
    let status = all
        .wait("a check", |status| {
            status["error"].is_string() || status["commit"].is_string()
        })
        .await;
    assert!(status["error"].is_string(), "{status}");
    std::os::unix::fs::chown(&branch, Some(BOB), Some(BOB)).expect("changed");
    let commit = fs_err::read_to_string(&branch).expect("read");
    all.wait("the commit", |status| status["commit"] == commit.trim())
        .await;
    // A link of another user leads to no repository of root.
    run(all.files.path(), "chown", &["-R", "0:0", "repo"]);
    let link = all.files.path().join("link");
    std::os::unix::fs::symlink(all.repo(), &link).expect("linked");
    std::os::unix::fs::lchown(&link, Some(BOB), Some(BOB)).expect("changed");
    all.follow(WEB, "web", &link, Some("main"), None);
    (all.site.reload)();
    let status = all
        .wait("a refusal", |status| {
            let repo = status["repo"].as_str();
            repo.is_some_and(|repo| repo.ends_with("link")) && status["error"].is_string()
        })
        .await;
    assert!(
        status["error"].to_string().contains("user 61001"),
        "{status}"
    );
}
