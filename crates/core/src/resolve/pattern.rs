//! Derives the pattern of a manifest from its graph, or checks the written one against it. Graphs with
//! dangling references are not checked.

use std::collections::BTreeSet;

use crate::doc::manifest::{Manifest, Pattern};
use crate::doc::{Code, Diagnostic, Diagnostics, Span};

use super::node_graph::NodeGraph;
use super::origin::WithOrigin;

/// Returns the pattern of a manifest, and reports a written one that does not match the graph.
pub(super) fn pattern(
    manifest: &Manifest,
    topology: &NodeGraph<'_>,
    diagnostics: &mut Diagnostics,
) -> WithOrigin<Pattern> {
    let derived = derive(topology);
    let Some(written) = &manifest.pattern else {
        if topology.sound {
            check(derived, topology, None, whole(manifest), diagnostics);
        }
        return WithOrigin::derived(derived, "derived from the graph", None);
    };
    if topology.sound {
        check(
            written.value,
            topology,
            Some(written.span),
            written.span,
            diagnostics,
        );
    }
    WithOrigin::from(written)
}

fn whole(manifest: &Manifest) -> Span {
    let nodes = manifest.nodes.as_ref().map(|nodes| nodes.span);
    let first = manifest
        .regions
        .as_ref()
        .map(|regions| regions.span)
        .or(manifest.hub.as_ref().map(|hub| hub.span));
    first.or(nodes).unwrap_or(crate::doc::tree::NO_SPAN)
}

fn derive(topology: &NodeGraph<'_>) -> Pattern {
    if !topology.regions.is_empty() || !topology.links.is_empty() {
        Pattern::Federated
    } else if topology.hub.is_some() {
        Pattern::HubSpoke
    } else if topology.nodes.iter().any(|node| !node.peers.is_empty()) {
        Pattern::Mesh
    } else if (0..topology.nodes.len()).any(|node| topology.graph.parent(node).is_some()) {
        Pattern::Tiered
    } else {
        Pattern::Flat
    }
}

/// At most this many labels and nodes are shown in one diagnostic.
const MAX_SHOWN: usize = 24;

/// Collects mismatches between graph and pattern into one diagnostic.
struct PatternCheck<'t, 'a> {
    topology: &'t NodeGraph<'a>,
    diagnostic: Option<Diagnostic>,
    /// How to fix the first mismatch in the graph.
    fix: String,
    pattern: Pattern,
    /// Span of the pattern; `None` if it is derived.
    written: Option<Span>,
    /// Fallback span.
    span: Span,
}

impl PatternCheck<'_, '_> {
    fn mismatch(&mut self, why: impl std::fmt::Display, at: Option<Span>, fix: impl Into<String>) {
        let Some(diagnostic) = self.diagnostic.take() else {
            let pattern = self.pattern;
            let known = if self.written.is_some() {
                format!("the pattern is `{pattern}`")
            } else {
                format!("the derived pattern is `{pattern}`")
            };
            self.fix = fix.into();
            let at_pattern = self.written.or(at).unwrap_or(self.span);
            let diagnostic = Diagnostic::error(
                Code::PatternMismatch,
                at_pattern,
                format!("{known}, but {why}"),
            );
            let label = at.filter(|at| *at != at_pattern);
            self.diagnostic = Some(match label {
                Some(at) => diagnostic.label(at, why.to_string()),
                None => diagnostic,
            });
            return;
        };
        self.diagnostic = Some(match at {
            Some(at) if diagnostic.labels.len() < MAX_SHOWN => {
                diagnostic.label(at, why.to_string())
            }
            Some(_) | None => diagnostic,
        });
    }

    fn no_parents(&mut self) {
        for (at, node_ref) in self.topology.nodes.iter().enumerate() {
            if let (Some(_), Some(parent)) = (self.topology.graph.parent(at), &node_ref.node.parent)
            {
                let why = format!("`{}` runs on `{}`", node_ref.name.value, parent.value);
                return self.mismatch(why, Some(parent.span), "remove `parent`");
            }
        }
    }

    fn no_peers(&mut self) {
        let peer = self
            .topology
            .nodes
            .iter()
            .find_map(|node_ref| Some((node_ref, node_ref.node.peers.as_ref()?)));
        if let Some((node_ref, peers)) = peer.filter(|(_, peers)| !peers.is_empty()) {
            self.mismatch(
                format!("`{}` has peers", node_ref.name.value),
                Some(peers.span),
                "remove `peers`",
            );
        }
    }

    fn no_hub(&mut self) {
        if let Some((_, span)) = self.topology.hub {
            self.mismatch("a hub is set", Some(span), "remove `hub`");
        }
    }

    fn no_regions(&mut self) {
        if let Some(region) = self.topology.regions.first() {
            self.mismatch(
                "regions are listed",
                Some(region.span),
                "remove `regions` and `links`",
            );
        }
    }
}

fn check(
    pattern: Pattern,
    topology: &NodeGraph<'_>,
    written: Option<Span>,
    span: Span,
    diagnostics: &mut Diagnostics,
) {
    let mut check = PatternCheck {
        topology,
        diagnostic: None,
        fix: String::new(),
        pattern,
        written,
        span,
    };
    match pattern {
        Pattern::Flat => {
            check.no_parents();
            check.no_peers();
            check.no_hub();
            check.no_regions();
        }
        Pattern::Tiered => {
            if (0..topology.nodes.len()).all(|node| topology.graph.parent(node).is_none()) {
                check.mismatch("no node runs on another", None, "write `parent` on a node");
            }
            check.no_peers();
            check.no_hub();
            check.no_regions();
        }
        Pattern::Mesh => {
            mesh(&mut check);
            check.no_hub();
            check.no_regions();
        }
        Pattern::HubSpoke => {
            hub_spoke(topology, span, diagnostics);
            check.no_peers();
            check.no_regions();
        }
        Pattern::Federated => {
            federated(&mut check, diagnostics);
            check.no_hub();
        }
    }
    if let Some(diagnostic) = check.diagnostic {
        let derived = derive(topology);
        let hint = if derived == pattern {
            check.fix
        } else {
            format!("the graph is `{derived}`: use that, remove `pattern`, or change the graph")
        };
        diagnostics.push(diagnostic.hint(hint));
    }
}

/// Requires peers, all of them connected, and a peer in the tree of every root.
fn mesh(check: &mut PatternCheck<'_, '_>) {
    let topology = check.topology;
    let peers: Vec<usize> = (0..topology.nodes.len())
        .filter(|at| !topology.nodes[*at].peers.is_empty())
        .collect();
    let Some(first) = peers.first() else {
        return check.mismatch("no node has peers", None, "write `peers` on a node");
    };
    let peer_roots: BTreeSet<usize> = peers.iter().map(|at| topology.graph.root_of(*at)).collect();
    for root in topology
        .graph
        .roots()
        .filter(|root| !peer_roots.contains(root))
    {
        let name = topology.nodes[root].name;
        check.mismatch(
            format!("`{}` has no peers", name.value),
            Some(name.span),
            format!(
                "write `peers` on `{}`, or add it to the `peers` of another node",
                name.value
            ),
        );
    }
    let apart = unreached(&peers, |at| topology.nodes[at].peers.iter().copied());
    if let Some(at) = apart.first() {
        let (name, other) = (topology.nodes[*at].name, topology.nodes[*first].name);
        check.mismatch(
            format!("`{}` is not connected to `{}`", name.value, other.value),
            Some(name.span),
            "add a node of one part to the `peers` of a node of the other",
        );
    }
}

/// Requires a hub without a parent, and spokes: its children and all other roots.
fn hub_spoke(topology: &NodeGraph<'_>, span: Span, diagnostics: &mut Diagnostics) {
    let roots: Vec<usize> = topology.graph.roots().collect();
    let hub = match topology.hub {
        Some((hub, _)) => hub,
        None if roots.len() == 1 => roots[0],
        None => {
            let mut tops: Vec<String> = roots
                .iter()
                .take(MAX_SHOWN)
                .map(|at| format!("`{}`", topology.nodes[*at].name.value))
                .collect();
            if roots.len() > MAX_SHOWN {
                tops.push("...".into());
            }
            diagnostics.push(
                Diagnostic::error(
                    Code::BadHub,
                    span,
                    format!(
                        "no hub is set, and there are {} root nodes: {}",
                        roots.len(),
                        tops.join(", ")
                    ),
                )
                .hint("write `hub: NAME` beside `pattern`"),
            );
            return;
        }
    };
    let at = topology.hub.map_or(span, |(_, span)| span);
    let name = topology.nodes[hub].name;
    if topology.graph.parent(hub).is_some() {
        diagnostics.push(
            Diagnostic::error(
                Code::BadHub,
                at,
                format!("the hub `{}` runs on another node", name.value),
            )
            .label(name.span, "the hub is defined here")
            .hint("the hub must be a root node: remove its `parent`, or set another hub"),
        );
    }
    if topology.nodes.len() < 2 {
        diagnostics.push(
            Diagnostic::error(
                Code::BadHub,
                at,
                format!("the hub `{}` has no spokes", name.value),
            )
            .hint("add nodes, or use another pattern"),
        );
    }
}

/// Requires two or more regions, each with nodes, all connected by links, and every node in a region.
fn federated(check: &mut PatternCheck<'_, '_>, diagnostics: &mut Diagnostics) {
    let topology = check.topology;
    if topology.regions.len() < 2 {
        return check.mismatch(
            "there are fewer than two regions",
            topology.regions.first().map(|region| region.span),
            "add a second region, or remove `regions`",
        );
    }
    for root in topology.graph.roots() {
        let node_ref = &topology.nodes[root];
        if node_ref.region.is_none() {
            check.mismatch(
                format!("`{}` is in no region", node_ref.name.value),
                Some(node_ref.name.span),
                format!("write `region: NAME` on `{}`", node_ref.name.value),
            );
        }
    }
    let used: BTreeSet<usize> = topology
        .nodes
        .iter()
        .filter_map(|node_ref| node_ref.region)
        .collect();
    for (at, region) in topology.regions.iter().enumerate() {
        let Some(name) = region.name.as_ref().filter(|_| !used.contains(&at)) else {
            continue;
        };
        diagnostics.push(
            Diagnostic::error(
                Code::BadRegion,
                name.span,
                format!("no node is in region `{}`", name.value),
            )
            .hint(format!(
                "write `region: {}` on a node, or remove the region",
                name.value
            )),
        );
    }
    let all: Vec<usize> = (0..topology.regions.len()).collect();
    let mut linked = vec![Vec::new(); all.len()];
    for (one, other, _) in &topology.links {
        linked[*one].push(*other);
        linked[*other].push(*one);
    }
    for at in unreached(&all, |at| linked[at].iter().copied()) {
        if let Some(name) = &topology.regions[at].name {
            check.mismatch(
                format!("no link connects region `{}`", name.value),
                Some(name.span),
                "add `{between: [ONE, OTHER]}` to `links` until all regions are connected",
            );
        }
    }
}

/// Returns the members that are not reachable from the first one.
fn unreached<I: Iterator<Item = usize>>(
    members: &[usize],
    edges: impl Fn(usize) -> I,
) -> Vec<usize> {
    let mut reached: BTreeSet<usize> = members.first().copied().into_iter().collect();
    let mut queue: Vec<usize> = reached.iter().copied().collect();
    while let Some(at) = queue.pop() {
        queue.extend(edges(at).filter(|next| reached.insert(*next)));
    }
    members
        .iter()
        .copied()
        .filter(|member| !reached.contains(member))
        .collect()
}
