//! Maintenance commands of the source tree: generate files, check rules. Not part of the product.

pub mod command;
pub mod crate_dependencies;
pub mod generate;
mod process;
pub mod tidy;
pub mod tree;
mod ui;
