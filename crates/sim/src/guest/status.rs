//! Renders the status of guests and hosts, with the fields that Proxmox VE returns in each case.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::world::Kind;
use crate::world::state::{Guest, Host};

/// Values from outside a guest that its status contains.
pub(crate) struct StatusContext {
    pub(crate) now: f64,
    /// Total and used bytes of the storage the root of a container is on.
    pub(crate) root: (u64, u64),
}

impl Guest {
    fn uptime(&self, now: f64) -> u64 {
        self.running
            .as_ref()
            .map_or(0, |running| (now - running.since).max(0.0) as u64)
    }

    /// Returns the entry of a guest in the list of its host.
    pub(crate) fn list_entry(&self, context: &StatusContext) -> Map<String, Value> {
        let mut shown = Map::with_capacity(24);
        let mut put = |key: &str, value: Value| {
            shown.insert(key.to_owned(), value);
        };
        let running = self.running.is_some();
        put("vmid", json!(self.vmid));
        put("name", json!(self.name()));
        put("status", json!(if running { "running" } else { "stopped" }));
        put("cpus", json!(self.cpus()));
        put("maxmem", json!(self.memory()));
        put("uptime", json!(self.uptime(context.now)));
        for key in ["cpu", "netin", "netout", "mem", "disk"] {
            put(key, json!(0));
        }
        put("maxdisk", json!(self.disk_size()));
        if let Some(tags) = self.config.value("tags") {
            put("tags", json!(tags));
        }
        if let Some(lock) = self.config.value("lock") {
            put("lock", json!(lock));
        }
        if self.is_template() {
            put("template", json!(1));
        }
        if let Some(state) = &self.running {
            put("pid", json!(state.pid));
            // PVE returns text for containers.
            let pressure = match self.kind {
                Kind::Qemu => json!(0),
                Kind::Lxc => json!("0.00"),
            };
            for what in ["cpu", "io", "memory"] {
                for how in ["some", "full"] {
                    put(&format!("pressure{what}{how}"), pressure.clone());
                }
            }
        }
        match self.kind {
            Kind::Qemu => {
                put("memhost", json!(0));
                if self.config.value("serial0").is_some() {
                    put("serial", json!(1));
                }
            }
            Kind::Lxc => {
                let swap = self
                    .config
                    .value("swap")
                    .and_then(|v| v.parse::<u64>().ok());
                put("type", json!("lxc"));
                put("swap", json!(0));
                put("maxswap", json!(swap.unwrap_or(512) << 20));
                put("diskread", json!(0));
                put("diskwrite", json!(0));
                if running {
                    put("mem", json!(self.memory() / 20));
                    put("disk", json!(context.root.1));
                    put("maxdisk", json!(context.root.0));
                }
            }
        }
        shown
    }

    /// Returns the status of one guest.
    pub(crate) fn current(&self, context: &StatusContext) -> Value {
        let mut shown = self.list_entry(context);
        shown.insert("ha".into(), json!({ "managed": 0 }));
        if self.kind == Kind::Qemu {
            let status = shown.get("status").cloned().unwrap_or_default();
            shown.insert("qmpstatus".into(), status);
            if self.agent_is_enabled() {
                shown.insert("agent".into(), json!(1));
            }
            if self.config.value("vga").is_some() {
                shown.insert("clipboard".into(), Value::Null);
            }
            if self.running.is_some() {
                let nics: Map<String, Value> = self
                    .config
                    .values()
                    .keys()
                    .filter_map(|key| key.strip_prefix("net"))
                    .filter(|n| n.parse::<u32>().is_ok())
                    .map(|n| {
                        (
                            format!("tap{}i{n}", self.vmid),
                            json!({"netin": 0, "netout": 0}),
                        )
                    })
                    .collect();
                if !nics.is_empty() {
                    shown.insert("nics".into(), Value::Object(nics));
                }
            }
        }
        Value::Object(shown)
    }

    /// Returns the entry in the list of the cluster. Existence, tags and lock are current; all
    /// other fields are from the last status update.
    pub(crate) fn resource(&self, now: f64, last_status_update: f64) -> Resource<'_> {
        let seen = if self.touched <= last_status_update {
            Some(Cow::Owned(self.summary()))
        } else {
            self.seen.as_ref().map(Cow::Borrowed)
        };
        Resource {
            id: format!("{}/{}", self.kind.api_name(), self.vmid),
            kind: self.kind.api_name(),
            vmid: self.vmid,
            node: &self.node,
            tags: self.config.value("tags"),
            lock: self.config.value("lock"),
            pool: None,
            status: match &seen {
                None => "unknown",
                Some(seen) if seen.running_since.is_some() => "running",
                Some(_) => "stopped",
            },
            polled: seen.map(|seen| PolledFields {
                template: u8::from(seen.template),
                maxmem: seen.memory,
                maxcpu: seen.cpus,
                maxdisk: seen.disk,
                uptime: seen
                    .running_since
                    .map_or(0, |since| (now - since).max(0.0) as u64),
                name: seen.into_owned().name,
                cpu: 0,
                mem: 0,
                memhost: 0,
                disk: 0,
                diskread: 0,
                diskwrite: 0,
                netin: 0,
                netout: 0,
            }),
        }
    }
}

/// An entry in the list of the cluster. A struct, because there may be tens of thousands.
#[derive(Serialize)]
pub(crate) struct Resource<'g> {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    vmid: u32,
    node: &'g str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tags: Option<&'g str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lock: Option<&'g str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pool: Option<&'g str>,
    pub(crate) status: &'static str,
    #[serde(flatten)]
    polled: Option<PolledFields>,
}

/// The fields that the last status update collected.
#[derive(Serialize)]
struct PolledFields {
    name: String,
    template: u8,
    maxmem: u64,
    maxcpu: u64,
    maxdisk: u64,
    uptime: u64,
    cpu: u8,
    mem: u8,
    memhost: u8,
    disk: u8,
    diskread: u8,
    diskwrite: u8,
    netin: u8,
    netout: u8,
}

impl Host {
    /// Returns the entry of a host in the lists of hosts and resources.
    pub(crate) fn entry(&self, uptime: f64, disk: (u64, u64)) -> Value {
        if !self.online {
            return json!({
                "id": format!("node/{}", self.name),
                "type": "node",
                "node": self.name,
                "status": "offline",
            });
        }
        json!({
            "id": format!("node/{}", self.name),
            "type": "node",
            "node": self.name,
            "status": "online",
            "level": "",
            "cpu": 0.05,
            "maxcpu": self.cpus,
            "mem": self.memory / 20,
            "maxmem": self.memory,
            "disk": disk.1,
            "maxdisk": disk.0,
            "uptime": uptime as u64,
        })
    }
}
