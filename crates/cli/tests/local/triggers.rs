//! Webhooks and commits that have real nodes apply their specs.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::test_host::{TestHost, text};

const SPEC: &str = "\
schema_version: 1
access:
  posture: free
  users:
    - {name: ops, sudo: true}
config:
  files:
    - {path: /etc/motd, content: \"made by homestak\\n\"}
run: {TRIGGER, interval: 1d}
";
const SECRET: &str = "a-secret-of-the-webhook-deploy";

/// Runs a program on this machine, and returns what it prints.
fn run(directory: &Path, program: &str, words: &[&str]) -> (bool, String) {
    let output = Command::new(program)
        .args(words)
        .current_dir(directory)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("NO_PROXY", "*")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).trim().to_owned();
    (output.status.success(), printed)
}

fn wait(what: &str, is_done: impl Fn() -> bool) {
    for _ in 0..600 {
        if is_done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    panic!("still waiting for {what}");
}

fn change(host: &TestHost, node: &str) {
    host.inside(node, "echo changed | sudo tee /etc/motd")
        .good();
}

fn is_restored(host: &TestHost, node: &str) -> bool {
    host.inside(node, "cat /etc/motd")
        .out
        .contains("made by homestak")
}

/// What the server of this test logged.
fn server_log(host: &TestHost) -> String {
    std::fs::read_to_string(host.state().join("server.log")).unwrap_or_default()
}

#[test]
fn a_webhook_and_a_signed_commit_have_nodes_apply_their_specs() {
    let Some(host) = crate::host() else { return };
    let files = tempfile::tempdir().unwrap();
    let here = files.path();
    let git = |words: &[&str]| {
        let who = [
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@lab.example",
            "-C",
            "repo",
        ];
        let (is_good, printed) = run(here, "git", &[&who[..], words].concat());
        assert!(is_good, "{printed}");
        printed
    };
    run(
        here,
        "ssh-keygen",
        &["-q", "-t", "ed25519", "-N", "", "-f", "key"],
    );
    run(here, "git", &["init", "-q", "-b", "main", "repo"]);
    git(&["commit", "-q", "--allow-empty", "-m", "one"]);

    host.write(
        "postures/free.yaml",
        "auth: {method: network}\n\
         ssh: {port: 22, permit_root_login: \"yes\", password_authentication: \"no\"}\n\
         sudo: {nopasswd: true}\n",
    );
    let key = std::fs::read_to_string(here.join("key.pub")).unwrap();
    let repo = format!(
        "trigger: git, repo: {}/repo, branch: main, poll_interval: 30s, signed_by: [\"{}\"]",
        here.display(),
        key.trim()
    );
    for (name, trigger) in [
        ("web", "trigger: webhook, webhook: deploy"),
        ("edge", &*repo),
    ] {
        host.write(
            &format!("specs/{name}.yaml"),
            &SPEC.replace("TRIGGER", trigger),
        );
    }
    host.write(
        "secrets.yaml",
        &format!("auth: {{webhooks: {{deploy: {SECRET}}}}}\n"),
    );
    let secrets = host.root().with_file_name("site").join("secrets.yaml");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(secrets, private).unwrap();
    // Nothing would take the jobs of nodes that do not ask.
    host.manifest("lab", "  - {name: web, spec: web}\n");
    let refused = host.manifest_run("apply", "lab", &["--yes"]);
    assert!(
        refused.code != 0 && refused.err.contains("SK0410"),
        "{}",
        refused.err
    );
    host.manifest(
        "lab",
        "  - {name: web, spec: web, execution: {mode: pull}}\n\
         \x20 - {name: edge, spec: edge, execution: {mode: pull}}\n",
    );
    let applied = host.manifest_run("apply", "lab", &["--yes"]);
    assert_eq!(applied.code, 0, "{}{}", applied.out, applied.err);
    let started = host.run(&["server", "start", "--json-output"]).json();
    let checked = host.run(&["server", "check"]);
    assert_eq!(checked.code, 0, "{}{}", checked.out, checked.err);

    let guide = include_str!("../../../../docs/guides/triggers.md");
    let (_, script) = guide.split_once("#!/bin/sh\n").unwrap();
    let script = script.split_once("```").unwrap().0;
    std::fs::write(here.join("send"), script).unwrap();
    std::fs::write(here.join("secret"), SECRET).unwrap();
    std::fs::write(here.join("wrong"), "another-secret-of-a-webhook").unwrap();
    let url = format!("{}/v1/hooks/deploy", text(&started["url"]));
    let authority = text(&started["authority_file"]);
    let send = |secret: &str| run(here, "sh", &["send", &url, secret, &authority, "{}"]);
    let (is_good, printed) = send("wrong");
    assert!(!is_good && printed.contains("E301"), "{printed}");
    change(&host, "web");
    change(&host, "edge");
    let (is_good, printed) = send("secret");
    assert!(is_good && printed.contains("\"jobs\": 1"), "{printed}");
    wait("the webhook's run", || is_restored(&host, "web"));

    // A commit that nobody signed starts nothing; one of the signer does.
    let list = || host.run(&["job", "list", "edge", "--json-output"]).json();
    wait("the first check", || {
        server_log(&host).contains("first seen")
    });
    git(&["commit", "-q", "--allow-empty", "-m", "two"]);
    wait("the refusal", || {
        server_log(&host).contains("commit refused")
    });
    assert_eq!(list()["jobs"], serde_json::json!([]));
    assert!(!is_restored(&host, "edge"));
    let signing = format!("user.signingkey={}", here.join("key").display());
    git(&[
        "-c",
        "gpg.format=ssh",
        "-c",
        &signing,
        "commit",
        "-q",
        "-S",
        "--allow-empty",
        "-m",
        "three",
    ]);
    wait("the commit's run", || is_restored(&host, "edge"));
    let commit = git(&["rev-parse", "--short=12", "HEAD"]);
    wait("the end of the job", || {
        list()["jobs"][0]["state"] == "succeeded"
    });
    let job = list()["jobs"][0].clone();
    assert_eq!(job["origin"], format!("git main {commit}"), "{job}");
    assert_eq!(job["kind"], "converge", "{job}");

    host.destroy("lab");
    host.run(&["server", "stop"]).good();
    host.assert_unchanged();
}
