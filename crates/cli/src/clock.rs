//! The one clock of the command line.
//!
//! In: nothing. Out: now.
//! Never: called below the edge; everything else takes time as a parameter.

/// Returns now.
#[expect(clippy::disallowed_methods, reason = "this is the edge's one clock")]
pub(crate) fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}
