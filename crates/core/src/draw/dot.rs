//! The topology as a Graphviz graph, for those who want to lay it out themselves.
//!
//! In: a [`Topology`]. Out: DOT text. Machines keep their names as identifiers, so that the file
//! can be edited by hand; labels are HTML-like and escaped as such.
//! Never: coordinates.

use std::collections::BTreeSet;

use super::forest::{Forest, Shape, subtitle};
use super::kind::Kind;
use super::text::{clean, detail, xml};
use super::{Node, Region, Topology};

const FONT: &str = "Helvetica,Arial,sans-serif";

/// Renders the topology as DOT.
pub fn dot(topology: &Topology) -> String {
    let forest = Forest::of(topology);
    let mut names = Names::default();
    let ids: Vec<_> = topology
        .nodes
        .iter()
        .map(|node| names.take(&node.name))
        .collect();
    let mut out = Vec::new();
    head(topology, &forest, &mut out);
    match forest.shape {
        Shape::Tiers => tiers(topology, &forest, &ids, &mut names, &mut out),
        Shape::Ring => {
            nodes(topology, &forest, 0..ids.len(), &ids, "  ", &mut out);
            same_rank(&forest.tops, &ids, &mut out);
        }
        Shape::Hub => {
            nodes(topology, &forest, 0..ids.len(), &ids, "  ", &mut out);
            same_rank(&forest.spokes, &ids, &mut out);
        }
        Shape::Regions => regions(topology, &forest, &ids, &mut names, &mut out),
    }
    edges(&forest, &ids, &mut out);
    out.push("}\n".to_owned());
    out.join("\n")
}

/// Hands out identifiers: the name itself, or the name with a number when it was taken.
#[derive(Default)]
struct Names {
    taken: BTreeSet<String>,
}

impl Names {
    fn take(&mut self, name: &str) -> String {
        let name = clean(name);
        let numbered = (2..).map(|number: u64| format!("{name}#{number}"));
        let mut wishes = std::iter::once(name.clone()).chain(numbered);
        // The wishes never end and the taken names do.
        let id = wishes
            .find(|wish| !self.taken.contains(wish))
            .unwrap_or_default();
        self.taken.insert(id.clone());
        quote(&id)
    }
}

/// A quoted identifier or value. A backslash is doubled, because one before the closing quote
/// would escape it.
fn quote(text: &str) -> String {
    format!(
        "\"{}\"",
        clean(text).replace('\\', "\\\\").replace('"', "\\\"")
    )
}

fn head(topology: &Topology, forest: &Forest, out: &mut Vec<String>) {
    let words: Vec<_> = subtitle(topology, forest.shape)
        .iter()
        .map(|word| xml(word))
        .collect();
    let label = format!(
        "<<b>{}</b><br/><font point-size=\"11\" color=\"#52606f\">{}</font><br/> >",
        or_space(xml(&topology.name)),
        words.join(" · ")
    );
    out.push(format!("digraph {} {{", quote(&topology.name)));
    // Lines between clusters need a gap to be seen in; nodes of one tree do not. Clusters rank
    // their own nodes, which keeps panels compact; everywhere else ranks are common to all.
    let (nodesep, newrank) = match forest.shape {
        Shape::Regions => ("0.7", "false"),
        Shape::Tiers | Shape::Ring | Shape::Hub => ("0.35", "true"),
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
    topology: &Topology,
    forest: &Forest,
    ids: &[String],
    names: &mut Names,
    out: &mut Vec<String>,
) {
    nodes(topology, forest, 0..ids.len(), ids, "  ", out);
    let mut lines = Vec::new();
    for (host, tops) in forest
        .tops_by_host(topology)
        .iter()
        .filter(|(host, _)| !host.is_empty())
    {
        let id = names.take(host);
        let colours = Kind::Host.light();
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
    topology: &Topology,
    forest: &Forest,
    ids: &[String],
    names: &mut Names,
    out: &mut Vec<String>,
) {
    // A line between clusters needs a node at each end; an empty region gets an invisible one.
    let mut doors = Vec::new();
    let mut members = forest.by_region(0..ids.len(), topology.regions.len());
    let rest = members.pop().map_or_else(Vec::new, |(_, rest)| rest);
    let tops = forest.tops_by_region(topology.regions.len());
    let inside = members.into_iter().zip(&tops);
    for ((at, region), ((_, members), (_, tops))) in topology.regions.iter().enumerate().zip(inside)
    {
        out.push(format!("  subgraph \"cluster_{at}\" {{"));
        out.push(format!(
            "    graph [label={}, labeljust=l, style=\"rounded,filled\", fillcolor=\"#f6f8fb\", \
             color=\"#cfd8e3\", fontsize=14, margin=16];",
            region_label(region, topology)
        ));
        nodes(topology, forest, members.into_iter(), ids, "    ", out);
        doors.push(tops.first().map_or_else(
            || {
                let id = names.take(&format!("{} (empty)", region.name));
                out.push(format!("    {id} [style=invis, label=\"\"];"));
                id
            },
            |top| ids[*top].clone(),
        ));
        out.push("  }".to_owned());
    }
    nodes(topology, forest, rest.into_iter(), ids, "  ", out);
    for (a, b) in &forest.links {
        out.push(format!(
            "  {} -> {} [dir=none, style=dashed, color=\"#4f46e5\", penwidth=1.8, \
             constraint=false, ltail=\"cluster_{a}\", lhead=\"cluster_{b}\"];",
            doors[*a], doors[*b]
        ));
    }
}

fn region_label(region: &Region, topology: &Topology) -> String {
    let host = region.host.as_deref().unwrap_or(&topology.host);
    let on = if host.is_empty() {
        String::new()
    } else {
        format!("  on {}", xml(host))
    };
    let name = or_space(xml(&region.name));
    format!("<<b>{name}</b><font point-size=\"11\" color=\"#52606f\">{on} </font>>")
}

fn nodes(
    topology: &Topology,
    forest: &Forest,
    members: impl Iterator<Item = usize>,
    ids: &[String],
    indent: &str,
    out: &mut Vec<String>,
) {
    for at in members {
        let node = &topology.nodes[at];
        let colours = Kind::of(&node.kind).light();
        let mut extra = String::new();
        if forest.hub == Some(at) {
            extra.push_str(", peripheries=2, penwidth=2");
        }
        out.push(format!(
            "{indent}{} [label={}, fillcolor=\"{}\", color=\"{}\", fontcolor=\"{}\"{extra}];",
            ids[at],
            label(node, forest.host_note(topology, at)),
            colours.fill,
            colours.stroke,
            colours.text
        ));
    }
}

fn label(node: &Node, host: Option<&str>) -> String {
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

/// Graphviz refuses an empty element in an HTML-like label.
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
    for (parent, child) in &forest.across {
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
