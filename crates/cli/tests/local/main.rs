//! Real nodes on this machine, through the real program.
//!
//! Tests run one at a time: each compares the machine before and after.
#![expect(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test may panic, says how much it tried, and is told how much to try"
)]

mod bad;
mod checks;
mod config;
mod crash;
mod equal;
mod guides;
mod handy;
mod hostile;
mod isolation;
mod life;
mod limits;
mod machine;
mod nested;
mod owner;
mod private;
mod qemu;
mod readme;
mod undo;

use std::path::Path;

use homestak_test_support::bed::Bed;
use homestak_test_support::{bed, guides as guides_of};

/// Makes a local host, or says why not.
fn new_bed() -> Option<Bed> {
    let shared = Path::new(env!("CARGO_TARGET_TMPDIR"));
    Bed::new(program(), shared, machine::picture)
}

/// Returns where the program is.
fn program() -> std::path::PathBuf {
    env!("CARGO_BIN_EXE_homestak").into()
}
