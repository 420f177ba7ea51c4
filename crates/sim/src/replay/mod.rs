//! Replays recordings of a real Proxmox VE against a World and reports the differences.
//!
//! The state before a recording is derived from its rows, so every recording is treated alike.

mod align;
mod archive;
mod command;
mod compare;
mod groups;
mod initial_state;
mod report;
mod request;
mod runner;
mod settings;
mod transcript;
mod unrecorded;
mod verdicts;

use std::path::{Path, PathBuf};

pub use report::{FlowCounts, Report, Verdict};

/// Replays each file against a new World. Without flows, all of them are replayed.
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
    assign_times(&mut rows);
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(runner::replay(&name, rows, report));
    Ok(())
}

/// Assigns times to rows that have none; these were sent one after the other.
fn assign_times(rows: &mut [transcript::Row]) {
    /// Seconds between an answer and the next call.
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
