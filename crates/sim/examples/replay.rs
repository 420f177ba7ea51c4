//! Replays recordings against the simulator and prints the agreement.
//!
//! In: files with recorded exchanges. Out: the report, on standard output.
//! Never: network.

use std::path::PathBuf;

#[expect(clippy::print_stdout, reason = "this program prints a report")]
fn main() -> std::io::Result<()> {
    let files: Vec<PathBuf> = std::env::args().skip(1).map(PathBuf::from).collect();
    let report = homestak_sim::replay::run(&files)?;
    print!("{report}");
    Ok(())
}
