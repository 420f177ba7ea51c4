//! The configuration of a guest as returned by the API. Every field is optional: a guest that is being
//! created has few of them.

use std::collections::BTreeSet;

use homestak_engine::ports::{GuestKind, GuestUuid};
use serde_json::Value;

use super::property::Property;
use super::quirks;

/// A guest's configuration.
#[derive(Clone, Debug)]
pub struct GuestConfig(Value);

/// A disk in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestDisk {
    /// Its key, such as `scsi0` or `rootfs`.
    pub slot: String,
    /// Its volume.
    pub volume: String,
    /// Its size in bytes, where it is written.
    pub size: Option<u64>,
}

impl GuestConfig {
    /// Takes the answer's data.
    pub fn new(data: Value) -> Self {
        Self(data)
    }

    /// Returns a field as text.
    pub fn text(&self, field: &str) -> Option<String> {
        self.0.get(field).and_then(quirks::parse_text)
    }

    /// Returns a field as a number.
    pub fn number(&self, field: &str) -> Option<u64> {
        self.0.get(field).and_then(quirks::parse_u64)
    }

    /// Returns a field as a boolean; `false` when it is missing.
    pub fn flag(&self, field: &str) -> bool {
        self.0
            .get(field)
            .and_then(quirks::parse_bool)
            .unwrap_or(false)
    }

    /// Returns the tags.
    pub fn tags(&self) -> BTreeSet<String> {
        quirks::tags_of(&self.0)
    }

    /// Returns the notes.
    pub fn notes(&self) -> Option<&str> {
        self.0.get("description").and_then(Value::as_str)
    }

    /// Returns the UUID in the SMBIOS.
    pub fn smbios_uuid(&self) -> Option<GuestUuid> {
        let text = self.text("smbios1")?;
        Property::parse(&text)
            .field("uuid")
            .and_then(GuestUuid::new)
    }

    /// Returns the digest of this configuration, which a change names so that no concurrent one is
    /// lost.
    pub fn digest(&self) -> Option<String> {
        self.text("digest")
    }

    /// Returns the lock of the guest.
    pub fn lock(&self) -> Option<String> {
        self.text("lock").filter(|lock| !lock.is_empty())
    }

    /// Returns the name.
    pub fn name(&self, kind: GuestKind) -> String {
        let field = match kind {
            GuestKind::Vm => "name",
            GuestKind::Ct => "hostname",
        };
        self.text(field).unwrap_or_default()
    }

    /// Returns the MAC address of the first network card, lower case.
    pub fn mac(&self) -> Option<String> {
        Property::parse(&self.text("net0")?).mac()
    }

    /// Returns the boot order of a VM.
    pub fn boot_order(&self) -> Vec<String> {
        let boot = Property::parse(&self.text("boot").unwrap_or_default());
        let order = boot.field("order").unwrap_or_default();
        order
            .split(';')
            .filter(|slot| !slot.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// Returns the first disk: the first that boots, or the first there is.
    pub fn first_disk(&self, kind: GuestKind) -> Option<GuestDisk> {
        if kind == GuestKind::Ct {
            return self.disk("rootfs");
        }
        let buses = ["scsi", "virtio", "sata", "ide"];
        let all = buses
            .iter()
            .flat_map(|bus| (0..31).map(move |nth| format!("{bus}{nth}")));
        self.boot_order()
            .into_iter()
            .chain(all)
            .find_map(|slot| self.disk(&slot))
    }

    /// Returns a disk by its key; CD drives are not disks.
    pub fn disk(&self, slot: &str) -> Option<GuestDisk> {
        let property = Property::parse(&self.text(slot)?);
        let volume = property.head.clone().or_else(|| {
            property
                .field("file")
                .or(property.field("volume"))
                .map(str::to_owned)
        })?;
        if property.field("media") == Some("cdrom") || volume == "none" || !volume.contains(':') {
            return None;
        }
        Some(GuestDisk {
            slot: slot.to_owned(),
            volume,
            size: property.field("size").and_then(quirks::parse_size),
        })
    }

    /// Returns the CD drives: key and volume.
    pub fn cd_drives(&self) -> Vec<(String, String)> {
        let Some(object) = self.0.as_object() else {
            return Vec::new();
        };
        let mut drives: Vec<_> = object
            .iter()
            .filter_map(|(slot, value)| {
                let property = Property::parse(value.as_str()?);
                let volume = property.head.clone()?;
                (property.field("media") == Some("cdrom")).then(|| (slot.clone(), volume))
            })
            .collect();
        drives.sort();
        drives
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_recorded_vm_is_parsed() {
        let config = GuestConfig::new(json!({
            "smbios1": "uuid=b1f6c1dd-72ad-4d2e-a30e-0183ceeb5885", "name": "rec1", "cores": 1,
            "boot": "order=ide2;scsi0;net0", "scsi0": "local:130/vm-130-disk-0.qcow2,size=1500M",
            "ide2": "local:iso/x.iso,media=cdrom,size=368K", "memory": "256", "tags": "lab;Rec",
            "digest": "a686"
        }));
        let disk = config.first_disk(GuestKind::Vm).expect("a disk");
        assert_eq!(
            (disk.slot.as_str(), disk.size),
            ("scsi0", Some(1_572_864_000))
        );
        assert_eq!(
            config.cd_drives(),
            [("ide2".to_owned(), "local:iso/x.iso".to_owned())]
        );
        assert_eq!(config.number("memory"), Some(256));
        assert_eq!(config.tags(), ["lab".to_owned(), "rec".to_owned()].into());
        assert!(config.smbios_uuid().is_some());
        assert_eq!(config.lock(), None);
    }

    #[test]
    fn a_guest_being_created_has_few_fields() {
        let config = GuestConfig::new(json!({"lock": "create", "digest": "x"}));
        assert_eq!(config.lock().as_deref(), Some("create"));
        assert_eq!(config.first_disk(GuestKind::Vm), None);
        assert_eq!(GuestConfig::new(Value::Null).cd_drives(), []);
    }
}
