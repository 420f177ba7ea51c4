//! The agent on real Debian nodes of this machine.
//!
//! In: specs. Out: nodes that are as their specs say, and not half so when that fails.
//! Never: two tests at once: they take turns with all others that make nodes.
#![expect(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test may panic"
)]

mod bad;
mod broken;
mod confirm;
mod drift;
mod fetch;
mod hardship;
mod hostile;
mod job;
mod killed;
mod lab;
mod packages;
mod posture;
mod release;
mod sample;
mod service;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use homestak_test_support::bed::Bed;
use homestak_test_support::{bed, server};

/// Makes a local host, or says why not. The machine before and after is compared by the tests of
/// `homestak`, which makes the nodes.
fn new_bed() -> Option<Bed> {
    let shared = Path::new(env!("CARGO_TARGET_TMPDIR"));
    Bed::new(program(), shared, |_| BTreeSet::new())
}

/// Returns where the program `homestak` is, built when it is not.
fn program() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            let agent = PathBuf::from(env!("CARGO_BIN_EXE_homestak-agent"));
            let program = agent.with_file_name("homestak");
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
