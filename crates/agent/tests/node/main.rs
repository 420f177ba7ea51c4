//! The agent on real Debian nodes of this machine.
//!
//! In: specs. Out: nodes that are as their specs say, and not half so when that fails.
//! Never: two tests at once: they take turns with all others that make nodes.
#![expect(
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test may panic, and does not use everything that tests share"
)]

mod bad;
#[path = "../../../../tests/support/local/bed.rs"]
mod bed;
mod broken;
mod confirm;
mod drift;
mod fetch;
mod hardship;
mod hostile;
mod job;
mod killed;
mod lab;
mod machine;
mod packages;
mod posture;
mod release;
mod sample;
#[path = "../fetch/server.rs"]
mod server;
mod service;

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

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
