//! DECIDES: reads documents, resolves references, draws, signs. Pure.
//!
//! In: text and values. Out: values, diagnostics, text.
//! Never: I/O, clock, randomness, async. The same input gives the same bytes.
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
pub mod kind;
pub mod observed;
pub mod plan;
pub mod resolve;
pub mod token;
pub mod units;
