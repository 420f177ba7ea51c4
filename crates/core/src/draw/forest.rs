//! A [`Forest`] is a diagram without cycles and invalid indices. All output formats are drawn from it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Diagram, DiagramNode};

/// The overall arrangement of a diagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LayoutKind {
    /// Hosts on top, their roots below.
    Tiers,
    /// Roots on a ring, joined by peer lines.
    Ring,
    /// The hub on top, its spokes below.
    Hub,
    /// One panel for each region.
    Regions,
}

/// A consistent diagram.
pub(super) struct Forest {
    pub(super) layout: LayoutKind,
    /// The children drawn below each node, in manifest order.
    pub(super) children: Vec<Vec<usize>>,
    /// Nodes drawn below no other node, without the spokes of a [`LayoutKind::Hub`].
    pub(super) tops: Vec<usize>,
    /// The region of each node, its own or that of its parent.
    pub(super) region: Vec<Option<usize>>,
    /// Pairs of parent and child in different regions, connected by a line.
    pub(super) cross_region: Vec<(usize, usize)>,
    /// Peer pairs, smaller index first, each once.
    pub(super) peers: Vec<(usize, usize)>,
    /// The peers of each node, in manifest order.
    peers_of: Vec<Vec<usize>>,
    /// Linked pairs of regions, smaller index first, each once.
    pub(super) links: Vec<(usize, usize)>,
    pub(super) hub: Option<usize>,
    /// Roots that belong to the hub without being its children, in manifest order.
    pub(super) spokes: Vec<usize>,
}

impl Forest {
    pub(super) fn of(diagram: &Diagram) -> Self {
        let n_nodes = diagram.nodes.len();
        let parents = valid_parents(&diagram.nodes);
        let hub = diagram.hub.filter(|hub| *hub < n_nodes);
        // In the flat pattern all nodes are peers of each other: lines would add nothing.
        let shown: &[_] = if diagram.pattern == "flat" {
            &[]
        } else {
            &diagram.peers
        };
        let peers = pairs(shown, n_nodes);
        let layout = if !diagram.regions.is_empty() {
            LayoutKind::Regions
        } else if hub.is_some() {
            LayoutKind::Hub
        } else if !peers.is_empty() {
            LayoutKind::Ring
        } else {
            LayoutKind::Tiers
        };

        let region = regions(diagram, &parents);
        let mut children = vec![Vec::new(); n_nodes];
        let mut tops = Vec::new();
        let mut cross_region = Vec::new();
        for (node, parent) in parents.iter().enumerate() {
            match *parent {
                Some(parent) if region[parent] == region[node] => children[parent].push(node),
                Some(parent) => {
                    cross_region.push((parent, node));
                    tops.push(node);
                }
                None => tops.push(node),
            }
        }

        let spokes = hub.map_or_else(Vec::new, |hub| {
            let own_root = root_of(hub, &parents);
            let is_spoke = |node: &usize| parents[*node].is_none() && *node != own_root;
            (0..n_nodes).filter(is_spoke).collect()
        });
        if layout == LayoutKind::Hub {
            tops.retain(|node| spokes.binary_search(node).is_err());
        }
        let links = pairs(&diagram.links, diagram.regions.len());
        let mut peers_of = vec![Vec::new(); n_nodes];
        for (a, b) in &peers {
            peers_of[*a].push(*b);
            peers_of[*b].push(*a);
        }
        Self {
            layout,
            children,
            tops,
            region,
            cross_region,
            peers,
            peers_of,
            links,
            hub,
            spokes,
        }
    }

    /// The peers of one node, in manifest order.
    pub(super) fn peers_of(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        self.peers_of[node].iter().copied()
    }

    /// Returns whether a node is a spoke of the hub and not its child.
    pub(super) fn is_spoke(&self, node: usize) -> bool {
        self.spokes.binary_search(&node).is_ok()
    }

    /// The parent of a node that is drawn in another region than its parent.
    pub(super) fn parent_in_other_region(&self, node: usize) -> Option<usize> {
        let at = self
            .cross_region
            .binary_search_by_key(&node, |(_, child)| *child);
        at.ok().map(|at| self.cross_region[at].0)
    }

    /// Nodes drawn directly below a node, and whether each is a spoke.
    pub(super) fn below(&self, node: usize) -> Vec<(usize, bool)> {
        let mut below: Vec<_> = self.children[node]
            .iter()
            .map(|child| (*child, false))
            .collect();
        if self.layout == LayoutKind::Hub && self.hub == Some(node) {
            below.extend(self.spokes.iter().map(|spoke| (*spoke, true)));
        }
        below
    }

    /// The tops of each host, in order of first use. The name of a host may be empty.
    pub(super) fn tops_by_host<'t>(&self, diagram: &'t Diagram) -> Vec<(&'t str, Vec<usize>)> {
        let mut index = BTreeMap::new();
        let mut groups: Vec<(&str, Vec<usize>)> = Vec::new();
        for &top in &self.tops {
            let host = diagram.nodes[top].host.as_deref().unwrap_or(&diagram.host);
            let at = *index.entry(host).or_insert_with(|| {
                groups.push((host, Vec::new()));
                groups.len() - 1
            });
            groups[at].1.push(top);
        }
        groups
    }

    /// The tops of each region, and last those of no region, if there are any.
    pub(super) fn tops_by_region(&self, n_regions: usize) -> Vec<(Option<usize>, Vec<usize>)> {
        let mut groups = self.by_region(self.tops.iter().copied(), n_regions);
        groups.retain(|(region, tops)| region.is_some() || !tops.is_empty());
        groups
    }

    /// Nodes by region, and last those of no region.
    pub(super) fn by_region(
        &self,
        nodes: impl Iterator<Item = usize>,
        n_regions: usize,
    ) -> Vec<(Option<usize>, Vec<usize>)> {
        let keys = (0..n_regions).map(Some).chain([None]);
        let mut groups: Vec<_> = keys.map(|region| (region, Vec::new())).collect();
        for node in nodes {
            groups[self.region[node].unwrap_or(n_regions)].1.push(node);
        }
        groups
    }

    /// The host to show next to a node, if nothing else in the diagram shows it.
    pub(super) fn host_note<'t>(&self, diagram: &'t Diagram, node: usize) -> Option<&'t str> {
        let shown_above =
            self.layout == LayoutKind::Tiers && self.tops.binary_search(&node).is_ok();
        diagram.nodes[node]
            .host
            .as_deref()
            .filter(|host| !shown_above && !host.is_empty())
    }
}

/// Returns the parts of the subtitle: pattern, number of machines, host.
pub(super) fn subtitle(diagram: &Diagram, layout: LayoutKind) -> Vec<String> {
    let mut parts = Vec::new();
    if !diagram.pattern.is_empty() {
        parts.push(diagram.pattern.clone());
    }
    let count = match diagram.nodes.len() {
        1 => "1 machine".to_owned(),
        n_nodes => format!("{n_nodes} machines"),
    };
    parts.push(count);
    match layout {
        LayoutKind::Regions => parts.push(match diagram.regions.len() {
            1 => "1 region".to_owned(),
            n_regions => format!("{n_regions} regions"),
        }),
        LayoutKind::Hub | LayoutKind::Ring if !diagram.host.is_empty() => {
            parts.push(format!("on {}", diagram.host));
        }
        // Tiers show the host as the top of the tree.
        LayoutKind::Hub | LayoutKind::Ring | LayoutKind::Tiers => {}
    }
    parts
}

/// Removes parents that do not exist, and breaks each cycle at its first node.
fn valid_parents(nodes: &[DiagramNode]) -> Vec<Option<usize>> {
    let mut parents: Vec<_> = nodes
        .iter()
        .map(|node| node.parent.filter(|parent| *parent < nodes.len()))
        .collect();
    for start in 0..nodes.len() {
        let mut at = start;
        // The limit ends the walk in a cycle that does not contain `start`; such a cycle is broken
        // when one of its own nodes is the start.
        for _ in 0..nodes.len() {
            match parents[at] {
                Some(parent) if parent == start => {
                    parents[start] = None;
                    break;
                }
                Some(parent) => at = parent,
                None => break,
            }
        }
    }
    parents
}

fn root_of(node: usize, parents: &[Option<usize>]) -> usize {
    let mut at = node;
    while let Some(parent) = parents[at] {
        at = parent;
    }
    at
}

fn regions(diagram: &Diagram, parents: &[Option<usize>]) -> Vec<Option<usize>> {
    let own = |node: usize| {
        diagram.nodes[node]
            .region
            .filter(|at| *at < diagram.regions.len())
    };
    let nearest = |node: usize| {
        let mut at = node;
        loop {
            match (own(at), parents[at]) {
                (Some(region), _) => return Some(region),
                (None, Some(parent)) => at = parent,
                (None, None) => return None,
            }
        }
    };
    (0..diagram.nodes.len()).map(nearest).collect()
}

fn pairs(raw: &[(usize, usize)], limit: usize) -> Vec<(usize, usize)> {
    let valid = raw
        .iter()
        .filter(|(a, b)| a != b && *a < limit && *b < limit);
    let once: BTreeSet<_> = valid.map(|&(a, b)| (a.min(b), a.max(b))).collect();
    once.into_iter().collect()
}
