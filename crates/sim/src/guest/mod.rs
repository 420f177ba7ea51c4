//! The model of a guest: configuration, identity, drives, status, agent, cloud-init data.

pub(crate) mod agent;
pub(crate) mod cloudinit;
pub(crate) mod config;
pub(crate) mod drive;
pub(crate) mod identity;
pub(crate) mod status;
