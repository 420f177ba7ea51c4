//! Renders a diagram as a Mermaid flowchart. Ids are numbers, because Mermaid has reserved words (`end`)
//! that are valid host names; all text is quoted, with entities for special characters.

use std::fmt::Write as _;

use super::Diagram;
use super::card_kind::CardKind;
use super::forest::{Forest, LayoutKind, subtitle};
use super::text::{clean, detail, flow};

/// Renders the diagram as a Mermaid flowchart.
pub fn mermaid(diagram: &Diagram) -> String {
    let forest = Forest::of(diagram);
    let mut words = vec![clean(&diagram.name)];
    words.extend(
        subtitle(diagram, forest.layout)
            .iter()
            .map(|word| clean(word)),
    );
    words.retain(|word| !word.is_empty());
    // A JSON string is a YAML string.
    let title = serde_json::Value::from(words.join(" · "));
    let mut chart = Chart {
        lines: Vec::new(),
        n_edges: 0,
        styles: Vec::new(),
    };
    chart.lines.extend([
        "---".to_owned(),
        format!("title: {title}"),
        "---".to_owned(),
    ]);
    chart.lines.push("flowchart TB".to_owned());

    match forest.layout {
        LayoutKind::Tiers => {
            let hosts = forest.tops_by_host(diagram);
            let named = || {
                hosts
                    .iter()
                    .enumerate()
                    .filter(|(_, (host, _))| !host.is_empty())
            };
            for (at, (host, _)) in named() {
                let text = escape(host);
                chart
                    .lines
                    .push(format!("  h{at}[\"{text}<br/>host\"]:::host"));
            }
            chart.nodes(diagram, &forest, 0..diagram.nodes.len(), "  ");
            for (at, (_, tops)) in named() {
                for top in tops {
                    chart.edge(&format!("h{at} --> n{top}"), None);
                }
            }
        }
        LayoutKind::Ring | LayoutKind::Hub => {
            chart.nodes(diagram, &forest, 0..diagram.nodes.len(), "  ");
        }
        LayoutKind::Regions => chart.regions(diagram, &forest),
    }
    chart.edges(&forest);
    chart.classes(diagram, &forest);
    chart.lines.push(String::new());
    chart.lines.join("\n")
}

struct Chart {
    lines: Vec<String>,
    n_edges: usize,
    /// Colours of edges: Mermaid styles edges by their number in the file.
    styles: Vec<(&'static str, Vec<usize>)>,
}

/// Mermaid breaks lines at 200 pixels of its font at any character: break them before. Its font is 16
/// pixels high, and narrower than the one used for measuring.
const LINE_WIDTH: i64 = 190;
const LINE_SIZE: i64 = 14;

/// Styles of regions, and of edges that are not between parent and child.
const REGION: &str = "fill:#f6f8fb,stroke:#cfd8e3,color:#0f172a";
const SPOKE: &str = "stroke:#0284c7,stroke-width:3px";
const PEER: &str = "stroke:#db2777,stroke-width:2px";
const LINK: &str = "stroke:#4f46e5,stroke-width:2px,stroke-dasharray:6 4";

impl Chart {
    fn nodes(
        &mut self,
        diagram: &Diagram,
        forest: &Forest,
        members: impl Iterator<Item = usize>,
        indent: &str,
    ) {
        for at in members {
            let node = &diagram.nodes[at];
            let words = [&node.kind]
                .into_iter()
                .chain(&node.details)
                .map(|word| detail(word));
            let on = forest
                .host_note(diagram, at)
                .map(|host| format!("on {}", clean(host)));
            let words: Vec<_> = words.chain(on).filter(|word| !word.is_empty()).collect();
            let mut text = escape(&node.name);
            for line in flow(&words, LINE_WIDTH, LINE_SIZE) {
                // Writing to a string cannot fail.
                let _ = write!(text, "<br/>{}", escape(&line));
            }
            // The hub is round, so that it stands out in viewers without colours too.
            let (open, close) = if forest.hub == Some(at) {
                ("([", "])")
            } else {
                ("[", "]")
            };
            let class = CardKind::of(&node.kind).class();
            self.lines
                .push(format!("{indent}n{at}{open}\"{text}\"{close}:::{class}"));
        }
    }

    fn regions(&mut self, diagram: &Diagram, forest: &Forest) {
        let n_nodes = diagram.nodes.len();
        let mut members = forest.by_region(0..n_nodes, diagram.regions.len());
        let rest = members.pop().map_or_else(Vec::new, |(_, rest)| rest);
        let regions = diagram.regions.iter().enumerate();
        for ((at, region), (_, members)) in regions.zip(members) {
            let host = region.host.as_deref().unwrap_or(&diagram.host);
            let on = if host.is_empty() {
                String::new()
            } else {
                format!(" on {}", escape(host))
            };
            let name = escape(&region.name);
            self.lines.push(format!("  subgraph r{at}[\"{name}{on}\"]"));
            self.lines.push("    direction TB".to_owned());
            self.nodes(diagram, forest, members.into_iter(), "    ");
            self.lines.push("  end".to_owned());
        }
        for at in 0..diagram.regions.len() {
            self.lines.push(format!("  style r{at} {REGION}"));
        }
        self.nodes(diagram, forest, rest.into_iter(), "  ");
    }

    fn edges(&mut self, forest: &Forest) {
        for (parent, children) in forest.children.iter().enumerate() {
            for child in children {
                self.edge(&format!("n{parent} --> n{child}"), None);
            }
        }
        for (parent, child) in &forest.cross_region {
            self.edge(&format!("n{parent} --> n{child}"), None);
        }
        if let Some(hub) = forest.hub {
            for spoke in &forest.spokes {
                self.edge(&format!("n{hub} === n{spoke}"), Some(SPOKE));
            }
        }
        for (a, b) in &forest.peers {
            self.edge(&format!("n{a} <--> n{b}"), Some(PEER));
        }
        for (a, b) in &forest.links {
            self.edge(&format!("r{a} -.- r{b}"), Some(LINK));
        }
    }

    fn edge(&mut self, edge: &str, style: Option<&'static str>) {
        self.lines.push(format!("  {edge}"));
        if let Some(style) = style {
            match self.styles.iter_mut().find(|(known, _)| *known == style) {
                Some((_, edges)) => edges.push(self.n_edges),
                None => self.styles.push((style, vec![self.n_edges])),
            }
        }
        self.n_edges += 1;
    }

    fn classes(&mut self, diagram: &Diagram, forest: &Forest) {
        for (style, edges) in &self.styles {
            let edges: Vec<_> = edges.iter().map(ToString::to_string).collect();
            self.lines
                .push(format!("  linkStyle {} {style}", edges.join(",")));
        }
        let has_host = forest.layout == LayoutKind::Tiers
            && forest
                .tops_by_host(diagram)
                .iter()
                .any(|(host, _)| !host.is_empty());
        for kind in CardKind::ALL {
            let of_kind = |node: &super::DiagramNode| CardKind::of(&node.kind) == kind;
            let occurs = diagram.nodes.iter().any(of_kind) || (kind == CardKind::Host && has_host);
            if occurs {
                let colours = kind.light();
                // Light boxes with dark text are readable on a dark page too.
                let mut line = format!(
                    "  classDef {} fill:{},stroke:{},color:{}",
                    kind.class(),
                    colours.fill,
                    colours.stroke,
                    colours.text
                );
                if kind == CardKind::Host {
                    line.push_str(",stroke-dasharray:5 3");
                }
                self.lines.push(line);
            }
        }
    }
}

/// Escapes quoted text. Special characters become numeric entities, because Mermaid parses Markdown,
/// directives and style rules inside quotes too.
fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in clean(text).chars() {
        let plain =
            c.is_alphanumeric() || matches!(c, ' ' | '-' | '.' | ',' | '_' | '/' | '·' | '…');
        if plain {
            out.push(c);
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "#{};", u32::from(c));
        }
    }
    out
}
