//! Renders a diagram as a Graphviz graph. Nodes keep their names as ids, so that the file can be edited;
//! labels are HTML-like and escaped as such.

use std::collections::BTreeSet;

use super::card_kind::CardKind;
use super::forest::{Forest, LayoutKind, subtitle};
use super::text::{clean, detail, xml};
use super::{Diagram, DiagramNode, DiagramRegion};

const FONT: &str = "Helvetica,Arial,sans-serif";

/// Renders the diagram as DOT.
pub fn dot(diagram: &Diagram) -> String {
    let forest = Forest::of(diagram);
    let mut allocator = IdAllocator::default();
    let ids: Vec<_> = diagram
        .nodes
        .iter()
        .map(|node| allocator.allocate(&node.name))
        .collect();
    let mut out = Vec::new();
    head(diagram, &forest, &mut out);
    match forest.layout {
        LayoutKind::Tiers => tiers(diagram, &forest, &ids, &mut allocator, &mut out),
        LayoutKind::Ring => {
            nodes(diagram, &forest, 0..ids.len(), &ids, "  ", &mut out);
            same_rank(&forest.tops, &ids, &mut out);
        }
        LayoutKind::Hub => {
            nodes(diagram, &forest, 0..ids.len(), &ids, "  ", &mut out);
            same_rank(&forest.spokes, &ids, &mut out);
        }
        LayoutKind::Regions => regions(diagram, &forest, &ids, &mut allocator, &mut out),
    }
    edges(&forest, &ids, &mut out);
    out.push("}\n".to_owned());
    out.join("\n")
}

/// Allocates ids: the name itself, or the name with a number if it is taken.
#[derive(Default)]
struct IdAllocator {
    taken: BTreeSet<String>,
}

impl IdAllocator {
    fn allocate(&mut self, name: &str) -> String {
        let name = clean(name);
        let numbered = (2..).map(|number: u64| format!("{name}#{number}"));
        let mut candidates = std::iter::once(name.clone()).chain(numbered);
        let id = candidates
            .find(|id| !self.taken.contains(id))
            .unwrap_or_default();
        self.taken.insert(id.clone());
        quote(&id)
    }
}

/// Quotes an id or value. Backslashes are doubled, because one before the closing quote would escape
/// it.
fn quote(text: &str) -> String {
    format!(
        "\"{}\"",
        clean(text).replace('\\', "\\\\").replace('"', "\\\"")
    )
}

fn head(diagram: &Diagram, forest: &Forest, out: &mut Vec<String>) {
    let words: Vec<_> = subtitle(diagram, forest.layout)
        .iter()
        .map(|word| xml(word))
        .collect();
    let label = format!(
        "<<b>{}</b><br/><font point-size=\"11\" color=\"#52606f\">{}</font><br/> >",
        or_space(xml(&diagram.name)),
        words.join(" · ")
    );
    out.push(format!("digraph {} {{", quote(&diagram.name)));
    // Lines between clusters need a gap. Clusters rank their own nodes, which keeps panels compact;
    // everywhere else ranks are common to all.
    let (nodesep, newrank) = match forest.layout {
        LayoutKind::Regions => ("0.7", "false"),
        LayoutKind::Tiers | LayoutKind::Ring | LayoutKind::Hub => ("0.35", "true"),
    };
    out.push(format!(
        "  graph [label={label}, labelloc=t, fontname=\"{FONT}\", fontsize=18, rankdir=TB, \
         compound=true, splines=spline, nodesep={nodesep}, ranksep=0.6, pad=0.3, \
         newrank={newrank}];"
    ));
    out.push(format!(
        "  node [shape=box, style=\"rounded,filled\", fontname=\"{FONT}\", fontsize=13, \
         margin=\"0.18,0.1\", penwidth=1.4];"
    ));
    out.push("  edge [color=\"#94a3b8\", penwidth=1.4, arrowsize=0.7];".to_owned());
}

fn tiers(
    diagram: &Diagram,
    forest: &Forest,
    ids: &[String],
    allocator: &mut IdAllocator,
    out: &mut Vec<String>,
) {
    nodes(diagram, forest, 0..ids.len(), ids, "  ", out);
    let mut lines = Vec::new();
    for (host, tops) in forest
        .tops_by_host(diagram)
        .iter()
        .filter(|(host, _)| !host.is_empty())
    {
        let id = allocator.allocate(host);
        let colours = CardKind::Host.light();
        out.push(format!(
            "  {id} [label=<<b>{}</b><br/><font point-size=\"10\">host</font>>, \
             style=\"rounded,filled,dashed\", fillcolor=\"{}\", color=\"{}\", fontcolor=\"{}\"];",
            xml(host),
            colours.fill,
            colours.stroke,
            colours.text
        ));
        lines.extend(tops.iter().map(|top| format!("  {id} -> {};", ids[*top])));
    }
    same_rank(&forest.tops, ids, out);
    out.append(&mut lines);
}

fn regions(
    diagram: &Diagram,
    forest: &Forest,
    ids: &[String],
    allocator: &mut IdAllocator,
    out: &mut Vec<String>,
) {
    // A line between clusters needs a node at each end; an empty region gets an invisible one.
    let mut anchors = Vec::new();
    let mut members = forest.by_region(0..ids.len(), diagram.regions.len());
    let rest = members.pop().map_or_else(Vec::new, |(_, rest)| rest);
    let tops = forest.tops_by_region(diagram.regions.len());
    let inside = members.into_iter().zip(&tops);
    for ((at, region), ((_, members), (_, tops))) in diagram.regions.iter().enumerate().zip(inside)
    {
        out.push(format!("  subgraph \"cluster_{at}\" {{"));
        out.push(format!(
            "    graph [label={}, labeljust=l, style=\"rounded,filled\", fillcolor=\"#f6f8fb\", \
             color=\"#cfd8e3\", fontsize=14, margin=16];",
            region_label(region, diagram)
        ));
        nodes(diagram, forest, members.into_iter(), ids, "    ", out);
        anchors.push(tops.first().map_or_else(
            || {
                let id = allocator.allocate(&format!("{} (empty)", region.name));
                out.push(format!("    {id} [style=invis, label=\"\"];"));
                id
            },
            |top| ids[*top].clone(),
        ));
        out.push("  }".to_owned());
    }
    nodes(diagram, forest, rest.into_iter(), ids, "  ", out);
    for (a, b) in &forest.links {
        out.push(format!(
            "  {} -> {} [dir=none, style=dashed, color=\"#4f46e5\", penwidth=1.8, \
             constraint=false, ltail=\"cluster_{a}\", lhead=\"cluster_{b}\"];",
            anchors[*a], anchors[*b]
        ));
    }
}

fn region_label(region: &DiagramRegion, diagram: &Diagram) -> String {
    let host = region.host.as_deref().unwrap_or(&diagram.host);
    let on = if host.is_empty() {
        String::new()
    } else {
        format!("  on {}", xml(host))
    };
    let name = or_space(xml(&region.name));
    format!("<<b>{name}</b><font point-size=\"11\" color=\"#52606f\">{on} </font>>")
}

fn nodes(
    diagram: &Diagram,
    forest: &Forest,
    members: impl Iterator<Item = usize>,
    ids: &[String],
    indent: &str,
    out: &mut Vec<String>,
) {
    for at in members {
        let node = &diagram.nodes[at];
        let colours = CardKind::of(&node.kind).light();
        let mut extra = String::new();
        if forest.hub == Some(at) {
            extra.push_str(", peripheries=2, penwidth=2");
        }
        out.push(format!(
            "{indent}{} [label={}, fillcolor=\"{}\", color=\"{}\", fontcolor=\"{}\"{extra}];",
            ids[at],
            label(node, forest.host_note(diagram, at)),
            colours.fill,
            colours.stroke,
            colours.text
        ));
    }
}

fn label(node: &DiagramNode, host: Option<&str>) -> String {
    let mut words: Vec<_> = [&node.kind]
        .into_iter()
        .chain(&node.details)
        .map(|w| detail(w))
        .collect();
    words.extend(host.map(|host| format!("on {}", clean(host))));
    words.retain(|word| !word.is_empty());
    let small = if words.is_empty() {
        String::new()
    } else {
        format!(
            "<br/><font point-size=\"10\">{}</font>",
            xml(&words.join(" · "))
        )
    };
    format!("<<b>{}</b>{small}>", or_space(xml(&node.name)))
}

/// Graphviz rejects an empty element in an HTML-like label.
fn or_space(text: String) -> String {
    if text.is_empty() {
        " ".to_owned()
    } else {
        text
    }
}

fn same_rank(members: &[usize], ids: &[String], out: &mut Vec<String>) {
    if members.len() > 1 {
        let members: Vec<_> = members.iter().map(|at| ids[*at].as_str()).collect();
        out.push(format!("  {{ rank=same; {}; }}", members.join("; ")));
    }
}

fn edges(forest: &Forest, ids: &[String], out: &mut Vec<String>) {
    for (parent, children) in forest.children.iter().enumerate() {
        out.extend(
            children
                .iter()
                .map(|child| format!("  {} -> {};", ids[parent], ids[*child])),
        );
    }
    for (parent, child) in &forest.cross_region {
        out.push(format!(
            "  {} -> {} [constraint=false];",
            ids[*parent], ids[*child]
        ));
    }
    if let Some(hub) = forest.hub {
        for spoke in &forest.spokes {
            out.push(format!(
                "  {} -> {} [dir=none, color=\"#0284c7\", penwidth=2.4];",
                ids[hub], ids[*spoke]
            ));
        }
    }
    for (a, b) in &forest.peers {
        out.push(format!(
            "  {} -> {} [dir=both, color=\"#db2777\", penwidth=1.8, constraint=false];",
            ids[*a], ids[*b]
        ));
    }
}
