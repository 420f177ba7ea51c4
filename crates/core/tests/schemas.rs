//! The published schemas accept what the decoder accepts, and refuse what it refuses.
#![expect(
    clippy::disallowed_methods,
    reason = "tests make real files and processes"
)]

use homestak_core::catalog::{Catalog, Input};
use homestak_core::doc::{Faults, FileId, Kind, Source, yaml};

fn json(text: &str) -> serde_json::Value {
    yaml::parse(FileId(0), &Source::new("x", text), &mut Faults::default())
        .expect("the example is YAML")
        .to_json()
}

fn schema_accepts(kind: Kind, text: &str) -> bool {
    let validator = jsonschema::validator_for(&kind.schema()).expect("the schema is a schema");
    validator.is_valid(&json(text))
}

fn decoder_accepts(kind: Kind, text: &str) -> bool {
    let input = Input {
        kind,
        name: "x".into(),
        path: "x.yaml".into(),
        text: Ok(text.into()),
    };
    let catalog = Catalog::read(vec![input]);
    let shelf_errors = [
        catalog
            .site
            .as_ref()
            .map(|document| document.faults.errors()),
        catalog
            .secrets
            .as_ref()
            .map(|document| document.faults.errors()),
        catalog
            .manifests
            .get("x")
            .map(|document| document.faults.errors()),
        catalog
            .specs
            .get("x")
            .map(|document| document.faults.errors()),
        catalog
            .postures
            .get("x")
            .map(|document| document.faults.errors()),
        catalog
            .presets
            .get("x")
            .map(|document| document.faults.errors()),
        catalog
            .images
            .get("x")
            .map(|document| document.faults.errors()),
        catalog
            .hosts
            .get("x")
            .map(|document| document.faults.errors()),
        catalog
            .nodes
            .get("x")
            .map(|document| document.faults.errors()),
    ];
    shelf_errors.into_iter().flatten().sum::<usize>() == 0
}

/// Documents whose structure alone decides; references are not the schema's affair.
const CASES: &[(Kind, bool, &str)] = &[
    (
        Kind::Manifest,
        true,
        "schema_version: 2\nname: a\nnodes: [{name: a}]",
    ),
    (
        Kind::Manifest,
        true,
        "nodes: [{name: a, parent: null, ip: dhcp, execution: {mode: hybrid}}]",
    ),
    (
        Kind::Manifest,
        true,
        "nodes: [{name: a, ip: 192.0.2.7/24, gateway: 192.0.2.1, dns: ['2001:db8::1']}]",
    ),
    (
        Kind::Manifest,
        false,
        "schema_version: 3\nnodes: [{name: a}]",
    ),
    (Kind::Manifest, false, "name: a"),
    (Kind::Manifest, false, "nodes: [{type: vm}]"),
    (Kind::Manifest, false, "nodes: [{name: a, type: vmm}]"),
    (Kind::Manifest, false, "nodes: [{name: A}]"),
    (Kind::Manifest, false, "nodes: [{name: a, vmid: 99}]"),
    (Kind::Manifest, false, "nodes: [{name: a, colour: red}]"),
    (Kind::Manifest, false, "nodes: [{name: a, ip: 300.1.1.1}]"),
    (Kind::Manifest, false, "nodes: {name: a}"),
    (
        Kind::Spec,
        true,
        "schema_version: 1\nconfig: {timezone: UTC, x-anything: {at: [all]}}",
    ),
    (Kind::Spec, false, "config: {anything: {at: [all]}}"),
    (Kind::Spec, true, "run: {trigger: schedule, interval: 1h}"),
    (
        Kind::Spec,
        false,
        "run: {trigger: schedule, interval: 1 hour}",
    ),
    (Kind::Spec, false, "network: {ip: 192.0.2.7}"),
    (Kind::Spec, false, "platform: {packages: [Nginx]}"),
    (Kind::Posture, true, "ssh: {permit_root_login: \"no\"}"),
    (Kind::Posture, false, "ssh: {port: 70000}"),
    (Kind::Preset, true, "cores: 1\nmemory: 512\ndisk: 4"),
    (Kind::Preset, false, "cores: 1\nmemory: 512"),
    (Kind::Preset, false, "cores: one\nmemory: 512\ndisk: 4"),
    (
        Kind::Site,
        true,
        "defaults: {spec_server: '', ssh_user: root}",
    ),
    (Kind::Site, false, "networks: {lan: {gateway: 192.0.2.1}}"),
    (Kind::Site, false, "default: {}"),
    (Kind::Host, true, "network: {interfaces: {}}"),
    (Kind::Host, true, "network:\n  interfaces:"),
    (Kind::Host, false, "access: {ssh_port: '22'}"),
    (Kind::Node, true, "api_endpoint: https://[2001:db8::1]:8006"),
    (Kind::Node, false, "api_endpoint: father:8006"),
    (Kind::Node, false, "datastore: local"),
    (
        Kind::Image,
        true,
        "source: https://a.example/x.qcow2\nrecipe: {suite: bookworm}",
    ),
    (Kind::Image, false, "checksum: md5:00"),
    (Kind::Secrets, true, "passwords: {vm_root: ''}"),
    (Kind::Secrets, false, "ssh_keys: [a]"),
];

#[test]
fn schema_and_decoder_agree_on_structure() {
    for (kind, good, text) in CASES {
        assert_eq!(
            decoder_accepts(*kind, text),
            *good,
            "decoder, {}: {text}",
            kind.word()
        );
        assert_eq!(
            schema_accepts(*kind, text),
            *good,
            "schema, {}: {text}",
            kind.word()
        );
    }
}

#[test]
fn the_schemas_accept_the_stock_site() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../stock-site");
    let mut seen = 0;
    for kind in Kind::ALL {
        let files: Vec<_> = match kind.directory() {
            None => vec![root.join(format!("{}.yaml", kind.word()))],
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
