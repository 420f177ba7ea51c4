//! Hostile documents up to the largest size: each gets the expected diagnostics in bounded memory.

use std::fmt::Write as _;

use homestak_core::catalog::{Catalog, InputDocument};
use homestak_core::doc::emit::emit;
use homestak_core::doc::{Diagnostics, DocumentKind, Source, Sources, Value, yaml};
use homestak_core::draw;
use homestak_core::resolve::site::validate;
use homestak_core::resolve::spec::spec;
use homestak_core::resolve::{ResolveOptions, ResolvedManifest, SecretVisibility, manifest};

/// A debug build is ten times slower and gets a tenth of the input.
const SLOWER: usize = if cfg!(debug_assertions) { 10 } else { 1 };

fn input(kind: DocumentKind, name: &str, text: String) -> InputDocument {
    InputDocument {
        kind,
        name: name.into(),
        path: format!("{name}.yaml"),
        text: Ok(text),
    }
}

/// Resolves a manifest on a small site.
fn resolve(text: String) -> (Option<ResolvedManifest>, Diagnostics, Sources) {
    let catalog = Catalog::read(vec![
        input(
            DocumentKind::Preset,
            "p",
            "{cores: 1, memory: 512, disk: 8}".into(),
        ),
        input(DocumentKind::Image, "i", "{}".into()),
        input(
            DocumentKind::Site,
            "site",
            "defaults: {image: i, preset: p}\n".into(),
        ),
        input(DocumentKind::Manifest, "m", text),
    ]);
    let (resolved, diagnostics) = manifest(&catalog, "m", &ResolveOptions::default());
    (resolved, diagnostics, catalog.sources)
}

fn parse(text: String) -> (Option<Value>, Diagnostics) {
    let mut diagnostics = Diagnostics::default();
    let source = Source::new("hostile.yaml", text);
    let file = Sources::default().add(source.clone());
    let value = yaml::parse(file, &source, &mut diagnostics);
    (value, diagnostics)
}

fn codes(diagnostics: &Diagnostics) -> Vec<&'static str> {
    let mut codes: Vec<_> = diagnostics
        .iter()
        .map(|diagnostic| diagnostic.code.id())
        .collect();
    codes.sort_unstable();
    codes.dedup();
    codes
}

/// A manifest whose nodes are written by `node`, which gets the node's number.
fn nodes(n_nodes: usize, node: impl Fn(usize, &mut String)) -> String {
    let mut text = "schema_version: 2\nname: m\nnodes:\n".to_owned();
    for at in 0..n_nodes {
        text.push_str("- {");
        node(at, &mut text);
        text.push_str("}\n");
    }
    text
}

#[test]
fn a_billion_laughs_are_too_many_values() {
    let mut text = "a0: &a0 [l, l, l, l, l, l, l, l, l, l]\n".to_owned();
    for at in 1..20 {
        let ten = vec![format!("*a{}", at - 1); 10].join(", ");
        writeln!(text, "a{at}: &a{at} [{ten}]").unwrap();
    }
    assert_eq!(codes(&parse(text).1), ["SK0107"]);
}

#[test]
fn a_long_text_behind_many_aliases_is_too_much() {
    let mut text = format!("a: &a {}\nb:\n", "x".repeat(4 << 20));
    text.push_str(&"- *a\n".repeat(900_000));
    assert_eq!(codes(&parse(text).1), ["SK0107"]);
}

#[test]
fn a_long_key_behind_many_aliases_is_too_much() {
    let mut text = format!("- &a {}\n", "x".repeat(4 << 20));
    text.push_str(&"- {*a : 1}\n".repeat(500_000));
    assert_eq!(codes(&parse(text).1), ["SK0107"]);
}

#[test]
fn anchors_in_anchors_do_not_multiply_the_text() {
    let mut text = String::new();
    for at in 0..40 {
        write!(text, "&a{at} [").unwrap();
    }
    text.push_str(&"x".repeat(15 << 20));
    text.push_str(&"]".repeat(40));
    assert_eq!(codes(&parse(text).1), ["SK0107"]);
}

#[test]
fn aliases_in_aliases_count_as_depth() {
    let (open, close) = ("[".repeat(20), "]".repeat(20));
    let mut text = format!("a0: &a0 {open}{close}\n");
    for at in 1..200 {
        writeln!(text, "a{at}: &a{at} {open}*a{}{close}", at - 1).unwrap();
    }
    assert_eq!(codes(&parse(text).1), ["SK0106"]);
}

#[test]
fn sixteen_mebibytes_of_opening_brackets_are_too_deep() {
    for piece in ["[", "{", "- "] {
        let diagnostics = parse(piece.repeat((16 << 20) / piece.len())).1;
        assert_eq!(codes(&diagnostics), ["SK0106"], "{piece}");
    }
    assert_eq!(codes(&parse("? ".repeat(8 << 20)).1), ["SK0109"]);
}

#[test]
fn more_than_the_largest_size_is_not_read() {
    assert_eq!(codes(&parse("x".repeat((16 << 20) + 1)).1), ["SK0103"]);
}

#[test]
fn repeated_tokens_in_bulk_are_parsed_or_reported() {
    for piece in [
        "- ", "-\n", "a: ", ":", "? ", "!", "&a ", "*a ", "|", ">", "'", "\"", "#", "\n", " ",
        "\t", ",", "]", "}", "[,", "{a,", "\r", "é", "%", "@", "---\n", "...\n", "- a\n", "a\n",
        "\u{feff}", "\u{2028}", "- |\n", "- \"a\n", "!a ", "! !", "? a\n", "[]", "{}", "{?", "[?",
        "a:\n", " a\n", "\\", "\"\\\n", "<<: ",
    ] {
        let text = piece.repeat((1 << 20) / SLOWER / piece.len());
        let (value, diagnostics) = parse(text);
        assert!(value.is_some() || diagnostics.errors() > 0, "{piece:?}");
    }
}

#[test]
fn a_million_tiny_nodes_are_too_many_values() {
    let text = nodes(1_000_000, |_, text| text.push_str("a: 1"));
    let (resolved, diagnostics, _) = resolve(text);
    assert!(resolved.is_none());
    assert_eq!(codes(&diagnostics), ["SK0107"]);
}

#[test]
fn a_hundred_thousand_nodes_without_names_are_each_reported() {
    const N_NODES: usize = 100_000 / SLOWER;
    let (_, diagnostics, _) = resolve(nodes(N_NODES, |_, _| {}));
    assert!(diagnostics.errors() >= N_NODES);
    assert!(diagnostics.iter().count() <= 1_000);
}

#[test]
fn a_million_empty_nodes_are_a_list_too_long() {
    let (_, diagnostics, _) = resolve(nodes(990_000, |_, _| {}));
    assert!(codes(&diagnostics).contains(&"SK0107"));
}

#[test]
fn unknown_keys_in_bulk_are_each_reported() {
    let mut text = "name: m\nnodes: [{name: a}]\n".to_owned();
    for at in 0..400_000 / SLOWER {
        writeln!(text, "nodess{at}: 1").unwrap();
    }
    assert_eq!(resolve(text).1.errors(), 400_000 / SLOWER);
}

#[test]
fn a_chain_of_a_hundred_thousand_parents_is_resolved() {
    const N_NODES: usize = 100_000 / SLOWER;
    let text = nodes(N_NODES, |at, text| {
        write!(text, "name: n{at:06}, type: pve").unwrap();
        if at > 0 {
            write!(text, ", parent: n{:06}", at - 1).unwrap();
        }
    });
    let (resolved, diagnostics, _) = resolve(text);
    assert_eq!(diagnostics.errors(), 0, "{:?}", codes(&diagnostics));
    let deepest = resolved.unwrap().nodes.last().unwrap().depth;
    assert_eq!(deepest, N_NODES - 1);
}

#[test]
fn a_cycle_of_a_hundred_thousand_parents_is_one_diagnostic_of_bounded_size() {
    const N_NODES: usize = 100_000 / SLOWER;
    let text = nodes(N_NODES, |at, text| {
        let parent = (at + 1) % N_NODES;
        write!(text, "name: n{at:06}, type: pve, parent: n{parent:06}").unwrap();
    });
    let (_, diagnostics, _) = resolve(text);
    assert_eq!(diagnostics.errors(), 1);
    let diagnostic = diagnostics.iter().next().unwrap();
    assert!(diagnostic.message.len() < 1_000 && diagnostic.labels.len() < 100);
}

#[test]
fn fifty_thousand_peers_of_one_node_are_resolved_and_drawn() {
    const N_NODES: usize = 50_000 / SLOWER;
    let text = nodes(N_NODES + 1, |at, text| {
        write!(text, "name: n{at:06}").unwrap();
        if at > 0 {
            text.push_str(", peers: [n000000]");
        }
    });
    let (resolved, diagnostics, _) = resolve(text);
    assert_eq!(diagnostics.errors(), 0, "{:?}", codes(&diagnostics));
    let resolved = resolved.unwrap();
    assert_eq!(resolved.nodes[0].peers.len(), N_NODES);
    assert!(draw::dot(&resolved.diagram(None)).len() > N_NODES);
    assert!(draw::tree(&resolved.diagram(None), draw::Glyphs::Ascii).len() > N_NODES);
}

#[test]
fn fifty_thousand_spokes_of_one_hub_are_resolved_and_drawn() {
    const N_NODES: usize = 50_000 / SLOWER;
    let mut text = nodes(N_NODES + 1, |at, text| {
        write!(text, "name: n{at:06}").unwrap();
    });
    text.push_str("hub: n000000\n");
    let (resolved, diagnostics, _) = resolve(text);
    assert_eq!(diagnostics.errors(), 0, "{:?}", codes(&diagnostics));
    let diagram = resolved.unwrap().diagram(None);
    assert!(draw::mermaid(&diagram).len() > N_NODES);
    assert!(draw::tree(&diagram, draw::Glyphs::Ascii).len() > N_NODES);
}

#[test]
fn a_hundred_thousand_roots_without_a_hub_are_one_diagnostic_of_bounded_size() {
    const N_NODES: usize = 100_000 / SLOWER;
    let mut text = nodes(N_NODES, |at, text| write!(text, "name: n{at:06}").unwrap());
    text.push_str("pattern: hub-spoke\n");
    let (_, diagnostics, _) = resolve(text);
    let diagnostic = diagnostics.iter().next().unwrap();
    assert!(
        diagnostic.message.len() < 1_000,
        "{}",
        diagnostic.message.len()
    );
}

#[test]
fn a_hundred_thousand_roots_outside_a_mesh_are_one_diagnostic_of_bounded_size() {
    const N_NODES: usize = 100_000 / SLOWER;
    let text = nodes(N_NODES, |at, text| {
        write!(text, "name: n{at:06}").unwrap();
        if at == 0 {
            text.push_str(", peers: [n000001]");
        }
    });
    let (_, diagnostics, _) = resolve(text);
    assert_eq!(diagnostics.errors(), 1);
    assert!(diagnostics.iter().next().unwrap().labels.len() < 100);
}

#[test]
fn fifty_thousand_regions_in_a_chain_of_links_are_resolved() {
    const N_REGIONS: usize = 50_000 / SLOWER;
    let mut text = nodes(N_REGIONS, |at, text| {
        write!(text, "name: n{at:06}, region: r{at:06}").unwrap();
    });
    text.push_str("regions:\n");
    for at in 0..N_REGIONS {
        writeln!(text, "- {{name: r{at:06}}}").unwrap();
    }
    text.push_str("links:\n");
    for at in 1..N_REGIONS {
        writeln!(text, "- {{between: [r{:06}, r{at:06}]}}", at - 1).unwrap();
    }
    let (resolved, diagnostics, _) = resolve(text);
    assert_eq!(diagnostics.errors(), 0, "{:?}", codes(&diagnostics));
    let diagram = resolved.unwrap().diagram(None);
    assert!(draw::dot(&diagram).len() > N_REGIONS);
    assert!(draw::mermaid(&diagram).len() > N_REGIONS);
    assert!(draw::tree(&diagram, draw::Glyphs::Ascii).len() > N_REGIONS);
}

#[test]
fn dangling_references_in_bulk_are_each_reported() {
    let text = nodes(50_000 / SLOWER, |at, text| {
        write!(text, "name: n{at:06}, parent: x{at:06}, peers: [y{at:06}]").unwrap();
    });
    let (_, diagnostics, _) = resolve(text);
    assert_eq!(diagnostics.errors(), 100_000 / SLOWER);
}

#[test]
fn two_hundred_thousand_duplicate_keys_are_each_reported() {
    const N_KEYS: usize = 200_000 / SLOWER;
    let mut text = String::new();
    for at in 0..N_KEYS {
        writeln!(text, "k{at}: 1").unwrap();
    }
    text.push_str(&format!("k{}: 2\n", N_KEYS - 1).repeat(N_KEYS));
    let (value, diagnostics) = parse(text);
    assert_eq!(value.unwrap().entries().unwrap().len(), N_KEYS);
    assert_eq!(diagnostics.errors(), N_KEYS);
}

#[test]
fn ten_thousand_nodes_of_one_name_are_each_reported() {
    let (_, diagnostics, _) = resolve(nodes(10_000, |_, text| text.push_str("name: a")));
    assert_eq!(diagnostics.errors(), 9_999);
}

#[test]
fn a_very_long_key_is_read_and_written_and_not_repeated_in_messages() {
    let text = format!(
        "? {}\n: 1\nname: m\nnodes: [{{name: a}}]\n",
        "k".repeat((8 << 20) / SLOWER)
    );
    let (value, diagnostics) = parse(text.clone());
    assert_eq!(diagnostics.errors(), 0);
    let value = value.unwrap();
    assert!(parse(emit(&value)).0.unwrap() == value);
    let (_, diagnostics, _) = resolve(text);
    assert_eq!(diagnostics.errors(), 1);
    assert!(
        diagnostics
            .iter()
            .all(|diagnostic| diagnostic.message.len() < 1_000)
    );
}

#[test]
fn positions_on_one_very_long_line_are_located() {
    for name in ["x", "é"] {
        let mut text = "{\"name\": \"m\", \"nodes\": [".to_owned();
        for at in 0..100_000 / SLOWER {
            write!(text, "{{\"name\": \"{name}{at}\", \"vmid\": \"a\"}},").unwrap();
        }
        text.push_str("]}");
        let (resolved, diagnostics, sources) = resolve(text);
        let last = diagnostics.sorted(&sources).last().unwrap().span;
        assert!(sources.locate(last).column > 10_000);
        for node in &resolved.unwrap().nodes {
            assert_eq!(sources.locate(node.span).line, 1);
        }
    }
}

#[test]
fn a_spec_of_a_hundred_thousand_packages_and_units_is_resolved() {
    const N_ITEMS: usize = 100_000 / SLOWER;
    let list = |word: &str| -> String { (0..N_ITEMS).map(|at| format!("{word}{at}, ")).collect() };
    let text = format!(
        "platform:\n  packages: [{}]\n  services:\n    enable: [{}]\n    disable: [{}]\n",
        list("package"),
        list("on"),
        list("off")
    );
    let catalog = Catalog::read(vec![input(DocumentKind::Spec, "s", text)]);
    let diagnostics = validate(&catalog);
    assert_eq!(diagnostics.errors(), 0, "{:?}", codes(&diagnostics));
    let json = spec(&catalog, "s", None, SecretVisibility::Masked).unwrap();
    assert_eq!(
        json.json()["platform"]["packages"]
            .as_array()
            .unwrap()
            .len(),
        N_ITEMS
    );
}
