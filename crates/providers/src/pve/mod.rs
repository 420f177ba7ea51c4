//! Proxmox VE provider, over its REST API only: no SSH to the host, no unverified TLS.
//!
//! It does not change guests that homestak did not create, does not break locks, and checks the
//! state before it repeats a change.

mod address;
mod boot;
mod capacity;
mod client;
mod concurrency;
mod config;
mod create;
mod destroy;
mod disk;
mod finish;
mod http;
mod image;
mod incomplete;
mod locate;
mod notifier;
mod observe;
mod outcome;
mod power;
mod provider;
mod resize;
mod session;
mod simulated;
mod task;
mod upload;
mod wait;

pub mod discover;
pub mod error;
pub mod facts;
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
pub use config::{GuestConfig, GuestDisk};
pub use http::{ApiResponse, parse_response};
pub use observe::observed;
pub use settings::{
    ApiToken, ApiTokenError, Credential, Endpoint, Password, PveLimits, PveSettings,
};
pub use task::{RunningTask, TaskState, log_lines, running, task_state};
