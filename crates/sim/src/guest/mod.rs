//! What a guest is: configuration, identity, drives, status, agent, first-boot data.
//!
//! In: keys and values as Proxmox VE stores them. Out: the same as it shows them.
//! Never: tasks, locks, HTTP.

pub(crate) mod agent;
pub(crate) mod cloudinit;
pub(crate) mod config;
pub(crate) mod drive;
pub(crate) mod identity;
pub(crate) mod status;
