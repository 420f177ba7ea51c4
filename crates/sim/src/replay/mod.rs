//! Replays recorded exchanges against a World and says where it answers differently.
//!
//! In: files with recordings of a real Proxmox VE. Out: a [`Report`].
//! Never: special treatment of one recording; the state before it is what its rows show.

mod archive;
mod ask;
mod before;
mod command;
mod compare;
mod follow;
mod groups;
mod hidden;
mod judge;
mod report;
mod runner;
mod shown;
mod transcript;

use std::path::{Path, PathBuf};

pub use report::{Report, Tally, Verdict};

/// Replays each file in a World of its own; of each file the flows that are named, or all.
pub fn run(files: &[PathBuf], flows: &[String]) -> std::io::Result<Report> {
    let mut report = Report::default();
    for file in files {
        replay_file(file, flows, &mut report)?;
    }
    Ok(report)
}

fn replay_file(file: &Path, flows: &[String], report: &mut Report) -> std::io::Result<()> {
    let mut rows = transcript::read(file, flows)?;
    let name = file
        .file_name()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    give_times(&mut rows);
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(runner::replay(&name, rows, report));
    Ok(())
}

/// Rows without a time were sent one after the other; they get times that say so.
fn give_times(rows: &mut [transcript::Row]) {
    /// Between an answer and the next call.
    const PAUSE: f64 = 0.02;
    let first_task = rows
        .iter()
        .filter_map(|row| row.started())
        .find_map(|upid| i64::from_str_radix(upid.split(':').nth(4)?, 16).ok());
    let mut now = first_task.map_or(1_767_225_600.0, |at| at as f64);
    for row in rows {
        match row.t0 {
            Some(t0) => now = t0 + row.seconds,
            None => {
                now += PAUSE;
                row.t0 = Some(now);
                now += row.seconds;
            }
        }
    }
}
