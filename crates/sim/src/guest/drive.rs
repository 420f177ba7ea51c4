//! Parses and renders drives, mount points, sizes and boot orders of a configuration.

use std::collections::BTreeMap;

use super::config::Config;
use super::identity::is_network;
use crate::schema::property;
use crate::world::Kind;
use crate::world::state::Guest;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// The size that PVE reports for a container's root without a quota.
const UNLIMITED_ROOT: u64 = 4 * GIB;

/// Whether a key of a VM is a drive.
pub(crate) fn is_drive(key: &str) -> bool {
    let stem = key.trim_end_matches(|c: char| c.is_ascii_digit());
    stem.len() < key.len() && matches!(stem, "ide" | "sata" | "scsi" | "virtio")
        || matches!(key, "efidisk0" | "tpmstate0")
}

/// Whether a key of a container is a mount point.
pub(crate) fn is_mount(key: &str) -> bool {
    key == "rootfs"
        || key
            .strip_prefix("mp")
            .is_some_and(|n| n.parse::<u32>().is_ok())
}

/// The value of a drive or mount point, split into its parts.
#[derive(Clone, Debug)]
pub(crate) struct Drive {
    pub(crate) parts: Vec<(String, String)>,
    default: &'static str,
}

impl Drive {
    pub(crate) fn parse(kind: Kind, text: &str) -> Self {
        let default = match kind {
            Kind::Qemu => "file",
            Kind::Lxc => "volume",
        };
        let mut parts = property::split(text, default);
        // The volume may be written with or without its key.
        for (key, _) in &mut parts {
            if key == "volume" || key == "file" {
                default.clone_into(key);
            }
        }
        Self { parts, default }
    }

    pub(crate) fn volume(&self) -> &str {
        property::part(&self.parts, self.default).unwrap_or("")
    }

    pub(crate) fn part(&self, key: &str) -> Option<&str> {
        property::part(&self.parts, key)
    }

    pub(crate) fn set(&mut self, key: &str, value: impl Into<String>) {
        let value = value.into();
        match self.parts.iter_mut().find(|(name, _)| name == key) {
            Some((_, old)) => *old = value,
            None => self.parts.push((key.to_owned(), value)),
        }
    }

    pub(crate) fn set_volume(&mut self, volume: impl Into<String>) {
        self.set(self.default, volume);
    }

    pub(crate) fn remove(&mut self, key: &str) {
        self.parts.retain(|(name, _)| name != key);
    }

    pub(crate) fn is_cdrom(&self) -> bool {
        self.part("media") == Some("cdrom")
            || matches!(self.volume(), "none" | "cdrom")
            || self.volume().ends_with(":cloudinit")
            || self.volume().contains("-cloudinit")
    }

    pub(crate) fn is_cloudinit(&self) -> bool {
        self.volume().ends_with(":cloudinit") || self.volume().contains("-cloudinit")
    }

    pub(crate) fn size(&self) -> u64 {
        self.part("size").and_then(parse_size).unwrap_or(0)
    }

    /// Returns storage and size in GiB if a new volume is requested, as in `local:32`.
    pub(crate) fn allocation(&self) -> Option<(&str, f64)> {
        let (storage, size) = self.volume().split_once(':')?;
        let plain = !size.is_empty() && size.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        plain
            .then(|| size.parse().ok().map(|size| (storage, size)))
            .flatten()
    }

    /// Renders the value as PVE does: the volume first, then the other parts by name.
    pub(crate) fn render(&self) -> String {
        let mut parts = self.parts.clone();
        parts.sort_by(|a, b| (a.0 != self.default, &a.0).cmp(&(b.0 != self.default, &b.0)));
        property::join(&parts, self.default)
    }
}

/// Parses `32G`, `1500M`, `4096`.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = match text.char_indices().last()? {
        (at, 'K') => (&text[..at], 1 << 10),
        (at, 'M') => (&text[..at], MIB),
        (at, 'G') => (&text[..at], GIB),
        (at, 'T') => (&text[..at], 1 << 40),
        _ => (text, 1),
    };
    let number: f64 = number.parse().ok()?;
    Some((number * unit as f64) as u64)
}

/// Renders a size in the largest unit that divides it, as PVE does.
pub(crate) fn render_size(bytes: u64) -> String {
    if bytes == 0 {
        return "0T".to_owned();
    }
    for (unit, letter) in [(1_u64 << 40, 'T'), (GIB, 'G'), (MIB, 'M'), (1 << 10, 'K')] {
        if bytes.is_multiple_of(unit) {
            return format!("{}{letter}", bytes / unit);
        }
    }
    bytes.to_string()
}

/// Parses a boot order such as `order=scsi0;net0`.
pub(crate) fn boot_order(text: &str) -> Vec<String> {
    property::split(text, "legacy")
        .into_iter()
        .find(|(key, _)| key == "order")
        .map(|(_, order)| order.split(';').map(ToOwned::to_owned).collect())
        .unwrap_or_default()
}

/// Returns the default boot order: first disk, first CD-ROM, first network.
pub(crate) fn default_boot(values: &BTreeMap<String, String>) -> String {
    let mut disks = Vec::new();
    let mut cdroms = Vec::new();
    let mut networks = Vec::new();
    for (key, value) in values {
        if is_drive(key) && !key.starts_with("efi") && !key.starts_with("tpm") {
            if Drive::parse(Kind::Qemu, value).is_cdrom() {
                cdroms.push(key);
            } else {
                disks.push(key);
            }
        } else if is_network(key) {
            networks.push(key);
        }
    }
    let first: Vec<&str> = [disks, cdroms, networks]
        .iter()
        .filter_map(|keys| keys.first().map(|key| key.as_str()))
        .collect();
    if first.is_empty() {
        " ".to_owned()
    } else {
        format!("order={}", first.join(";"))
    }
}

/// Returns every volume in a configuration, with its key.
pub(crate) fn volumes(kind: Kind, config: &Config) -> Vec<(String, String)> {
    config
        .values()
        .iter()
        .filter(|(key, _)| match kind {
            Kind::Qemu => is_drive(key) || key.starts_with("unused"),
            Kind::Lxc => is_mount(key) || key.starts_with("unused"),
        })
        .map(|(key, text)| (key.clone(), Drive::parse(kind, text).volume().to_owned()))
        .filter(|(_, volume)| volume.contains(':'))
        .collect()
}

impl Guest {
    /// Returns the memory in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let text = self.config.value("memory").unwrap_or("512");
        let number = property::split(text, "current")
            .into_iter()
            .find(|(key, _)| key == "current")
            .and_then(|(_, value)| value.parse::<u64>().ok());
        number.unwrap_or(512) * MIB
    }

    /// Returns the number of processors.
    pub(crate) fn cpus(&self) -> u64 {
        let number = |key: &str| self.config.value(key).and_then(|v| v.parse::<u64>().ok());
        match self.kind {
            Kind::Qemu => number("sockets").unwrap_or(1) * number("cores").unwrap_or(1),
            Kind::Lxc => number("cores").unwrap_or(2),
        }
    }

    /// Returns the size of the boot disk.
    pub(crate) fn disk_size(&self) -> u64 {
        let key = match self.kind {
            Kind::Lxc => Some("rootfs".to_owned()),
            Kind::Qemu => boot_order(self.config.value("boot").unwrap_or(""))
                .into_iter()
                .find(|key| {
                    self.config.value(key).is_some_and(|text| {
                        is_drive(key) && !Drive::parse(Kind::Qemu, text).is_cdrom()
                    })
                }),
        };
        let size = key
            .and_then(|key| self.config.value(&key))
            .map(|text| Drive::parse(self.kind, text).size());
        match (self.kind, size) {
            (Kind::Lxc, None | Some(0)) => UNLIMITED_ROOT,
            (Kind::Lxc | Kind::Qemu, size) => size.unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_in_the_largest_unit_that_divides() {
        for text in ["1500M", "1G", "5596M", "368K", "0T", "2T"] {
            assert_eq!(render_size(parse_size(text).unwrap()), text);
        }
    }

    #[test]
    fn the_default_boot_order_is_disk_then_cdrom_then_network() {
        let values = [
            ("scsi0", "local:1"),
            ("ide2", "local:cloudinit"),
            ("net0", "virtio"),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(default_boot(&values.into()), "order=scsi0;ide2;net0");
        assert_eq!(default_boot(&BTreeMap::new()), " ");
    }

    #[test]
    fn a_size_or_a_name_after_the_colon_distinguishes_new_from_existing() {
        let new = Drive::parse(Kind::Qemu, "local:32,format=qcow2");
        assert_eq!(new.allocation(), Some(("local", 32.0)));
        assert!(
            Drive::parse(Kind::Qemu, "local:100/vm-100-disk-0.qcow2")
                .allocation()
                .is_none()
        );
    }
}
