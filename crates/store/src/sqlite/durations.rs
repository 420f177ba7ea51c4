//! Recent durations of steps, and their medians. They are stored apart from the entries.

use std::collections::BTreeMap;

use homestak_core::plan::StepKind;
use rusqlite::{Connection, params};

use super::error::StoreError;

/// How many durations of each kind are kept: enough for a stable median.
const KEPT: i64 = 500;

/// Stores a duration, and deletes the oldest of its kind.
pub(super) fn keep(
    connection: &Connection,
    kind: StepKind,
    seconds: f64,
) -> Result<(), StoreError> {
    let number: i64 = connection
        .prepare_cached("SELECT coalesce(max(number), 0) + 1 FROM paces WHERE kind = ?1")?
        .query_row(params![kind.name()], |row| row.get(0))?;
    connection
        .prepare_cached("INSERT INTO paces (kind, number, seconds) VALUES (?1, ?2, ?3)")?
        .execute(params![kind.name(), number, seconds])?;
    connection
        .prepare_cached("DELETE FROM paces WHERE kind = ?1 AND number <= ?2")?
        .execute(params![kind.name(), number - KEPT])?;
    Ok(())
}

/// Returns the median of each kind.
pub(super) fn medians(connection: &Connection) -> Result<Vec<(StepKind, f64)>, StoreError> {
    let mut statement = connection.prepare_cached("SELECT kind, seconds FROM paces")?;
    let mut rows = statement.query(())?;
    let mut seen: BTreeMap<StepKind, Vec<f64>> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        // Kinds of other versions are ignored.
        if let Some(kind) = StepKind::ALL.into_iter().find(|kind| kind.name() == name) {
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
