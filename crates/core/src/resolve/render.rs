//! Renders resolved nodes and manifests as JSON with origins, keys in a fixed order.

use serde_json::{Value as Json, json};

use super::manifest::ResolvedManifest;
use super::node::ResolvedNode;
use super::origin::Origin;
use super::resolved_json::ResolvedJson;

impl ResolvedNode {
    /// Renders the node.
    pub fn render(&self) -> ResolvedJson {
        let mut json = ResolvedJson::default();
        let here = Origin::Written(self.span);
        json.put("name", self.name.as_str(), &here);
        json.put_text("type", &self.kind);
        if let Some(description) = &self.description {
            json.set("description", description.as_str().into());
        }
        if let Some(host) = &self.host {
            json.put_value("host", host);
        }
        if let Some(parent) = &self.parent {
            json.put("parent", parent.as_str(), &here);
        }
        if !self.peers.is_empty() {
            let peers: Vec<&str> = self.peers.iter().map(|peer| peer.as_str()).collect();
            json.put(
                "peers",
                peers,
                &Origin::Derived("peers of both sides".into(), Some(self.span)),
            );
        }
        if let Some(region) = &self.region {
            json.put("region", region.as_str(), &here);
        }
        json.set("depth", self.depth.into());
        json.set("can_host", self.can_host.into());
        json.put_text("mode", &self.mode);
        for (path, value) in [("spec", &self.spec), ("preset", &self.preset)] {
            if let Some(value) = value {
                json.put_value(path, value);
            }
        }
        if let Some(size) = &self.size {
            json.put_value("cores", &size.cores);
            json.put_value("memory", &size.memory);
            json.put_value("disk", &size.disk);
        }
        for (path, value) in [("image", &self.image), ("template", &self.template)] {
            if let Some(value) = value {
                json.put_value(path, value);
            }
        }
        if let Some(unprivileged) = &self.unprivileged {
            json.put_value("unprivileged", unprivileged);
        }
        match &self.vmid {
            Some(vmid) => json.put("vmid", vmid.value.0, &vmid.origin),
            None => json.put(
                "vmid",
                Json::Null,
                &Origin::Derived("left to the provider".into(), None),
            ),
        }
        self.render_network(&mut json);
        if !self.packages.is_empty() {
            json.set("packages", json!(self.packages));
        }
        if let Some((cores, memory)) = self.hardware {
            json.put(
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
            json.put("access.api", api, &here);
        }
        json
    }

    fn render_network(&self, json: &mut ResolvedJson) {
        let net = &self.networking;
        if let Some(network) = &net.network {
            json.put_value("network.name", network);
        }
        let address = net
            .address
            .value
            .map_or_else(|| "dhcp".to_owned(), |address| address.to_string());
        json.put("network.address", address, &net.address.origin);
        if let Some(gateway) = &net.gateway {
            json.put_text("network.gateway", gateway);
        }
        let dns: Vec<String> = net.dns.value.iter().map(ToString::to_string).collect();
        json.put("network.dns", dns, &net.dns.origin);
        json.put_value("network.bridge", &net.bridge);
        if let Some(vlan) = &net.vlan {
            json.put_value("network.vlan", vlan);
        }
    }
}

impl ResolvedManifest {
    /// Renders everything except the nodes.
    pub fn render(&self) -> ResolvedJson {
        let mut json = ResolvedJson::default();
        json.set("name", self.name.as_str().into());
        if let Some(description) = &self.description {
            json.set("description", description.as_str().into());
        }
        json.put_text("pattern", &self.pattern);
        if let Some(hub) = &self.hub {
            json.set("hub", hub.as_str().into());
        }
        if !self.regions.is_empty() {
            let regions: Vec<Json> = self
                .regions
                .iter()
                .map(|(name, host)| json!({ "name": name, "host": host }))
                .collect();
            json.set("regions", regions.into());
            let name = |at: usize| self.regions[at].0.as_str();
            let links: Vec<Json> = self
                .links
                .iter()
                .map(|(one, other)| json!({ "between": [name(*one), name(*other)] }))
                .collect();
            json.set("links", links.into());
        }
        let settings = &self.settings;
        json.put_value("settings.verify_ssh", &settings.verify_ssh);
        json.put_value("settings.cleanup_on_failure", &settings.cleanup_on_failure);
        json.put_value("settings.timeout_buffer", &settings.timeout_buffer);
        for (limit, seconds) in &settings.timeouts {
            let path = format!("settings.timeouts.{}", limit.name());
            json.put_value(&path, seconds);
        }
        json.put_text("settings.on_error", &settings.on_error);
        json.put_value("settings.parallelism", &settings.parallelism);
        json.put_value("settings.updates.at_once", &settings.at_once);
        json
    }
}
