//! Replays recordings against the simulator and prints the agreement.
//!
//! In: files with recorded exchanges. Out: the report, on standard output.
//! Never: network.

use std::io::Write as _;
use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let files: Vec<PathBuf> = std::env::args().skip(1).map(PathBuf::from).collect();
    let report = homestak_sim::replay::run(&files)?;
    std::io::stdout().write_all(report.to_string().as_bytes())
}
