//! Stores the engine's journal: runs, their entries, and leases. Holds no secrets.

mod sqlite;

pub use sqlite::Sqlite;
