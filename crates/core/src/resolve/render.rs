//! Resolved nodes and manifests as sheets: JSON beside origins.
//!
//! In: resolved values. Out: [`Sheet`]s and JSON, keys in a fixed order.
//! Never: deciding; every value is already there.

use serde_json::{Value as Json, json};

use super::manifest::Resolved;
use super::node::ResolvedNode;
use super::origin::Origin;
use super::sheet::Sheet;

impl ResolvedNode {
    /// Renders the node.
    pub fn sheet(&self) -> Sheet {
        let mut sheet = Sheet::default();
        let here = Origin::Written(self.span);
        sheet.put("name", self.name.as_str(), &here);
        sheet.put_text("type", &self.kind);
        if let Some(description) = &self.description {
            sheet.set("description", description.as_str().into());
        }
        if let Some(host) = &self.host {
            sheet.put_valued("host", host);
        }
        if let Some(parent) = &self.parent {
            sheet.put("parent", parent.as_str(), &here);
        }
        if !self.peers.is_empty() {
            let peers: Vec<&str> = self.peers.iter().map(|peer| peer.as_str()).collect();
            sheet.put(
                "peers",
                peers,
                &Origin::Derived("peers of both sides".into(), Some(self.span)),
            );
        }
        if let Some(region) = &self.region {
            sheet.put("region", region.as_str(), &here);
        }
        sheet.set("depth", self.depth.into());
        sheet.set("can_host", self.can_host.into());
        sheet.put_text("mode", &self.mode);
        for (path, value) in [("spec", &self.spec), ("preset", &self.preset)] {
            if let Some(value) = value {
                sheet.put_valued(path, value);
            }
        }
        if let Some(size) = &self.size {
            sheet.put_valued("cores", &size.cores);
            sheet.put_valued("memory", &size.memory);
            sheet.put_valued("disk", &size.disk);
        }
        for (path, value) in [("image", &self.image), ("template", &self.template)] {
            if let Some(value) = value {
                sheet.put_valued(path, value);
            }
        }
        if let Some(unprivileged) = &self.unprivileged {
            sheet.put_valued("unprivileged", unprivileged);
        }
        match &self.vmid {
            Some(vmid) => sheet.put("vmid", vmid.value.0, &vmid.origin),
            None => sheet.put(
                "vmid",
                Json::Null,
                &Origin::Derived("left to the provider".into(), None),
            ),
        }
        self.networking_into(&mut sheet);
        if !self.packages.is_empty() {
            sheet.set("packages", json!(self.packages));
        }
        if let Some((cores, memory)) = self.hardware {
            sheet.put(
                "hardware",
                json!({ "cpu_cores": cores, "memory_gb": memory }),
                &here,
            );
        }
        if let Some(api) = &self.api {
            let text = |value: Option<String>| value.map_or(Json::Null, Json::String);
            let api = json!({
                "endpoint": text(api.endpoint.as_ref().map(|url| url.to_string())),
                "token": text(api.token.as_ref().map(|token| token.value.clone())),
                "datastore": text(api.datastore.as_ref().map(|datastore| datastore.value.clone())),
            });
            sheet.put("access.api", api, &here);
        }
        sheet
    }

    fn networking_into(&self, sheet: &mut Sheet) {
        let net = &self.networking;
        if let Some(network) = &net.network {
            sheet.put_valued("network.name", network);
        }
        let address = net
            .address
            .value
            .map_or_else(|| "dhcp".to_owned(), |address| address.to_string());
        sheet.put("network.address", address, &net.address.origin);
        if let Some(gateway) = &net.gateway {
            sheet.put_text("network.gateway", gateway);
        }
        let dns: Vec<String> = net.dns.value.iter().map(ToString::to_string).collect();
        sheet.put("network.dns", dns, &net.dns.origin);
        sheet.put_valued("network.bridge", &net.bridge);
        if let Some(vlan) = &net.vlan {
            sheet.put_valued("network.vlan", vlan);
        }
    }
}

impl Resolved {
    /// Renders everything but the nodes.
    pub fn sheet(&self) -> Sheet {
        let mut sheet = Sheet::default();
        sheet.set("name", self.name.as_str().into());
        if let Some(description) = &self.description {
            sheet.set("description", description.as_str().into());
        }
        sheet.put_text("pattern", &self.pattern);
        if let Some(hub) = &self.hub {
            sheet.set("hub", hub.as_str().into());
        }
        if !self.regions.is_empty() {
            let regions: Vec<Json> = self
                .regions
                .iter()
                .map(|(name, host)| json!({ "name": name, "host": host }))
                .collect();
            sheet.set("regions", regions.into());
            let name = |at: usize| self.regions[at].0.as_str();
            let links: Vec<Json> = self
                .links
                .iter()
                .map(|(one, other)| json!({ "between": [name(*one), name(*other)] }))
                .collect();
            sheet.set("links", links.into());
        }
        let settings = &self.settings;
        sheet.put_valued("settings.verify_ssh", &settings.verify_ssh);
        sheet.put_valued("settings.cleanup_on_failure", &settings.cleanup_on_failure);
        sheet.put_valued("settings.timeout_buffer", &settings.timeout_buffer);
        for (limit, seconds) in &settings.timeouts {
            let path = format!("settings.timeouts.{}", limit.word());
            sheet.put_valued(&path, seconds);
        }
        sheet.put_text("settings.on_error", &settings.on_error);
        sheet.put_valued("settings.parallelism", &settings.parallelism);
        sheet
    }
}
