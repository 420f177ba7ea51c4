//! Documents, resolving, planning and convergence as pure functions: no I/O, no clock, no randomness,
//! no async. The same input gives the same bytes.
#![warn(clippy::wildcard_enum_match_arm)]

pub mod catalog;
pub mod converge;
pub mod doc;
pub mod draw;
pub mod error;
pub mod firstboot;
pub mod foreign;
pub mod graph;
mod guest_id;
pub mod hex;
pub mod host_kind;
pub mod observed;
pub mod plan;
pub mod resolve;
pub mod shell;
pub mod token;
pub mod units;
