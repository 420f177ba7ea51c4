//! What starts runs: which fields are refused, and what is published for a server.

use homestak_core::catalog::{Catalog, InputDocument};
use homestak_core::doc::{DocumentKind, Severity};
use homestak_core::resolve::site::validate;
use homestak_core::resolve::spec::spec;
use homestak_core::resolve::trigger::{ServerTrigger, server_trigger};
use homestak_core::resolve::{ResolveOptions, SecretVisibility, manifest};

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJhc2U2NGJhc2U2NGJhc2U2NGJhc2U2NGJhc2U2";
const HOOK: &str = "0123456789abcdef-SECRET";

fn site(run: &str, mode: &str, settings: &str) -> Catalog {
    let document = |kind, name: &str, text: String| InputDocument {
        kind,
        name: name.into(),
        path: format!("{name}.yaml"),
        text: Ok(text),
    };
    let secrets = format!(
        "ssh_keys: {{ops: '{KEY} ops@desk'}}\nauth: {{webhooks: {{deploy: '{HOOK}', empty: ''}}}}\n"
    );
    Catalog::read(vec![
        document(
            DocumentKind::Spec,
            "base",
            format!("access: {{posture: dev}}\nrun: {run}\n"),
        ),
        document(
            DocumentKind::Posture,
            "dev",
            "sudo: {nopasswd: true}\n".into(),
        ),
        document(
            DocumentKind::Preset,
            "vm-small",
            "cores: 2\nmemory: 2048\ndisk: 10\n".into(),
        ),
        document(DocumentKind::Secrets, "secrets", secrets),
        document(
            DocumentKind::Manifest,
            "m",
            format!(
                "schema_version: 2\nname: m\nsettings: {settings}\nnodes:\n- name: web\n  spec: base\n  \
                 image: debian-12\n  execution: {{mode: {mode}}}\n"
            ),
        ),
    ])
}

/// The codes of what is wrong with a spec whose `run` is this, with severity.
fn codes(run: &str, mode: &str) -> Vec<String> {
    let catalog = site(run, mode, "{}");
    let found = validate(&catalog);
    let mut codes: Vec<String> = found
        .iter()
        .filter(|one| !["SK0306", "SK0909", "SK0912"].contains(&one.code.id()))
        .map(|one| {
            assert!(one.hint.is_some(), "{}", one.message);
            assert!(!one.message.contains("SECRET"), "{}", one.message);
            match one.severity {
                Severity::Error => one.code.id().to_owned(),
                Severity::Notice => format!("{} notice", one.code.id()),
            }
        })
        .collect();
    codes.sort();
    codes.dedup();
    codes
}

#[test]
fn triggers_with_their_fields_are_accepted() {
    for run in [
        "{}",
        "{trigger: manual}",
        "{trigger: manual, interval: 10m}",
        "{trigger: schedule, interval: 1h}",
        "{trigger: webhook, webhook: deploy}",
        "{trigger: webhook, webhook: deploy, interval: 1h}",
        "{trigger: git, repo: 'https://git.example/site'}",
        "{trigger: git, repo: /srv/git/site, branch: main, poll_interval: 30s, signed_by: [ops]}",
        "{trigger: git, repo: 'ssh://git@git.example/site', poll_interval: 1d}",
        "{updates: all, window: 'sun 02:00-05:00'}",
        "{updates: none}",
        "{window: ['02:00-05:00']}",
    ] {
        assert_eq!(codes(run, "pull"), [""; 0], "{run}");
    }
}

#[test]
fn fields_without_effect_are_refused() {
    for run in [
        "{webhook: deploy}",
        "{trigger: manual, webhook: deploy}",
        "{trigger: schedule, webhook: deploy}",
        "{trigger: schedule, repo: /srv/git/site}",
        "{trigger: manual, branch: main}",
        "{trigger: manual, poll_interval: 5m}",
        "{trigger: manual, signed_by: [ops]}",
        "{trigger: webhook, webhook: deploy, branch: main}",
        "{trigger: git, repo: /srv/git/site, webhook: deploy}",
        "{trigger: webhook, webhook: deploy, port: 9000}",
        "{trigger: webhook, webhook: deploy, path: /deploy}",
        "{trigger: manual, port: 9000}",
    ] {
        assert_eq!(codes(run, "pull"), ["SK0214"], "{run}");
    }
}

#[test]
fn what_a_trigger_needs_must_be_there() {
    for (run, expected) in [
        ("{trigger: webhook}", "SK0203"),
        ("{trigger: webhook, webhook: ''}", "SK0209"),
        ("{trigger: webhook, webhook: ../x}", "SK0209"),
        ("{trigger: webhook, webhook: deplox}", "SK0316"),
        ("{trigger: webhook, webhook: empty}", "SK0208"),
        ("{trigger: git}", "SK0203"),
        ("{trigger: git, repo: 'ext::sh'}", "SK0207"),
        ("{trigger: git, repo: -x}", "SK0207"),
        ("{trigger: git, repo: /a, branch: -x}", "SK0207"),
        ("{trigger: git, repo: /a, poll_interval: 29s}", "SK0206"),
        ("{trigger: git, repo: /a, poll_interval: 2d}", "SK0206"),
        ("{trigger: git, repo: /a, poll_interval: often}", "SK0207"),
        ("{trigger: git, repo: /a, signed_by: []}", "SK0208"),
        ("{trigger: git, repo: /a, signed_by: [ops, ops]}", "SK0213"),
        ("{trigger: git, repo: /a, signed_by: [nobody]}", "SK0304"),
        ("{trigger: git, repo: /a, signed_by: [a b c]}", "SK0207"),
        ("{trigger: cron}", "SK0204"),
        ("{updates: yes please}", "SK0204"),
        ("{window: never}", "SK0207"),
    ] {
        assert_eq!(codes(run, "pull"), [expected], "{run}");
    }
}

#[test]
fn triggers_of_the_server_need_nodes_that_ask_it() {
    for mode in ["push", "hybrid"] {
        assert_eq!(
            codes("{trigger: webhook, webhook: deploy}", mode),
            ["SK0410"]
        );
        assert_eq!(
            codes("{trigger: git, repo: /srv/git/site}", mode),
            ["SK0410"]
        );
        assert_eq!(codes("{interval: 1h}", mode), ["SK0214"]);
        assert_eq!(codes("{trigger: manual, interval: 1h}", mode), ["SK0214"]);
        assert_eq!(codes("{trigger: schedule, interval: 1h}", mode), [""; 0]);
        assert_eq!(
            codes("{updates: all, window: '02:00-05:00'}", mode),
            [""; 0]
        );
    }
}

#[test]
fn an_interval_is_accepted_if_one_node_with_the_spec_uses_it() {
    let other = "  spec: base\n  image: debian-12\n  execution: {mode: ";
    let two = |one: &str, next: &str| format!("{one}}}\n- name: next\n{other}{next}");
    for (one, next) in [("push", "pull"), ("pull", "hybrid")] {
        assert_eq!(codes("{interval: 1h}", &two(one, next)), [""; 0]);
    }
    assert_eq!(codes("{interval: 1h}", &two("push", "hybrid")), ["SK0214"]);
}

#[test]
fn a_password_in_the_address_of_a_repository_is_not_shown() {
    let catalog = site(
        "{trigger: git, repo: 'https://me:SECRET@git.example/x'}",
        "pull",
        "{}",
    );
    let found = validate(&catalog);
    let found: Vec<_> = found
        .iter()
        .filter(|one| one.code.id() == "SK0207")
        .collect();
    assert!(!found.is_empty());
    assert!(found.iter().all(|one| !one.message.contains("SECRET")));
}

#[test]
fn the_resolved_spec_has_what_was_written_and_no_secret() {
    let run = |run: &str| {
        let catalog = site(run, "pull", "{}");
        let resolved = spec(&catalog, "base", None, SecretVisibility::Exposed).expect("a spec");
        let json = resolved.json()["run"].clone();
        assert!(!json.to_string().contains("SECRET"));
        json
    };
    assert_eq!(run("{}"), serde_json::json!({ "trigger": "manual" }));
    assert_eq!(
        run(
            "{trigger: webhook, webhook: deploy, updates: security, window: 'mon,tue,wed 2:00-3:00'}"
        )["trigger"],
        "webhook"
    );
    assert_eq!(
        run(
            "{trigger: webhook, webhook: deploy, updates: security, window: 'mon,tue,wed 02:00-03:00'}"
        ),
        serde_json::json!({
            "trigger": "webhook", "webhook": "deploy", "updates": "security",
            "window": ["mon-wed 02:00-03:00"],
        })
    );
    assert_eq!(
        run(
            "{trigger: git, repo: /srv/git/site, branch: main, poll_interval: 1m, signed_by: [ops]}"
        ),
        serde_json::json!({
            "trigger": "git", "repo": "/srv/git/site", "branch": "main", "poll_interval": "1m",
            "signed_by": ["ops"],
        })
    );
}

#[test]
fn a_server_gets_the_trigger_with_the_keys_of_signers() {
    let trigger_of = |run: &str| server_trigger(&site(run, "pull", "{}"), "base");
    assert_eq!(trigger_of("{}"), None);
    assert_eq!(trigger_of("{trigger: schedule}"), None);
    assert_eq!(
        trigger_of("{trigger: webhook, webhook: deploy}"),
        Some(ServerTrigger::Webhook {
            name: "deploy".into()
        })
    );
    let git = |poll_interval, signed_by: Option<&[&str]>| {
        Some(ServerTrigger::Git {
            repo: "/srv/git/site".into(),
            branch: None,
            poll_interval,
            signed_by: signed_by.map(|keys| keys.iter().map(|key| (*key).into()).collect()),
        })
    };
    assert_eq!(
        trigger_of("{trigger: git, repo: /srv/git/site}"),
        git(300, None)
    );
    assert_eq!(
        trigger_of(&format!(
            "{{trigger: git, repo: /srv/git/site, poll_interval: 1h, signed_by: [ops, '{KEY} x']}}"
        )),
        git(3600, Some(&[KEY, KEY]))
    );
    assert_eq!(
        trigger_of("{trigger: git, repo: /srv/git/site, signed_by: [nobody]}"),
        git(300, Some(&[])),
        "a signer that is not known makes nothing acceptable"
    );
}

#[test]
fn a_manifest_updates_one_node_at_a_time_unless_it_sets_another_number() {
    let at_once = |settings: &str| {
        let catalog = site("{}", "push", settings);
        let (resolved, _) = manifest(&catalog, "m", &ResolveOptions::default());
        resolved.expect("resolved").settings.at_once.value
    };
    assert_eq!(at_once("{}"), 1);
    assert_eq!(at_once("{updates: {}}"), 1);
    assert_eq!(at_once("{updates: {at_once: 5}}"), 5);
    for wrong in ["0", "1001", "-1", "many"] {
        let catalog = site("{}", "push", &format!("{{updates: {{at_once: {wrong}}}}}"));
        assert!(validate(&catalog).errors() > 0, "{wrong}");
    }
}

#[test]
fn an_empty_secret_of_a_webhook_is_reported_as_empty() {
    let found = validate(&site("{trigger: webhook, webhook: empty}", "pull", "{}"));
    let mut messages = found.iter().map(|one| one.message.as_str());
    let expected = "the secret of the webhook `empty` is empty";
    assert!(messages.any(|message| message == expected), "{found:?}");
}
