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
        (Some(at), Some(name)) => Some((row::to_time(at)?, row::to_ending(&name)?)),
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
    let entries = entries_after(connection, id, 0)?.into_iter();
    Ok(Some(Run {
        head,
        plan: from_str(&plan).map_err(StoreError::corrupt)?,
        entries: entries.map(|(_, entry)| entry).collect(),
    }))
}

/// Returns the entries of a run after a position, each with its own.
pub(super) fn entries_after(
    connection: &Connection,
    run: RunId,
    position: i64,
) -> Result<Vec<(i64, Entry)>, StoreError> {
    let mut entries = Vec::new();
    walk(connection, Some(run), position, |at, _, entry| {
        entries.push((at, entry));
        Ok(())
    })?;
    Ok(entries)
}

/// Visits the entries of a run, or of all runs, after a position, in order, with their numbers.
pub(super) fn walk(
    connection: &Connection,
    run: Option<RunId>,
    position: i64,
    mut visit: impl FnMut(i64, RunId, Entry) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let filter = if run.is_some() {
        "WHERE run = ?1"
    } else {
        "WHERE ?1 IS NULL"
    };
    let mut statement = connection.prepare_cached(&format!(
        "SELECT id, run, step, what, at, trouble, base, record FROM entries {filter}
         AND id > ?2 ORDER BY id"
    ))?;
    let mut rows = statement.query(params![run.map(|run| run.0), position])?;
    let mut records = Records {
        connection,
        known: BTreeMap::new(),
    };
    while let Some(row) = rows.next()? {
        let id = row.get(0)?;
        let trouble: Option<String> = row.get(5)?;
        let entry = Entry {
            step: row.get::<_, Option<String>>(2)?.map(StepId::from),
            happened: row::to_step_event(row.get(3)?, trouble.as_deref())?,
            at: row::to_time(row.get(4)?)?,
            record: records.unpack(id, row.get(6)?, row.get(7)?)?,
        };
        visit(id, RunId(row.get(1)?), entry)?;
    }
    Ok(())
}

/// Records that a later entry may refer to. An entry has a whole record, or the number of an earlier
/// entry and what differs from its record.
struct Records<'c> {
    connection: &'c Connection,
    known: BTreeMap<i64, Value>,
}

impl Records<'_> {
    /// Returns the record of an entry.
    fn unpack(
        &mut self,
        id: i64,
        base: Option<i64>,
        text: Option<String>,
    ) -> Result<Option<NodeRecord>, StoreError> {
        let Some(text) = text else {
            return Ok(None);
        };
        let mut value: Value = from_str(&text).map_err(StoreError::corrupt)?;
        if let Some(base) = base {
            // Each is referred to once, by the next entry about the same node.
            let before = match self.known.remove(&base) {
                Some(before) => before,
                None => self.before(id, base)?,
            };
            value = patch::apply(before, value);
        }
        let record = patch::record(&value)?;
        self.known.insert(id, value);
        Ok(Some(record))
    }

    /// Reads the record of an entry before the first that is visited.
    fn before(&self, id: i64, base: i64) -> Result<Value, StoreError> {
        let mut patches = Vec::new();
        let (mut from, mut next) = (id, Some(base));
        while let Some(at) = next {
            let row: Option<(Option<i64>, String)> = self
                .connection
                .prepare_cached(
                    "SELECT base, record FROM entries WHERE id = ?1 AND id < ?2 AND record IS NOT NULL",
                )?
                .query_row(params![at, from], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?;
            let (before, text) = row.ok_or_else(|| {
                StoreError::corrupt(format!(
                    "entry {from} refers to entry {at}, which is not there"
                ))
            })?;
            patches.push(from_str(&text).map_err(StoreError::corrupt)?);
            (from, next) = (at, before);
        }
        let whole = patches.pop().unwrap_or_default();
        Ok(patches.into_iter().rev().fold(whole, patch::apply))
    }
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
