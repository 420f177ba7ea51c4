//! Reads runs, entries and records. Values that are not understood are errors.

use std::collections::BTreeMap;

use homestak_core::doc::scalar::SiteId;
use homestak_core::plan::{NodeRecord, StepId};
use homestak_engine::journal::{Entry, Run, RunFilter, RunId, RunSummary, Scope};
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use serde_json::{Value, from_str};

use super::error::StoreError;
use super::{patch, row};

const HEAD: &str =
    "SELECT id, manifest, hosts, verb, started, ended, ending, site, mark, form FROM runs";

pub(super) fn runs(
    connection: &Connection,
    filter: &RunFilter,
) -> Result<Vec<RunSummary>, StoreError> {
    let RunFilter { manifest, host, .. } = filter;
    // Of its own, so that its index is used.
    let of_manifest = manifest.as_ref().map_or("?1 IS NULL", |_| "manifest = ?1");
    let mut statement = connection.prepare_cached(&format!(
        "{HEAD} WHERE {of_manifest} AND (?2 IS NULL OR site IS NULL OR site = ?2)
         AND (?3 IS NULL OR EXISTS (SELECT 1 FROM json_each(hosts) WHERE value = ?3))
         AND id < ?4 ORDER BY id DESC LIMIT ?5"
    ))?;
    let mut rows = statement.query(params![
        manifest,
        filter.site.as_ref().map(SiteId::as_str),
        host,
        filter.before.map_or(i64::MAX, |run| run.0),
        filter
            .limit
            .and_then(|n| i64::try_from(n).ok())
            .unwrap_or(-1)
    ])?;
    let mut heads = Vec::new();
    while let Some(row) = rows.next()? {
        heads.push(head(row)?);
    }
    Ok(heads)
}

fn head(row: &Row<'_>) -> Result<RunSummary, StoreError> {
    let hosts: String = row.get(2)?;
    let ended = match (
        row.get::<_, Option<i64>>(5)?,
        row.get::<_, Option<String>>(6)?,
    ) {
        (Some(at), Some(word)) => Some((row::to_time(at)?, row::to_ending(&word)?)),
        _ => None,
    };
    Ok(RunSummary {
        id: RunId(row.get(0)?),
        mark: row.get(8)?,
        site: row::to_site(row.get(7)?)?,
        form: row.get(9)?,
        manifest: row.get(1)?,
        hosts: from_str(&hosts).map_err(StoreError::corrupt)?,
        verb: row.get(3)?,
        started: row::to_time(row.get(4)?)?,
        ended,
    })
}

pub(super) fn run(connection: &Connection, id: RunId) -> Result<Option<Run>, StoreError> {
    let head = connection
        .prepare_cached(&format!("{HEAD} WHERE id = ?1"))?
        .query_row(params![id.0], |row| Ok(head(row)))
        .optional()?
        .transpose()?;
    let Some(head) = head else {
        return Ok(None);
    };
    let plan: String = connection
        .prepare_cached("SELECT plan FROM plans WHERE run = ?1")?
        .query_row(params![id.0], |row| row.get(0))?;
    let mut entries = Vec::new();
    walk(connection, Some(id), |_, _, entry| {
        entries.push(entry);
        Ok(())
    })?;
    Ok(Some(Run {
        head,
        plan: from_str(&plan).map_err(StoreError::corrupt)?,
        entries,
    }))
}

/// Visits the entries of a run, or of all runs, in order, with their numbers.
pub(super) fn walk(
    connection: &Connection,
    run: Option<RunId>,
    mut visit: impl FnMut(i64, RunId, Entry) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let filter = if run.is_some() {
        "WHERE run = ?1"
    } else {
        "WHERE ?1 IS NULL"
    };
    let mut statement = connection.prepare_cached(&format!(
        "SELECT id, run, step, what, at, trouble, base, record FROM entries {filter}
         ORDER BY id"
    ))?;
    let mut rows = statement.query(params![run.map(|run| run.0)])?;
    let mut known = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let id = row.get(0)?;
        let trouble: Option<String> = row.get(5)?;
        let entry = Entry {
            step: row.get::<_, Option<String>>(2)?.map(StepId::from),
            happened: row::to_happened(row.get(3)?, trouble.as_deref())?,
            at: row::to_time(row.get(4)?)?,
            record: unpack(&mut known, id, row.get(6)?, row.get(7)?)?,
        };
        visit(id, RunId(row.get(1)?), entry)?;
    }
    Ok(())
}

/// Returns the record of an entry: whole, or the record of an earlier entry with what differs. Each
/// is referred to once, by the next entry about the same node.
fn unpack(
    known: &mut BTreeMap<i64, Value>,
    id: i64,
    base: Option<i64>,
    text: Option<String>,
) -> Result<Option<NodeRecord>, StoreError> {
    let Some(text) = text else {
        return Ok(None);
    };
    let mut value: Value = from_str(&text).map_err(StoreError::corrupt)?;
    if let Some(base) = base {
        let before = known.remove(&base).ok_or_else(|| {
            StoreError::corrupt(format!(
                "entry {id} refers to entry {base}, which is not there"
            ))
        })?;
        value = patch::apply(before, value);
    }
    let record = patch::record(&value)?;
    known.insert(id, value);
    Ok(Some(record))
}

pub(super) fn records(
    connection: &Connection,
    scope: &Scope,
) -> Result<Vec<NodeRecord>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT record FROM nodes AS own
         WHERE manifest = ?2 AND host = ?3 AND (site = ?1 OR site = '' AND NOT EXISTS (
             SELECT 1 FROM nodes WHERE site = ?1 AND manifest = ?2 AND host = ?3 AND name = own.name))
         ORDER BY name",
    )?;
    let mut rows = statement.query(params![row::site_key(scope), scope.manifest, scope.host])?;
    let mut records = Vec::new();
    while let Some(row) = rows.next()? {
        let text: String = row.get(0)?;
        records.push(from_str(&text).map_err(StoreError::corrupt)?);
    }
    Ok(records)
}
