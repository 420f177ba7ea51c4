//! Real nodes on this machine, through the real program.
//!
//! Tests run one at a time: each compares the machine before and after.
#![expect(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "tests may panic, print what they ran, and read how much to run from the environment"
)]

mod checks;
mod config;
mod crash;
mod failures;
mod first_boot;
mod guides;
mod hostile;
mod isolation;
mod jobs;
mod killed;
mod lifecycle;
mod limits;
mod machine;
mod mixed_modes;
mod mode_changes;
mod modes;
mod nested;
mod node_access;
mod node_state;
mod owner;
mod permanent_server;
mod private;
mod pull;
mod qemu;
mod readme;
mod rollback;
mod server_units;
mod spent_token;
mod staged_update;
mod triggers;

use std::path::Path;

use homestak_test_support::test_host::TestHost;
use homestak_test_support::{guides as guide_commands, test_host};

/// Creates a local host, or prints why not.
fn host() -> Option<TestHost> {
    let shared = Path::new(env!("CARGO_TARGET_TMPDIR"));
    TestHost::new(program(), shared, machine::resources)
}

/// Returns the path of the program.
fn program() -> std::path::PathBuf {
    env!("CARGO_BIN_EXE_homestak").into()
}
