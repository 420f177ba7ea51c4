//! LOADS: finds the site directory, reads its documents, writes a new one.
//!
//! In: where to look. Out: texts for `core`, or files on disk.
//! Never: judging documents; opening sealed secrets (the caller hands in how).

pub mod find;
pub mod git;
pub mod id;
pub mod init;
pub mod load;
mod process;
pub mod secrets;
pub mod stock;

pub use find::{Candidates, SiteSearch, SiteSource, find};
pub use init::{InitError, init};
pub use load::{LoadedSite, Unseal, load, load_stock};
