//! REMEMBERS: runs, what happened in them, and who holds what, so that nothing is lost.
//!
//! In: entries of the engine's journal. Out: the same, after whatever happened to the program.
//! Never: a decision about what an entry means; the value of a secret.

mod sqlite;

pub use sqlite::Sqlite;
