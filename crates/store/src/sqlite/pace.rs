//! How long steps take.
//!
//! In: steps that were done. Out: the median of the newest of each kind.
//! Never: a walk through entries; the newest are kept aside.

use std::collections::BTreeMap;

use homestak_core::plan::StepKind;
use rusqlite::{Connection, params};

use super::fault::Fault;

/// So many of each kind are kept: enough for a steady median, few enough to read at once.
const KEPT: i64 = 500;

/// Keeps how long a step took, and lets the oldest of its kind go.
pub(super) fn keep(connection: &Connection, kind: StepKind, seconds: f64) -> Result<(), Fault> {
    let number: i64 = connection
        .prepare_cached("SELECT coalesce(max(number), 0) + 1 FROM paces WHERE kind = ?1")?
        .query_row(params![kind.word()], |row| row.get(0))?;
    connection
        .prepare_cached("INSERT INTO paces (kind, number, seconds) VALUES (?1, ?2, ?3)")?
        .execute(params![kind.word(), number, seconds])?;
    connection
        .prepare_cached("DELETE FROM paces WHERE kind = ?1 AND number <= ?2")?
        .execute(params![kind.word(), number - KEPT])?;
    Ok(())
}

/// Returns the median of each kind that was seen.
pub(super) fn medians(connection: &Connection) -> Result<Vec<(StepKind, f64)>, Fault> {
    let mut statement = connection.prepare_cached("SELECT kind, seconds FROM paces")?;
    let mut rows = statement.query(())?;
    let mut seen: BTreeMap<StepKind, Vec<f64>> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let word: String = row.get(0)?;
        // A kind that a newer or older program knows is of no use to this one.
        if let Some(kind) = StepKind::ALL.into_iter().find(|kind| kind.word() == word) {
            seen.entry(kind).or_default().push(row.get(1)?);
        }
    }
    Ok(seen
        .into_iter()
        .map(|(kind, seconds)| (kind, median(seconds)))
        .collect())
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    let middle = seconds.len() / 2;
    match seconds.get(middle) {
        Some(upper) if seconds.len().is_multiple_of(2) => {
            f64::midpoint(seconds[middle - 1], *upper)
        }
        Some(upper) => *upper,
        None => 0.0,
    }
}
