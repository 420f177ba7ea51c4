//! Recipes of images, and the key that changes when a recipe would give another image.
//!
//! Keys do not depend on dates or package versions.

use homestak_core::hex;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::archive::Archive;

/// Incremented when the build changes, so that older images count as outdated.
const METHOD: u32 = 1;

/// Packages of every tree: a whole Debian that boots, is reached, and can host others.
const PACKAGES: &[&str] = &[
    "ca-certificates",
    "cloud-init",
    "curl",
    "dbus",
    "iproute2",
    "iputils-ping",
    "kmod",
    "less",
    "netbase",
    "nftables",
    "openssh-server",
    "procps",
    "sudo",
    "systemd",
    "systemd-container",
    "systemd-sysv",
    "udev",
];

/// Units that are started at boot, beside those that their packages enable.
pub(super) const ENABLED: &[&str] = &["systemd-networkd.service", "ssh.service"];

/// Masked units: they delay the boot, or run in the background without need.
pub(super) const MASKED: &[&str] = &[
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "console-getty.service",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "systemd-networkd-wait-online.service",
];

/// Files of every tree. Empty ones are filled when a node is created from it.
pub(super) const FILES: &[(&str, &str)] = &[
    ("etc/hostname", "localhost\n"),
    ("etc/machine-id", ""),
    ("etc/resolv.conf", ""),
    (
        "etc/cloud/cloud.cfg.d/90-homestak.cfg",
        "# First-boot data comes from a NoCloud seed, or there is none.\n\
         datasource_list: [ NoCloud, None ]\n\
         # The package `locales` is not installed.\n\
         locale: false\n\
         ssh_genkeytypes: [ ed25519 ]\n\
         # Without its own name there, `sudo` waits for a name server.\n\
         manage_etc_hosts: true\n\
         apt:\n  preserve_sources_list: true\n",
    ),
];

/// Options of dpkg in every tree: neither documentation nor translations, and no waiting for the
/// disk after each file.
pub(super) const DPKG: &[&str] = &[
    "force-unsafe-io",
    "path-exclude=/usr/share/doc/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/man/*",
];

/// Options of apt in every tree.
pub(super) const APT: &[&str] = &[
    "APT::Install-Recommends \"false\"",
    "Acquire::Languages \"none\"",
    "Acquire::Retries \"2\"",
];

/// Packages that a tree needs to be a machine of its own.
const DISK_PACKAGES: &[&str] = &[
    "e2fsprogs",
    "initramfs-tools",
    "qemu-guest-agent",
    "systemd-resolved",
    "zstd",
];

/// Modules of the first file system: what is needed to find the disk. All others are on it.
pub(super) const DISK_MODULES: &[&str] = &[
    "ext4",
    "virtio_blk",
    "virtio_mmio",
    "virtio_pci",
    "virtio_scsi",
];

/// Other names of the trees.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("debian-12-standard", "debian-12"),
    ("debian-13-standard", "debian-13"),
    ("pve-8", "debian-12"),
    ("pve-9", "debian-13"),
];

/// What comes out of a recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ImageFormat {
    /// A root file system as a directory.
    Tree,
    /// A disk with kernel, made of the tree of the same suite.
    Disk,
    /// What a shell script leaves in `$1`, for tests of everything around the building.
    #[cfg(test)]
    Script(&'static str),
}

/// How an image is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recipe {
    /// Its name.
    pub(super) name: &'static str,
    /// Debian's name of the release.
    pub(super) suite: &'static str,
    /// What comes out.
    pub(super) make: ImageFormat,
}

/// Every recipe.
const RECIPES: &[Recipe] = &[
    recipe("debian-12", "bookworm", ImageFormat::Tree),
    recipe("debian-12-disk", "bookworm", ImageFormat::Disk),
    recipe("debian-13", "trixie", ImageFormat::Tree),
    recipe("debian-13-disk", "trixie", ImageFormat::Disk),
];

const fn recipe(name: &'static str, suite: &'static str, make: ImageFormat) -> Recipe {
    Recipe { name, suite, make }
}

impl Recipe {
    /// Finds the recipe of a tree by one of its names.
    pub(super) fn tree(name: &str) -> Option<Self> {
        Self::named(canonical_name(name)).filter(|recipe| recipe.make == ImageFormat::Tree)
    }

    /// Finds the recipe of the disk that belongs to a tree.
    pub(super) fn disk(name: &str) -> Option<Self> {
        let name = format!("{}-disk", canonical_name(name));
        Self::named(&name)
    }

    /// Finds a recipe by its own name.
    pub(super) fn named(name: &str) -> Option<Self> {
        RECIPES.iter().find(|recipe| recipe.name == name).copied()
    }

    /// Returns all names of trees.
    pub(super) fn names() -> Vec<&'static str> {
        let own = RECIPES
            .iter()
            .filter(|recipe| recipe.make == ImageFormat::Tree);
        let other = OTHER_NAMES.iter().map(|(name, _)| *name);
        own.map(|recipe| recipe.name).chain(other).collect()
    }

    /// Returns the packages, sorted. Those of a disk come on top of the tree's.
    pub(super) fn packages(&self) -> Vec<String> {
        let mut packages: Vec<String> = match self.make {
            ImageFormat::Tree => PACKAGES.iter().map(ToString::to_string).collect(),
            ImageFormat::Disk => {
                let kernel = format!("linux-image-cloud-{}", architecture());
                let others = DISK_PACKAGES.iter().map(ToString::to_string);
                others.chain([kernel]).collect()
            }
            #[cfg(test)]
            ImageFormat::Script(_) => Vec::new(),
        };
        packages.sort();
        packages
    }

    /// Returns the key of the image: the first 12 digits of a hash of everything that decides what
    /// comes out.
    pub(super) fn key(&self, archive: &Archive) -> String {
        let everything = json!({
            "method": METHOD,
            "name": self.name,
            "suite": self.suite,
            "make": format!("{:?}", self.make),
            "architecture": architecture(),
            "packages": self.packages(),
            "enabled": ENABLED,
            "masked": MASKED,
            "files": FILES,
            "dpkg": DPKG,
            "apt": APT,
            "modules": DISK_MODULES,
            "archive": archive,
            // A disk changes with the tree it is created of.
            "tree": Self::tree(self.name.trim_end_matches("-disk"))
                .filter(|_| self.make == ImageFormat::Disk)
                .map(|tree| tree.key(archive)),
        });
        let digest = Sha256::digest(everything.to_string());
        hex::encode(&digest[..6])
    }
}

/// Returns a tree's own name.
pub(super) fn canonical_name(name: &str) -> &str {
    let other = OTHER_NAMES.iter().find(|(other, _)| *other == name);
    other.map_or(name, |(_, own)| own)
}

/// Debian's name of this machine's architecture.
pub(super) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn archive(mirror: &str) -> Archive {
        Archive::choose(Some(mirror), Path::new("/nonexistent"))
    }

    #[test]
    fn a_key_is_the_same_for_the_same_recipe_and_differs_for_every_other() {
        let here = archive("http://here.example/debian");
        let mut keys: Vec<String> = RECIPES.iter().map(|recipe| recipe.key(&here)).collect();
        assert_eq!(keys[0], RECIPES[0].key(&here));
        let there = archive("http://there.example/debian");
        keys.extend(RECIPES.iter().map(|recipe| recipe.key(&there)));
        let all = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), all, "{keys:?}");
        assert!(keys.iter().all(|key| key.len() == 12));
    }

    #[test]
    fn every_name_has_a_recipe_and_a_disk() {
        for name in Recipe::names() {
            assert!(Recipe::tree(name).is_some(), "{name}");
            assert!(Recipe::disk(name).is_some(), "{name}");
        }
        assert_eq!(Recipe::tree("pve-9").unwrap().name, "debian-13");
        assert_eq!(Recipe::tree("debian-12-disk"), None);
        assert_eq!(Recipe::tree("debian-11"), None);
    }
}
