//! The published schemas accept and reject the same documents as the decoder.
#![expect(
    clippy::disallowed_methods,
    reason = "tests make real files and processes"
)]

use homestak_core::catalog::{Catalog, InputDocument};
use homestak_core::doc::{Diagnostics, DocumentKind, FileId, Source, yaml};

fn json(text: &str) -> serde_json::Value {
    yaml::parse(
        FileId(0),
        &Source::new("x", text),
        &mut Diagnostics::default(),
    )
    .expect("the example is YAML")
    .to_json()
}

fn schema_accepts(kind: DocumentKind, text: &str) -> bool {
    let validator = jsonschema::validator_for(&kind.schema()).expect("the schema is a schema");
    validator.is_valid(&json(text))
}

fn decoder_accepts(kind: DocumentKind, text: &str) -> bool {
    let input = InputDocument {
        kind,
        name: "x".into(),
        path: "x.yaml".into(),
        text: Ok(text.into()),
    };
    let catalog = Catalog::read(vec![input]);
    let errors = [
        catalog
            .site
            .as_ref()
            .map(|document| document.diagnostics.errors()),
        catalog
            .secrets
            .as_ref()
            .map(|document| document.diagnostics.errors()),
        catalog
            .manifests
            .get("x")
            .map(|document| document.diagnostics.errors()),
        catalog
            .specs
            .get("x")
            .map(|document| document.diagnostics.errors()),
        catalog
            .postures
            .get("x")
            .map(|document| document.diagnostics.errors()),
        catalog
            .presets
            .get("x")
            .map(|document| document.diagnostics.errors()),
        catalog
            .images
            .get("x")
            .map(|document| document.diagnostics.errors()),
        catalog
            .hosts
            .get("x")
            .map(|document| document.diagnostics.errors()),
        catalog
            .nodes
            .get("x")
            .map(|document| document.diagnostics.errors()),
    ];
    errors.into_iter().flatten().sum::<usize>() == 0
}

/// Documents whose structure decides; schemas do not check references.
const CASES: &[(DocumentKind, bool, &str)] = &[
    (
        DocumentKind::Manifest,
        true,
        "schema_version: 2\nname: a\nnodes: [{name: a}]",
    ),
    (
        DocumentKind::Manifest,
        true,
        "nodes: [{name: a, parent: null, ip: dhcp, execution: {mode: hybrid}}]",
    ),
    (
        DocumentKind::Manifest,
        true,
        "nodes: [{name: a, ip: 192.0.2.7/24, gateway: 192.0.2.1, dns: ['2001:db8::1']}]",
    ),
    (
        DocumentKind::Manifest,
        false,
        "schema_version: 3\nnodes: [{name: a}]",
    ),
    (DocumentKind::Manifest, false, "name: a"),
    (DocumentKind::Manifest, false, "nodes: [{type: vm}]"),
    (
        DocumentKind::Manifest,
        false,
        "nodes: [{name: a, type: vmm}]",
    ),
    (DocumentKind::Manifest, false, "nodes: [{name: A}]"),
    (
        DocumentKind::Manifest,
        false,
        "nodes: [{name: a, vmid: 99}]",
    ),
    (
        DocumentKind::Manifest,
        false,
        "nodes: [{name: a, colour: red}]",
    ),
    (
        DocumentKind::Manifest,
        false,
        "nodes: [{name: a, ip: 300.1.1.1}]",
    ),
    (DocumentKind::Manifest, false, "nodes: {name: a}"),
    (
        DocumentKind::Spec,
        true,
        "schema_version: 1\nconfig: {timezone: UTC, x-anything: {at: [all]}}",
    ),
    (DocumentKind::Spec, false, "config: {anything: {at: [all]}}"),
    (
        DocumentKind::Spec,
        true,
        "run: {trigger: schedule, interval: 1h}",
    ),
    (
        DocumentKind::Spec,
        false,
        "run: {trigger: schedule, interval: 1 hour}",
    ),
    (
        DocumentKind::Spec,
        true,
        "run: {updates: security, window: 'sat,sun 22:00-04:00'}",
    ),
    (
        DocumentKind::Spec,
        true,
        "run: {window: ['mon-fri 02:00-05:00', '12:00-24:00']}",
    ),
    (DocumentKind::Spec, false, "run: {updates: some}"),
    (DocumentKind::Spec, false, "run: {window: 02:00}"),
    (DocumentKind::Spec, false, "run: {window: []}"),
    (
        DocumentKind::Spec,
        false,
        "run: {window: 'Mon 02:00-05:00'}",
    ),
    (
        DocumentKind::Spec,
        true,
        "run: {trigger: git, repo: 'ssh://git@a.example/x', branch: a/b, signed_by: [me]}",
    ),
    (DocumentKind::Spec, false, "run: {repo: 'ext::sh'}"),
    (DocumentKind::Spec, false, "run: {branch: -x}"),
    (
        DocumentKind::Manifest,
        true,
        "nodes: [{name: a}]\nsettings: {updates: {at_once: 1000}}",
    ),
    (
        DocumentKind::Manifest,
        false,
        "nodes: [{name: a}]\nsettings: {updates: {at_once: 0}}",
    ),
    (DocumentKind::Spec, false, "network: {ip: 192.0.2.7}"),
    (DocumentKind::Spec, false, "platform: {packages: [Nginx]}"),
    (
        DocumentKind::Posture,
        true,
        "ssh: {permit_root_login: \"no\"}",
    ),
    (DocumentKind::Posture, false, "ssh: {port: 70000}"),
    (DocumentKind::Preset, true, "cores: 1\nmemory: 512\ndisk: 4"),
    (DocumentKind::Preset, false, "cores: 1\nmemory: 512"),
    (
        DocumentKind::Preset,
        false,
        "cores: one\nmemory: 512\ndisk: 4",
    ),
    (
        DocumentKind::Site,
        true,
        "defaults: {spec_server: '', ssh_user: root}",
    ),
    (
        DocumentKind::Site,
        false,
        "networks: {lan: {gateway: 192.0.2.1}}",
    ),
    (DocumentKind::Site, false, "default: {}"),
    (DocumentKind::Host, true, "network: {interfaces: {}}"),
    (DocumentKind::Host, true, "network:\n  interfaces:"),
    (DocumentKind::Host, false, "access: {ssh_port: '22'}"),
    (
        DocumentKind::Node,
        true,
        "api_endpoint: https://[2001:db8::1]:8006",
    ),
    (DocumentKind::Node, false, "api_endpoint: father:8006"),
    (DocumentKind::Node, false, "datastore: local"),
    (
        DocumentKind::Image,
        true,
        "source: https://a.example/x.qcow2\nrecipe: {suite: bookworm}",
    ),
    (DocumentKind::Image, false, "checksum: md5:00"),
    (DocumentKind::Secrets, true, "passwords: {vm_root: ''}"),
    (DocumentKind::Secrets, false, "ssh_keys: [a]"),
];

#[test]
fn schema_and_decoder_agree_on_structure() {
    for (kind, good, text) in CASES {
        assert_eq!(
            decoder_accepts(*kind, text),
            *good,
            "decoder, {}: {text}",
            kind.name()
        );
        assert_eq!(
            schema_accepts(*kind, text),
            *good,
            "schema, {}: {text}",
            kind.name()
        );
    }
}

#[test]
fn the_schemas_accept_the_stock_site() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../stock-site");
    let mut seen = 0;
    for kind in DocumentKind::ALL {
        let files: Vec<_> = match kind.directory() {
            None => vec![root.join(format!("{}.yaml", kind.name()))],
            Some(directory) => std::fs::read_dir(root.join(directory))
                .map(|entries| entries.map(|entry| entry.unwrap().path()).collect())
                .unwrap_or_default(),
        };
        for file in files.iter().filter(|file| file.is_file()) {
            let text = std::fs::read_to_string(file).unwrap();
            assert!(schema_accepts(*kind, &text), "{}", file.display());
            seen += 1;
        }
    }
    assert!(seen > 20, "only {seen} documents were found");
}
