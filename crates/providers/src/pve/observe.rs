//! Lists all guests, hosts and storages with one request. Values that are not listed are unknown.

use homestak_engine::ports::{
    Bytes, GuestKind, Inventory, ObservedGuest, ObservedHost, ObservedStorage, PowerState,
};
use serde_json::Value;

use super::client::Pve;
use super::error::PveError;
use super::identity;
use super::quirks::{self, text_of};
use super::requests::{ApiCall, RESOURCES};

impl Pve {
    /// Lists all resources.
    pub(super) async fn observe_all(&self) -> Result<Inventory, PveError> {
        let data = self.ask(&ApiCall::to(&RESOURCES)).await?;
        let mut observed = observed(&data)?;
        observed.requests = 1;
        Ok(observed)
    }

    /// Lists all guests.
    pub(super) async fn guests(&self) -> Result<Vec<ObservedGuest>, PveError> {
        let call = ApiCall::to(&RESOURCES).param("type", "vm");
        Ok(observed(&self.ask(&call).await?)?.guests)
    }
}

/// Reads the list of resources.
pub fn observed(data: &Value) -> Result<Inventory, PveError> {
    let rows = data
        .as_array()
        .ok_or_else(|| PveError::invalid_response("the list of resources is not a list"))?;
    let mut observed = Inventory::default();
    for row in rows {
        match text_of(row, "type").as_str() {
            "qemu" => observed.guests.extend(guest(GuestKind::Vm, row)),
            "lxc" => observed.guests.extend(guest(GuestKind::Ct, row)),
            "node" => observed.hosts.extend(host(row)),
            "storage" => observed.storages.extend(storage(row)),
            // Pools, networks and what later versions add.
            _ => {}
        }
    }
    // A guest that moves may be listed twice: the row that knows more counts, and a list in
    // another order is equivalent.
    let text = |row: &dyn std::fmt::Debug| format!("{row:?}");
    observed.hosts.sort_by(|a, b| {
        let rank = |host: &ObservedHost| (!host.online, text(host));
        a.name.cmp(&b.name).then_with(|| rank(a).cmp(&rank(b)))
    });
    observed.hosts.dedup_by(|b, a| a.name == b.name);
    observed.guests.sort_by(|a, b| {
        let rank = |guest: &ObservedGuest| (guest.power == PowerState::Unknown, text(guest));
        a.vmid.cmp(&b.vmid).then_with(|| rank(a).cmp(&rank(b)))
    });
    observed.guests.dedup_by_key(|guest| guest.vmid);
    observed.storages.sort_by(|a, b| {
        let rank = |storage: &ObservedStorage| (!storage.active, text(storage));
        (&a.host, &a.name)
            .cmp(&(&b.host, &b.name))
            .then_with(|| rank(a).cmp(&rank(b)))
    });
    observed
        .storages
        .dedup_by(|b, a| (&a.host, &a.name) == (&b.host, &b.name));
    Ok(observed)
}

fn guest(kind: GuestKind, row: &Value) -> Option<ObservedGuest> {
    let tags = quirks::tags_of(row);
    let number = |field: &str| row.get(field).and_then(quirks::parse_u64);
    let vmid = row.get("vmid").and_then(quirks::parse_u32)?;
    // The list makes up a name for a guest whose file has none, as while it is being created.
    let made_up = [format!("VM {vmid}"), format!("CT{vmid}")];
    let lock = Some(text_of(row, "lock")).filter(|lock| !lock.is_empty());
    // The list joins by id: a guest being created with an id that was used seconds ago is shown
    // with name, sizes and state of the guest before it.
    let blank = matches!(lock.as_deref(), Some("create" | "clone"));
    let nameless = blank || made_up.contains(&text_of(row, "name"));
    let number = |field: &str| number(field).filter(|size| *size > 0 && !blank);
    let power = match power(&text_of(row, "status")) {
        PowerState::Running if blank => PowerState::Unknown,
        power => power,
    };
    Some(ObservedGuest {
        kind,
        vmid: vmid.into(),
        host: text_of(row, "node"),
        name: if nameless {
            String::new()
        } else {
            text_of(row, "name")
        },
        uuid: identity::uuid_in_tags(&tags),
        site: identity::site_in_tags(&tags),
        manifest: identity::manifest_in_tags(&tags),
        created_as: identity::created_as(&tags, vmid).map(Into::into),
        run: None,
        contested: None,
        is_unrelated: false,
        power,
        template: row
            .get("template")
            .and_then(quirks::parse_bool)
            .unwrap_or(false),
        lock,
        cores: number("maxcpu").and_then(|cores| u32::try_from(cores).ok()),
        memory: number("maxmem").map(Bytes),
        disk: number("maxdisk").map(Bytes),
        tags: tags.into_iter().collect(),
    })
}

/// Reads whether a guest runs.
pub(super) fn power(status: &str) -> PowerState {
    match status {
        "running" | "paused" | "suspended" | "prelaunch" => PowerState::Running,
        "stopped" => PowerState::Stopped,
        _ => PowerState::Unknown,
    }
}

fn host(row: &Value) -> Option<ObservedHost> {
    let name = text_of(row, "node");
    (!name.is_empty()).then(|| ObservedHost {
        name,
        online: text_of(row, "status") == "online",
        cores: row
            .get("maxcpu")
            .and_then(quirks::parse_u32)
            .filter(|cores| *cores > 0),
        memory: row
            .get("maxmem")
            .and_then(quirks::parse_u64)
            .filter(|bytes| *bytes > 0)
            .map(Bytes),
    })
}

fn storage(row: &Value) -> Option<ObservedStorage> {
    let (name, host) = (text_of(row, "storage"), text_of(row, "node"));
    let mut content: Vec<String> = text_of(row, "content")
        .split(',')
        .filter(|kind| !kind.is_empty())
        .map(str::to_owned)
        .collect();
    content.sort();
    (!name.is_empty()).then(|| ObservedStorage {
        name,
        host,
        active: text_of(row, "status") == "available",
        content,
        // The list has size and use. What is neither used nor available, as blocks kept for root,
        // is in no list, so what can be written is asked for where it matters.
        available: None,
        shared: row
            .get("shared")
            .and_then(quirks::parse_bool)
            .unwrap_or(false),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_recorded_list_is_parsed() {
        let data = json!([
            {"vmid": 200, "status": "stopped", "name": "ct1", "maxcpu": 2, "maxmem": 536_870_912,
             "maxdisk": 4_294_967_296_u64, "id": "lxc/200", "node": "pve1", "type": "lxc", "template": 0},
            {"id": "qemu/101", "type": "qemu", "vmid": "101", "node": "pve1", "status": "unknown",
             "tags": "Homestak;homestak-id-5d1f2a3b-0000-4000-8000-00000000000a;homestak-m-n1", "lock": "create"},
            {"id": "node/pve1", "status": "online", "maxcpu": 2, "maxmem": 25_274_793_984_u64, "type": "node", "node": "pve1"},
            {"id": "node/pve2", "status": "offline", "type": "node", "node": "pve2"},
            {"id": "storage/pve1/local", "maxdisk": 100, "disk": 30, "content": "vztmpl,iso", "node": "pve1",
             "type": "storage", "status": "available", "storage": "local", "shared": 0},
            {"network": "localnetwork", "type": "network"},
        ]);
        let observed = observed(&data).expect("observed");
        assert_eq!(observed.hosts.len(), 2);
        assert!(!observed.hosts[1].online);
        assert_eq!(observed.storages[0].available, None, "it is not known");
        assert_eq!(observed.storages[0].content, ["iso", "vztmpl"]);
        let made = &observed.guests[0];
        assert_eq!((made.vmid, made.power), (101.into(), PowerState::Unknown));
        assert_eq!(made.manifest.as_deref(), Some("n1"));
        assert!(made.uuid.is_some() && made.name.is_empty() && made.memory.is_none());
        assert_eq!(observed.guests[1].uuid, None);
    }

    #[test]
    fn a_placeholder_name_is_ignored() {
        let row = json!({"type": "qemu", "vmid": 7001, "node": "a", "name": "VM 7001"});
        let seen = observed(&json!([row])).expect("a list");
        assert_eq!(seen.guests[0].name, "");
    }

    #[test]
    fn an_invalid_list_is_an_error() {
        assert!(super::observed(&json!({"data": 1})).is_err());
        assert!(super::observed(&json!([null, 5, {"type": "qemu"}])).is_ok());
    }
}
