//! DECIDES: reads documents, resolves references, draws, signs. Pure.
//!
//! In: text and values. Out: values, diagnostics, text.
//! Never: I/O, clock, randomness, async. The same input gives the same bytes.
#![warn(clippy::wildcard_enum_match_arm)]

pub mod doc;
pub mod draw;
