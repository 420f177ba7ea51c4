//! Resolves the relations between nodes to indices: parents, peers, hub, regions, links, hosts.

use std::collections::{BTreeMap, BTreeSet};

use crate::catalog::Catalog;
use crate::doc::manifest::{Manifest, Node, NodeType};
use crate::doc::scalar::NodeName;
use crate::doc::spec::Spec;
use crate::doc::{Code, Diagnostic, Diagnostics, Span, Spanned};
use crate::graph::Graph;

use super::manifest::ResolveOptions;
use super::origin::{Origin, WithOrigin};
use super::reference::{dangling, report_dangling, report_no_parent};

/// A node of the manifest in the graph.
pub(super) struct GraphNode<'a> {
    pub(super) name: &'a Spanned<NodeName>,
    pub(super) node: &'a Spanned<Node>,
    /// The host, if `parent` is the name of one.
    pub(super) parent_host: Option<WithOrigin<String>>,
    pub(super) region: Option<usize>,
    pub(super) peers: BTreeSet<usize>,
}

/// The nodes of a manifest and their relations.
pub(super) struct NodeGraph<'a> {
    /// Nodes sorted by name.
    pub(super) nodes: Vec<GraphNode<'a>>,
    pub(super) graph: Graph,
    pub(super) hub: Option<(usize, Span)>,
    pub(super) regions: Vec<&'a Spanned<crate::doc::manifest::Region>>,
    pub(super) links: Vec<(usize, usize, Span)>,
    /// Whether there were no errors, so that the pattern can be checked.
    pub(super) sound: bool,
}

/// Resolves the relations of a manifest.
pub(super) fn node_graph<'a>(
    manifest: &'a Manifest,
    catalog: &Catalog,
    options: &ResolveOptions,
    diagnostics: &mut Diagnostics,
) -> NodeGraph<'a> {
    let before = diagnostics.errors();
    let mut by_name: BTreeMap<&NodeName, &'a Spanned<Node>> = BTreeMap::new();
    let mut complete = manifest.invalid.is_empty();
    for node in manifest.nodes.iter().flat_map(|nodes| &nodes.value) {
        match &node.name {
            Some(name) => _ = by_name.entry(&name.value).or_insert(node),
            None => complete = false,
        }
        complete &= !node
            .invalid
            .iter()
            .any(|key| matches!(*key, "parent" | "peers" | "region" | "name"));
    }
    let n_written = manifest.nodes.as_ref().map_or(0, |nodes| nodes.len());
    complete &= n_written == by_name.len();
    let mut regions = manifest.regions.iter().flat_map(|regions| regions.iter());
    let mut links = manifest.links.iter().flat_map(|links| links.iter());
    complete &= regions.all(|region| region.name.is_some());
    complete &= links.all(|link| link.between.is_some());
    let names: Vec<&NodeName> = by_name.keys().copied().collect();
    let mut nodes: Vec<GraphNode<'a>> = by_name
        .values()
        .filter_map(|node| {
            let name = node.name.as_ref()?;
            Some(GraphNode {
                name,
                node,
                parent_host: None,
                region: None,
                peers: BTreeSet::new(),
            })
        })
        .collect();

    let mut parents = parents(&mut nodes, &names, catalog, options, diagnostics);
    let graph = Graph::new(parents.clone()).unwrap_or_else(|cycles| {
        for cycle in &cycles {
            diagnostics.push(cycle_diagnostic(cycle, &nodes));
            cycle.iter().for_each(|at| parents[*at] = None);
        }
        // The rest of the graph is still checked.
        Graph::new(parents).unwrap_or_default()
    });
    check_hosting(&nodes, &graph, catalog, diagnostics);
    peers(&mut nodes, &names, &graph, diagnostics);
    let regions = self::regions(&mut nodes, manifest, &graph, catalog, diagnostics);
    let links = self::links(manifest, &regions, diagnostics);
    let hub = manifest.hub.as_ref().and_then(|hub| {
        let at = names.binary_search(&&hub.value).ok();
        if at.is_none() {
            let known = names.iter().map(|name| name.as_str());
            diagnostics.push(dangling(
                Code::NoSuchHub,
                hub.span,
                "node",
                hub.as_str(),
                known,
            ));
        }
        at.map(|at| (at, hub.span))
    });
    let sound = complete && diagnostics.errors() == before;
    NodeGraph {
        nodes,
        graph,
        hub,
        regions,
        links,
        sound,
    }
}

fn parents(
    nodes: &mut [GraphNode<'_>],
    names: &[&NodeName],
    catalog: &Catalog,
    options: &ResolveOptions,
    diagnostics: &mut Diagnostics,
) -> Vec<Option<usize>> {
    let mut parents = Vec::with_capacity(nodes.len());
    for node_ref in nodes {
        let Some(parent) = &node_ref.node.parent else {
            parents.push(None);
            continue;
        };
        let at = names
            .binary_search_by(|name| name.as_str().cmp(parent.as_str()))
            .ok();
        parents.push(at);
        if at.is_some() {
            continue;
        }
        if options.host.as_deref() == Some(parent.as_str()) || catalog.has_host(parent.as_str()) {
            node_ref.parent_host = Some(WithOrigin {
                value: parent.to_string(),
                origin: Origin::Written(parent.span),
            });
            diagnostics.push(
                Diagnostic::notice(
                    Code::ParentIsHost,
                    parent.span,
                    format!("`{}` is a host, not a node of this manifest", parent.as_str()),
                )
                .hint("remove `parent` for nodes that run on the host itself; use `host` to choose one"),
            );
        } else {
            let others = names.iter().filter(|name| **name != &node_ref.name.value);
            let others = others.map(|name| name.as_str());
            let from = (parent.as_str(), parent.span);
            report_no_parent(diagnostics, from, names.len(), others, catalog.host_names());
        }
    }
    parents
}

/// At most this many nodes of a cycle are listed in a message.
const MAX_SHOWN: usize = 24;

fn cycle_diagnostic(cycle: &[usize], nodes: &[GraphNode<'_>]) -> Diagnostic {
    let span = |at: usize| {
        let node_ref = &nodes[at];
        node_ref
            .node
            .parent
            .as_ref()
            .map_or(node_ref.name.span, |parent| parent.span)
    };
    let name = |at: usize| nodes[at].name.as_str();
    // Start at the node that comes first in the file.
    let first = cycle
        .iter()
        .enumerate()
        .min_by_key(|(_, at)| span(**at))
        .map_or(0, |(nth, _)| nth);
    let rotated: Vec<usize> = cycle[first..]
        .iter()
        .chain(&cycle[..first])
        .copied()
        .collect();
    if let [only] = *cycle {
        return Diagnostic::error(
            Code::Cycle,
            span(only),
            format!("`{}` is its own parent", name(only)),
        )
        .hint("remove `parent`, or use another node");
    }
    let mut path: Vec<&str> = rotated.iter().take(MAX_SHOWN).map(|at| name(*at)).collect();
    if rotated.len() > MAX_SHOWN {
        path.push("...");
    }
    path.push(name(rotated[0]));
    let mut diagnostic = Diagnostic::error(
        Code::Cycle,
        span(rotated[0]),
        format!("parents form a cycle: {}", path.join(" -> ")),
    )
    .hint("one of them must run on the host: remove its `parent`");
    for at in rotated.iter().take(MAX_SHOWN).skip(1) {
        let parent = nodes[*at]
            .node
            .parent
            .as_ref()
            .map_or("", |parent| parent.as_str());
        diagnostic = diagnostic.label(span(*at), format!("`{}` runs on `{parent}`", name(*at)));
    }
    diagnostic
}

/// Returns whether a node of this type and spec can have children. `None` if that is unknown.
pub(super) fn can_host(node: &Node, catalog: &Catalog) -> Option<bool> {
    if node.invalid.contains(&"type") {
        return None;
    }
    match node.kind.as_ref().map_or(NodeType::Vm, |kind| kind.value) {
        NodeType::Pve => Some(true),
        NodeType::Ct | NodeType::K3s => Some(false),
        NodeType::Vm => {
            let Some(spec) = &node.spec else {
                return Some(node.invalid.contains(&"spec")).filter(|wrong| !wrong);
            };
            // A missing or invalid spec is reported separately.
            let document = catalog.specs.get(spec.as_str())?;
            document
                .value
                .as_ref()
                .filter(|_| document.diagnostics.errors() == 0)
                .map(is_hypervisor)
        }
    }
}

/// Returns whether a spec makes a machine a hypervisor.
fn is_hypervisor(spec: &Spec) -> bool {
    let configured = spec
        .config
        .as_ref()
        .is_some_and(|config| config.pve.is_some());
    let packages = spec
        .platform
        .as_ref()
        .and_then(|platform| platform.packages.as_ref());
    configured
        || packages.is_some_and(|packages| {
            packages
                .iter()
                .any(|package| package.as_str() == "proxmox-ve")
        })
}

fn check_hosting(
    nodes: &[GraphNode<'_>],
    graph: &Graph,
    catalog: &Catalog,
    diagnostics: &mut Diagnostics,
) {
    // One diagnostic per parent, however many children it has.
    let mut unfit: BTreeMap<usize, Diagnostic> = BTreeMap::new();
    for (at, node_ref) in nodes.iter().enumerate() {
        let (Some(above), Some(written)) = (graph.parent(at), &node_ref.node.parent) else {
            continue;
        };
        let parent = &nodes[above];
        if let Some(diagnostic) = unfit.remove(&above) {
            let other = format!("`{}` cannot run on it either", node_ref.name.value);
            unfit.insert(above, diagnostic.label(written.span, other));
        } else if can_host(parent.node, catalog) == Some(false) {
            unfit.insert(above, cannot_host(parent, node_ref, written.span));
        }
        if let Some(host) = &node_ref.node.host {
            diagnostics.push(
                Diagnostic::error(
                    Code::BadHost,
                    host.span,
                    format!(
                        "`{}` runs on `{}`, so it cannot set a host",
                        node_ref.name.value, parent.name.value
                    ),
                )
                .hint("remove `host` here, or remove `parent`"),
            );
        }
    }
    unfit
        .into_values()
        .for_each(|diagnostic| diagnostics.push(diagnostic));
}

fn cannot_host(parent: &GraphNode<'_>, child: &GraphNode<'_>, at: Span) -> Diagnostic {
    let kind = parent
        .node
        .kind
        .as_ref()
        .map_or(NodeType::Vm, |kind| kind.value);
    let hint = match kind {
        NodeType::Vm => {
            "use `type: pve` for the parent, or a spec with `config.pve` or the package `proxmox-ve`"
        }
        NodeType::Ct | NodeType::K3s | NodeType::Pve => "use `type: pve` for the parent",
    };
    Diagnostic::error(
        Code::CannotHost,
        at,
        format!(
            "`{}` is a {kind} node and not a hypervisor, so `{}` cannot run on it",
            parent.name.value, child.name.value
        ),
    )
    .label(parent.name.span, "the parent is defined here")
    .hint(hint)
}

fn peers(
    nodes: &mut [GraphNode<'_>],
    names: &[&NodeName],
    graph: &Graph,
    diagnostics: &mut Diagnostics,
) {
    let mut pairs = Vec::new();
    for (at, node_ref) in nodes.iter().enumerate() {
        let mut seen = BTreeSet::new();
        for peer in node_ref.node.peers.iter().flat_map(|peers| &peers.value) {
            let Ok(other) = names.binary_search(&&peer.value) else {
                let others = names.iter().filter(|name| **name != &node_ref.name.value);
                let known = others.map(|name| name.as_str());
                let what = (Code::NoSuchPeer, "node");
                report_dangling(
                    diagnostics,
                    what,
                    (peer.as_str(), peer.span),
                    names.len(),
                    known,
                );
                continue;
            };
            if other == at {
                diagnostics.push(
                    Diagnostic::error(
                        Code::BadPeer,
                        peer.span,
                        format!("`{}` is its own peer", peer.value),
                    )
                    .hint("remove it from its own `peers`"),
                );
            } else if graph.is_ancestor(other, at) || graph.is_ancestor(at, other) {
                diagnostics.push(
                    Diagnostic::error(
                        Code::BadPeer,
                        peer.span,
                        format!(
                            "`{}` and `{}` cannot be peers: one runs on the other",
                            node_ref.name.value, peer.value
                        ),
                    )
                    .hint("remove one of the two relations"),
                );
            } else if !seen.insert(other) {
                diagnostics.push(
                    Diagnostic::error(
                        Code::Repeated,
                        peer.span,
                        format!("`{}` is listed twice", peer.value),
                    )
                    .hint("remove one of them"),
                );
            } else {
                pairs.push((at, other));
            }
        }
    }
    for (one, other) in pairs {
        nodes[one].peers.insert(other);
        nodes[other].peers.insert(one);
    }
}

fn regions<'a>(
    nodes: &mut [GraphNode<'a>],
    manifest: &'a Manifest,
    graph: &Graph,
    catalog: &Catalog,
    diagnostics: &mut Diagnostics,
) -> Vec<&'a Spanned<crate::doc::manifest::Region>> {
    let mut by_name: BTreeMap<&str, &'a Spanned<crate::doc::manifest::Region>> = BTreeMap::new();
    for region in manifest.regions.iter().flat_map(|regions| &regions.value) {
        let Some(name) = &region.name else { continue };
        if let Some(earlier) = by_name.insert(name.as_str(), region) {
            let first = earlier.name.as_ref().map_or(earlier.span, |name| name.span);
            diagnostics.push(
                Diagnostic::error(
                    Code::Repeated,
                    name.span,
                    format!("the region `{}` is listed twice", name.value),
                )
                .label(first, "first listed here")
                .hint("keep one of them"),
            );
        }
        if let Some(host) = region
            .host
            .as_ref()
            .filter(|host| !catalog.has_host(host.as_str()))
        {
            diagnostics.push(dangling(
                Code::NoSuchHost,
                host.span,
                "host",
                host.as_str(),
                catalog.host_names(),
            ));
        }
    }
    let names: Vec<&str> = by_name.keys().copied().collect();
    let written: Vec<Option<usize>> = nodes
        .iter()
        .map(|node_ref| {
            let region = node_ref.node.region.as_ref()?;
            let at = names.binary_search(&region.as_str()).ok();
            if at.is_none() {
                let what = (Code::NoSuchRegion, "region");
                let known = names.iter().copied();
                report_dangling(
                    diagnostics,
                    what,
                    (region.as_str(), region.span),
                    names.len(),
                    known,
                );
            }
            at
        })
        .collect();
    for at in 0..nodes.len() {
        let root = graph.root_of(at);
        let inherited = written[root];
        if let (Some(region), true) = (&nodes[at].node.region, root != at)
            && written[at].is_some()
            && written[at] != inherited
        {
            diagnostics.push(
                Diagnostic::error(
                    Code::BadRegion,
                    region.span,
                    format!(
                        "`{}` runs on `{}`, which is not in region `{}`",
                        nodes[at].name.value, nodes[root].name.value, region.value
                    ),
                )
                .hint("remove `region` here: a child is in the region of its parent"),
            );
        }
        nodes[at].region = inherited;
    }
    by_name.into_values().collect()
}

fn links(
    manifest: &Manifest,
    regions: &[&Spanned<crate::doc::manifest::Region>],
    diagnostics: &mut Diagnostics,
) -> Vec<(usize, usize, Span)> {
    let names: Vec<&str> = regions
        .iter()
        .filter_map(|region| region.name.as_ref())
        .map(|name| name.as_str())
        .collect();
    let mut seen = BTreeMap::new();
    let mut links = Vec::new();
    for link in manifest.links.iter().flat_map(|links| &links.value) {
        let Some(between) = &link.between else {
            continue;
        };
        let [one, other] = between.value.as_slice() else {
            diagnostics.push(
                Diagnostic::error(
                    Code::BadLink,
                    between.span,
                    format!("a link connects two regions, not {}", between.len()),
                )
                .hint("write `between: [west, east]`"),
            );
            continue;
        };
        let find = |end: &Spanned<crate::doc::scalar::Name>, diagnostics: &mut Diagnostics| {
            let at = names.binary_search(&end.as_str()).ok();
            if at.is_none() {
                let what = (Code::NoSuchRegion, "region");
                let known = names.iter().copied();
                report_dangling(
                    diagnostics,
                    what,
                    (end.as_str(), end.span),
                    names.len(),
                    known,
                );
            }
            at
        };
        let (Some(from), Some(to)) = (find(one, diagnostics), find(other, diagnostics)) else {
            continue;
        };
        let pair = (from.min(to), from.max(to));
        if from == to {
            diagnostics.push(
                Diagnostic::error(
                    Code::BadLink,
                    other.span,
                    format!("the link connects `{}` to itself", one.value),
                )
                .hint("use two different regions"),
            );
        } else if let Some(first) = seen.insert(pair, between.span) {
            diagnostics.push(
                Diagnostic::error(
                    Code::BadLink,
                    between.span,
                    format!("`{}` and `{}` are linked twice", one.value, other.value),
                )
                .label(first, "first linked here")
                .hint("keep one of the two links"),
            );
        } else {
            links.push((pair.0, pair.1, between.span));
        }
    }
    links.sort_unstable();
    links
}
