//! A whole manifest: nodes, relations, settings.
//!
//! In: a manifest's name and what the command line adds. Out: [`Resolved`], and every fault of
//! the manifest and of the documents it uses.
//! Never: faults of documents that this manifest does not use.

use std::collections::{BTreeMap, BTreeSet};

use crate::catalog::Catalog;
use crate::doc::manifest::{Manifest, Mode, OnError, Pattern};
use crate::doc::scalar::{NodeName, Vmid};
use crate::doc::timeouts::{Limit, Timeouts};
use crate::doc::{Code, Diagnostic, Diagnostics, Severity, Span, Spanned};

use super::node::{ResolvedNode, Scope};
use super::origin::{Origin, Valued, written_or};
use super::pattern::pattern;
use super::reference::dangling;
use super::topology::{Placed, Topology, topology};
use super::{site, spec, vmid};

/// What the command line and the record add to the documents.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Host of nodes that name none (`-H`).
    pub host: Option<String>,
    /// Mode of all nodes (`--mode`).
    pub mode: Option<Mode>,
    /// Ids of nodes that exist already.
    pub recorded: BTreeMap<NodeName, Vmid>,
}

/// The settings of a manifest, with defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedSettings {
    /// Wait for SSH after boot.
    pub verify_ssh: Valued<bool>,
    /// Remove what was created when a test fails.
    pub cleanup_on_failure: Valued<bool>,
    /// Seconds added to each wait per level of nesting.
    pub timeout_buffer: Valued<i64>,
    /// Time limits that are written.
    pub timeouts: Vec<(Limit, Valued<i64>)>,
    /// What happens to the rest when a node fails.
    pub on_error: Valued<OnError>,
    /// How many nodes are worked on at once.
    pub parallelism: Valued<i64>,
}

impl ResolvedSettings {
    /// Returns the time limits that are written.
    pub fn limits(&self) -> Timeouts {
        let mut limits = Timeouts::default();
        for (limit, seconds) in &self.timeouts {
            let seconds = u64::try_from(seconds.value).unwrap_or(0);
            // The document was checked when it was read: nothing else gets here.
            _ = limits.set(*limit, seconds);
        }
        limits
    }
}

/// A manifest without references.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// Its name: the file's.
    pub name: String,
    /// One line for people.
    pub description: Option<String>,
    /// The shape of the graph.
    pub pattern: Valued<Pattern>,
    /// The node in the middle.
    pub hub: Option<NodeName>,
    /// Names of regions with their hosts, sorted.
    pub regions: Vec<(String, Option<String>)>,
    /// Pairs of regions that are joined, by index into `regions`.
    pub links: Vec<(usize, usize)>,
    /// How it is carried out.
    pub settings: ResolvedSettings,
    /// Its nodes, sorted by name.
    pub nodes: Vec<ResolvedNode>,
}

/// Resolves the manifest `name`. Diagnostics say whether the result can be used.
pub fn manifest(
    catalog: &Catalog,
    name: &str,
    request: &Request,
) -> (Option<Resolved>, Diagnostics) {
    let mut faults = Diagnostics::default();
    let Some(document) = catalog.manifests.get(name) else {
        return (None, faults);
    };
    faults.extend(document.faults.clone());
    let Some(manifest) = &document.value else {
        return (None, faults);
    };

    let topology = topology(manifest, catalog, request, &mut faults);
    let pattern = pattern(manifest, &topology, &mut faults);
    let scope = Scope {
        catalog,
        manifest,
        request,
    };
    let mut nodes: Vec<ResolvedNode> = topology
        .nodes
        .iter()
        .map(|placed| scope.node(placed, &mut faults))
        .collect();
    check_unplaced(manifest, &topology, &scope, &mut faults);
    relate(&mut nodes, &topology, catalog, request, &mut faults);
    assign_vmids(&mut nodes, &topology, &scope, &mut faults);
    check_addresses(&nodes, catalog, &mut faults);
    check_used(&nodes, catalog, &mut faults);

    let resolved = Resolved {
        name: name.to_owned(),
        description: manifest.description.as_ref().map(|text| text.value.clone()),
        hub: topology
            .hub
            .map(|(hub, _)| topology.nodes[hub].name.value.clone()),
        regions: topology
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
        links: topology
            .links
            .iter()
            .map(|(one, other, _)| (*one, *other))
            .collect(),
        settings: settings(manifest),
        pattern,
        nodes,
    };
    (Some(resolved), faults)
}

/// Nodes without a usable name, or with one that is taken, are not in the graph; what they name
/// is checked all the same.
fn check_unplaced(
    manifest: &Manifest,
    topology: &Topology<'_>,
    scope: &Scope<'_>,
    faults: &mut Diagnostics,
) {
    let Some(stand_in) = NodeName::new("unnamed") else {
        return;
    };
    let placed: BTreeSet<Span> = topology
        .nodes
        .iter()
        .map(|placed| placed.node.span)
        .collect();
    let all = manifest.nodes.iter().flat_map(|nodes| &nodes.value);
    for node in all.filter(|node| !placed.contains(&node.span)) {
        let start = Span {
            end: node.span.start,
            ..node.span
        };
        let stand_in = Spanned {
            value: stand_in.clone(),
            span: start,
        };
        let name = node.name.as_ref().unwrap_or(&stand_in);
        let mut found = Diagnostics::default();
        scope.node(
            &Placed {
                name,
                node,
                parent_host: None,
                region: None,
                peers: BTreeSet::new(),
            },
            &mut found,
        );
        // Notices about a node that does not exist yet would only hide the fault.
        let errors = found
            .iter()
            .filter(|fault| fault.severity == Severity::Error);
        errors.for_each(|fault| faults.push(fault.clone()));
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
        .map(|value| Valued::written(value.0, value.span));
    let parallelism = written
        .parallelism
        .as_ref()
        .map(|value| Valued::written(value.0, value.span));
    let timeouts = written.timeouts.as_ref();
    let timeouts = timeouts.map(|timeouts| timeouts.value.written());
    ResolvedSettings {
        timeouts: timeouts
            .into_iter()
            .flatten()
            .map(|(limit, value)| (limit, Valued::written(value.0, value.span)))
            .collect(),
        verify_ssh: written_or(written.verify_ssh.as_ref(), true),
        cleanup_on_failure: written_or(written.cleanup_on_failure.as_ref(), true),
        timeout_buffer: buffer.unwrap_or_else(|| Valued::built_in(60)),
        on_error: written_or(written.on_error.as_ref(), OnError::Stop),
        parallelism: parallelism.unwrap_or_else(|| Valued::built_in(4)),
    }
}

/// Fills in what a node has from its relations: parent, peers, region, depth, host.
fn relate(
    nodes: &mut [ResolvedNode],
    topology: &Topology<'_>,
    catalog: &Catalog,
    request: &Request,
    faults: &mut Diagnostics,
) {
    for (at, placed) in topology.nodes.iter().enumerate() {
        let node = &mut nodes[at];
        let name = |at: usize| topology.nodes[at].name.value.clone();
        node.parent = topology.graph.parent(at).map(name);
        node.peers = placed.peers.iter().map(|peer| name(*peer)).collect();
        node.depth = topology.graph.depth(at);
        let region = placed.region.map(|region| topology.regions[region]);
        node.region = region
            .and_then(|region| region.name.as_ref())
            .map(|name| name.to_string());
        if node.parent.is_some() {
            continue;
        }
        let written = placed.node.host.as_ref();
        if let Some(host) = written.filter(|host| !catalog.has_host(host.as_str())) {
            faults.push(dangling(
                Code::NoSuchHost,
                host.span,
                "host",
                host.as_str(),
                catalog.host_names(),
            ));
        }
        let of_region = region.and_then(|region| region.host.as_ref());
        node.host = written
            .map(|host| Valued::written(host.to_string(), host.span))
            .or_else(|| placed.parent_host.clone())
            .or_else(|| of_region.map(|host| Valued::written(host.to_string(), host.span)))
            .or_else(|| {
                let value = request.host.clone()?;
                Some(Valued {
                    value,
                    origin: Origin::CommandLine("-H"),
                })
            });
    }
}

fn assign_vmids(
    nodes: &mut [ResolvedNode],
    topology: &Topology<'_>,
    scope: &Scope<'_>,
    faults: &mut Diagnostics,
) {
    // The graph has no circles: where the documents have one, it was cut.
    let root = |at: usize| std::iter::successors(Some(at), |at| topology.graph.parent(*at)).last();
    let host = |at: usize| nodes[root(at)?].host.as_ref();
    let candidates: Vec<vmid::Candidate<'_>> = topology
        .nodes
        .iter()
        .zip(nodes.iter())
        .enumerate()
        .map(|(at, (placed, node))| vmid::Candidate {
            numbered: host(at)
                .is_none_or(|host| scope.catalog.traits_of(&host.value).numbers_guests),
            name: &placed.name.value,
            name_span: placed.name.span,
            written: placed.node.vmid.as_ref(),
            place: match (&node.parent, &node.host) {
                (Some(parent), _) => format!("node {parent}"),
                (None, Some(host)) => format!("host {}", host.value),
                (None, None) => String::new(),
            },
        })
        .collect();
    let base = scope
        .manifest
        .settings
        .as_ref()
        .and_then(|settings| settings.vmid_base.as_ref());
    let assigned = vmid::assign(&candidates, base, &scope.request.recorded, faults);
    for (node, vmid) in nodes.iter_mut().zip(assigned) {
        node.vmid = vmid;
    }
}

/// Reports addresses that two machines would share. The same address in two named networks is
/// two addresses.
fn check_addresses(nodes: &[ResolvedNode], catalog: &Catalog, faults: &mut Diagnostics) {
    let mut taken: BTreeMap<(Option<&str>, std::net::IpAddr), (String, Span)> = BTreeMap::new();
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
            .or_insert_with(|| (format!("the host `{name}`"), ip.span));
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
            .filter(|(owner, _)| owner.starts_with("the host"));
        let earlier = taken.get(&(network, address.ip)).or(host);
        if let Some((owner, first)) = earlier {
            // An address in a shared spec stands in one place; point at the nodes instead.
            let (here, there) = if *first == written {
                (node.span, written)
            } else {
                (written, *first)
            };
            faults.push(
                Diagnostic::error(
                    Code::DuplicateAddress,
                    here,
                    format!(
                        "`{}` would have the address {} of {owner}",
                        node.name, address.ip
                    ),
                )
                .label(there, "the address is written here")
                .hint("give each machine an address of its own, or use `ip: dhcp`"),
            );
        } else {
            taken.insert((network, address.ip), (format!("`{}`", node.name), written));
        }
    }
}

/// Adds the faults of every document the manifest uses.
fn check_used(nodes: &[ResolvedNode], catalog: &Catalog, faults: &mut Diagnostics) {
    site::check_site(catalog, faults);
    let names = |pick: fn(&ResolvedNode) -> Option<&Valued<String>>| -> BTreeSet<&str> {
        nodes
            .iter()
            .filter_map(pick)
            .map(|name| name.value.as_str())
            .collect()
    };
    let specs = names(|node| node.spec.as_ref());
    site::notice_no_keys(catalog, &specs, faults);
    for spec in &specs {
        spec::check(catalog, spec, faults);
    }
    for spec in &specs {
        spec::notice_hostname(catalog, spec, faults);
    }
    for preset in names(|node| node.preset.as_ref()) {
        if let Some(document) = catalog.presets.get(preset) {
            faults.extend(document.faults.clone());
        }
    }
    for image in names(|node| node.image.as_ref())
        .into_iter()
        .chain(names(|node| node.template.as_ref()))
    {
        if let Some(document) = catalog.image(image) {
            faults.extend(document.faults.clone());
        }
    }
    for host in names(|node| node.host.as_ref()) {
        site::check_host(catalog, host, faults);
    }
}

impl Resolved {
    /// Returns the node of that name.
    pub fn node(&self, name: &str) -> Option<&ResolvedNode> {
        self.nodes.iter().find(|node| node.name.as_str() == name)
    }
}
