//! The topology as text for a terminal: a tree on the left, kind and details in columns.
//!
//! In: a [`Topology`] and the [`Glyphs`] the terminal can show. Out: lines without trailing blanks.
//! Never: colour, the width of the terminal.

use super::Topology;
use super::forest::{Forest, Shape, subtitle};
use super::text::{cells, clean};

/// The widest column, in cells. One long value sticks out and must not push away the rest.
const WIDEST_CELL: usize = 32;
/// The longest rule after the name of a region, in cells.
const LONGEST_RULE: usize = 78;

/// The characters to draw with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Glyphs {
    /// Box drawing characters and arrows.
    Unicode,
    /// Nothing but ASCII in the drawing itself; names and details stay as they are.
    Ascii,
}

/// The strings of one set of glyphs, all of the width their place in the tree needs.
struct Pen {
    child: &'static str,
    last_child: &'static str,
    spoke: &'static str,
    last_spoke: &'static str,
    down: &'static str,
    blank: &'static str,
    peers: &'static str,
    dot: &'static str,
    rule: &'static str,
    spoke_sign: &'static str,
    child_sign: &'static str,
}

const UNICODE: Pen = Pen {
    child: "├── ",
    last_child: "└── ",
    spoke: "╞══ ",
    last_spoke: "╘══ ",
    down: "│   ",
    blank: "    ",
    peers: "◄──►",
    dot: " · ",
    rule: "─",
    spoke_sign: "══",
    child_sign: "──",
};

const ASCII: Pen = Pen {
    child: "|-- ",
    last_child: "`-- ",
    spoke: "|== ",
    last_spoke: "`== ",
    down: "|   ",
    blank: "    ",
    peers: "<-->",
    dot: ", ",
    rule: "-",
    spoke_sign: "==",
    child_sign: "--",
};

/// One line of the drawing.
enum Row {
    /// The name of a region, with a note.
    Heading(String, String),
    /// A machine or host.
    Entry {
        tree: String,
        cells: Vec<String>,
        notes: Vec<String>,
    },
    Blank,
}

/// Renders the topology as a tree for a terminal.
pub fn tree(topology: &Topology, glyphs: Glyphs) -> String {
    let pen = match glyphs {
        Glyphs::Unicode => &UNICODE,
        Glyphs::Ascii => &ASCII,
    };
    let forest = Forest::of(topology);
    let mut rows = Vec::new();
    match forest.shape {
        Shape::Tiers => {
            for (host, tops) in forest.tops_by_host(topology) {
                separate(&mut rows);
                let painter = Painter {
                    topology,
                    forest: &forest,
                    pen,
                };
                if host.is_empty() {
                    tops.iter()
                        .for_each(|top| painter.entry(*top, "", "", &mut rows));
                } else {
                    let cells = vec!["host".to_owned()];
                    rows.push(Row::Entry {
                        tree: clean(host),
                        cells,
                        notes: Vec::new(),
                    });
                    painter.all(
                        tops.iter().map(|top| (*top, false)).collect(),
                        "",
                        &mut rows,
                    );
                }
            }
        }
        Shape::Ring | Shape::Hub => {
            let painter = Painter {
                topology,
                forest: &forest,
                pen,
            };
            for top in &forest.tops {
                if !forest.below(*top).is_empty() {
                    separate(&mut rows);
                }
                painter.entry(*top, "", "", &mut rows);
            }
        }
        Shape::Regions => {
            let painter = Painter {
                topology,
                forest: &forest,
                pen,
            };
            for (region, tops) in forest.tops_by_region(topology.regions.len()) {
                separate(&mut rows);
                let (name, host) = match region.and_then(|at| topology.regions.get(at)) {
                    Some(region) => (clean(&region.name), region.host.as_deref()),
                    None => ("no region".to_owned(), None),
                };
                let host = clean(host.unwrap_or(&topology.host));
                rows.push(Row::Heading(name, host));
                tops.iter()
                    .for_each(|top| painter.entry(*top, "  ", "  ", &mut rows));
            }
        }
    }

    let mut lines = vec![heading(topology, &forest, pen), String::new()];
    lines.extend(align(&rows, pen));
    lines.extend(footer(topology, &forest, pen));
    let mut text = lines.join("\n");
    text.push('\n');
    text
}

struct Painter<'t> {
    topology: &'t Topology,
    forest: &'t Forest,
    pen: &'static Pen,
}

impl Painter<'_> {
    /// Adds a node whose line starts with `first`, and all below it, whose lines start with `rest`.
    fn entry(&self, at: usize, first: &str, rest: &str, rows: &mut Vec<Row>) {
        let node = &self.topology.nodes[at];
        let cells = [&node.kind]
            .into_iter()
            .chain(&node.details)
            .map(|cell| clean(cell))
            .collect();
        let tree = format!("{first}{}", clean(&node.name));
        rows.push(Row::Entry {
            tree,
            cells,
            notes: self.notes(at),
        });
        self.all(self.forest.below(at), rest, rows);
    }

    fn all(&self, below: Vec<(usize, bool)>, rest: &str, rows: &mut Vec<Row>) {
        let n_below = below.len();
        for (place, (node, is_spoke)) in below.into_iter().enumerate() {
            let pen = self.pen;
            let (branch, further) = match (is_spoke, place + 1 == n_below) {
                (false, false) => (pen.child, pen.down),
                (false, true) => (pen.last_child, pen.blank),
                (true, false) => (pen.spoke, pen.down),
                (true, true) => (pen.last_spoke, pen.blank),
            };
            self.entry(
                node,
                &format!("{rest}{branch}"),
                &format!("{rest}{further}"),
                rows,
            );
        }
    }

    fn notes(&self, at: usize) -> Vec<String> {
        let name = |node: usize| clean(&self.topology.nodes[node].name);
        let mut notes = Vec::new();
        if self.forest.hub == Some(at) {
            notes.push("hub".to_owned());
        }
        notes.extend(
            self.forest
                .host_note(self.topology, at)
                .map(|on| format!("on {}", clean(on))),
        );
        let above = self.forest.parent_across(at);
        notes.extend(above.map(|parent| format!("child of {}", name(parent))));
        if let (Shape::Regions, Some(hub)) = (self.forest.shape, self.forest.hub)
            && self.forest.is_spoke(at)
        {
            notes.push(format!("spoke of {}", name(hub)));
        }
        let peers: Vec<_> = self.forest.peers_of(at).map(name).collect();
        if !peers.is_empty() {
            notes.push(format!("{} {}", self.pen.peers, peers.join(", ")));
        }
        notes
    }
}

fn heading(topology: &Topology, forest: &Forest, pen: &Pen) -> String {
    let mut words = vec![clean(&topology.name)];
    words.extend(
        subtitle(topology, forest.shape)
            .iter()
            .map(|word| clean(word)),
    );
    words.retain(|word| !word.is_empty());
    words.join(pen.dot)
}

fn separate(rows: &mut Vec<Row>) {
    if !rows.is_empty() {
        rows.push(Row::Blank);
    }
}

fn align(rows: &[Row], pen: &Pen) -> Vec<String> {
    let mut tree_width = 0;
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        if let Row::Entry {
            tree,
            cells: columns,
            ..
        } = row
        {
            tree_width = tree_width.max(cells(tree));
            widths.resize(widths.len().max(columns.len()), 0);
            for (width, cell) in widths.iter_mut().zip(columns) {
                *width = (*width).max(cells(cell).min(WIDEST_CELL));
            }
        }
    }
    let entry = |tree: &str, columns: &[String], notes: &[String]| {
        let mut line = pad(tree, tree_width);
        for (at, width) in widths.iter().enumerate().filter(|(_, width)| **width > 0) {
            let cell = columns.get(at).map_or("", String::as_str);
            line = format!("{line}  {}", pad(cell, *width));
        }
        format!("{line}  {}", notes.join("  "))
            .trim_end()
            .to_owned()
    };
    let entries = rows.iter().map(|row| match row {
        Row::Entry { tree, cells, notes } => entry(tree, cells, notes),
        Row::Heading(..) | Row::Blank => String::new(),
    });
    let entries: Vec<_> = entries.collect();
    let longest = entries
        .iter()
        .map(|line| cells(line))
        .max()
        .unwrap_or(0)
        .min(LONGEST_RULE);
    let lines = rows.iter().zip(entries).map(|(row, line)| match row {
        Row::Heading(name, host) => {
            let on = if host.is_empty() {
                String::new()
            } else {
                format!(" on {host}")
            };
            let title = format!("{0}{0} {name}{on} ", pen.rule);
            let rule = longest.saturating_sub(cells(&title)).max(2);
            format!("{title}{}", pen.rule.repeat(rule))
        }
        Row::Entry { .. } | Row::Blank => line,
    });
    lines.collect()
}

fn pad(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(cells(text))))
}

/// Lists the links, and explains the two kinds of branches when both meanings matter.
fn footer(topology: &Topology, forest: &Forest, pen: &Pen) -> Vec<String> {
    let mut lines = Vec::new();
    if !forest.links.is_empty() {
        let name = |at: usize| clean(&topology.regions[at].name);
        let width = forest
            .links
            .iter()
            .map(|(a, _)| cells(&name(*a)))
            .max()
            .unwrap_or(0);
        lines.extend([String::new(), "links".to_owned()]);
        for (a, b) in &forest.links {
            lines.push(format!(
                "  {} {} {}",
                pad(&name(*a), width),
                pen.peers,
                name(*b)
            ));
        }
    }
    if forest.shape == Shape::Hub && !forest.spokes.is_empty() {
        let (spoke, child) = (pen.spoke_sign, pen.child_sign);
        lines.extend([
            String::new(),
            format!("{spoke} spoke of the hub   {child} child"),
        ]);
    }
    lines
}
