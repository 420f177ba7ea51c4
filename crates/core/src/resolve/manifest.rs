//! Resolves a manifest: nodes, relations and settings. Reports diagnostics of the manifest and of the
//! documents it uses, and of no others.

use std::collections::{BTreeMap, BTreeSet};

use crate::catalog::Catalog;
use crate::doc::manifest::{Manifest, Mode, OnError, Pattern};
use crate::doc::scalar::{NodeName, Vmid};
use crate::doc::timeouts::{Limit, Timeouts};
use crate::doc::{Code, Diagnostic, Diagnostics, Severity, Span, Spanned};

use super::node::{NodeResolver, ResolvedNode};
use super::node_graph::{GraphNode, NodeGraph, node_graph};
use super::origin::{Origin, WithOrigin, written_or};
use super::pattern::pattern;
use super::reference::dangling;
use super::{site, spec, trigger, vmid};

/// What the command line and the journal add to the documents.
#[derive(Clone, Debug, Default)]
pub struct ResolveOptions {
    /// Host of nodes that set none (`-H`).
    pub host: Option<String>,
    /// Mode of all nodes (`--mode`).
    pub mode: Option<Mode>,
    /// The vmids of existing nodes, from the journal.
    pub recorded: BTreeMap<NodeName, Vmid>,
}

/// The settings of a manifest, with defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedSettings {
    /// Wait for SSH after boot.
    pub verify_ssh: WithOrigin<bool>,
    /// Delete what was created when a test fails.
    pub cleanup_on_failure: WithOrigin<bool>,
    /// Seconds added to each wait per level of nesting.
    pub timeout_buffer: WithOrigin<i64>,
    /// Timeouts that the manifest sets.
    pub timeouts: Vec<(Limit, WithOrigin<i64>)>,
    /// What to do with the other nodes when one fails.
    pub on_error: WithOrigin<OnError>,
    /// How many nodes to process at once.
    pub parallelism: WithOrigin<i64>,
    /// How many nodes to update at once.
    pub at_once: WithOrigin<i64>,
}

impl ResolvedSettings {
    /// Returns the timeouts that the manifest sets.
    pub fn limits(&self) -> Timeouts {
        let mut timeouts = Timeouts::default();
        for (limit, seconds) in &self.timeouts {
            let seconds = u64::try_from(seconds.value).unwrap_or(0);
            // Cannot fail: the values were checked when the document was decoded.
            _ = timeouts.set(*limit, seconds);
        }
        timeouts
    }
}

/// A resolved manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedManifest {
    /// Its name: that of the file.
    pub name: String,
    /// A short description.
    pub description: Option<String>,
    /// The pattern of the graph.
    pub pattern: WithOrigin<Pattern>,
    /// The hub.
    pub hub: Option<NodeName>,
    /// Regions with their hosts, sorted by name.
    pub regions: Vec<(String, Option<String>)>,
    /// Linked pairs of regions, by index into `regions`.
    pub links: Vec<(usize, usize)>,
    /// The settings.
    pub settings: ResolvedSettings,
    /// Its nodes, sorted by name.
    pub nodes: Vec<ResolvedNode>,
}

/// Resolves the manifest `name`. The result is usable if there are no errors.
pub fn manifest(
    catalog: &Catalog,
    name: &str,
    options: &ResolveOptions,
) -> (Option<ResolvedManifest>, Diagnostics) {
    let mut diagnostics = Diagnostics::default();
    let Some(document) = catalog.manifests.get(name) else {
        return (None, diagnostics);
    };
    diagnostics.extend(document.diagnostics.clone());
    let Some(manifest) = &document.value else {
        return (None, diagnostics);
    };

    let node_graph = node_graph(manifest, catalog, options, &mut diagnostics);
    let pattern = pattern(manifest, &node_graph, &mut diagnostics);
    let resolver = NodeResolver {
        catalog,
        manifest,
        options,
    };
    let mut nodes: Vec<ResolvedNode> = node_graph
        .nodes
        .iter()
        .map(|graph_node| resolver.node(graph_node, &mut diagnostics))
        .collect();
    check_unnamed(manifest, &node_graph, &resolver, &mut diagnostics);
    set_relations(&mut nodes, &node_graph, catalog, options, &mut diagnostics);
    assign_vmids(&mut nodes, &node_graph, &resolver, &mut diagnostics);
    check_addresses(&nodes, catalog, &mut diagnostics);
    check_used_documents(&nodes, catalog, &mut diagnostics);

    let resolved = ResolvedManifest {
        name: name.to_owned(),
        description: manifest.description.as_ref().map(|text| text.value.clone()),
        hub: node_graph
            .hub
            .map(|(hub, _)| node_graph.nodes[hub].name.value.clone()),
        regions: node_graph
            .regions
            .iter()
            .map(|region| {
                let name = region
                    .name
                    .as_ref()
                    .map_or_else(String::new, |name| name.to_string());
                (name, region.host.as_ref().map(|host| host.to_string()))
            })
            .collect(),
        links: node_graph
            .links
            .iter()
            .map(|(one, other, _)| (*one, *other))
            .collect(),
        settings: settings(manifest),
        pattern,
        nodes,
    };
    (Some(resolved), diagnostics)
}

/// Checks the references of nodes that are not in the graph: those without a valid or unique name.
fn check_unnamed(
    manifest: &Manifest,
    node_graph: &NodeGraph<'_>,
    resolver: &NodeResolver<'_>,
    diagnostics: &mut Diagnostics,
) {
    let Some(placeholder) = NodeName::new("unnamed") else {
        return;
    };
    let in_graph: BTreeSet<Span> = node_graph
        .nodes
        .iter()
        .map(|graph_node| graph_node.node.span)
        .collect();
    let all = manifest.nodes.iter().flat_map(|nodes| &nodes.value);
    for node in all.filter(|node| !in_graph.contains(&node.span)) {
        let start = Span {
            end: node.span.start,
            ..node.span
        };
        let placeholder = Spanned {
            value: placeholder.clone(),
            span: start,
        };
        let name = node.name.as_ref().unwrap_or(&placeholder);
        let mut found = Diagnostics::default();
        resolver.node(
            &GraphNode {
                name,
                node,
                parent_host: None,
                region: None,
                peers: BTreeSet::new(),
            },
            &mut found,
        );
        // Notices about such a node would only distract from the error in its name.
        let errors = found
            .iter()
            .filter(|diagnostic| diagnostic.severity == Severity::Error);
        errors.for_each(|diagnostic| diagnostics.push(diagnostic.clone()));
    }
}

fn settings(manifest: &Manifest) -> ResolvedSettings {
    let written = manifest
        .settings
        .as_ref()
        .map(|settings| settings.value.clone())
        .unwrap_or_default();
    let buffer = written
        .timeout_buffer
        .as_ref()
        .map(|value| WithOrigin::written(value.0, value.span));
    let parallelism = written
        .parallelism
        .as_ref()
        .map(|value| WithOrigin::written(value.0, value.span));
    let updates = written.updates.as_ref();
    let at_once = updates.and_then(|updates| updates.at_once.as_ref());
    let at_once = at_once.map(|value| WithOrigin::written(value.0, value.span));
    let timeouts = written.timeouts.as_ref();
    let timeouts = timeouts.map(|timeouts| timeouts.value.limits());
    ResolvedSettings {
        timeouts: timeouts
            .into_iter()
            .flatten()
            .map(|(limit, value)| (limit, WithOrigin::written(value.0, value.span)))
            .collect(),
        verify_ssh: written_or(written.verify_ssh.as_ref(), true),
        cleanup_on_failure: written_or(written.cleanup_on_failure.as_ref(), true),
        timeout_buffer: buffer.unwrap_or_else(|| WithOrigin::built_in(60)),
        on_error: written_or(written.on_error.as_ref(), OnError::Stop),
        parallelism: parallelism.unwrap_or_else(|| WithOrigin::built_in(4)),
        at_once: at_once.unwrap_or_else(|| WithOrigin::built_in(1)),
    }
}

/// Sets what the graph determines: parent, peers, region, depth and host.
fn set_relations(
    nodes: &mut [ResolvedNode],
    node_graph: &NodeGraph<'_>,
    catalog: &Catalog,
    options: &ResolveOptions,
    diagnostics: &mut Diagnostics,
) {
    for (at, graph_node) in node_graph.nodes.iter().enumerate() {
        let node = &mut nodes[at];
        let name = |at: usize| node_graph.nodes[at].name.value.clone();
        node.parent = node_graph.graph.parent(at).map(name);
        node.peers = graph_node.peers.iter().map(|peer| name(*peer)).collect();
        node.depth = node_graph.graph.depth(at);
        let region = graph_node.region.map(|region| node_graph.regions[region]);
        node.region = region
            .and_then(|region| region.name.as_ref())
            .map(|name| name.to_string());
        if node.parent.is_some() {
            continue;
        }
        let written = graph_node.node.host.as_ref();
        if let Some(host) = written.filter(|host| !catalog.has_host(host.as_str())) {
            diagnostics.push(dangling(
                Code::NoSuchHost,
                host.span,
                "host",
                host.as_str(),
                catalog.host_names(),
            ));
        }
        let of_region = region.and_then(|region| region.host.as_ref());
        node.host = written
            .map(|host| WithOrigin::written(host.to_string(), host.span))
            .or_else(|| graph_node.parent_host.clone())
            .or_else(|| of_region.map(|host| WithOrigin::written(host.to_string(), host.span)))
            .or_else(|| {
                let value = options.host.clone()?;
                Some(WithOrigin {
                    value,
                    origin: Origin::CommandLine("-H"),
                })
            });
    }
}

fn assign_vmids(
    nodes: &mut [ResolvedNode],
    node_graph: &NodeGraph<'_>,
    resolver: &NodeResolver<'_>,
    diagnostics: &mut Diagnostics,
) {
    // The graph has no cycles: `node_graph` has removed them.
    let root =
        |at: usize| std::iter::successors(Some(at), |at| node_graph.graph.parent(*at)).last();
    let host = |at: usize| nodes[root(at)?].host.as_ref();
    let candidates: Vec<vmid::VmidCandidate<'_>> = node_graph
        .nodes
        .iter()
        .zip(nodes.iter())
        .enumerate()
        .map(|(at, (graph_node, node))| vmid::VmidCandidate {
            numbered: host(at)
                .is_none_or(|host| resolver.catalog.traits_of(&host.value).numbers_guests),
            name: &graph_node.name.value,
            name_span: graph_node.name.span,
            written: graph_node.node.vmid.as_ref(),
            scope: match (&node.parent, &node.host) {
                (Some(parent), _) => format!("node {parent}"),
                (None, Some(host)) => format!("host {}", host.value),
                (None, None) => String::new(),
            },
        })
        .collect();
    let base = resolver
        .manifest
        .settings
        .as_ref()
        .and_then(|settings| settings.vmid_base.as_ref());
    let assigned = vmid::assign(&candidates, base, &resolver.options.recorded, diagnostics);
    for (node, vmid) in nodes.iter_mut().zip(assigned) {
        node.vmid = vmid;
    }
}

/// What has an address.
enum AddressOwner<'a> {
    /// A host of the site. It has no network, so that its address is taken in all of them.
    Host(&'a str),
    /// A node of the manifest.
    Node(&'a str),
}

impl std::fmt::Display for AddressOwner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host(name) => write!(f, "the host `{name}`"),
            Self::Node(name) => write!(f, "`{name}`"),
        }
    }
}

/// Reports duplicate addresses. The same address in two named networks is not a duplicate.
fn check_addresses(nodes: &[ResolvedNode], catalog: &Catalog, diagnostics: &mut Diagnostics) {
    let mut taken: BTreeMap<(Option<&str>, std::net::IpAddr), (AddressOwner<'_>, Span)> =
        BTreeMap::new();
    let hosts = catalog
        .hosts
        .iter()
        .filter_map(|(name, host)| Some((name, host.value.as_ref()?.ip.as_ref()?)));
    let nodes_ips = catalog
        .nodes
        .iter()
        .filter_map(|(name, node)| Some((name, node.value.as_ref()?.ip.as_ref()?)));
    for (name, ip) in hosts.chain(nodes_ips) {
        taken
            .entry((None, ip.value))
            .or_insert((AddressOwner::Host(name), ip.span));
    }
    let mut sorted: Vec<&ResolvedNode> = nodes.iter().collect();
    sorted.sort_by_key(|node| node.span);
    for node in sorted {
        let Some(address) = node.networking.address.value else {
            continue;
        };
        let network = node
            .networking
            .network
            .as_ref()
            .map(|network| network.value.as_str());
        let written = match node.networking.address.origin {
            Origin::Written(span) | Origin::Derived(_, Some(span)) => span,
            Origin::BuiltIn | Origin::CommandLine(_) | Origin::Derived(..) | Origin::Recorded => {
                node.span
            }
        };
        let host = taken
            .get(&(None, address.ip))
            .filter(|(owner, _)| matches!(owner, AddressOwner::Host(_)));
        let earlier = taken.get(&(network, address.ip)).or(host);
        if let Some((owner, first)) = earlier {
            // Both nodes may use the same spec. Then both spans are the same: report the node.
            let (here, there) = if *first == written {
                (node.span, written)
            } else {
                (written, *first)
            };
            diagnostics.push(
                Diagnostic::error(
                    Code::DuplicateAddress,
                    here,
                    format!(
                        "`{}` has the same address as {owner}: {}",
                        node.name, address.ip
                    ),
                )
                .label(there, "the address is written here")
                .hint("use a unique address for each machine, or `ip: dhcp`"),
            );
        } else {
            taken.insert(
                (network, address.ip),
                (AddressOwner::Node(node.name.as_str()), written),
            );
        }
    }
}

/// Adds the diagnostics of all documents that the manifest uses.
fn check_used_documents(nodes: &[ResolvedNode], catalog: &Catalog, diagnostics: &mut Diagnostics) {
    site::check_site(catalog, diagnostics);
    let names = |pick: fn(&ResolvedNode) -> Option<&WithOrigin<String>>| -> BTreeSet<&str> {
        nodes
            .iter()
            .filter_map(pick)
            .map(|name| name.value.as_str())
            .collect()
    };
    let specs = names(|node| node.spec.as_ref());
    site::notice_no_keys(catalog, &specs, diagnostics);
    for spec in &specs {
        spec::check(catalog, spec, diagnostics);
    }
    for spec in &specs {
        spec::notice_hostname(catalog, spec, diagnostics);
    }
    trigger::check_modes(catalog, nodes, diagnostics);
    for preset in names(|node| node.preset.as_ref()) {
        if let Some(document) = catalog.presets.get(preset) {
            diagnostics.extend(document.diagnostics.clone());
        }
    }
    for image in names(|node| node.image.as_ref())
        .into_iter()
        .chain(names(|node| node.template.as_ref()))
    {
        if let Some(document) = catalog.image(image) {
            diagnostics.extend(document.diagnostics.clone());
        }
    }
    for host in names(|node| node.host.as_ref()) {
        site::check_host(catalog, host, diagnostics);
    }
}

impl ResolvedManifest {
    /// Returns a node by name.
    pub fn node(&self, name: &str) -> Option<&ResolvedNode> {
        self.nodes.iter().find(|node| node.name.as_str() == name)
    }
}
