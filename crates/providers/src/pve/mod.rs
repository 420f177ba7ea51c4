//! Proxmox VE, over its REST API and nothing else: no SSH to the host, no insecure TLS.
//!
//! In: calls of the port, [`PveSettings`]. Out: [`Pve`], which implements the port.
//! Never: a guest touched that is not ours; a lock broken; a change repeated without looking.

mod address;
mod boot;
mod capacity;
mod client;
mod config;
mod create;
mod destroy;
mod disk;
mod finish;
mod guard;
mod half;
mod http;
mod image;
mod locate;
mod observe;
mod power;
mod provider;
mod remark;
mod reshape;
mod session;
mod settle;
mod simulated;
mod task;
mod upload;
mod wait;

pub mod discover;
pub mod facts;
pub mod fault;
pub mod identity;
pub mod preflight;
pub mod property;
pub mod quirks;
pub mod requests;
pub mod role;
pub use crate::seed;
pub mod settings;
pub mod upid;
pub mod vmid;

pub use address::address_of;
pub use client::Pve;
pub use config::{Disk, GuestConfig};
pub use http::{Answer, parse_answer};
pub use observe::observed;
pub use settings::{ApiToken, Credential, Endpoint, Limits, Password, PveSettings, TokenError};
pub use task::{RunningTask, Standing, log_lines, running, standing};
