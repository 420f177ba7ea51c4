//! Executes plans on the hosts where nodes run, and records every step in a journal.
//!
//! Hosts are reached through the traits in [`ports`]; vendor types never appear here.

pub mod context;
pub mod events;
pub mod journal;
pub mod observe;
pub mod operate;
pub mod planning;
pub mod ports;
pub mod recorded_events;
pub mod report;
mod step_durations;
mod steps;
pub mod verify;
