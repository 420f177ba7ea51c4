//! Real nodes on this machine, through the real program.
//!
//! In: small manifests. Out: Debian systems, and a machine that is as before when they are gone.
//! Never: two tests at once: each compares what is ours before and after.
#![expect(
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test may panic, says how much it tried, is told how much to try, and does not use everything that tests share"
)]

mod bad;
#[path = "../../../../tests/support/local/bed.rs"]
mod bed;
mod checks;
mod config;
mod crash;
mod equal;
mod guides;
#[path = "../../../../tests/support/guides.rs"]
mod guides_of;
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

/// Returns where the program is.
fn program() -> std::path::PathBuf {
    env!("CARGO_BIN_EXE_homestak").into()
}
