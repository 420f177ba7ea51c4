//! REACHES: places where nodes live.
//!
//! In: calls of the engine's ports. Out: requests to the place, and what came of them.
//! Never: decisions about what should exist; another module's idea of a guest than the port's.

pub mod finding;
pub mod image;
pub mod local;
mod private;
mod process;
pub mod push;
pub mod pve;
pub mod seed;
pub mod ssh;
