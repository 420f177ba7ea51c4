//! Describes a diagram in sentences, for the `<desc>` of the SVG. The caller escapes the text.

use super::Diagram;
use super::forest::Forest;
use super::text::clean;

/// Describes hosts, children and connections.
pub(super) fn describe(diagram: &Diagram, forest: &Forest) -> String {
    let name = |node: usize| clean(&diagram.nodes[node].name);
    let region = |at: usize| clean(&diagram.regions[at].name);
    let mut parts = Vec::new();
    for (host, tops) in forest.tops_by_host(diagram) {
        let names: Vec<_> = tops.iter().map(|top| name(*top)).collect();
        let place = if host.is_empty() { "Roots" } else { host };
        parts.push(format!("{place}: {}", names.join(", ")));
    }
    for (parent, children) in forest
        .children
        .iter()
        .enumerate()
        .filter(|(_, c)| !c.is_empty())
    {
        let names: Vec<_> = children.iter().map(|child| name(*child)).collect();
        parts.push(format!("{} hosts {}", name(parent), names.join(", ")));
    }
    for (parent, child) in &forest.cross_region {
        parts.push(format!("{} hosts {}", name(*parent), name(*child)));
    }
    if let (Some(hub), false) = (forest.hub, forest.spokes.is_empty()) {
        let names: Vec<_> = forest.spokes.iter().map(|spoke| name(*spoke)).collect();
        parts.push(format!("{} is the hub of {}", name(hub), names.join(", ")));
    }
    parts.extend(
        forest
            .peers
            .iter()
            .map(|(a, b)| format!("{} and {} are peers", name(*a), name(*b))),
    );
    let linked = |(a, b): &(usize, usize)| format!("{} and {} are linked", region(*a), region(*b));
    parts.extend(forest.links.iter().map(linked));
    parts
        .iter()
        .map(|part| format!("{part}."))
        .collect::<Vec<_>>()
        .join(" ")
}
