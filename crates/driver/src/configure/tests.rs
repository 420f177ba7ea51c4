//! Tests of what is applied from here, and of errors of nodes.

use std::net::IpAddr;

use homestak_core::catalog::{Catalog, InputDocument};
use homestak_core::doc::DocumentKind;
use homestak_core::plan::SpecComparison;
use homestak_core::resolve::{ResolveOptions, manifest};
use serde_json::json;

use super::*;
use crate::hosts;
use crate::hosts::local::LOCAL;
use crate::hosts::sim::SIM;

/// A running node.
pub(super) fn node(is_new: bool) -> ConfigTarget {
    let wanted = json!({
        "uuid": "11111111-1111-4111-8111-111111111111", "kind": "vm", "host": "father",
        "cores": 1, "memory": 1024, "disk": 10, "storage": "local", "image_storage": "local",
        "source": "debian-12", "mac": "", "bridge": "vmbr0", "dns": [],
        "unprivileged": true, "hosts_guests": false, "user": "ops", "packages": [],
    });
    ConfigTarget {
        manifest: "m".to_owned(),
        node: "web".to_owned(),
        host: "father".to_owned(),
        guest: serde_json::from_value(wanted["uuid"].clone()).expect("an identity"),
        address: IpAddr::from([192, 0, 2, 7]),
        ports: vec![22],
        wanted: serde_json::from_value(wanted).expect("a node"),
        config: ConfigPlan {
            spec: "web".to_owned(),
            digest: String::new(),
            port: 22,
            mode: Mode::Push,
            found: Some(SpecComparison::default()),
            unseen: None,
        },
        is_new,
        is_created: false,
        mode_before: None,
    }
}

#[test]
fn a_spec_that_is_not_applied_is_named_with_its_reason() {
    let input = |kind, name: &str, text: &str| InputDocument {
        kind,
        name: name.to_owned(),
        path: format!("{name}.yaml"),
        text: Ok(text.to_owned()),
    };
    let notice = |host: &str, settings: &str, node: &str| {
        let text = format!("{settings}nodes:\n  - {{name: web, preset: small, {node}}}\n");
        let mut catalog = Catalog::read(vec![
            input(DocumentKind::Manifest, "m", &text),
            input(
                DocumentKind::Preset,
                "small",
                "cores: 1\nmemory: 1024\ndisk: 10\n",
            ),
            input(
                DocumentKind::Image,
                "debian-12",
                "source: https://example.org/d.qcow2\n",
            ),
            input(DocumentKind::Image, "pve-9", "recipe: {suite: trixie}\n"),
            input(
                DocumentKind::Node,
                "father",
                "api_endpoint: https://127.0.0.1:8006\n",
            ),
            input(DocumentKind::Spec, "web", "schema_version: 1\n"),
        ]);
        catalog.kinds = hosts::kind_infos(hosts::KINDS);
        let request = ResolveOptions {
            host: Some("father".to_owned()),
            ..ResolveOptions::default()
        };
        let (resolved, faults) = manifest(&catalog, "m", &request);
        let resolved = resolved.unwrap_or_else(|| panic!("{faults:?}"));
        let node = json!({
            "name": "web", "host": host, "place": { "host": host }, "depth": 0,
            "action": "nothing", "reasons": [],
        });
        let node = serde_json::from_value(node).expect("a node");
        notice_not_applied(&catalog, &resolved, &node)
    };
    let no_ssh = "settings: {verify_ssh: false}\n";
    let why = |text: Option<String>| text.unwrap_or_default();
    assert!(why(notice("father", no_ssh, "spec: web")).contains("`settings.verify_ssh`"));
    assert!(why(notice(LOCAL, "", "spec: web, type: pve")).contains("type `pve`"));
    let pull = "spec: web, execution: {mode: pull}";
    assert!(why(notice(SIM, "", pull)).contains("simulated"));
    assert_eq!(notice("father", no_ssh, pull), None);
    for (host, settings, node) in [
        ("father", "", "spec: web"),
        ("father", "", "spec: web, type: pve"),
        (LOCAL, "", "spec: web"),
        (SIM, no_ssh, "spec: web"),
        ("father", no_ssh, "image: debian-12"),
    ] {
        assert_eq!(
            notice(host, settings, node),
            None,
            "{host} {settings} {node}"
        );
    }
}

#[test]
fn denied_access_is_waited_for_on_the_first_boot_only() {
    let message = "ops@192.0.2.7: Permission denied (publickey)".into();
    let denied = PushError::Ssh(SshError::Denied { message });
    let class = |is_new| at_port(&denied, "configure", &node(is_new)).class;
    assert!(matches!(class(true), ErrorClass::Unreachable { .. }));
    assert_eq!(class(false), ErrorClass::Broken);
}
