//! What a kept World starts with: the images that manifests of the stock site name.
//!
//! In: a builder. Out: the same with images and templates in `local`, and downloads of them.
//! Never: a host; those are the caller's.

use crate::calls::upload::boots_of;
use crate::world::{Boots, Builder};

/// Disk images by the names and other names of the stock site. What boots follows from the name.
const IMAGES: [&str; 6] = [
    "debian-12",
    "debian-12-custom",
    "debian-13",
    "debian-13-custom",
    "pve-9",
    "debian-13-pve",
];
/// Templates of containers, by the names of the stock site and as Proxmox VE names them.
const TEMPLATES: [&str; 6] = [
    "debian-12-standard",
    "debian-12-ct",
    "debian-12-standard_12.12-1_amd64",
    "debian-13-standard",
    "debian-13-ct",
    "debian-13-standard_13.1-2_amd64",
];
/// What can be downloaded.
const DOWNLOADS: [&str; 2] = [
    "https://cloud.debian.org/images/cloud/bookworm/latest/debian-12-genericcloud-amd64.qcow2",
    "https://cloud.debian.org/images/cloud/trixie/latest/debian-13-genericcloud-amd64.qcow2",
];
/// Bytes of a disk image, packed; unpacked it is about four times as large.
const IMAGE_SIZE: u64 = 400 << 20;
/// Bytes of a template.
const TEMPLATE_SIZE: u64 = 120 << 20;

/// Puts what manifests of the stock site need into the storage `local`.
#[must_use]
pub fn stock(builder: Builder) -> Builder {
    let mut builder = builder;
    for name in IMAGES {
        let file = format!("import/{name}.qcow2");
        builder = builder.image("local", &file, IMAGE_SIZE, boots_of(name));
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
