//! Repositories over git: prepared by `server start --repos`, cloned by real git.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::server::Site;
use crate::support::Run;

fn git(directory: &Path, arguments: &[&str]) -> Output {
    command(directory, arguments).output().unwrap()
}

fn command(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    command
        .args(arguments)
        .current_dir(directory)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env_remove("GIT_SSL_CAINFO")
        .env("GIT_AUTHOR_NAME", "a")
        .env("GIT_AUTHOR_EMAIL", "a@example.org")
        .env("GIT_COMMITTER_NAME", "a")
        .env("GIT_COMMITTER_EMAIL", "a@example.org");
    command
}

fn good(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned()
}

/// A site with the repositories `ansible` and `tofu`.
struct Repos {
    site: Site,
    started: Value,
    /// Whether the client does without git's smart protocol.
    is_plain: bool,
}

impl Drop for Repos {
    fn drop(&mut self) {
        self.site
            .run(&format!("server stop --port {}", self.site.port));
    }
}

impl Repos {
    fn create(site: &Site, name: &str) -> PathBuf {
        let path = site.env.work().join("repos").join(name);
        std::fs::create_dir_all(&path).unwrap();
        good(&git(&path, &["init", "-q", "-b", "main"]));
        std::fs::write(path.join("README.md"), format!("{name}\n")).unwrap();
        good(&git(&path, &["add", "-A"]));
        good(&git(&path, &["commit", "-qm", "one"]));
        path
    }

    fn start(more: &str) -> Self {
        let site = Site::new();
        let tofu = Self::create(&site, "tofu");
        let ansible = Self::create(&site, "ansible");
        let tofu = tofu.display().to_string();
        let always = ["-c", "protocol.file.allow=always"];
        let add = ["submodule", "add", "-q", &tofu, "modules/tofu"];
        good(&git(&ansible, &[&always[..], &add].concat()));
        // Relative to the URL that `ansible` is cloned from.
        let path = ansible.join(".gitmodules");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace(&tofu, "../tofu.git")).unwrap();
        good(&git(&ansible, &["add", "-A"]));
        good(&git(&ansible, &["commit", "-qm", "submodule"]));
        std::fs::write(ansible.join("new file"), "not committed\n").unwrap();
        std::fs::write(ansible.join("secrets.yaml"), "password: x\n").unwrap();
        let line = format!(
            "server start --port {} --repos --repos-dir repos {more} --json",
            site.port
        );
        let run = site.run(&line);
        let started = serde_json::from_str(&run.good()).unwrap();
        let is_plain = false;
        Self {
            site,
            started,
            is_plain,
        }
    }

    fn token(&self) -> String {
        let file = self.started["data"]["repo_token_file"].as_str();
        let file = file.or(self.started["repo_token_file"].as_str()).unwrap();
        std::fs::read_to_string(file).unwrap().trim().to_owned()
    }

    fn authority(&self) -> String {
        self.started["authority_file"].as_str().unwrap().to_owned()
    }

    fn client(&self, arguments: &[&str]) -> Output {
        self.client_with(&self.token(), arguments)
    }

    fn client_with(&self, token: &str, arguments: &[&str]) -> Output {
        let ca = format!("http.sslCAInfo={}", self.authority());
        let header = format!("http.extraHeader=Authorization: Bearer {token}");
        let always = ["-c", &ca, "-c", &header];
        command(&self.site.env.work(), &[&always[..], arguments].concat())
            .env("GIT_SMART_HTTP", if self.is_plain { "0" } else { "1" })
            .output()
            .unwrap()
    }

    fn url(&self, name: &str) -> String {
        format!("https://127.0.0.1:{}/{name}.git", self.site.port)
    }

    fn repo(&self, name: &str) -> Value {
        let repos = self.started["repos"].as_array().unwrap();
        repos
            .iter()
            .find(|repo| repo["name"] == name)
            .unwrap()
            .clone()
    }
}

#[test]
fn a_repository_with_uncommitted_changes_and_submodules_is_cloned_and_fetched() {
    clone_and_fetch(&Repos::start("--exclude packer"));
}

#[test]
fn it_is_cloned_and_fetched_without_the_smart_protocol_too() {
    let mut repos = Repos::start("--exclude packer");
    repos.is_plain = true;
    clone_and_fetch(&repos);
}

fn clone_and_fetch(repos: &Repos) {
    assert_eq!(repos.repo("ansible")["state"], "served");
    assert_eq!(repos.repo("ansible")["modified"], true);
    assert_eq!(repos.repo("tofu")["modified"], false);
    assert_eq!(repos.repo("packer")["state"], "excluded");
    assert_eq!(repos.repo("bootstrap")["state"], "missing");
    let printed = repos.started.to_string();
    assert!(!printed.contains(&repos.token()), "{printed}");

    let url = repos.url("ansible");
    good(&repos.client(&["clone", "-q", "--recurse-submodules", &url, "clone"]));
    let clone = repos.site.env.work().join("clone");
    let read = |name: &str| std::fs::read_to_string(clone.join(name)).unwrap();
    assert_eq!(read("new file"), "not committed\n");
    assert_eq!(read("modules/tofu/README.md"), "tofu\n");
    assert!(!clone.join("secrets.yaml").exists());
    assert_eq!(
        good(&git(&clone, &["branch", "--show-current"])),
        "_working"
    );

    let ansible = repos.site.env.work().join("repos/ansible");
    std::fs::write(ansible.join("new file"), "changed\n").unwrap();
    let reload = repos
        .site
        .run(&format!("server reload --port {}", repos.site.port));
    let changes = reload.good();
    assert!(changes.contains("repository `ansible`: now "), "{changes}");
    good(&repos.client(&["-C", "clone", "fetch", "-q"]));
    good(&git(&clone, &["reset", "-q", "--hard", "origin/_working"]));
    assert_eq!(read("new file"), "changed\n");

    // A new commit of the submodule, which the working tree has and no commit names yet.
    let tofu = ansible.join("modules/tofu");
    std::fs::write(tofu.join("README.md"), "second\n").unwrap();
    good(&git(&tofu, &["commit", "-qam", "two"]));
    let origin = repos.site.env.work().join("repos/tofu");
    let fetch = ["fetch", "-q", "--update-head-ok"];
    let from = ansible.join("modules/tofu").display().to_string();
    good(&git(&origin, &[&fetch[..], &[&from, "main:main"]].concat()));
    good(&git(&origin, &["reset", "-q", "--hard"]));
    repos
        .site
        .run(&format!("server reload --port {}", repos.site.port))
        .good();
    good(&repos.client(&["-C", "clone", "fetch", "-q", "--recurse-submodules"]));
    good(&git(&clone, &["reset", "-q", "--hard", "origin/_working"]));
    // It was fetched with the repository: nothing is requested now.
    let update = ["submodule", "update", "-q", "--no-fetch"];
    good(&git(&clone, &update));
    assert_eq!(read("modules/tofu/README.md"), "second\n");
    // What was committed was not downloaded again.
    good(&git(&clone, &["fsck", "--full"]));
}

#[test]
fn shallow_clones_are_deepened_and_completed() {
    let repos = Repos::start("");
    let work = repos.site.env.work();
    let ansible = work.join("repos/ansible");
    // The commit that `ansible` has of the submodule is not the newest of a branch.
    let tofu = work.join("repos/tofu");
    std::fs::write(tofu.join("README.md"), "second\n").unwrap();
    good(&git(&tofu, &["commit", "-qam", "two"]));
    let reload = format!("server reload --port {}", repos.site.port);
    repos.site.run(&reload).good();
    let url = repos.url("ansible");
    let shallow = ["clone", "-q", "--depth", "1", "--recurse-submodules"];
    let into = ["--shallow-submodules", &url, "clone"];
    good(&repos.client(&[&shallow[..], &into].concat()));
    let clone = work.join("clone");
    let count = |of: &Path, from: &str| good(&git(of, &["rev-list", "--count", from]));
    assert_eq!(count(&clone, "HEAD"), "1");
    let files = ["status", "--porcelain"];
    assert_eq!(good(&git(&clone, &files)), "");
    let text = std::fs::read_to_string(clone.join("new file")).unwrap();
    assert_eq!(text, "not committed\n");
    let text = std::fs::read_to_string(clone.join("modules/tofu/README.md")).unwrap();
    assert_eq!(text, "tofu\n");
    assert_eq!(count(&clone.join("modules/tofu"), "HEAD"), "1");

    let depth = |words: &[&str]| {
        good(&repos.client(&[&["-C", "clone", "fetch", "-q"][..], words].concat()));
        count(&clone, "origin/_working")
    };
    assert_eq!(depth(&["--depth", "2"]), "2");
    assert_eq!(depth(&["--unshallow"]), "3");
    good(&git(&clone, &["fsck", "--full"]));

    // Another state of the working tree, for a shallow and for a complete clone.
    let shallow = ["clone", "-q", "--depth", "1", &url, "shallow"];
    good(&repos.client(&shallow));
    std::fs::write(ansible.join("new file"), "changed\n").unwrap();
    repos.site.run(&reload).good();
    for (name, words) in [("clone", &[][..]), ("shallow", &["--depth", "1"])] {
        let clone = work.join(name);
        good(&repos.client(&[&["-C", name, "fetch", "-q"][..], words].concat()));
        good(&git(&clone, &["reset", "-q", "--hard", "origin/_working"]));
        let text = std::fs::read_to_string(clone.join("new file")).unwrap();
        assert_eq!(text, "changed\n", "{name}");
        good(&git(&clone, &["fsck", "--full"]));
    }
    assert_eq!(count(&work.join("shallow"), "HEAD"), "1");
}

#[test]
fn a_permanent_server_gets_complete_copies() {
    let repos = Repos::start("");
    let work = repos.site.env.work();
    let target = work.join("published");
    std::fs::create_dir(&target).unwrap();
    let line = "server publish --repos --repos-dir repos";
    let mut publish = repos.site.command(line);
    Run::of(publish.env("HOMESTAK_PUBLISH_TO", &target)).good();
    let copy = target.join("repos/ansible.git");
    let listed = git(&copy, &["ls-tree", "--name-only", "_working", "new file"]);
    assert_eq!(good(&listed), "new file");
}

#[test]
fn a_token_is_kept_replaced_and_never_empty() {
    let repos = Repos::start("");
    let first = repos.token();
    assert!(first.len() >= 32);
    let port = repos.site.port;
    let file = repos.site.env.work().join("token");
    std::fs::write(&file, "  \n").unwrap();
    let url = repos.url("tofu");
    let start = |option: &str| {
        repos.site.run(&format!(
            "server start --port {port} --repos --repos-dir repos {option}"
        ))
    };
    for (option, why) in [
        ("--repo-token=", "is empty"),
        ("--repo-token x", "at least 16 characters"),
        ("--repo-token-file token", "is empty"),
        ("--repo-token-file none", "No such file"),
    ] {
        let run = start(option);
        assert_ne!(run.code, 0, "{option}: {}", run.out);
        assert!(run.err.contains(why), "{option}: {}", run.err);
    }
    good(&repos.client(&["ls-remote", &url]));
    let anonymous = repos.client_with("", &["ls-remote", &url]);
    assert!(!anonymous.status.success(), "a token is needed");
    std::fs::write(&file, "another-long-token\n").unwrap();
    let run = start("--repo-token-file token");
    assert!(run.good().contains("tofu"));
    good(&repos.client_with("another-long-token", &["ls-remote", &url]));
    std::fs::write(&file, "\n").unwrap();
    assert_eq!(repos.site.run("server reload").code, 1);
    std::fs::write(&file, "another-long-token\n").unwrap();
    let old = repos.client_with(&first, &["ls-remote", &url]);
    assert!(
        !old.status.success(),
        "the token before is not accepted any more"
    );
    let run = start("--repo-token visible-to-all-users");
    assert!(run.err.contains("process list"), "{}", run.err);
    good(&repos.client_with("visible-to-all-users", &["ls-remote", &url]));
    let old = repos.client_with("another-long-token", &["ls-remote", &url]);
    assert!(!old.status.success());
    let secrets = repos.site.run(&format!("server status --port {port}"));
    assert_eq!(secrets.code, 0);
}

#[test]
fn without_a_repository_the_server_does_not_start() {
    let site = Site::new();
    std::fs::create_dir(site.env.work().join("repos")).unwrap();
    let run = site.run(&format!(
        "server start --port {} --repos --repos-dir repos",
        site.port
    ));
    assert_eq!(run.code, 1);
    assert!(
        run.err.contains("No repository could be prepared."),
        "{}",
        run.err
    );
    assert_eq!(site.status().0, 1);
    let run = site.run("server start --repos-dir repos");
    assert_eq!(run.code, 2, "{}", run.err);
}

#[test]
fn what_is_served_stays_when_no_repository_can_be_prepared() {
    let repos = Repos::start("");
    let port = repos.site.port;
    let start = format!("server start --port {port}");
    for line in [
        format!("{start} --repos --repos-dir nope --repo-token-file other"),
        "server publish --repos --repos-dir nope".to_owned(),
    ] {
        std::fs::write(repos.site.env.work().join("other"), "another-long-token\n").unwrap();
        let run = repos.site.run(&line);
        assert_eq!(run.code, 1, "{line}: {}", run.out);
        let message = "No repository could be prepared.";
        assert!(run.err.contains(message), "{line}: {}", run.err);
        good(&repos.client(&["ls-remote", &repos.url("tofu")]));
    }
    let plain = repos.site.run(&start);
    assert_eq!(plain.code, 0, "{}", plain.err);
    assert!(!plain.err.contains("runs already"), "{}", plain.err);
    let again = repos
        .site
        .run(&format!("{start} --repos --repos-dir repos --exclude tofu"));
    assert_eq!(again.code, 0, "{}", again.err);
    assert!(!again.err.contains("runs already"), "{}", again.err);
    let other = repos.site.run(&format!("{start} --bind 127.0.0.1"));
    assert_eq!(other.code, 0, "{}", other.err);
    assert!(
        other.err.contains("was not restarted: `--bind` may not be"),
        "{}",
        other.err
    );
    let excluded = repos.client(&["ls-remote", &repos.url("tofu")]);
    assert!(!excluded.status.success());

    let work = repos.site.env.work();
    std::fs::rename(work.join("repos"), work.join("moved")).unwrap();
    let check = repos.site.run("server check");
    assert_eq!(check.code, 1, "{}", check.err);
    assert!(check.out.contains("does not exist"), "{}", check.out);
    assert_eq!(repos.site.run(&start).code, 1);
    good(&repos.client(&["ls-remote", &repos.url("ansible")]));
}

#[test]
fn commands_that_only_read_leave_the_copies_of_repositories_as_they_are() {
    let repos = Repos::start("");
    let url = repos.url("ansible");
    let working = || good(&repos.client(&["ls-remote", &url, "refs/heads/_working"]));
    let before = working();
    let file = repos.site.env.work().join("repos/ansible/new file");
    std::fs::write(file, "changed\n").unwrap();
    for line in ["job list", "node list", "token list"] {
        let run = repos.site.run(line);
        assert_eq!(run.code, 0, "{line}: {}", run.err);
        assert!(!run.err.contains("ansible"), "{line}: {}", run.err);
        assert_eq!(working(), before, "{line}");
    }
    repos.site.run("server reload").good();
    assert_ne!(working(), before);
}

#[test]
fn a_hangup_prepares_changes_too_and_publishing_can_end_it() {
    let repos = Repos::start("");
    let url = repos.url("ansible");
    let working = || {
        let listed = repos.client(&["ls-remote", &url, "refs/heads/_working"]);
        good(&listed)
    };
    let before = working();
    let ansible = repos.site.env.work().join("repos/ansible");
    std::fs::write(ansible.join("new file"), "changed\n").unwrap();
    let pid = i32::try_from(repos.started["pid"].as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    let is_changed = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        working() != before
    });
    assert!(is_changed);
    // A file that cannot be served is a problem that `check` reports.
    std::fs::remove_dir_all(ansible.join(".git")).unwrap();
    let check = repos.site.run("server check");
    assert_eq!(check.code, 1, "{}", check.err);
    assert!(check.out.contains("repository `ansible`"), "{}", check.out);
    let reload = format!("server reload --port {}", repos.site.port);
    let failed = repos.site.run(&reload);
    assert!(
        failed.err.contains("not a git repository"),
        "{}",
        failed.err
    );
    assert_ne!(working(), before, "the copy before is still served");

    repos.site.run("server publish --no-repos").good();
    let off = repos.client(&["ls-remote", &url]);
    let error = String::from_utf8_lossy(&off.stderr).into_owned();
    assert!(error.contains("500"), "{error}");
}
