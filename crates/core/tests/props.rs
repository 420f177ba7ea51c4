//! Properties that hold for every input, tried on random ones.

use homestak_core::catalog::{Catalog, InputDocument};
use homestak_core::doc::emit::emit;
use homestak_core::doc::manifest::Mode;
use homestak_core::doc::tree::{Data, Entry, Key, NO_SPAN, Scalar, Style};
use homestak_core::doc::{Diagnostics, DocumentKind, FileId, Source, Value, yaml};
use homestak_core::foreign::{ForeignText, escape, escape_but_style};
use homestak_core::graph::Graph;
use homestak_core::resolve::spec::spec;
use homestak_core::resolve::{ResolveOptions, SecretVisibility, manifest, site};
use homestak_core::token::{Claims, SigningKey, inspect, mint, verify};
use proptest::prelude::*;

fn parse(text: &str) -> Option<Value> {
    yaml::parse(
        FileId(0),
        &Source::new("x.yaml", text),
        &mut Diagnostics::default(),
    )
}

fn input(kind: DocumentKind, name: &str, text: impl Into<String>) -> InputDocument {
    let path = format!("{}/{name}.yaml", kind.directory().unwrap_or("."));
    InputDocument {
        kind,
        name: name.into(),
        path,
        text: Ok(text.into()),
    }
}

/// Awkward text: words that look like other types, quotes, control characters.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z][a-z0-9-]{0,12}",
        "[ -~]{0,20}",
        any::<String>(),
        prop::sample::select(vec![
            "yes", "no", "null", "~", "true", "1", "0x1f", "1e3", "", " ", "- a", "a: b", "#c",
            "'", "\"", "\\", "a\nb", "\t", "|", ">", "&a", "*a", "!t", "%", "@", "`", "{", "[",
            "? x", ": y", "\u{85}", "\u{2028}", "\u{feff}", "é",
        ])
        .prop_map(str::to_owned),
    ]
}

fn scalar() -> impl Strategy<Value = Value> {
    let plain = prop_oneof![
        Just("null".to_owned()),
        any::<bool>().prop_map(|value| value.to_string()),
        any::<i64>().prop_map(|value| value.to_string()),
        (-1e6..1e6f64).prop_map(|value| format!("{value:?}")),
    ];
    prop_oneof![
        plain.prop_map(|text| value(Data::Scalar(Scalar {
            text,
            style: Style::Plain
        }))),
        text().prop_map(|text| value(Data::Scalar(Scalar::text(text)))),
    ]
}

fn value(data: Data) -> Value {
    Value {
        span: NO_SPAN,
        data,
    }
}

fn tree() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(5, 40, 6, |inner| {
        let seq =
            prop::collection::vec(inner.clone(), 0..6).prop_map(|items| value(Data::Seq(items)));
        let map = prop::collection::btree_map(text(), inner, 0..6).prop_map(|map| {
            let entries = map.into_iter().filter(|(key, _)| key != "<<");
            value(Data::Map(
                entries
                    .map(|(key, value)| Entry {
                        key: Key::bare(key),
                        value,
                    })
                    .collect(),
            ))
        });
        prop_oneof![seq, map]
    })
}

/// A node of a random manifest: rank of its parent among the nodes before it, and a few choices.
#[derive(Clone, Debug)]
struct Choice {
    parent: Option<prop::sample::Index>,
    spec: usize,
    mode: usize,
    vmid: Option<u32>,
    address: Option<u8>,
    disk: Option<u8>,
}

fn choice() -> impl Strategy<Value = Choice> {
    (
        prop::option::of(any::<prop::sample::Index>()),
        0..4usize,
        0..4usize,
        prop::option::of(100u32..120),
        prop::option::of(1u8..20),
        prop::option::of(1u8..99),
    )
        .prop_map(|(parent, spec, mode, vmid, address, disk)| Choice {
            parent,
            spec,
            mode,
            vmid,
            address,
            disk,
        })
}

/// Writes nodes, some of them invalid: diagnostics must not depend on order either.
fn nodes(choices: &[Choice]) -> Vec<String> {
    let specs = ["base", "pve", "missing", "fixed"];
    let modes = ["push", "pull", "hybrid", ""];
    let written = choices.iter().enumerate().map(|(at, choice)| {
        let mut node = format!(
            "  - name: node-{at}\n    type: {}\n",
            if choice.spec == 1 { "pve" } else { "vm" }
        );
        node += &format!("    spec: {}\n", specs[choice.spec]);
        if let Some(parent) = choice.parent.filter(|_| at > 0) {
            node += &format!("    parent: node-{}\n", parent.index(at));
        }
        if !modes[choice.mode].is_empty() {
            node += &format!("    execution: {{mode: {}}}\n", modes[choice.mode]);
        }
        if let Some(vmid) = choice.vmid {
            node += &format!("    vmid: {vmid}\n");
        }
        if let Some(address) = choice.address {
            node += &format!("    ip: 192.0.2.{address}\n");
        }
        if let Some(disk) = choice.disk {
            node += &format!("    disk: {disk}\n");
        }
        node
    });
    written.collect()
}

fn inputs(nodes: &[String]) -> Vec<InputDocument> {
    let head = "schema_version: 2\nname: m\nsettings: {vmid_base: 200}\nnodes:\n";
    let network = "networks:\n  lan: {cidr: 192.0.2.0/24, gateway: 192.0.2.1}\n";
    vec![
        input(
            DocumentKind::Manifest,
            "m",
            format!("{head}{}", nodes.concat()),
        ),
        input(
            DocumentKind::Spec,
            "base",
            "schema_version: 1\naccess: {users: [{name: ops}]}\nconfig: {x-b: 1, x-a: 2}\n",
        ),
        input(
            DocumentKind::Spec,
            "pve",
            "schema_version: 1\nconfig: {pve: {}}\n",
        ),
        input(
            DocumentKind::Spec,
            "fixed",
            "schema_version: 1\nnetwork: {ip: 192.0.2.77, gateway: 192.0.2.1}\n",
        ),
        input(
            DocumentKind::Posture,
            "dev",
            "ssh: {port: 22}\npackages: [jq]\n",
        ),
        input(
            DocumentKind::Preset,
            "vm-small",
            "cores: 2\nmemory: 2048\ndisk: 10\n",
        ),
        input(DocumentKind::Image, "debian-12", "aliases: [bookworm]\n"),
        input(
            DocumentKind::Site,
            "site",
            format!("defaults: {{preset: vm-small, image: bookworm}}\n{network}"),
        ),
        input(
            DocumentKind::Secrets,
            "secrets",
            "ssh_keys: {b@x: 'ssh-ed25519 BBBB', a@x: 'ssh-ed25519 AAAA'}\n",
        ),
    ]
}

/// The resolved JSON and the codes of diagnostics, without spans.
fn outcome(inputs: Vec<InputDocument>, mode: Option<Mode>) -> (String, Vec<String>) {
    let catalog = Catalog::read(inputs);
    let (resolved, diagnostics) = manifest(
        &catalog,
        "m",
        &ResolveOptions {
            mode,
            ..ResolveOptions::default()
        },
    );
    let mut text = String::new();
    for node in resolved.iter().flat_map(|resolved| &resolved.nodes) {
        text += &node.render().json().to_string();
        if let Some(name) = &node.spec {
            let json = spec(&catalog, &name.value, Some(node), SecretVisibility::Exposed);
            text += &json.map_or_else(String::new, |json| json.json().to_string());
        }
    }
    // Which of two duplicates is reported depends on their order in the file.
    let mut codes: Vec<String> = diagnostics
        .iter()
        .map(|diagnostic| diagnostic.code.id().to_owned())
        .collect();
    codes.sort();
    (text, codes)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn escaped_text_has_no_control_characters_and_escaping_it_again_changes_nothing(
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(0x1b), Just(b'\n')], 0..400),
        more in any::<String>(),
    ) {
        let text = format!("{}{more}", String::from_utf8_lossy(&bytes));
        let line = ForeignText::line(&text);
        prop_assert!(!line.chars().any(char::is_control), "{:?}", line);
        prop_assert_eq!(&ForeignText::line(&line), &line);
        let lines = ForeignText::lines(&text);
        let active = |c: char| c.is_control() && c != '\n' && c != '\t';
        prop_assert!(!lines.chars().any(active), "{:?}", lines);
        prop_assert_eq!(lines.as_str(), &*escape(&text));
        prop_assert_eq!(&ForeignText::lines(&lines), &lines);
        let read: ForeignText = serde_json::from_value(serde_json::json!(text)).unwrap();
        prop_assert_eq!(&read, &line);
        // Text without control characters is unchanged.
        if !text.chars().any(char::is_control) {
            let visible = text.chars().all(|c| c.is_alphanumeric() || c.is_ascii());
            prop_assert!(!visible || line.as_str() == text);
        }
        let styled = escape_but_style(&text);
        for part in styled.split('\x1b').skip(1) {
            let end = part.find('m').unwrap();
            prop_assert!(part[1..end].bytes().all(|b| b.is_ascii_digit() || b == b';'));
        }
        prop_assert!(!styled.chars().any(|c| active(c) && c != '\x1b'));
    }

    #[test]
    fn a_formatted_and_reparsed_document_is_equal(tree in tree()) {
        let text = emit(&tree);
        let again = parse(&text);
        prop_assert_eq!(again.as_ref(), Some(&tree), "{}", text);
        prop_assert_eq!(again.map(|again| emit(&again)), Some(text));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in any::<String>()) {
        parse(&text);
    }

    #[test]
    fn no_document_makes_checking_panic(text in "[-a-z0-9:?\\[\\]{},&*!|>'\"%@` \n#.~]{0,200}", kind in 0..9usize) {
        let kind = DocumentKind::ALL[kind];
        let catalog = Catalog::read(vec![input(kind, "x", text)]);
        let diagnostics = site::validate(&catalog);
        for diagnostic in diagnostics.iter() {
            catalog.sources.locate(diagnostic.span);
        }
    }

    #[test]
    fn mutated_documents_never_panic(cut in 0..600usize, insert in "[-a-z:\\[\\]{}\n &*]{0,6}", choices in prop::collection::vec(choice(), 1..5)) {
        let mut written = nodes(&choices).concat();
        let at = (0..=cut.min(written.len())).rev().find(|at| written.is_char_boundary(*at)).unwrap_or(0);
        written.insert_str(at, &insert);
        let catalog = Catalog::read(inputs(&[written]));
        site::validate(&catalog);
    }

    #[test]
    fn resolving_does_not_depend_on_the_order_of_files_or_nodes(
        choices in prop::collection::vec(choice(), 1..8),
        seed in any::<u64>(),
    ) {
        let written = nodes(&choices);
        let straight = outcome(inputs(&written), None);
        let mut shuffled = written;
        let mut state = seed;
        let mut draw = |bound: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            usize::try_from(state >> 33).unwrap_or(0) % bound
        };
        for at in (1..shuffled.len()).rev() {
            shuffled.swap(at, draw(at + 1));
        }
        let mut files = inputs(&shuffled);
        for at in (1..files.len()).rev() {
            files.swap(at, draw(at + 1));
        }
        prop_assert_eq!(outcome(files, None), straight);
    }

    #[test]
    fn a_resolved_spec_has_the_same_bytes_in_every_mode(choices in prop::collection::vec(choice(), 1..6)) {
        let specs = |mode| {
            let catalog = Catalog::read(inputs(&nodes(&choices)));
            let (resolved, _) = manifest(&catalog, "m", &ResolveOptions { mode: Some(mode), ..ResolveOptions::default() });
            let nodes = resolved.map(|resolved| resolved.nodes).unwrap_or_default();
            nodes.iter().filter_map(|node| {
                Some(spec(&catalog, &node.spec.as_ref()?.value, Some(node), SecretVisibility::Exposed)?.json().to_string())
            }).collect::<Vec<_>>()
        };
        let push = specs(Mode::Push);
        prop_assert_eq!(&specs(Mode::Pull), &push);
        prop_assert_eq!(&specs(Mode::Hybrid), &push);
    }

    #[test]
    fn every_node_is_one_deeper_than_its_parent(parents in prop::collection::vec(prop::option::of(any::<prop::sample::Index>()), 1..40)) {
        let parents: Vec<Option<usize>> = parents.iter().enumerate()
            .map(|(at, parent)| parent.filter(|_| at > 0).map(|parent| parent.index(at)))
            .collect();
        let graph = Graph::new(parents.clone()).expect("a parent comes earlier, so there is no cycle");
        for (node, parent) in parents.iter().enumerate() {
            if let Some(parent) = parent {
                prop_assert_eq!(graph.depth(*parent) + 1, graph.depth(node));
                prop_assert!(graph.is_ancestor(*parent, node) && !graph.is_ancestor(node, *parent));
            }
            let root = std::iter::successors(Some(node), |at| parents[*at]).last();
            prop_assert_eq!(Some(graph.root_of(node)), root);
        }
    }

    #[test]
    fn a_minted_token_has_its_claims_and_verifies_with_its_key_only(node in "[a-z][a-z0-9-]{0,20}", spec in any::<String>(), issued_at in any::<i64>(), key in any::<[u8; 32]>()) {
        let hex = |bytes: [u8; 32]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let signing = SigningKey::from_hex(&hex(key)).unwrap();
        let claims = Claims { node: node.clone(), spec, issued_at, guest: None };
        let token = mint(&claims, &signing);
        prop_assert_eq!(verify(&token, &signing, Some(&node)), Ok(claims.clone()));
        prop_assert_eq!(inspect(&token), Ok(claims));
        let mut other = key;
        other[0] ^= 1;
        prop_assert!(verify(&token, &SigningKey::from_hex(&hex(other)).unwrap(), None).is_err());
    }

    #[test]
    fn no_text_makes_token_checks_panic(token in any::<String>()) {
        let key = SigningKey::from_hex("00").unwrap();
        prop_assert!(verify(&token, &key, None).is_err());
        drop(inspect(&token));
    }
}
