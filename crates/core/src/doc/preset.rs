//! `presets/*.yaml`: how big a machine is.
//!
//! In: a tree. Out: [`Preset`], everything optional as written.
//! Never: defaults; the three sizes are required.

use super::address::Address;
use super::declare::document;
use super::decode::Spanned;
use super::scalar::{Bridge, Int, Package, Version};

document! {
    /// A preset: how big a machine is.
    #[derive(Debug, PartialEq)]
    Preset as "the preset" {
        /// Always 1.
        schema_version: Version<1>,
        /// One line for people.
        description: String,
        /// Virtual CPUs.
        cores = required: Int<1, 1024>,
        /// Memory in MiB.
        memory = required: Int<16, 16777216>,
        /// Disk in GiB.
        disk = required: Int<1, 131072>,
        /// Bridge of the host, instead of the network's or the site's.
        bridge: Bridge,
        /// Address; a fixed one fits a preset that is used once.
        ip: Address,
        /// Packages installed on first boot.
        packages: Vec<Spanned<Package>>,
    }
}
