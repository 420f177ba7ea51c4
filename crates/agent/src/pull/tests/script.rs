//! The script of a node's first boot against a real server.
#![expect(clippy::disallowed_methods, reason = "the test runs a script")]

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use homestak_api::publication::{AgentStatement, sha256};
use homestak_core::firstboot::{ENROLMENT, Enrolment};
use homestak_test_support::server::{Response, Server};
use serde_json::Value;

use super::sample;
use super::site::TestSite;

/// A script that replaces the agent in these tests.
const PROGRAM: &str = "#!/bin/sh\necho \"agent $*\"\n";

/// Runs the first-boot script of a node, with a directory in place of `/`.
fn run(site: &TestSite, root: &Path, change: impl Fn(String) -> String) -> Output {
    command(site, root, change).output().expect("it ran")
}

/// Returns the command that runs it, for at most a minute.
fn command(site: &TestSite, root: &Path, change: impl Fn(String) -> String) -> Command {
    command_of(&site.enrolment(), root, change)
}

fn command_of(enrolment: &Enrolment, root: &Path, change: impl Fn(String) -> String) -> Command {
    let mut script = String::new();
    for file in enrolment.files() {
        let path = root.join(file.path.trim_start_matches('/'));
        fs_err::create_dir_all(path.parent().expect("a directory")).expect("created");
        fs_err::write(&path, &file.content).expect("written");
        if file.path.ends_with("/first-boot") {
            script = file.content;
        }
    }
    let here = format!("\nroot='{}'\n", root.display());
    let script = change(script.replacen("\nroot=''\n", &here, 1));
    let mut limited = Command::new("timeout");
    limited.args(["60", "sh", "-c", &script]);
    limited
}

fn marker(root: &Path) -> Value {
    let path = root.join("usr/local/etc/homestak/state/config-failed.json");
    let text = fs_err::read_to_string(path).expect("a marker");
    serde_json::from_str(&text).expect("JSON")
}

fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_agent_is_installed_when_the_site_signed_it_and_then_run() {
    let mut site = TestSite::start();
    site.publish_agent(PROGRAM.as_bytes(), &site.key);
    let root = tempfile::tempdir().expect("a directory");
    // The first server in the list does not answer.
    let url = site.url.clone();
    let output = run(&site, root.path(), |script| {
        script.replacen(&url, &format!("https://127.0.0.1:1\n{url}"), 1)
    });
    assert_eq!(output.status.code(), Some(0), "{}", error_of(&output));
    assert_eq!(output.stdout, b"agent pull --daemon\n");
    let agent = root.path().join("usr/local/bin/homestak-agent");
    assert_eq!(fs_err::read(&agent).expect("installed"), PROGRAM.as_bytes());
    assert!(agent.is_symlink() && agent.with_file_name("homestak").is_symlink());
    let token = site.enrolment().token.clone();
    assert!(!error_of(&output).contains(&token));
    // The agent is installed now: no server is needed. The download of a killed script is deleted.
    site.stop();
    let work = root.path().join("usr/local/lib/homestak/.first-boot");
    fs_err::create_dir_all(&work).expect("created");
    fs_err::write(work.join("answer"), "x").expect("written");
    let again = run(&site, root.path(), |script| script);
    assert_eq!(again.stdout, output.stdout);
    assert!(!work.exists());
}

#[test]
fn the_statement_of_the_agent_is_kept_for_later_updates() {
    let site = TestSite::start();
    site.publish_changed_agent(PROGRAM.as_bytes(), &site.key, |statement| {
        statement.generation = 7;
    });
    let root = tempfile::tempdir().expect("a directory");
    let output = run(&site, root.path(), |script| script);
    assert_eq!(output.status.code(), Some(0), "{}", error_of(&output));
    let agent = root.path().join("usr/local/bin/homestak-agent");
    let place = fs_err::read_link(agent).expect("a link");
    let kept = fs_err::read(place.with_extension("json")).expect("a statement");
    let kept: AgentStatement = serde_json::from_slice(&kept).expect("a statement");
    assert_eq!(
        (kept.generation, kept.sha256),
        (7, sha256(PROGRAM.as_bytes()))
    );
}

#[test]
fn an_agent_that_does_not_start_is_replaced_by_the_one_before_it() {
    let mut site = TestSite::start();
    site.stop();
    let root = tempfile::tempdir().expect("a directory");
    let (lib, bin) = (
        root.path().join("usr/local/lib/homestak"),
        root.path().join("usr/local/bin"),
    );
    for directory in [&lib, &bin] {
        fs_err::create_dir_all(directory).expect("created");
    }
    let install = |name: &str, program: &str| {
        let path = lib.join(name);
        fs_err::write(&path, program).expect("written");
        fs_err::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("set");
        path
    };
    install("agent-0123456789abcdef", PROGRAM);
    fs_err::write(lib.join("agent-0123456789abcdef.json"), "{}").expect("written");
    let broken = install("agent-fedcba9876543210", "#!/nowhere/sh\n");
    let agent = bin.join("homestak-agent");
    fs_err::os::unix::fs::symlink(&broken, &agent).expect("linked");
    let output = run(&site, root.path(), |script| script);
    assert_eq!(
        output.stdout,
        b"agent pull --daemon\n",
        "{}",
        error_of(&output)
    );
    assert!(
        error_of(&output).contains("does not start"),
        "{}",
        error_of(&output)
    );
    // The same when it is missing.
    fs_err::remove_file(&broken).expect("removed");
    fs_err::remove_file(&agent).expect("removed");
    fs_err::os::unix::fs::symlink(&broken, &agent).expect("linked");
    let output = run(&site, root.path(), |script| script);
    assert_eq!(
        output.stdout,
        b"agent pull --daemon\n",
        "{}",
        error_of(&output)
    );
}

#[test]
fn a_clock_that_is_years_off_does_not_matter_at_the_first_boot() {
    for years in [-30, 30] {
        let site = TestSite::start_at(years * 365 * 24 * 3600);
        site.publish_agent(PROGRAM.as_bytes(), &site.key);
        let root = tempfile::tempdir().expect("a directory");
        let output = run(&site, root.path(), |script| script);
        assert_eq!(
            output.stdout,
            b"agent pull --daemon\n",
            "{}",
            error_of(&output)
        );
    }
}

#[test]
fn a_server_that_is_late_is_waited_for() {
    let mut site = TestSite::start();
    site.publish_agent(PROGRAM.as_bytes(), &site.key);
    site.stop();
    let root = tempfile::tempdir().expect("a directory");
    let mut command = command(&site, root.path(), |script| script);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    let mut lines = BufReader::new(child.stderr.take().expect("its errors")).lines();
    let mut is_logged = |text: &str| lines.any(|line| line.expect("text").contains(text));
    assert!(is_logged("does not answer"));
    assert!(is_logged("does not answer"), "more than once");
    site.run_again();
    assert!(is_logged("installed the agent"));
    let output = child.wait_with_output().expect("it ended");
    assert_eq!(output.stdout, b"agent pull --daemon\n");
}

#[test]
fn an_agent_that_the_site_did_not_sign_is_not_installed() {
    let site = TestSite::start();
    site.publish_agent(PROGRAM.as_bytes(), &site.key);
    let root = tempfile::tempdir().expect("a directory");
    let key = site.key.public().to_string();
    let other = sample::enrolment().1.public().to_string();
    let output = run(&site, root.path(), |script| {
        script.replacen(&key, &other, 1)
    });
    assert_eq!(output.status.code(), Some(3), "{}", error_of(&output));
    let marker = marker(root.path());
    assert_eq!(marker["phase"], "fetch");
    assert_eq!(marker["error"], "signature");
    assert_eq!(marker["node"], "web");
    assert!(!root.path().join("usr/local/bin/homestak-agent").exists());
    assert!(
        !root
            .path()
            .join("usr/local/lib/homestak/.first-boot")
            .exists()
    );
}

#[test]
fn a_refused_token_is_a_permanent_failure_with_the_reason_of_the_server() {
    let site = TestSite::start();
    site.publish_agent(PROGRAM.as_bytes(), &site.key);
    site.ask("POST", "/v1/tokens/t1/revoke");
    let root = tempfile::tempdir().expect("a directory");
    let output = run(&site, root.path(), |script| script);
    assert_eq!(output.status.code(), Some(3), "{}", error_of(&output));
    let marker = marker(root.path());
    assert_eq!(marker["error"], "refused_by_server");
    let message = marker["message"].as_str().expect("a message");
    assert!(message.contains("refused with 403"), "{message}");
    assert!(
        message.contains("the token was used or revoked"),
        "{message}"
    );
    assert!(root.path().join(ENROLMENT.trim_start_matches('/')).exists());
}

#[test]
fn a_refusal_of_a_replaced_server_does_not_end_the_first_boot_while_the_preferred_one_is_late() {
    let mut site = TestSite::start();
    site.publish_agent(PROGRAM.as_bytes(), &site.key);
    let refusal = Response::Reply(403, "{\"detail\": \"revoked\"}".to_owned());
    let old = Server::new(vec![refusal]);
    let mut enrolment = site.enrolment();
    enrolment.servers.push(old.url());
    enrolment.authorities.push(old.pem.clone());
    site.stop();
    let root = tempfile::tempdir().expect("a directory");
    let mut command = command_of(&enrolment, root.path(), |script| script);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    let mut lines = BufReader::new(child.stderr.take().expect("its errors")).lines();
    let mut is_logged = |text: &str| lines.any(|line| line.expect("text").contains(text));
    assert!(is_logged("refused with 403"));
    assert!(is_logged("refused with 403"), "more than once");
    site.run_again();
    assert!(is_logged("installed the agent"));
    let output = child.wait_with_output().expect("it ended");
    assert_eq!(output.stdout, b"agent pull --daemon\n");
}

#[test]
fn a_server_of_another_site_is_sent_nothing() {
    let (site, other) = (TestSite::start(), TestSite::start());
    other.publish_agent(PROGRAM.as_bytes(), &other.key);
    site.publish_agent(PROGRAM.as_bytes(), &site.key);
    let root = tempfile::tempdir().expect("a directory");
    let (url, foreign) = (site.url.clone(), other.url.clone());
    let output = run(&site, root.path(), |script| {
        script.replacen(&url, &format!("{foreign}\n{url}"), 1)
    });
    assert_eq!(output.status.code(), Some(0), "{}", error_of(&output));
    let message = error_of(&output);
    assert!(
        message.contains(&format!("{foreign} does not answer")),
        "{message}"
    );
    assert!(message.contains("verify error"), "{message}");
}

#[test]
fn a_node_that_poses_as_the_server_is_sent_no_token_at_the_first_boot() {
    let site = TestSite::start();
    site.publish_agent(PROGRAM.as_bytes(), &site.key);
    let anything = Response::Reply(200, "{}".to_owned());
    let node = Server::with_credential(site.node_credential(), anything);
    let mut enrolment = site.enrolment();
    enrolment.servers.insert(0, node.url());
    let root = tempfile::tempdir().expect("a directory");
    let output = command_of(&enrolment, root.path(), |script| script).output();
    let output = output.expect("it ran");
    assert_eq!(output.status.code(), Some(0), "{}", error_of(&output));
    let message = error_of(&output);
    assert!(
        message.contains(&format!("{} does not answer", node.url())),
        "{message}"
    );
    // The name is accepted; what the certificate is for is not.
    assert!(message.contains("purpose"), "{message}");
    assert!(node.requests().is_empty(), "{:?}", node.requests());
}

#[test]
fn an_agent_that_is_older_than_the_one_published_for_this_node_is_not_installed() {
    let site = TestSite::start();
    let published = |generation| {
        site.publish_changed_agent(PROGRAM.as_bytes(), &site.key, |statement| {
            statement.generation = generation;
        });
    };
    let mut enrolment = site.enrolment();
    enrolment.agent_generation = 7;
    let root = tempfile::tempdir().expect("a directory");
    // 0: of a version whose statements had no generation.
    for older in [0, 6] {
        published(older);
        let output = command_of(&enrolment, root.path(), |script| script).output();
        let output = output.expect("it ran");
        assert_eq!(output.status.code(), Some(3), "{}", error_of(&output));
        let marker = marker(root.path());
        assert_eq!(marker["error"], "signature");
        let message = marker["message"].as_str().expect("a message");
        assert!(message.contains("is older than"), "{message}");
        assert!(!root.path().join("usr/local/bin/homestak-agent").exists());
    }
    for current in [7, 8] {
        published(current);
        let root = tempfile::tempdir().expect("a directory");
        let output = command_of(&enrolment, root.path(), |script| script).output();
        let output = output.expect("it ran");
        assert_eq!(output.status.code(), Some(0), "{}", error_of(&output));
    }
}

#[test]
fn an_answer_without_an_end_does_not_fill_the_disk() {
    let site = TestSite::start();
    let ran = |server: &Server, root: &Path| {
        let mut enrolment = site.enrolment();
        enrolment.servers = vec![server.url()];
        enrolment.authorities = vec![server.pem.clone()];
        let output = command_of(&enrolment, root, |script| script).output();
        let output = output.expect("it ran");
        assert_eq!(output.status.code(), Some(3), "{}", error_of(&output));
        let work = root.join("usr/local/lib/homestak/.first-boot");
        assert!(!work.exists());
        error_of(&output)
    };
    // A short answer may have 64 KiB; some more may be in transit.
    let server = Server::answering(0, |head| match head.starts_with("GET /health") {
        true => Response::Endless,
        false => Response::Reply(403, "{\"detail\": \"go \u{1b}[31maway\"}".to_owned()),
    });
    let root = tempfile::tempdir().expect("a directory");
    let error = ran(&server, root.path());
    assert!(server.endless() < 32 << 20, "{}", server.endless());
    assert_eq!(marker(root.path())["error"], "refused_by_server");
    assert!(
        error.contains("away") && !error.contains('\u{1b}'),
        "{error}"
    );
    // The agent may have 128 MiB.
    let server = Server::answering(0, |head| match head.starts_with("GET /health") {
        true => Response::Reply(200, "{}".to_owned()),
        false => Response::Endless,
    });
    let root = tempfile::tempdir().expect("a directory");
    ran(&server, root.path());
    assert!(server.endless() < 160 << 20, "{}", server.endless());
    assert_eq!(marker(root.path())["error"], "signature");
}
