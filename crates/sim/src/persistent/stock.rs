//! The images, container templates and downloads that manifests of the stock site refer to.

use crate::calls::upload::guess_boots;
use crate::world::{Boots, Builder};

/// Disk images by their names and aliases in the stock site. The name decides what boots.
const IMAGES: [&str; 6] = [
    "debian-12",
    "debian-12-custom",
    "debian-13",
    "debian-13-custom",
    "pve-9",
    "debian-13-pve",
];
/// Container templates by their names in the stock site and in Proxmox VE.
const TEMPLATES: [&str; 6] = [
    "debian-12-standard",
    "debian-12-ct",
    "debian-12-standard_12.12-1_amd64",
    "debian-13-standard",
    "debian-13-ct",
    "debian-13-standard_13.1-2_amd64",
];
/// URLs that can be downloaded.
const DOWNLOADS: [&str; 2] = [
    "https://cloud.debian.org/images/cloud/bookworm/latest/debian-12-genericcloud-amd64.qcow2",
    "https://cloud.debian.org/images/cloud/trixie/latest/debian-13-genericcloud-amd64.qcow2",
];
/// Compressed size of a disk image in bytes; about a quarter of the uncompressed size.
const IMAGE_SIZE: u64 = 400 << 20;
/// Size of a container template in bytes.
const TEMPLATE_SIZE: u64 = 120 << 20;

/// Adds the images, templates and downloads of the stock site to the storage `local`.
#[must_use]
pub fn stock(builder: Builder) -> Builder {
    let mut builder = builder;
    for name in IMAGES {
        let file = format!("import/{name}.qcow2");
        builder = builder.image("local", &file, IMAGE_SIZE, guess_boots(name));
    }
    for name in TEMPLATES {
        let file = format!("vztmpl/{name}.tar.zst");
        builder = builder.image("local", &file, TEMPLATE_SIZE, Boots::System);
    }
    for url in DOWNLOADS {
        builder = builder.download(url, IMAGE_SIZE);
    }
    builder
}
