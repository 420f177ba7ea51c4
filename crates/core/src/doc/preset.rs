//! `presets/*.yaml`: sizes of machines.

use super::address::Address;
use super::declare::document;
use super::decode::Spanned;
use super::scalar::{Bridge, Int, Package, Version};

document! {
    /// A preset: the size of a machine.
    #[derive(Debug, PartialEq)]
    Preset as "the preset" {
        /// Always 1.
        schema_version: Version<1>,
        /// One-line description.
        description: String,
        /// Virtual CPUs.
        cores = required: Int<1, 1024>,
        /// Memory in MiB.
        memory = required: Int<16, 16777216>,
        /// Disk in GiB.
        disk = required: Int<1, 131072>,
        /// Bridge of the host; overrides those of the network and the site.
        bridge: Bridge,
        /// Address; use a static one only if a single node uses the preset.
        ip: Address,
        /// Packages installed on first boot.
        packages: Vec<Spanned<Package>>,
    }
}
