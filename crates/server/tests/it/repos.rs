//! Repositories over HTTP: what git and curl receive, and which requests are refused.
#![expect(clippy::disallowed_methods, reason = "the tests run git and curl")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use homestak_api::publication::{PublishedPack, PublishedRepo};
use homestak_server::settings::ServerSettings;

use crate::raw::{RawAnswer, RawClient, request};
use crate::site::{REPO_TOKEN, TestSite};

/// Runs git with a configuration of its own.
pub(crate) fn git_in(directory: &Path, arguments: &[&str]) -> Output {
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
        .env("GIT_COMMITTER_EMAIL", "a@example.org")
        .stdin(Stdio::null());
    tokio::task::block_in_place(|| command.output().expect("git runs"))
}

pub(crate) fn good(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned()
}

/// A server with the repository `tools`.
pub(crate) struct RepoSite {
    pub(crate) site: TestSite,
    pub(crate) files: tempfile::TempDir,
}

impl RepoSite {
    pub(crate) async fn start() -> Self {
        Self::start_with(ServerSettings::default()).await
    }

    pub(crate) async fn start_with(settings: ServerSettings) -> Self {
        let site = TestSite::start_now(settings).await;
        let files = tempfile::tempdir().expect("a directory");
        let all = Self { site, files };
        let path = all.files.path().join("ca.pem");
        fs_err::write(path, &all.site.authority.issued().chain).expect("written");
        let work = all.work();
        fs_err::create_dir_all(work.join("dir")).expect("created");
        good(&git_in(&work, &["init", "-q", "-b", "_working"]));
        for (name, text) in [
            ("README.md", "read me\n"),
            ("run.sh", "#!/bin/sh\n"),
            ("dir/a b.yaml", "a: b\n"),
            ("ä.py", "pass\n"),
            ("100%.txt", "all\n"),
            ("config/site.yaml", "defaults: {}\n"),
        ] {
            let path = work.join(name);
            fs_err::create_dir_all(path.parent().expect("a directory")).expect("created");
            fs_err::write(path, text).expect("written");
        }
        std::os::unix::fs::symlink("/etc/passwd", work.join("link")).expect("linked");
        std::os::unix::fs::symlink("..", work.join("up")).expect("linked");
        all.commit();
        all.publish("tools");
        all
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.files.path().join("work")
    }

    pub(crate) fn commit(&self) {
        good(&git_in(&self.work(), &["add", "-A"]));
        good(&git_in(&self.work(), &["commit", "-qm", "one"]));
    }

    /// Publishes a copy as the driver does.
    pub(crate) fn publish(&self, name: &str) -> PathBuf {
        let copy = self.site.directory.repo_path(name);
        _ = fs_err::remove_dir_all(&copy);
        fs_err::create_dir_all(self.site.directory.repos_path()).expect("created");
        let words = [
            "clone",
            "-q",
            "--bare",
            "work",
            copy.to_str().expect("text"),
        ];
        good(&git_in(self.files.path(), &words));
        good(&git_in(&copy, &["repack", "-adq"]));
        good(&git_in(&copy, &["pack-refs", "--all"]));
        good(&git_in(&copy, &["update-server-info"]));
        let head = good(&git_in(&copy, &["rev-parse", "HEAD"]));
        let repo = PublishedRepo {
            name: name.to_owned(),
            working: Some(head.clone()),
            refs: [("refs/heads/_working".to_owned(), head.clone())].into(),
            packs: vec![PublishedPack {
                name: self.pack(&copy),
                tips: vec![head],
            }],
            ..PublishedRepo::default()
        };
        self.site.directory.put_repo(&copy, &repo).expect("written");
        (self.site.reload)();
        copy
    }

    fn pack(&self, copy: &Path) -> String {
        let packs = fs_err::read_dir(copy.join("objects/pack")).expect("read");
        let names = packs.map(|entry| entry.expect("an entry").file_name());
        let mut names = names.map(|name| name.to_string_lossy().into_owned());
        let pack = names.find_map(|name| name.strip_suffix(".pack").map(str::to_owned));
        pack.expect("a pack")
    }

    /// Runs git as a client.
    pub(crate) fn git(&self, arguments: &[&str]) -> Output {
        let ca = format!(
            "http.sslCAInfo={}",
            self.files.path().join("ca.pem").display()
        );
        let header = format!("http.extraHeader=Authorization: Bearer {REPO_TOKEN}");
        let always = ["-c", &ca, "-c", &header];
        git_in(self.files.path(), &[&always[..], arguments].concat())
    }

    pub(crate) fn url(&self, name: &str) -> String {
        format!("{}/{name}.git", self.site.url)
    }

    pub(crate) async fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> RawAnswer {
        let mut client = RawClient::connect(&self.site, None).await;
        let asked = request(method, path, headers, "");
        client.exchange(&asked).await.expect("an answer")
    }

    async fn get(&self, path: &str) -> RawAnswer {
        let token = format!("Bearer {REPO_TOKEN}");
        self.ask("GET", path, &[("authorization", &token)]).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn git_clones_and_fetches() {
    let site = RepoSite::start().await;
    good(&site.git(&["clone", "-q", &site.url("tools"), "clone"]));
    let clone = site.files.path().join("clone");
    let text = fs_err::read_to_string(clone.join("dir/a b.yaml"));
    assert_eq!(text.expect("a file"), "a: b\n");
    good(&git_in(&clone, &["fsck", "--full", "--strict"]));
    fs_err::write(site.work().join("README.md"), "changed\n").expect("written");
    site.commit();
    site.publish("tools");
    good(&site.git(&["-C", "clone", "pull", "-q", "--ff-only"]));
    let text = fs_err::read_to_string(clone.join("README.md"));
    assert_eq!(text.expect("a file"), "changed\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_each_serve_their_own_repository_of_the_same_name() {
    let (one, two) = (RepoSite::start().await, RepoSite::start().await);
    let change = |site: &RepoSite, text: &str| {
        fs_err::write(site.work().join("README.md"), text).expect("written");
        site.commit();
        site.publish("tools");
    };
    change(&one, "of one\n");
    change(&two, "of two\n");
    good(&one.git(&["clone", "-q", &one.url("tools"), "clone"]));
    good(&two.git(&["clone", "-q", &two.url("tools"), "clone"]));
    change(&one, "of one, later\n");
    for (site, text) in [(&one, "of one, later\n"), (&two, "of two\n")] {
        good(&site.git(&["-C", "clone", "pull", "-q", "--ff-only"]));
        let cloned = site.files.path().join("clone/README.md");
        assert_eq!(fs_err::read_to_string(cloned).expect("a file"), text);
        let raw = site.get("/tools.git/README.md").await;
        assert_eq!((raw.status, raw.body.as_str()), (200, text));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn git_asks_its_credential_helper_and_a_wrong_token_is_refused() {
    let site = RepoSite::start().await;
    let helper = |password: &str| {
        format!("credential.helper=!f() {{ echo username=any; echo password={password}; }}; f")
    };
    let ca = format!(
        "http.sslCAInfo={}",
        site.files.path().join("ca.pem").display()
    );
    let clone = |password: &str, to: &str| {
        let helper = helper(password);
        let url = site.url("tools");
        let words = ["-c", &ca, "-c", &helper, "clone", "-q", &url, to];
        git_in(site.files.path(), &words)
    };
    good(&clone(REPO_TOKEN, "one"));
    let refused = clone("wrong", "two");
    assert!(!refused.status.success());
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(error.contains("403"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raw_files_are_sent_with_their_types() {
    let site = RepoSite::start().await;
    for (path, kind, text) in [
        ("README.md", "application/octet-stream", "read me\n"),
        ("run.sh", "text/x-shellscript", "#!/bin/sh\n"),
        ("dir/a%20b.yaml", "text/yaml", "a: b\n"),
        ("%C3%A4.py", "text/x-python", "pass\n"),
        ("100%25.txt", "application/octet-stream", "all\n"),
        ("config/site.yaml", "text/yaml", "defaults: {}\n"),
    ] {
        let answer = site.get(&format!("/tools.git/{path}")).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        assert_eq!(answer.header("content-type"), Some(kind), "{path}");
        assert_eq!(answer.body, text, "{path}");
    }
    let token = format!("Bearer {REPO_TOKEN}");
    let headers = [("authorization", token.as_str())];
    let head = site.ask("HEAD", "/tools.git/README.md", &headers).await;
    assert_eq!(
        (head.status, head.header("content-length")),
        (200, Some("8"))
    );
    assert_eq!(head.body, "");
    for path in ["link", "up/tools", "dir", "none", "link/x"] {
        let answer = site.get(&format!("/tools.git/{path}")).await;
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.body.contains("E200"), "{}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_download_of_a_pack_continues() {
    let site = RepoSite::start().await;
    let copy = site.site.directory.repo_path("tools");
    let name = site.pack(&copy);
    let pack = fs_err::read(copy.join(format!("objects/pack/{name}.pack"))).expect("read");
    let url = format!("{}/tools.git/objects/pack/{name}.pack", site.site.url);
    let client = site.site.client(None);
    let get = |range: Option<String>| {
        let request = client.get(&url).bearer_auth(REPO_TOKEN);
        let request = match range {
            Some(range) => request.header("range", range),
            None => request,
        };
        request.send()
    };
    let whole = get(None).await.expect("an answer");
    assert_eq!(
        whole.headers()["content-type"],
        "application/x-git-packed-objects"
    );
    assert_eq!(whole.bytes().await.expect("a body"), pack);
    let rest = get(Some("bytes=10-".to_owned())).await.expect("an answer");
    assert_eq!(rest.status(), 206);
    let length = pack.len();
    assert_eq!(
        rest.headers()["content-range"],
        format!("bytes 10-{}/{length}", length - 1)
    );
    assert_eq!(rest.bytes().await.expect("a body"), pack[10..]);
    let beyond = get(Some(format!("bytes={length}-")))
        .await
        .expect("an answer");
    assert_eq!(beyond.status(), 416);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traversals_and_files_of_the_git_directory_are_refused() {
    let site = RepoSite::start().await;
    let copy = site.site.directory.repo_path("tools");
    // What an attacker hopes to find.
    fs_err::write(copy.join("config"), "token = SECRET\n").expect("written");
    for name in ["logs", "hooks", "objects/info"] {
        fs_err::create_dir_all(copy.join(name)).expect("created");
    }
    for name in [
        "logs/HEAD",
        "hooks/pre-commit",
        "objects/info/alternates",
        "description",
    ] {
        fs_err::write(copy.join(name), "SECRET\n").expect("written");
    }
    fs_err::write(copy.join("info/exclude"), "SECRET\n").expect("written");
    let outside = site.files.path().join("secret");
    fs_err::write(&outside, "SECRET\n").expect("written");
    let loose = format!("objects/aa/{}", "b".repeat(38));
    fs_err::create_dir_all(copy.join("objects/aa")).expect("created");
    std::os::unix::fs::symlink(&outside, copy.join(&loose)).expect("linked");
    fs_err::create_dir_all(copy.join("refs/heads")).expect("created");
    std::os::unix::fs::symlink(&outside, copy.join("refs/heads/link")).expect("linked");
    let mut paths: Vec<String> = [
        "/tools.git/../site.json",
        "/tools.git/../../secrets.json",
        "/tools.git/objects/../config",
        "/tools.git/objects/../../../../secrets.json",
        "/tools.git/info/../config",
        "/tools.git/refs/heads/../../config",
        "/tools.git/HEAD/../config",
        "/tools.git/./config",
        "/tools.git/.//config",
        "/tools.git//config",
        "/tools.git//etc/passwd",
        "/tools.git/%2e%2e/%2e%2e/secrets.json",
        "/tools.git/%2E%2E/%2E%2E/secrets.json",
        "/tools.git/.%2e/.%2e/secrets.json",
        "/tools.git/%2e./%2e./secrets.json",
        "/tools.git/..%2f..%2fsecrets.json",
        "/tools.git/..%2F..%2Fsecrets.json",
        "/tools.git/%252e%252e/%252e%252e/secrets.json",
        "/tools.git/%25252e%25252e/secrets.json",
        "/tools.git/..%252f..%252fsecrets.json",
        "/tools.git/%c0%ae%c0%ae/%c0%ae%c0%ae/secrets.json",
        "/tools.git/%e0%80%ae%e0%80%ae/secrets.json",
        "/tools.git/..%5c..%5csecrets.json",
        "/tools.git/..%255csecrets.json",
        "/tools.git/..;/..;/secrets.json",
        "/tools.git/%uff0e%uff0e/secrets.json",
        "/tools.git/README.md%00.sh",
        "/tools.git/README.md%0a",
        "/tools.git/README.md%0d%0aX:%20y",
        "/tools.git/config",
        "/tools.git/Config",
        "/tools.git/CONFIG",
        "/tools.git/conf%69g",
        "/tools.git/config%20",
        "/tools.git/config.lock",
        "/tools.git/config.worktree",
        "/tools.git/description",
        "/tools.git/index",
        "/tools.git/homestak.json",
        "/tools.git/logs/HEAD",
        "/tools.git/logs/refs/heads/_working",
        "/tools.git/hooks/pre-commit",
        "/tools.git/hooks/",
        "/tools.git/info/exclude",
        "/tools.git/info/attributes",
        "/tools.git/info/",
        "/tools.git/objects/",
        "/tools.git/objects/info/alternates",
        "/tools.git/objects/info/http-alternates",
        "/tools.git/objects/pack/",
        "/tools.git/objects/pack/../../config",
        "/tools.git/refs/stash",
        "/tools.git/refs/heads/link",
        "/tools.git/refs/remotes/origin/main",
        "/tools.git/FETCH_HEAD",
        "/tools.git/ORIG_HEAD",
        "/tools.git/worktrees/x/HEAD",
        "/tools.git/.git/config",
        "/tools.git/.GIT/config",
        "/tools.git/.Git/config",
        "/tools.git/%2egit/config",
        "/tools.git/.git%20/config",
        "/tools.git/.git./config",
        "/tools.git/git~1/config",
        "/tools.git/.g%e2%80%8cit/config",
        "/tools.git/dir/../../config",
        "/tools.git/link",
        "/tools.git/up/secrets.json",
        "/.git/config",
        "/..git/config",
        "/tools.git.git/config",
        "/%74ools.git/config",
        "/tools%2egit/config",
        "/../tools.git/config",
        "/x/../tools.git/config",
        "/other.git/HEAD",
        "/published/repos/tools.git/config",
        "/repos/tools.git/config",
    ]
    .map(str::to_owned)
    .to_vec();
    paths.push(format!("/tools.git/{loose}"));
    paths.push(format!("/tools.git/{}", "a/".repeat(600)));
    paths.push(format!("/tools.git/{}", "a".repeat(300)));
    assert!(paths.len() >= 60);
    for path in &paths {
        let answer = site.get(path).await;
        assert!(
            matches!(answer.status, 400 | 404),
            "{path}: {}",
            answer.status
        );
        assert!(!answer.body.contains("SECRET"), "{path}: {}", answer.body);
        assert!(!answer.body.contains("root:"), "{path}: {}", answer.body);
    }
    // The server still serves.
    assert_eq!(site.get("/tools.git/README.md").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sent_without_the_token() {
    let site = RepoSite::start().await;
    let password = STANDARD.encode(format!("any:{REPO_TOKEN}"));
    for value in [
        format!("Bearer {REPO_TOKEN}"),
        format!("bearer {REPO_TOKEN}"),
        format!("Basic {password}"),
    ] {
        let headers = [("authorization", value.as_str())];
        let answer = site.ask("GET", "/tools.git/HEAD", &headers).await;
        assert_eq!(answer.status, 200, "{value}");
    }
    for path in [
        "/tools.git/HEAD",
        "/tools.git/README.md",
        "/tools.git/../x",
        "/none.git/HEAD",
    ] {
        let answer = site.ask("GET", path, &[]).await;
        assert_eq!(answer.status, 401, "{path}");
        assert!(answer.body.contains("E300"), "{}", answer.body);
        let challenge = answer.header("www-authenticate").unwrap_or_default();
        assert!(challenge.starts_with("Basic "), "{challenge}");
    }
    let as_user = STANDARD.encode(format!("{REPO_TOKEN}:"));
    let shorter = &REPO_TOKEN[1..];
    for (value, status) in [
        ("Bearer wrong".to_owned(), 403),
        (format!("Bearer {shorter}"), 403),
        (format!("Bearer {REPO_TOKEN}x"), 403),
        ("Bearer ".to_owned(), 401),
        ("Bearer".to_owned(), 401),
        (REPO_TOKEN.to_owned(), 401),
        (format!("Token {REPO_TOKEN}"), 401),
        ("Basic !!!".to_owned(), 401),
        (format!("Basic {as_user}"), 401),
        (format!("Basic {}", STANDARD.encode(REPO_TOKEN)), 401),
        (format!("Basic {}", STANDARD.encode("any:wrong")), 403),
        (format!("Bearer {}", "x".repeat(2000)), 401),
    ] {
        // What failed before is forgotten.
        site.site.clock.advance(60);
        let headers = [("authorization", value.as_str())];
        let answer = site.ask("GET", "/tools.git/HEAD", &headers).await;
        assert_eq!(answer.status, status, "{value}: {}", answer.body);
        assert!(!answer.body.contains(REPO_TOKEN), "{}", answer.body);
    }
    // Failures are limited, and the right token is not tried then either.
    for _ in 0..12 {
        site.ask(
            "GET",
            "/tools.git/HEAD",
            &[("authorization", "Bearer guess")],
        )
        .await;
    }
    assert_eq!(site.get("/tools.git/HEAD").await.status, 429);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_published_token_repositories_are_off() {
    let site = RepoSite::start().await;
    let root = site.site.directory.path().join("secrets.json");
    let text = fs_err::read_to_string(&root).expect("read");
    let mut secrets: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    secrets["repo_token_sha256"] = serde_json::Value::Null;
    fs_err::write(&root, secrets.to_string()).expect("written");
    let changes = (site.site.reload)();
    assert!(
        changes.contains(&"token of repositories".to_owned()),
        "{changes:?}"
    );
    let answer = site.get("/tools.git/HEAD").await;
    assert_eq!(answer.status, 500);
    assert!(answer.body.contains("E500"), "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_gets_a_raw_file_with_a_token_from_a_file() {
    let site = RepoSite::start().await;
    let header = site.files.path().join("header");
    let mut file = fs_err::File::create(&header).expect("created");
    writeln!(file, "Authorization: Bearer {REPO_TOKEN}").expect("written");
    let url = format!("{}/run.sh", site.url("tools"));
    let mut command = Command::new("curl");
    command
        .args([
            "-sSf",
            "--cacert",
            "ca.pem",
            "--path-as-is",
            "-H",
            "@header",
            &url,
        ])
        .current_dir(site.files.path());
    let output = tokio::task::block_in_place(|| command.output().expect("curl runs"));
    assert_eq!(good(&output), "#!/bin/sh");
}
