//! Stores the engine's journal: runs, their entries, and leases. Holds no secrets.

pub mod registry;
mod sqlite;

pub use sqlite::Sqlite;
pub use sqlite::error::is_disk_full;
