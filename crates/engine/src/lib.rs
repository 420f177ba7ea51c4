//! DOES: the seams through which plans become machines.
//!
//! In: plans in our own types. Out: calls on ports, with classified errors.
//! Never: the types of a vendor; those end in `providers`.

pub mod chronicle;
pub mod context;
pub mod events;
pub mod journal;
pub mod look;
pub mod operate;
mod pace;
pub mod planning;
pub mod ports;
mod steps;
pub mod verify;
