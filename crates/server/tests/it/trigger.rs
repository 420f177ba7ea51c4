//! Commits of real repositories that start runs, or do not.
#![expect(
    clippy::disallowed_methods,
    reason = "the tests run git and ssh-keygen"
)]

mod hostile;
mod webhook;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use homestak_core::resolve::trigger::ServerTrigger;
use homestak_server::settings::ServerSettings;
use reqwest::Client;
use serde_json::Value;

use crate::site::{DB, TestSite, WEB};

/// Runs a program that must succeed, and returns what it prints.
fn run(directory: &Path, program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(directory)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("HOME", directory)
        .stdin(Stdio::null());
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "a");
        command.env(format!("GIT_{who}_EMAIL"), "a@example.org");
    }
    let output = command.output().expect("it runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {error}");
    String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned()
}

/// A repository, and a server that checks it every second.
struct Followed {
    site: TestSite,
    files: tempfile::TempDir,
    operator: Client,
}

impl Followed {
    /// Starts a server where `web` follows `main` of a repository with one commit.
    async fn start(signed_by: Option<Vec<String>>) -> Self {
        let all = Self::prepare().await;
        all.follow(WEB, "web", &all.repo(), Some("main"), signed_by);
        _ = all.site.enrolled(WEB, "web").await;
        (all.site.reload)();
        let first = all.commit_id();
        all.wait("the first check", |status| {
            status["commit"] == first.as_str()
        })
        .await;
        all
    }

    async fn prepare() -> Self {
        let files = tempfile::tempdir().expect("a directory");
        let settings = ServerSettings {
            shortest_poll: 1,
            ..ServerSettings::default()
        };
        let site = TestSite::start_now(settings).await;
        let all = Self {
            operator: site.operator(),
            site,
            files,
        };
        fs_err::create_dir(all.repo()).expect("created");
        all.git(&["init", "-q", "-b", "main"]);
        for key in ["good", "other"] {
            run(
                all.files.path(),
                "ssh-keygen",
                &["-q", "-t", "ed25519", "-N", "", "-C", "x y", "-f", key],
            );
        }
        all.commit(None);
        all
    }

    fn repo(&self) -> PathBuf {
        self.files.path().join("repo")
    }

    fn key(&self, name: &str) -> String {
        fs_err::read_to_string(self.files.path().join(name).with_extension("pub")).expect("read")
    }

    fn git(&self, arguments: &[&str]) -> String {
        run(&self.repo(), "git", arguments)
    }

    /// Commits something, signed with a key or not.
    fn commit(&self, key: Option<&str>) -> String {
        let count = self.git(&["rev-list", "--all", "--count"]);
        fs_err::write(self.repo().join("file"), count).expect("written");
        self.git(&["add", "file"]);
        let path = self.files.path().join(key.unwrap_or_default());
        let signing = format!("user.signingkey={}", path.display());
        let sign = [
            "-c",
            "gpg.format=ssh",
            "-c",
            &signing,
            "commit",
            "-q",
            "-S",
            "-m",
            "one",
        ];
        match key {
            Some(_) => self.git(&sign),
            None => self.git(&["commit", "-q", "-m", "one"]),
        };
        self.commit_id()
    }

    fn commit_id(&self) -> String {
        self.git(&["rev-parse", "HEAD"])
    }

    /// Has a node follow a branch.
    fn follow(
        &self,
        guest: &str,
        node: &str,
        repo: &Path,
        branch: Option<&str>,
        signed_by: Option<Vec<String>>,
    ) {
        let repo = repo.display().to_string();
        self.site.publish(guest, node, |spec| {
            spec.trigger = Some(ServerTrigger::Git {
                repo,
                branch: branch.map(str::to_owned),
                poll_interval: 1,
                signed_by,
            });
        });
    }

    async fn get(&self, path: &str) -> Value {
        let answer = self.operator.get(format!("{}{path}", self.site.url));
        answer
            .send()
            .await
            .expect("an answer")
            .json()
            .await
            .expect("JSON")
    }

    /// Waits until the only repository has a state. There is no limit but that of the test.
    async fn wait(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        for _ in 0..600 {
            let all = self.get("/v1/triggers").await;
            last = all["repositories"][0].clone();
            if is_so(&last) {
                return last;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{what}: {last:#}")
    }

    /// Waits for a check that begins after this call.
    async fn checked(&self) -> Value {
        // The first that is recorded with this time may have begun before; the next has not.
        for _ in 0..2 {
            self.site.clock.advance(1);
            let now = homestak_api::runtime::Clock::now(&*self.site.clock).as_second();
            self.wait("a check", |status| status["checked"] == now)
                .await;
        }
        self.get("/v1/triggers").await["repositories"][0].clone()
    }

    /// The origins of all jobs, newest first.
    async fn jobs(&self) -> Vec<String> {
        let all = self.get("/v1/jobs").await;
        let jobs = all["jobs"].as_array().expect("a list").iter();
        jobs.map(|job| {
            assert_eq!(job["kind"], "converge");
            job["origin"].as_str().expect("text").to_owned()
        })
        .collect()
    }

    /// Ends the jobs that wait, so that the next is not joined with them.
    async fn cancel_all(&self) {
        for job in self.get("/v1/jobs").await["jobs"]
            .as_array()
            .expect("a list")
        {
            let url = format!(
                "{}/v1/jobs/{}/cancel",
                self.site.url,
                job["id"].as_str().expect("an id")
            );
            _ = self
                .operator
                .post(url)
                .json(&serde_json::json!({}))
                .send()
                .await;
        }
    }
}

fn origin(commit: &str) -> String {
    format!("git main {}", &commit[..12])
}

#[tokio::test]
async fn a_new_commit_starts_a_run_and_the_first_that_is_seen_does_not() {
    let mut all = Followed::start(None).await;
    all.checked().await;
    assert_eq!(all.jobs().await, [""; 0]);
    let second = all.commit(None);
    all.wait("the second", |status| status["commit"] == second.as_str())
        .await;
    assert_eq!(all.jobs().await, [origin(&second)]);
    all.cancel_all().await;
    // A server that starts again remembers it.
    all.site.kill_and_start_again().await;
    all.checked().await;
    assert_eq!(all.jobs().await.len(), 1);
    // And finds what was committed while it was stopped.
    let third = all.commit(None);
    all.wait("the third", |status| status["commit"] == third.as_str())
        .await;
    assert_eq!(all.jobs().await, [origin(&third), origin(&second)]);
}

#[tokio::test]
async fn one_check_serves_all_nodes_and_a_queued_run_is_not_queued_again() {
    let all = Followed::start(None).await;
    all.follow(DB, "db", &all.repo(), Some("main"), None);
    _ = all.site.enrolled(DB, "db").await;
    (all.site.reload)();
    all.checked().await;
    let commit = all.commit(None);
    let status = all
        .wait("a commit", |status| status["commit"] == commit.as_str())
        .await;
    assert_eq!(status["nodes"], 2);
    assert_eq!(all.jobs().await.len(), 2);
    let commit = all.commit(None);
    all.wait("the next", |status| status["commit"] == commit.as_str())
        .await;
    assert_eq!(all.jobs().await.len(), 2);
}

#[tokio::test]
async fn the_default_branch_is_followed_if_the_spec_names_none() {
    let all = Followed::prepare().await;
    all.follow(WEB, "web", &all.repo(), None, None);
    _ = all.site.enrolled(WEB, "web").await;
    (all.site.reload)();
    let first = all.commit_id();
    all.wait("the first check", |status| {
        status["commit"] == first.as_str()
    })
    .await;
    let second = all.commit(None);
    all.wait("the second", |status| status["commit"] == second.as_str())
        .await;
    assert_eq!(all.jobs().await, [format!("git HEAD {}", &second[..12])]);
}

#[tokio::test]
async fn where_signatures_are_needed_only_commits_of_the_signers_start_runs() {
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

    let refused = |commit: String| move |status: &Value| status["refused"] == commit.as_str();
    // Not signed.
    let commit = all.commit(None);
    let status = all.wait("no signature", refused(commit)).await;
    assert_eq!(status["commit"], first.as_str());
    assert_eq!(status["signed"], true);
    assert_eq!(status["reason"], "the commit has no valid signature");
    // Signed by an unknown signer.
    let commit = all.commit(Some("other"));
    let status = all.wait("another key", refused(commit)).await;
    assert_eq!(
        status["reason"],
        "the commit is not signed by one of `signed_by`"
    );
    // A good signature, of another commit.
    let signed = all.commit(Some("good"));
    let object = all.git(&["cat-file", "commit", &signed]);
    all.git(&["reset", "-q", "--hard", &first]);
    let forged = object.replace("\n\none", "\n\ntwo");
    assert_ne!(forged, object);
    let write = |object: &str| {
        fs_err::write(all.repo().join(".git/object"), format!("{object}\n")).expect("written");
        all.git(&["hash-object", "-t", "commit", "-w", ".git/object"])
    };
    let commit = write(&forged);
    all.git(&["update-ref", "refs/heads/main", &commit]);
    all.wait("another message", refused(commit)).await;
    // An OpenPGP signature, for which no program is run.
    let begin =
        "-----BEGIN PGP SIGNATURE-----\n \n iQEzBAABCAAdFiEE\n -----END PGP SIGNATURE-----\n";
    let (head, message) = write_unsigned(&object);
    let commit = write(&format!("{head}\ngpgsig {begin}\n{message}"));
    all.git(&["update-ref", "refs/heads/main", &commit]);
    all.wait("OpenPGP", refused(commit)).await;
    assert_eq!(all.jobs().await, [""; 0]);
    // The signed commit itself.
    all.git(&["update-ref", "refs/heads/main", &signed]);
    let status = all
        .wait("a signature", |status| status["commit"] == signed.as_str())
        .await;
    assert_eq!(
        (&status["refused"], &status["reason"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(all.jobs().await, [origin(&signed)]);
    // A check leaves nothing behind.
    let left = fs_err::read_dir(all.site.root.path().join("state/checks")).expect("read");
    assert!(left.count() <= 1, "one may be going on");
}

/// Splits a signed commit into its head without the signature, and its message.
fn write_unsigned(object: &str) -> (String, String) {
    let (head, message) = object.split_once("\n\n").expect("a message");
    let head = head.split("\ngpgsig ").next().expect("a head");
    (head.to_owned(), message.to_owned())
}

#[tokio::test]
async fn nodes_that_need_other_signatures_are_decided_for_separately() {
    let all = Followed::prepare().await;
    all.follow(WEB, "web", &all.repo(), Some("main"), None);
    all.follow(
        DB,
        "db",
        &all.repo(),
        Some("main"),
        Some(vec![all.key("other")]),
    );
    for (guest, node) in [(WEB, "web"), (DB, "db")] {
        _ = all.site.enrolled(guest, node).await;
    }
    (all.site.reload)();
    let first = all.commit_id();
    all.wait("the first check", |status| {
        status["commit"] == first.as_str()
    })
    .await;
    all.checked().await;
    let commit = all.commit(Some("good"));
    all.checked().await;
    let found = all.get("/v1/triggers").await["repositories"].clone();
    let of = |signed: bool| {
        let mut all = found.as_array().expect("a list").iter();
        all.find(|one| one["signed"] == signed)
            .expect("one")
            .clone()
    };
    assert_eq!(of(false)["commit"], commit.as_str());
    assert_eq!(of(true)["commit"], first.as_str());
    assert_eq!(of(true)["refused"], commit.as_str());
    assert_eq!(all.jobs().await, [origin(&commit)]);
}

#[tokio::test]
async fn a_rewritten_branch_starts_a_run_and_a_deleted_one_is_an_error() {
    let all = Followed::start(None).await;
    let first = all.commit_id();
    let second = all.commit(None);
    all.wait("the second", |status| status["commit"] == second.as_str())
        .await;
    all.cancel_all().await;
    all.git(&["reset", "-q", "--hard", &first]);
    all.wait("the first again", |status| {
        status["commit"] == first.as_str()
    })
    .await;
    assert_eq!(all.jobs().await, [origin(&first), origin(&second)]);
    all.git(&["checkout", "-q", "--detach"]);
    all.git(&["branch", "-D", "main"]);
    // The end of another branch is not the branch.
    all.git(&["branch", "x/refs/heads/main"]);
    let status = all
        .wait("no branch", |status| status["error"].is_string())
        .await;
    assert_eq!(status["error"], "the repository has no branch `main`");
    assert_eq!(status["commit"], first.as_str());
    all.git(&["branch", "main"]);
    // A reload does not wait for the pause after failures.
    (all.site.reload)();
    all.wait("the branch again", |status| status["error"].is_null())
        .await;
    assert_eq!(all.jobs().await.len(), 2);
}

#[tokio::test]
async fn only_operators_see_triggers() {
    let all = Followed::start(None).await;
    let (web, _) = all.site.enrolled(DB, "db").await;
    for client in [all.site.client(None), all.site.client(Some(web))] {
        let answer = client
            .get(format!("{}/v1/triggers", all.site.url))
            .send()
            .await
            .expect("an answer");
        assert!([401, 403].contains(&answer.status().as_u16()));
    }
}
