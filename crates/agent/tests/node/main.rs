//! The agent on real Debian nodes of this machine. The tests run one at a time, like all others that
//! create nodes.
#![expect(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test may panic"
)]

mod broken;
mod confirm;
mod drift;
mod failures;
mod fetch;
mod hostile;
mod job;
mod killed;
mod node_job;
mod packages;
mod posture;
mod pull;
mod refused;
mod release;
mod sample;
mod service;
mod test_node;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use homestak_test_support::test_host::TestHost;
use homestak_test_support::{server, test_host};

/// Creates a local host, or prints why not. The tests of `homestak` compare the machine before and
/// after.
fn new_test_host() -> Option<TestHost> {
    let shared = Path::new(env!("CARGO_TARGET_TMPDIR"));
    TestHost::new(program(), shared, |_| BTreeSet::new())
}

/// Builds the program `homestak` unless the whole workspace was built, and returns its path.
fn program() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            let agent = PathBuf::from(env!("CARGO_BIN_EXE_homestak-agent"));
            let program = agent.with_file_name("homestak");
            // `make test` has built everything.
            if std::env::var_os("HOMESTAK_TEST_REQUIRE").is_some() && program.exists() {
                return program;
            }
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "--quiet", "--locked", "--package", "homestak"]);
            cargo.arg("--manifest-path");
            cargo.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"));
            cargo
                .arg("--target-dir")
                .arg(agent.ancestors().nth(2).unwrap());
            if agent.parent().unwrap().ends_with("release") {
                cargo.arg("--release");
            }
            assert!(cargo.status().unwrap().success());
            program
        })
        .clone()
}
