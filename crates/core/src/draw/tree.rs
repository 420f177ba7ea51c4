//! Renders a diagram as text for a terminal: a tree on the left, type and details in columns.

use super::Diagram;
use super::forest::{Forest, LayoutKind, subtitle};
use super::text::{cells, clean};

/// The widest column, in cells. Longer values exceed their column.
const MAX_COLUMN: usize = 32;
/// The longest rule after the name of a region, in cells.
const MAX_RULE: usize = 78;

/// The characters to draw with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Glyphs {
    /// Box drawing characters and arrows.
    Unicode,
    /// ASCII only; names and details are not changed.
    Ascii,
}

/// The strings of a set of glyphs.
struct TreeGlyphs {
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

const UNICODE: TreeGlyphs = TreeGlyphs {
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

const ASCII: TreeGlyphs = TreeGlyphs {
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

/// Renders the diagram as a tree for a terminal.
pub fn tree(diagram: &Diagram, glyphs: Glyphs) -> String {
    let glyphs = match glyphs {
        Glyphs::Unicode => &UNICODE,
        Glyphs::Ascii => &ASCII,
    };
    let forest = Forest::of(diagram);
    let mut rows = Vec::new();
    match forest.layout {
        LayoutKind::Tiers => {
            for (host, tops) in forest.tops_by_host(diagram) {
                separate(&mut rows);
                let writer = TreeWriter {
                    diagram,
                    forest: &forest,
                    glyphs,
                };
                if host.is_empty() {
                    tops.iter()
                        .for_each(|top| writer.entry(*top, "", "", &mut rows));
                } else {
                    let cells = vec!["host".to_owned()];
                    rows.push(Row::Entry {
                        tree: clean(host),
                        cells,
                        notes: Vec::new(),
                    });
                    writer.all(
                        tops.iter().map(|top| (*top, false)).collect(),
                        "",
                        &mut rows,
                    );
                }
            }
        }
        LayoutKind::Ring | LayoutKind::Hub => {
            let writer = TreeWriter {
                diagram,
                forest: &forest,
                glyphs,
            };
            for top in &forest.tops {
                if !forest.below(*top).is_empty() {
                    separate(&mut rows);
                }
                writer.entry(*top, "", "", &mut rows);
            }
        }
        LayoutKind::Regions => {
            let writer = TreeWriter {
                diagram,
                forest: &forest,
                glyphs,
            };
            for (region, tops) in forest.tops_by_region(diagram.regions.len()) {
                separate(&mut rows);
                let (name, host) = match region.and_then(|at| diagram.regions.get(at)) {
                    Some(region) => (clean(&region.name), region.host.as_deref()),
                    None => ("no region".to_owned(), None),
                };
                let host = clean(host.unwrap_or(&diagram.host));
                rows.push(Row::Heading(name, host));
                tops.iter()
                    .for_each(|top| writer.entry(*top, "  ", "  ", &mut rows));
            }
        }
    }

    let mut lines = vec![heading(diagram, &forest, glyphs), String::new()];
    lines.extend(align(&rows, glyphs));
    lines.extend(footer(diagram, &forest, glyphs));
    let mut text = lines.join("\n");
    text.push('\n');
    text
}

struct TreeWriter<'t> {
    diagram: &'t Diagram,
    forest: &'t Forest,
    glyphs: &'static TreeGlyphs,
}

impl TreeWriter<'_> {
    /// Adds a node whose line starts with `first`, and all below it, whose lines start with `rest`.
    fn entry(&self, at: usize, first: &str, rest: &str, rows: &mut Vec<Row>) {
        let node = &self.diagram.nodes[at];
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
        for (nth, (node, is_spoke)) in below.into_iter().enumerate() {
            let glyphs = self.glyphs;
            let (branch, further) = match (is_spoke, nth + 1 == n_below) {
                (false, false) => (glyphs.child, glyphs.down),
                (false, true) => (glyphs.last_child, glyphs.blank),
                (true, false) => (glyphs.spoke, glyphs.down),
                (true, true) => (glyphs.last_spoke, glyphs.blank),
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
        let name = |node: usize| clean(&self.diagram.nodes[node].name);
        let mut notes = Vec::new();
        if self.forest.hub == Some(at) {
            notes.push("hub".to_owned());
        }
        notes.extend(
            self.forest
                .host_note(self.diagram, at)
                .map(|on| format!("on {}", clean(on))),
        );
        let parent = self.forest.parent_in_other_region(at);
        notes.extend(parent.map(|parent| format!("child of {}", name(parent))));
        if let (LayoutKind::Regions, Some(hub)) = (self.forest.layout, self.forest.hub)
            && self.forest.is_spoke(at)
        {
            notes.push(format!("spoke of {}", name(hub)));
        }
        let peers: Vec<_> = self.forest.peers_of(at).map(name).collect();
        if !peers.is_empty() {
            notes.push(format!("{} {}", self.glyphs.peers, peers.join(", ")));
        }
        notes
    }
}

fn heading(diagram: &Diagram, forest: &Forest, glyphs: &TreeGlyphs) -> String {
    let mut words = vec![clean(&diagram.name)];
    words.extend(
        subtitle(diagram, forest.layout)
            .iter()
            .map(|word| clean(word)),
    );
    words.retain(|word| !word.is_empty());
    words.join(glyphs.dot)
}

fn separate(rows: &mut Vec<Row>) {
    if !rows.is_empty() {
        rows.push(Row::Blank);
    }
}

fn align(rows: &[Row], glyphs: &TreeGlyphs) -> Vec<String> {
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
                *width = (*width).max(cells(cell).min(MAX_COLUMN));
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
        .min(MAX_RULE);
    let lines = rows.iter().zip(entries).map(|(row, line)| match row {
        Row::Heading(name, host) => {
            let on = if host.is_empty() {
                String::new()
            } else {
                format!(" on {host}")
            };
            let title = format!("{0}{0} {name}{on} ", glyphs.rule);
            let rule = longest.saturating_sub(cells(&title)).max(2);
            format!("{title}{}", glyphs.rule.repeat(rule))
        }
        Row::Entry { .. } | Row::Blank => line,
    });
    lines.collect()
}

fn pad(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(cells(text))))
}

/// Lists the links, and explains the two kinds of branches if both occur.
fn footer(diagram: &Diagram, forest: &Forest, glyphs: &TreeGlyphs) -> Vec<String> {
    let mut lines = Vec::new();
    if !forest.links.is_empty() {
        let name = |at: usize| clean(&diagram.regions[at].name);
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
                glyphs.peers,
                name(*b)
            ));
        }
    }
    if forest.layout == LayoutKind::Hub && !forest.spokes.is_empty() {
        let (spoke, child) = (glyphs.spoke_sign, glyphs.child_sign);
        lines.extend([
            String::new(),
            format!("{spoke} spoke of the hub   {child} child"),
        ]);
    }
    lines
}
