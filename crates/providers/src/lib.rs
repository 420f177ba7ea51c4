//! Implements the provider port: Proxmox VE, the local host, images, SSH and the agent transport.
//!
//! Executes calls of the engine and reports results. Never decides what should exist.

pub mod finding;
pub mod image;
pub mod local;
mod private;
mod process;
pub mod push;
pub mod pve;
pub mod seed;
pub mod ssh;
