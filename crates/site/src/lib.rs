//! Finds the site directory, reads its documents, and creates new sites.
//!
//! Documents are not validated here, and the caller provides the function that decrypts encrypted
//! secrets.

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
