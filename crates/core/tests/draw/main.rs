//! Snapshots of diagrams, and properties of all of them.

mod examples;
mod xml;

use homestak_core::draw::{Diagram, DiagramNode, DiagramRegion, Glyphs, dot, mermaid, svg, tree};
use proptest::prelude::*;
use snapbox::{Data, assert_data_eq};

fn check(name: &str, extension: &str, actual: String) {
    let path = format!(
        "{}/tests/draw/snapshots/{name}.{extension}",
        env!("CARGO_MANIFEST_DIR")
    );
    let expected = Data::read_from(path.as_ref(), Some(snapbox::data::DataFormat::Text));
    assert_data_eq!(Data::text(actual), expected.raw());
}

#[test]
fn terminal_trees_look_as_reviewed() {
    for example in examples::all() {
        check(&example.name, "txt", tree(&example, Glyphs::Unicode));
        check(&example.name, "ascii.txt", tree(&example, Glyphs::Ascii));
    }
}

#[test]
fn svgs_look_as_reviewed() {
    for example in examples::all() {
        check(&example.name, "svg", svg(&example));
    }
}

#[test]
fn graphviz_files_look_as_reviewed() {
    for example in examples::all() {
        check(&example.name, "dot", dot(&example));
    }
}

#[test]
fn mermaid_charts_look_as_reviewed() {
    for example in examples::all() {
        check(&example.name, "mmd", mermaid(&example));
    }
}

#[test]
fn ascii_trees_are_ascii() {
    for example in examples::all() {
        assert!(tree(&example, Glyphs::Ascii).is_ascii(), "{}", example.name);
    }
}

#[test]
fn an_empty_manifest_still_draws() {
    let empty = Diagram::default();
    assert_eq!(tree(&empty, Glyphs::Unicode), "0 machines\n\n");
    check_svg(&empty).unwrap();
    assert!(dot(&empty).starts_with("digraph \"\" {"));
    assert!(mermaid(&empty).contains("flowchart TB"));
}

#[test]
fn a_parent_cycle_is_broken_and_every_node_is_drawn_once() {
    let node = |name: &str, parent| DiagramNode {
        name: name.to_owned(),
        parent: Some(parent),
        ..DiagramNode::default()
    };
    let nodes = vec![
        node("one", 1),
        node("two", 2),
        node("three", 0),
        node("four", 2),
    ];
    let cycle = Diagram {
        nodes,
        ..Diagram::default()
    };
    let text = tree(&cycle, Glyphs::Unicode);
    for name in ["one", "two", "three", "four"] {
        assert_eq!(text.matches(name).count(), 1, "{text}");
    }
    check_svg(&cycle).unwrap();
}

#[test]
fn details_are_escaped_in_all_formats() {
    let evil = "a\"]; x --> y <script>&amp;\u{1b}[31m\n%%{init: {}}%% `*b*` \\";
    let node = DiagramNode {
        name: "end".to_owned(),
        details: vec![evil.to_owned()],
        ..DiagramNode::default()
    };
    let hostile = Diagram {
        name: evil.to_owned(),
        nodes: vec![node],
        ..Diagram::default()
    };
    check_svg(&hostile).unwrap();
    assert!(!tree(&hostile, Glyphs::Unicode).contains('\u{1b}'));
    let chart = mermaid(&hostile);
    let body = chart.split_once("flowchart TB").unwrap().1;
    assert!(
        !body.contains("%%") && !body.contains('`') && !body.contains("<script"),
        "{body}"
    );
    assert!(dot(&hostile).contains("&lt;script&gt;"));
}

#[test]
fn a_long_name_widens_its_card() {
    let name = "w".repeat(63);
    let node = DiagramNode {
        name: name.clone(),
        kind: "vm".to_owned(),
        ..DiagramNode::default()
    };
    let long = Diagram {
        nodes: vec![node],
        ..Diagram::default()
    };
    let picture = svg(&long);
    let elements = xml::elements(&picture).unwrap();
    let card = elements.iter().find(|element| is(element, "card")).unwrap();
    // 63 letters of at least 0.75 of 14 pixels.
    assert!(card.number("width") > 661.0, "{card:?}");
    assert!(picture.contains(&name));
}

#[test]
fn two_hundred_machines_stay_in_a_readable_shape() {
    let node = |at: usize| DiagramNode {
        name: format!("worker-{at}"),
        kind: "vm".to_owned(),
        details: vec!["base".to_owned(), "vm-small".to_owned(), at.to_string()],
        ..DiagramNode::default()
    };
    let nodes = (0..200).map(node).collect();
    let fleet = Diagram {
        host: "father".to_owned(),
        nodes,
        ..Diagram::default()
    };
    let (width, height) = check_svg(&fleet).unwrap();
    assert!(
        width < 4.0 * height && height < 4.0 * width,
        "{width} by {height}"
    );
}

fn is(element: &xml::Element, class: &str) -> bool {
    element
        .attributes
        .get("class")
        .is_some_and(|found| found == class)
}

/// Checks that the SVG is XML, and that cards do not overlap and are inside the image.
fn check_svg(diagram: &Diagram) -> Result<(f64, f64), String> {
    let elements = xml::elements(&svg(diagram))?;
    let (width, height) = (elements[0].number("width"), elements[0].number("height"));
    let cards: Vec<[f64; 4]> = elements
        .iter()
        .filter(|element| is(element, "card"))
        .map(|card| ["x", "y", "width", "height"].map(|name| card.number(name)))
        .collect();
    if cards.len() < diagram.nodes.len() {
        return Err(format!(
            "{} cards for {} nodes",
            cards.len(),
            diagram.nodes.len()
        ));
    }
    for (at, [x, y, w, h]) in cards.iter().enumerate() {
        if *x < 0.0 || *y < 0.0 || x + w > width || y + h > height {
            return Err(format!("card {at} is outside the image"));
        }
        for (other, [x2, y2, w2, h2]) in cards.iter().enumerate().skip(at + 1) {
            // At least ten pixels apart.
            let apart = x + w + 10.0 <= *x2
                || x2 + w2 + 10.0 <= *x
                || y + h + 10.0 <= *y2
                || y2 + h2 + 10.0 <= *y;
            if !apart {
                return Err(format!("cards {at} and {other} overlap"));
            }
        }
    }
    Ok((width, height))
}

fn any_node(n_nodes: usize) -> impl Strategy<Value = DiagramNode> {
    let kind = prop::sample::select(vec!["vm", "ct", "pve", "k3s", "odd", ""]);
    let details = prop::collection::vec("\\PC{0,12}|[a-z0-9-]{0,60}|(?s).{0,8}", 0..5);
    let parent = prop::option::weighted(0.7, 0..n_nodes + 1);
    let region = prop::option::of(0_usize..4);
    let host = prop::option::weighted(0.1, "[a-z]{1,8}");
    (
        "[a-z][a-z0-9-]{0,40}|.{0,4}",
        kind,
        details,
        parent,
        region,
        host,
    )
        .prop_map(|(name, kind, details, parent, region, host)| DiagramNode {
            name,
            kind: kind.to_owned(),
            details,
            parent,
            region,
            host,
        })
}

fn any_diagram() -> impl Strategy<Value = Diagram> {
    let sized = |n_nodes: usize| {
        let nodes = prop::collection::vec(any_node(n_nodes), n_nodes);
        let peers = prop::collection::vec((0..n_nodes + 1, 0..n_nodes + 1), 0..6);
        let hub = prop::option::weighted(0.3, 0..n_nodes + 1);
        let regions = prop::option::weighted(0.4, 1_usize..9).prop_map(Option::unwrap_or_default);
        let links = prop::collection::vec((0_usize..9, 0_usize..9), 0..8);
        let pattern = prop::sample::select(vec!["flat", "tiered", "mesh", "hub-spoke"]);
        (nodes, peers, hub, regions, links, pattern, "[a-z]{0,8}")
    };
    (1_usize..40).prop_flat_map(sized).prop_map(
        |(nodes, peers, hub, n_regions, links, pattern, host)| {
            let region = |at: usize| DiagramRegion {
                name: format!("region-{at}"),
                host: None,
            };
            let regions = (0..n_regions).map(region).collect();
            let (name, pattern) = ("any <&> name".to_owned(), pattern.to_owned());
            Diagram {
                name,
                pattern,
                host,
                nodes,
                peers,
                hub,
                regions,
                links,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_svg_is_xml_without_overlapping_cards(diagram in any_diagram()) {
        let checked = check_svg(&diagram);
        prop_assert!(checked.is_ok(), "{:?}", checked);
    }

    #[test]
    fn every_tree_has_one_line_per_machine_and_no_control_characters(diagram in any_diagram()) {
        for glyphs in [Glyphs::Unicode, Glyphs::Ascii] {
            let text = tree(&diagram, glyphs);
            prop_assert!(text.lines().count() > diagram.nodes.len());
            prop_assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
            prop_assert!(text.lines().all(|line| line == line.trim_end()));
        }
    }

    #[test]
    fn every_format_is_the_same_twice(diagram in any_diagram()) {
        prop_assert_eq!(svg(&diagram), svg(&diagram));
        prop_assert_eq!(dot(&diagram), dot(&diagram));
        prop_assert_eq!(mermaid(&diagram), mermaid(&diagram));
    }
}
