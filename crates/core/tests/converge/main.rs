//! Converge decisions, applied to models of nodes.
#![expect(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test may panic"
)]

mod hostile;
mod model;
mod policy;
mod props;
mod refused;
mod shown;

use homestak_core::converge::{Facts, FileFact, Resource, SystemFact, desired_resources};
use homestak_core::doc::{Sources, node_spec};
use serde_json::{Value, json};

/// Reads a spec as a node does.
pub fn read(spec: &Value) -> Vec<Resource> {
    let mut sources = Sources::default();
    let (spec, diagnostics) = node_spec::read("spec.yaml", &spec.to_string(), &mut sources);
    let messages: Vec<_> = diagnostics.iter().map(|one| one.message.clone()).collect();
    desired_resources(&spec.unwrap_or_else(|| panic!("{messages:?}")))
}

fn errors(spec: &Value) -> Vec<String> {
    let mut sources = Sources::default();
    let (_, diagnostics) = node_spec::read("spec.yaml", &spec.to_string(), &mut sources);
    diagnostics.iter().map(|one| one.message.clone()).collect()
}

/// A minimal valid spec.
pub fn minimal_spec() -> Value {
    json!({
        "schema_version": 1,
        "identity": { "hostname": "web" },
        "access": { "_posture": {} },
    })
}

#[test]
fn a_spec_without_its_posture_is_refused() {
    let mut spec = minimal_spec();
    spec["access"] = json!({ "posture": "prod" });
    assert_eq!(errors(&spec), ["access has no `_posture`"]);
}

#[test]
fn a_redacted_key_is_refused() {
    let mut spec = minimal_spec();
    spec["access"]["users"] = json!([{ "name": "ops", "ssh_keys": ["(hidden)"] }]);
    assert_eq!(errors(&spec), ["this is not a public SSH key"]);
}

#[test]
fn an_unnormalized_path_and_an_invalid_mode_are_refused() {
    let mut spec = minimal_spec();
    spec["config"] = json!({ "files": [{ "path": "/etc/../x", "content": "", "mode": "9" }] });
    assert_eq!(errors(&spec).len(), 2);
}

#[test]
fn an_empty_posture_is_the_strict_one() {
    let list = read(&minimal_spec());
    let sshd = list
        .iter()
        .find(|resource| resource.id() == "sshd")
        .unwrap();
    let Resource::Sshd { settings } = sshd else {
        panic!()
    };
    assert_eq!(settings["PermitRootLogin"], "prohibit-password");
    assert_eq!(settings["PasswordAuthentication"], "no");
}

#[test]
fn the_driver_keeps_access_under_the_strictest_posture() {
    let mut spec = minimal_spec();
    spec["access"] = json!({
        "_posture": { "ssh": { "permit_root_login": "no" }, "sudo": { "nopasswd": false } },
        "users": [{ "name": "homestak", "sudo": true }],
        "_driver": { "user": "homestak", "ssh_keys": [] },
    });
    let root_login = |spec: &Value| {
        read(spec).into_iter().find_map(|resource| match resource {
            Resource::Sshd { settings } => Some(settings["PermitRootLogin"].clone()),
            _ => None,
        })
    };
    assert_eq!(root_login(&spec).as_deref(), Some("no"));
    let rule = read(&spec).into_iter().find_map(|resource| match resource {
        Resource::Sudo { rule, .. } => Some(rule),
        _ => None,
    });
    assert_eq!(rule, Some(homestak_core::converge::SudoRule::NoPassword));
    // A driver that logs in as root uses a key, which must stay allowed.
    spec["access"]["_driver"]["user"] = json!("root");
    assert_eq!(root_login(&spec).as_deref(), Some("prohibit-password"));
}

/// A node without users.
fn debian() -> model::Model {
    model::Model::new(Facts {
        system: SystemFact {
            id: "debian".to_owned(),
            version: "12".to_owned(),
            systemd: true,
        },
        ..Facts::default()
    })
}

#[test]
fn the_driver_keeps_account_key_and_sudo_when_the_spec_no_longer_lists_it() {
    const DRIVER: &str = "ssh-ed25519 AAAAdriver driver";
    const PERSON: &str = "ssh-ed25519 AAAAperson person@desk";
    const KEYS: &str = "/home/homestak/.ssh/authorized_keys";
    let mut spec = minimal_spec();
    let alice = json!({ "name": "alice", "ssh_keys": [PERSON] });
    spec["access"] = json!({
        "_posture": {},
        "users": [alice, { "name": "homestak", "ssh_keys": [PERSON] }],
        "_driver": { "user": "homestak", "ssh_keys": [DRIVER] },
    });
    let mut node = debian();
    node.converge(&read(&spec), usize::MAX);
    spec["access"]["users"] = json!([alice]);
    node.converge(&read(&spec), usize::MAX);
    let text = |path: &str| node.facts.files.get(path).and_then(|file| file.text());
    assert_eq!(text(KEYS), Some(format!("{DRIVER}\n").as_str()));
    assert_eq!(
        text("/etc/sudoers.d/homestak-homestak"),
        Some("homestak ALL=(ALL:ALL) NOPASSWD: ALL\n")
    );
    assert!(!node.facts.users["homestak"].expired);
    // Another user who is removed from the list loses access.
    spec["access"]["users"] = json!([]);
    node.converge(&read(&spec), usize::MAX);
    assert!(node.facts.users["alice"].expired);
    assert!(node.facts.files.contains_key(KEYS));
}

#[test]
fn first_boot_keys_of_an_unlisted_driver_stay_and_are_not_reported() {
    const KEYS: &str = "/home/homestak/.ssh/authorized_keys";
    const DRIVER: &str = "ssh-ed25519 AAAAdriver driver";
    let mut spec = minimal_spec();
    spec["access"]["users"] = json!([{ "name": "homestak" }]);
    spec["access"]["_driver"] = json!({ "user": "homestak", "ssh_keys": [DRIVER] });
    spec["config"] = json!({ "converge": { "foreign_keys": "remove" } });
    let mut node = debian();
    node.converge(&read(&spec), usize::MAX);
    node.state = homestak_core::converge::State::default();
    if let Some(FileFact::Regular { content, .. }) = node.facts.files.get_mut(KEYS) {
        *content = Some(format!("ssh-ed25519 AAAAperson person@desk\n{DRIVER}\n"));
    }
    spec["access"]["users"] = json!([]);
    let decision = node.converge(&read(&spec), usize::MAX);
    let of_keys = |change: &&homestak_core::converge::Change| change.id.starts_with("keys:");
    assert_eq!(decision.changes.iter().filter(of_keys).count(), 0);
    let text = node.facts.files[KEYS].text().unwrap_or_default();
    assert!(
        text.contains("AAAAperson") && text.contains(DRIVER),
        "{text}"
    );
}
