//! The log of passes: each line has node and generation, and none has a secret at any level.

use homestak_api::log::{self, LogSettings};

use super::Puller;
use super::sample::spec;
use super::site::TestSite;

/// Returns the lines of private keys in files below a directory, whatever the files are.
fn private_keys(directory: &std::path::Path) -> Vec<String> {
    let mut keys = Vec::new();
    for entry in fs_err::read_dir(directory).expect("read") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            keys.extend(private_keys(&path));
            continue;
        }
        let text = fs_err::read_to_string(path).unwrap_or_default();
        let text = text.replace("\\n", "\n");
        let parts = text.split("PRIVATE KEY-----").skip(1).step_by(2);
        let lines = parts.flat_map(str::lines).filter(|line| line.len() > 20);
        keys.extend(lines.map(str::to_owned));
    }
    keys
}

#[test]
fn passes_are_logged_with_node_and_generation_and_without_secrets() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("log");
    // As with -vvv.
    let settings = LogSettings {
        verbose: 3,
        file: Some(file.clone()),
        journal_stream: None,
    };
    log::start(&settings).expect("started");
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    let mut secrets = vec![site.enrolment().token.clone()];
    web.pass().expect("applied");
    site.publish(&spec("two"), |statement| statement.generation = 9);
    web.node.is_broken = true;
    assert!(web.pass().is_err());
    secrets.extend(private_keys(web.root.path()));
    assert!(secrets.len() > 1, "the machine has a key");

    let text = fs_err::read_to_string(&file).expect("read");
    for (span, message) in [
        ("pass{node=\"web\"", "spec accepted generation=7"),
        (
            "pass{node=\"web\" generation=9}",
            "the spec was not applied",
        ),
    ] {
        let mut lines = text.lines();
        let line = lines.find(|line| line.contains(span) && line.contains(message));
        assert!(line.is_some(), "no {span} with {message} in\n{text}");
    }
    for secret in &secrets {
        assert!(!text.contains(secret.as_str()), "logged: {secret}");
    }
}
