//! The topology put in order: who hangs below whom, without cycles or indices that lead nowhere.
//!
//! In: a [`Topology`]. Out: a [`Forest`] that the four drawings share, and the line below the title.
//! Never: coordinates, wording of one format.

use std::collections::{BTreeMap, BTreeSet};

use super::{Node, Topology};

/// How the picture is arranged as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Hosts on top, their roots below.
    Tiers,
    /// Roots on a ring, joined by peer lines.
    Ring,
    /// The hub on top, its spokes below.
    Hub,
    /// One panel for each region.
    Regions,
}

/// A topology without contradictions.
pub(super) struct Forest {
    pub(super) shape: Shape,
    /// Children that are drawn below their parent, in manifest order.
    pub(super) children: Vec<Vec<usize>>,
    /// Nodes that are drawn below no other node. With [`Shape::Hub`] the spokes are not among them.
    pub(super) tops: Vec<usize>,
    /// The region of each node, its own or that of its parent.
    pub(super) region: Vec<Option<usize>>,
    /// Parent and child in different regions: drawn apart, joined by a line.
    pub(super) across: Vec<(usize, usize)>,
    /// Peer pairs, smaller index first, each once.
    pub(super) peers: Vec<(usize, usize)>,
    /// The peers of each node, in manifest order.
    peers_of: Vec<Vec<usize>>,
    /// Region pairs, smaller index first, each once.
    pub(super) links: Vec<(usize, usize)>,
    pub(super) hub: Option<usize>,
    /// Roots that belong to the hub without being its children, in manifest order.
    pub(super) spokes: Vec<usize>,
}

impl Forest {
    pub(super) fn of(topology: &Topology) -> Self {
        let n_nodes = topology.nodes.len();
        let parents = sound_parents(&topology.nodes);
        let hub = topology.hub.filter(|hub| *hub < n_nodes);
        // In the flat pattern everybody is a peer of everybody: lines would only add noise.
        let shown: &[_] = if topology.pattern == "flat" {
            &[]
        } else {
            &topology.peers
        };
        let peers = pairs(shown, n_nodes);
        let shape = if !topology.regions.is_empty() {
            Shape::Regions
        } else if hub.is_some() {
            Shape::Hub
        } else if !peers.is_empty() {
            Shape::Ring
        } else {
            Shape::Tiers
        };

        let region = regions(topology, &parents);
        let mut children = vec![Vec::new(); n_nodes];
        let mut tops = Vec::new();
        let mut across = Vec::new();
        for (node, parent) in parents.iter().enumerate() {
            match *parent {
                Some(parent) if region[parent] == region[node] => children[parent].push(node),
                Some(parent) => {
                    across.push((parent, node));
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
        if shape == Shape::Hub {
            tops.retain(|node| spokes.binary_search(node).is_err());
        }
        let links = pairs(&topology.links, topology.regions.len());
        let mut peers_of = vec![Vec::new(); n_nodes];
        for (a, b) in &peers {
            peers_of[*a].push(*b);
            peers_of[*b].push(*a);
        }
        Self {
            shape,
            children,
            tops,
            region,
            across,
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

    /// Whether a node belongs to the hub without being its child.
    pub(super) fn is_spoke(&self, node: usize) -> bool {
        self.spokes.binary_search(&node).is_ok()
    }

    /// The parent of a node that is drawn in another region than its parent.
    pub(super) fn parent_across(&self, node: usize) -> Option<usize> {
        let at = self.across.binary_search_by_key(&node, |(_, child)| *child);
        at.ok().map(|at| self.across[at].0)
    }

    /// Nodes drawn directly below a node, and whether each is there as a spoke.
    pub(super) fn below(&self, node: usize) -> Vec<(usize, bool)> {
        let mut below: Vec<_> = self.children[node]
            .iter()
            .map(|child| (*child, false))
            .collect();
        if self.shape == Shape::Hub && self.hub == Some(node) {
            below.extend(self.spokes.iter().map(|spoke| (*spoke, true)));
        }
        below
    }

    /// The tops of each host in order of first use. The name is empty when nobody gave one.
    pub(super) fn tops_by_host<'t>(&self, topology: &'t Topology) -> Vec<(&'t str, Vec<usize>)> {
        let mut place = BTreeMap::new();
        let mut groups: Vec<(&str, Vec<usize>)> = Vec::new();
        for &top in &self.tops {
            let host = topology.nodes[top]
                .host
                .as_deref()
                .unwrap_or(&topology.host);
            let at = *place.entry(host).or_insert_with(|| {
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
        groups.retain(|(place, tops)| place.is_some() || !tops.is_empty());
        groups
    }

    /// Nodes by region, and last those of no region.
    pub(super) fn by_region(
        &self,
        nodes: impl Iterator<Item = usize>,
        n_regions: usize,
    ) -> Vec<(Option<usize>, Vec<usize>)> {
        let places = (0..n_regions).map(Some).chain([None]);
        let mut groups: Vec<_> = places.map(|place| (place, Vec::new())).collect();
        for node in nodes {
            groups[self.region[node].unwrap_or(n_regions)].1.push(node);
        }
        groups
    }

    /// The host to write next to a node, because nothing else in the picture shows it.
    pub(super) fn host_note<'t>(&self, topology: &'t Topology, node: usize) -> Option<&'t str> {
        let shown_above = self.shape == Shape::Tiers && self.tops.binary_search(&node).is_ok();
        topology.nodes[node]
            .host
            .as_deref()
            .filter(|host| !shown_above && !host.is_empty())
    }
}

/// Says in a few words what the picture shows: pattern, how many machines, where.
pub(super) fn subtitle(topology: &Topology, shape: Shape) -> Vec<String> {
    let mut words = Vec::new();
    if !topology.pattern.is_empty() {
        words.push(topology.pattern.clone());
    }
    let count = match topology.nodes.len() {
        1 => "1 machine".to_owned(),
        n_nodes => format!("{n_nodes} machines"),
    };
    words.push(count);
    match shape {
        Shape::Regions => words.push(match topology.regions.len() {
            1 => "1 region".to_owned(),
            n_regions => format!("{n_regions} regions"),
        }),
        Shape::Hub | Shape::Ring if !topology.host.is_empty() => {
            words.push(format!("on {}", topology.host));
        }
        // Tiers show the host as the top of the tree.
        Shape::Hub | Shape::Ring | Shape::Tiers => {}
    }
    words
}

/// Drops parents that do not exist, and cuts each cycle above its first node.
fn sound_parents(nodes: &[Node]) -> Vec<Option<usize>> {
    let mut parents: Vec<_> = nodes
        .iter()
        .map(|node| node.parent.filter(|parent| *parent < nodes.len()))
        .collect();
    for start in 0..nodes.len() {
        let mut at = start;
        // A cycle that `start` is not part of was cut before or is cut later: the count ends the walk.
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

fn regions(topology: &Topology, parents: &[Option<usize>]) -> Vec<Option<usize>> {
    let own = |node: usize| {
        topology.nodes[node]
            .region
            .filter(|at| *at < topology.regions.len())
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
    (0..topology.nodes.len()).map(nearest).collect()
}

fn pairs(raw: &[(usize, usize)], limit: usize) -> Vec<(usize, usize)> {
    let sound = raw
        .iter()
        .filter(|(a, b)| a != b && *a < limit && *b < limit);
    let once: BTreeSet<_> = sound.map(|&(a, b)| (a.min(b), a.max(b))).collect();
    once.into_iter().collect()
}
