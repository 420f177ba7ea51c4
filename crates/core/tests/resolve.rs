//! The resolved values of nodes and their origins.

use std::collections::BTreeMap;

use homestak_core::catalog::{Catalog, InputDocument, LoadProblem};
use homestak_core::doc::scalar::{NodeName, Vmid};
use homestak_core::doc::{Code, DocumentKind, Severity};
use homestak_core::host_kind::{HostKindInfo, HostTraits};
use homestak_core::resolve::site::unknown_keys;
use homestak_core::resolve::{
    Origin, ResolveOptions, ResolvedManifest, ResolvedNode, SecretVisibility, manifest,
};

fn document(kind: DocumentKind, name: &str, text: String) -> InputDocument {
    InputDocument {
        kind,
        name: name.into(),
        path: format!("{name}.yaml"),
        text: Ok(text),
    }
}

/// A small site around one manifest.
fn resolve_with(
    nodes: &str,
    site: &str,
    request: &ResolveOptions,
) -> (ResolvedManifest, Vec<&'static str>) {
    let mut catalog = Catalog::read(vec![
        document(
            DocumentKind::Manifest,
            "m",
            format!("schema_version: 2\nname: m\n{nodes}"),
        ),
        document(DocumentKind::Spec, "base", "access: {posture: dev}\n".into()),
        document(
            DocumentKind::Spec,
            "fixed",
            "access: {posture: dev}\nnetwork: {ip: 192.0.2.9, gateway: 192.0.2.1, dns: [192.0.2.9]}\n"
                .into(),
        ),
        document(DocumentKind::Posture, "dev", "sudo: {nopasswd: true}\n".into()),
        document(
            DocumentKind::Preset,
            "vm-small",
            "cores: 2\nmemory: 2048\ndisk: 10\n".into(),
        ),
        document(
            DocumentKind::Preset,
            "vm-large",
            "cores: 4\nmemory: 8192\ndisk: 40\n".into(),
        ),
        document(DocumentKind::Image, "debian-12", "aliases: [bookworm]\n".into()),
        document(DocumentKind::Image, "debian-ct", "type: template\n".into()),
        document(
            DocumentKind::Node,
            "father",
            "api_endpoint: https://192.0.2.61:8006\n".into(),
        ),
        document(DocumentKind::Site, "site", site.into()),
    ]);
    let kind = |name, numbers_guests| HostKindInfo {
        name,
        label: "",
        is_built_in: true,
        default_of: None,
        traits: HostTraits {
            numbers_guests,
            ..HostTraits::PROXMOX_VE
        },
    };
    catalog.kinds = vec![
        kind("local", true),
        kind("sim", true),
        kind("meadow", false),
    ];
    let (resolved, diagnostics) = manifest(&catalog, "m", request);
    let mut codes: Vec<&str> = diagnostics
        .iter()
        .map(|diagnostic| diagnostic.code.id())
        .collect();
    codes.sort_unstable();
    (resolved.expect("the manifest can be read"), codes)
}

const SITE: &str = "\
defaults: {preset: vm-small, image: bookworm, gateway: 198.51.100.1, dns_servers: [198.51.100.53]}
networks:
  lan: {cidr: 192.0.2.0/24, gateway: 192.0.2.1, dns: [192.0.2.53], bridge: vmbr7, vlan: 20}
";

fn resolve(nodes: &str) -> (ResolvedManifest, Vec<&'static str>) {
    resolve_with(nodes, SITE, &ResolveOptions::default())
}

fn one(node: &str) -> (ResolvedNode, Vec<&'static str>) {
    let (resolved, codes) = resolve(&format!("nodes:\n  - {{name: a, spec: base, {node}}}\n"));
    (
        resolved
            .nodes
            .into_iter()
            .next()
            .expect("there is one node"),
        codes,
    )
}

fn address(node: &ResolvedNode) -> Option<String> {
    node.networking
        .address
        .value
        .map(|address| address.to_string())
}

#[test]
fn a_written_vmid_wins_then_a_recorded_one_then_base_plus_rank() {
    let text = "settings: {vmid_base: 500}\nnodes:\n  - {name: c}\n  - {name: b, vmid: 900}\n  - {name: a}\n";
    let recorded: BTreeMap<NodeName, Vmid> = [("a", 777), ("b", 778)]
        .map(|(name, id)| (NodeName::new(name).unwrap(), Vmid::from_number(id)))
        .into();
    let (resolved, _) = resolve_with(
        text,
        SITE,
        &ResolveOptions {
            recorded,
            ..ResolveOptions::default()
        },
    );
    let vmids: Vec<i64> = resolved
        .nodes
        .iter()
        .map(|node| node.vmid.as_ref().unwrap().value.0)
        .collect();
    assert_eq!(vmids, [777, 900, 502]);
    assert_eq!(
        resolved.nodes[0].vmid.as_ref().unwrap().origin,
        Origin::Recorded
    );
    let (resolved, _) = resolve("nodes: [{name: a}]\n");
    assert_eq!(resolved.nodes[0].vmid, None, "left to the provider");
}

#[test]
fn a_host_that_assigns_ids_gets_only_written_vmids() {
    let text = "settings: {vmid_base: 999999999}\nnodes:\n  - {name: a, host: father}\n  - {name: b, type: pve, host: meadow}\n  - {name: c, parent: b}\n  - {name: d, host: meadow, vmid: 900}\n";
    let request = ResolveOptions {
        recorded: [("b", 777), ("c", 778)]
            .map(|(name, id)| (NodeName::new(name).unwrap(), Vmid::from_number(id)))
            .into(),
        ..ResolveOptions::default()
    };
    let (resolved, codes) = resolve_with(text, SITE, &request);
    assert_eq!(codes, Vec::<&str>::new());
    let vmids: Vec<Option<i64>> = resolved
        .nodes
        .iter()
        .map(|node| node.vmid.as_ref().map(|vmid| vmid.value.0))
        .collect();
    assert_eq!(vmids, [Some(999_999_999), None, None, Some(900)]);
}

#[test]
fn the_same_vmid_on_two_hosts_is_two_guests() {
    let text = "nodes:\n  - {name: hv, type: pve, vmid: 100}\n  - {name: in, parent: hv, vmid: 100}\n  - {name: far, host: father, vmid: 100}\n";
    assert_eq!(resolve(text).1, Vec::<&str>::new());
    let text = "nodes:\n  - {name: a, vmid: 100}\n  - {name: b, vmid: 100}\n";
    assert_eq!(resolve(text).1, ["SK0501"]);
}

#[test]
fn addresses_come_from_node_then_spec_then_dhcp() {
    let (node, codes) = one("ip: 192.0.2.7");
    assert_eq!(
        (address(&node).as_deref(), codes),
        (Some("192.0.2.7/24"), vec![])
    );
    let text = "nodes:\n  - {name: a, spec: fixed}\n  - {name: b, spec: fixed, ip: 192.0.2.8}\n  - {name: c, spec: fixed, ip: dhcp}\n";
    let (resolved, codes) = resolve(text);
    assert_eq!(codes, Vec::<&str>::new());
    let all: Vec<_> = resolved.nodes.iter().map(address).collect();
    assert_eq!(
        all,
        [
            Some("192.0.2.9/24".into()),
            Some("192.0.2.8/24".into()),
            None
        ]
    );
    assert_eq!(address(&one("description: x").0), None);
}

#[test]
fn an_address_determines_its_network_and_the_network_the_rest() {
    let (node, _) = one("ip: 192.0.2.7");
    let net = &node.networking;
    assert_eq!(net.network.as_ref().unwrap().value, "lan");
    assert_eq!(net.gateway.as_ref().unwrap().value.to_string(), "192.0.2.1");
    assert_eq!(net.dns.value[0].to_string(), "192.0.2.53");
    assert_eq!(
        (net.bridge.value.as_str(), net.vlan.as_ref().unwrap().value),
        ("vmbr7", 20)
    );
    let (node, _) = one("description: x");
    assert_eq!(
        node.networking.gateway.as_ref().unwrap().value.to_string(),
        "198.51.100.1"
    );
    assert_eq!(node.networking.bridge.value, "vmbr0");
}

#[test]
fn the_gateway_of_a_spec_is_not_used_with_another_address() {
    let site = "defaults: {preset: vm-small, image: bookworm}\n";
    let text = "nodes:\n  - {name: a, spec: fixed, ip: 10.0.0.7/8}\n";
    let (resolved, codes) = resolve_with(text, site, &ResolveOptions::default());
    assert_eq!(
        (resolved.nodes[0].networking.gateway.clone(), codes),
        (None, vec![])
    );
}

#[test]
fn unusable_addresses_are_errors() {
    let cases = [
        ("ip: 192.0.2.0", "SK0504"),
        ("ip: 192.0.2.255", "SK0504"),
        ("ip: 192.0.2.1", "SK0504"),
        ("ip: 127.0.0.1", "SK0504"),
        ("ip: 10.0.0.7, network: lan", "SK0502"),
        ("ip: 192.0.2.7/16, network: lan", "SK0502"),
        ("ip: 10.0.0.7/24, gateway: 10.0.1.1", "SK0502"),
        ("network: wan", "SK0312"),
    ];
    for (node, code) in cases {
        assert_eq!(one(node).1, [code], "{node}");
    }
}

#[test]
fn a_duplicate_address_is_an_error_unless_the_networks_differ() {
    let text = "nodes:\n  - {name: a, ip: 192.0.2.7}\n  - {name: b, ip: 192.0.2.7}\n";
    assert_eq!(resolve(text).1, ["SK0503"]);
    let text = "nodes:\n  - {name: a, spec: fixed}\n  - {name: b, spec: fixed}\n";
    assert_eq!(resolve(text).1, ["SK0503"]);
    let site = "defaults: {preset: vm-small, image: bookworm}\nnetworks:\n  one: {cidr: 10.0.0.0/24}\n  two: {cidr: 10.0.0.0/24}\n";
    let text = "nodes:\n  - {name: a, ip: 10.0.0.7, network: one}\n  - {name: b, ip: 10.0.0.7, network: two}\n";
    assert_eq!(
        resolve_with(text, site, &ResolveOptions::default()).1,
        Vec::<&str>::new()
    );
}

#[test]
fn sizes_of_the_node_override_those_of_the_preset() {
    let (node, _) = one("preset: vm-large, disk: 64, memory: 1024");
    let size = node.size.unwrap();
    assert_eq!(
        (size.cores.value, size.memory.value, size.disk.value),
        (4, 1024, 64)
    );
}

#[test]
fn images_are_resolved_by_alias_and_default_to_the_site() {
    assert_eq!(one("image: bookworm").0.image.unwrap().value, "debian-12");
    assert_eq!(one("description: x").0.image.unwrap().value, "debian-12");
    assert_eq!(one("image: debian-ct").1, ["SK0306"]);
    assert_eq!(
        one("type: ct, template: debian-ct")
            .0
            .template
            .unwrap()
            .value,
        "debian-ct"
    );
    assert_eq!(
        one("type: ct, template: 'local:vztmpl/x.tar.zst'").1,
        Vec::<&str>::new()
    );
    assert_eq!(one("type: ct").1, ["SK0314"]);
}

#[test]
fn without_defaults_the_built_in_ones_are_used_and_reported() {
    let (resolved, codes) = resolve_with(
        "nodes: [{name: a}]\n",
        "defaults: {}\n",
        &ResolveOptions::default(),
    );
    assert_eq!(codes, ["SK0912", "SK0912"]);
    assert_eq!(
        resolved.nodes[0].preset.as_ref().unwrap().origin,
        Origin::BuiltIn
    );
}

#[test]
fn a_parent_that_is_a_host_sets_the_host() {
    let (resolved, codes) = resolve("nodes: [{name: a, parent: father}]\n");
    assert_eq!(codes, ["SK0904"]);
    assert_eq!(
        (
            resolved.nodes[0].parent.clone(),
            resolved.nodes[0].host.as_ref().unwrap().value.as_str()
        ),
        (None, "father")
    );
}

#[test]
fn hosts_come_from_node_then_region_then_command_line() {
    let text = "\
regions: [{name: west, host: father}, {name: east}]
links: [{between: [west, east]}]
nodes:
  - {name: a, region: west}
  - {name: b, region: east}
  - {name: c, region: west, host: sim}
";
    let request = ResolveOptions {
        host: Some("local".into()),
        ..ResolveOptions::default()
    };
    let (resolved, codes) = resolve_with(text, SITE, &request);
    assert_eq!(codes, Vec::<&str>::new());
    let hosts: Vec<&str> = resolved
        .nodes
        .iter()
        .map(|node| node.host.as_ref().unwrap().value.as_str())
        .collect();
    assert_eq!(hosts, ["father", "local", "sim"]);
}

#[test]
fn patterns_are_derived_from_the_graph() {
    let derived = |text: &str| {
        let (resolved, codes) = resolve(text);
        assert_eq!(codes, Vec::<&str>::new(), "{text}");
        resolved.pattern.value.to_string()
    };
    assert_eq!(derived("nodes: [{name: a}, {name: b}]\n"), "flat");
    assert_eq!(
        derived("nodes: [{name: a, type: pve}, {name: b, parent: a}]\n"),
        "tiered"
    );
    assert_eq!(
        derived("nodes: [{name: a, peers: [b]}, {name: b}]\n"),
        "mesh"
    );
    assert_eq!(
        derived("hub: a\nnodes: [{name: a}, {name: b}]\n"),
        "hub-spoke"
    );
    let federated = "regions: [{name: x}, {name: y}]\nlinks: [{between: [x, y]}]\nnodes: [{name: a, region: x}, {name: b, region: y}]\n";
    assert_eq!(derived(federated), "federated");
}

#[test]
fn a_spec_without_a_posture_permits_no_passwords_and_no_root_login() {
    let open = "ssh: {permit_root_login: \"yes\", password_authentication: \"yes\"}\nsudo: {nopasswd: true}\n";
    let catalog = Catalog::read(vec![
        document(DocumentKind::Spec, "base", "schema_version: 1\n".into()),
        document(DocumentKind::Posture, "dev", open.into()),
    ]);
    let json = homestak_core::resolve::spec::spec(&catalog, "base", None, SecretVisibility::Masked);
    let access = json.expect("a spec").json()["access"].clone();
    let (ssh, sudo) = (&access["_posture"]["ssh"], &access["_posture"]["sudo"]);
    assert_eq!(access["posture"], "prod");
    assert_eq!(ssh["permit_root_login"], "no");
    assert_eq!(ssh["password_authentication"], "no");
    assert_eq!(sudo["nopasswd"], false);
}

/// A site with one spec of three users, and secrets or none.
fn with_secrets(users: &str, secrets: Option<Result<String, LoadProblem>>) -> Catalog {
    let mut inputs =
        vec![
        document(
            DocumentKind::Manifest,
            "m",
            "schema_version: 2\nname: m\nnodes: [{name: a, spec: web, preset: small, image: i}]\n"
                .into(),
        ),
        document(
            DocumentKind::Spec,
            "web",
            format!("access: {{posture: dev, users: {users}}}\n"),
        ),
        document(DocumentKind::Posture, "dev", "sudo: {nopasswd: true}\n".into()),
        document(DocumentKind::Preset, "small", "cores: 1\nmemory: 512\ndisk: 2\n".into()),
        document(DocumentKind::Image, "i", String::from("aliases: [j]\n")),
    ];
    inputs.extend(secrets.map(|text| InputDocument {
        kind: DocumentKind::Secrets,
        name: "secrets".into(),
        path: "secrets.yaml.enc".into(),
        text,
    }));
    Catalog::read(inputs)
}

#[test]
fn keys_are_unknown_when_the_secrets_could_not_be_opened_and_a_user_has_keys() {
    let unopened = || {
        Err(LoadProblem {
            code: Code::Sealed,
            severity: Severity::Notice,
            message: "no age key was found".into(),
            hint: "homestak secrets keygen".into(),
        })
    };
    let plain = || Ok("ssh_keys: {me@lab: ssh-ed25519 AAAA me}\n".to_owned());
    let why = |users: &str, secrets| {
        let catalog = with_secrets(users, secrets);
        unknown_keys(&catalog, "web").map(|diagnostic| diagnostic.message.clone())
    };
    for users in ["[{name: alice}]", "[{name: alice, ssh_keys: [me@lab]}]"] {
        let reported = why(users, Some(unopened()));
        assert_eq!(reported.as_deref(), Some("no age key was found"), "{users}");
        assert_eq!(why(users, Some(plain())), None, "{users}");
    }
    // Without secrets there are no keys, and users without keys need none.
    assert_eq!(why("[{name: alice}]", None), None);
    assert_eq!(why("[{name: alice, ssh_keys: []}]", Some(unopened())), None);
    assert_eq!(why("[]", Some(unopened())), None);
}

#[test]
fn a_site_without_secrets_reports_that_users_get_no_keys_and_refuses_key_ids() {
    let codes = |users: &str| {
        let catalog = with_secrets(users, None);
        let (_, diagnostics) = manifest(&catalog, "m", &ResolveOptions::default());
        let ids: Vec<&str> = diagnostics
            .iter()
            .map(|diagnostic| diagnostic.code.id())
            .collect();
        (ids, diagnostics.errors())
    };
    assert_eq!(codes("[{name: alice}, {name: bob}]"), (vec!["SK0909"], 0));
    assert_eq!(codes("[{name: alice, ssh_keys: []}]"), (vec![], 0));
    assert_eq!(codes("[]"), (vec![], 0));
    assert_eq!(codes("[{name: alice, ssh_keys: [me@lab]}]").1, 1);
}
