//! Tests of what only SQLite has.
//!
//! In: journals in temporary directories. Out: nothing.
//! Never: what the suite of every journal checks.
