//! TENDS: generates files, keeps the tree tidy.
//!
//! In: the working tree. Out: generated files, or every fault with path, line and what to do.
//! Never: part of the product; never changes a file that a person writes.

pub mod arrows;
pub mod command;
pub mod generate;
mod process;
pub mod tidy;
pub mod tree;
mod ui;
