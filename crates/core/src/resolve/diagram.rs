//! Converts a resolved manifest to a [`Diagram`].

use std::collections::BTreeMap;

use crate::draw::{Diagram, DiagramNode, DiagramRegion};

use super::manifest::ResolvedManifest;
use super::node::ResolvedNode;

impl ResolvedManifest {
    /// Returns the diagram of the manifest. `host` is the host of nodes that set none.
    pub fn diagram(&self, host: Option<&str>) -> Diagram {
        let host = host.unwrap_or_default();
        let index: BTreeMap<&str, usize> = self
            .nodes
            .iter()
            .enumerate()
            .map(|(at, node)| (node.name.as_str(), at))
            .collect();
        let find = |name: &str| index.get(name).copied();
        // Regions are sorted by name.
        let region = |name: &str| {
            let by_name = |(known, _): &(String, _)| known.as_str().cmp(name);
            self.regions.binary_search_by(by_name).ok()
        };
        let nodes = self.nodes.iter().map(|node| DiagramNode {
            name: node.name.to_string(),
            kind: node.kind.value.to_string(),
            details: details(node),
            parent: node
                .parent
                .as_ref()
                .and_then(|parent| find(parent.as_str())),
            region: node.region.as_deref().and_then(region),
            host: node
                .host
                .as_ref()
                .map(|host| host.value.clone())
                .filter(|own| own != host),
        });
        let peers = self.nodes.iter().enumerate().flat_map(|(at, node)| {
            let others = node.peers.iter().filter_map(|peer| find(peer.as_str()));
            others
                .filter(move |other| at < *other)
                .map(move |other| (at, other))
                .collect::<Vec<_>>()
        });
        Diagram {
            name: self.name.clone(),
            pattern: self.pattern.value.to_string(),
            host: host.to_owned(),
            nodes: nodes.collect(),
            peers: peers.collect(),
            hub: self.hub.as_ref().and_then(|hub| find(hub.as_str())),
            regions: self
                .regions
                .iter()
                .map(|(name, host)| DiagramRegion {
                    name: name.clone(),
                    host: host.clone(),
                })
                .collect(),
            links: self.links.clone(),
        }
    }
}

fn details(node: &ResolvedNode) -> Vec<String> {
    let text = |value: Option<&super::WithOrigin<String>>| value.map(|value| value.value.clone());
    let address = node
        .networking
        .address
        .value
        .map(|address| address.ip.to_string());
    [
        text(node.spec.as_ref()),
        text(node.preset.as_ref()),
        node.vmid.as_ref().map(|vmid| vmid.value.to_string()),
        Some(node.mode.value.to_string()),
        address,
    ]
    .into_iter()
    .flatten()
    .collect()
}
