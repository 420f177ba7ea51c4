//! Leases: one process at a time works on a manifest on a host.
//!
//! In: scopes. Out: all of them, until the lease is dropped or its process dies; or who has one.
//! Never: some of them; a wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use homestak_engine::journal::{JournalError, Lease, Scope};
use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use super::fault::Fault;
use super::file::File;
use super::holder::{Holder, Life, process};
use super::row;
use super::write::Desk;
use super::writer::Writer;

/// What is to be taken.
pub(super) struct Taking {
    pub(super) scopes: Vec<Scope>,
    pub(super) holder: Holder,
    pub(super) since: Timestamp,
    pub(super) file: File,
    pub(super) writer: Arc<Writer>,
}

/// Scopes that are held until this is dropped.
pub(super) struct Held {
    holder: Holder,
    mark: i64,
    writer: Arc<Writer>,
}

impl Lease for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        let (holder, mark) = (self.holder.clone(), self.mark);
        self.writer.tell(move |desk| free(desk, &holder, mark));
    }
}

/// Takes every scope, or none.
pub(super) fn take(desk: &mut Desk, taking: &Taking) -> Result<Held, Fault> {
    /// Tells the leases of this process apart, however many journals it has open.
    static MARKS: AtomicI64 = AtomicI64::new(0);
    for scope in &taking.scopes {
        look(desk, scope, taking)?;
    }
    let since = row::from_time(taking.since)?;
    let mark = MARKS.fetch_add(1, Ordering::Relaxed);
    let holder = &taking.holder;
    for scope in &taking.scopes {
        desk.connection()
            .prepare_cached(
                "INSERT OR REPLACE INTO leases
                 (site, manifest, host, machine, boot, space, pid, start, mark, since)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            )?
            .execute(params![
                row::site_key(scope),
                scope.manifest,
                scope.host,
                holder.machine,
                holder.boot,
                holder.space,
                holder.pid,
                holder.start,
                mark,
                since
            ])?;
    }
    Ok(Held {
        holder: holder.clone(),
        mark,
        writer: Arc::clone(&taking.writer),
    })
}

/// Refuses a scope whose holder lives, or may live.
fn look(desk: &Desk, scope: &Scope, taking: &Taking) -> Result<(), Fault> {
    let mut statement = desk.connection().prepare_cached(
        // One without a site is of the first form, and holds for every site.
        "SELECT machine, boot, space, pid, start, since FROM leases
         WHERE site IN (?1, '') AND manifest = ?2 AND host = ?3",
    )?;
    let mut rows = statement.query(params![row::site_key(scope), scope.manifest, scope.host])?;
    while let Some(row) = rows.next()? {
        let other = other(row)?;
        let mut words = format!("process {} on {}", other.pid, other.machine);
        match taking.holder.judge(&other, process) {
            Life::Dead => continue,
            Life::Alive => {}
            Life::Unknown => words.push_str(&by_hand(&other, &taking.file)),
        }
        return Err(Fault::Answer(JournalError::Held {
            scope: scope.clone(),
            holder: words,
            since: row::to_time(row.get(5)?)?,
        }));
    }
    Ok(())
}

/// Refuses to change the form of the file while a process works with it that knows the old one.
pub(super) fn require_free(connection: &Connection, own: &Holder) -> Result<(), Fault> {
    let mut statement =
        connection.prepare("SELECT machine, boot, space, pid, start FROM leases")?;
    let mut rows = statement.query(())?;
    while let Some(row) = rows.next()? {
        let other = other(row)?;
        if own.judge(&other, process) == Life::Alive {
            return Err(Fault::said(
                format!(
                    "process {} on {} uses it in an older form",
                    other.pid, other.machine
                ),
                "wait until that run has ended, then repeat the command",
            ));
        }
    }
    Ok(())
}

fn other(row: &Row<'_>) -> rusqlite::Result<Holder> {
    Ok(Holder {
        machine: row.get(0)?,
        boot: row.get(1)?,
        space: row.get(2)?,
        pid: row.get(3)?,
        start: row.get(4)?,
    })
}

/// Says how to free what a dead process elsewhere holds: only a person can know that it is dead.
fn by_hand(other: &Holder, file: &File) -> String {
    format!(
        " (which cannot be asked from here; when it is dead, free it with \
         `sqlite3 '{file}' \"DELETE FROM leases WHERE machine = '{}' AND pid = {}\"`)",
        other.machine, other.pid
    )
}

fn free(desk: &Desk, holder: &Holder, mark: i64) -> Result<(), Fault> {
    desk.connection()
        .prepare_cached(
            "DELETE FROM leases
             WHERE machine = ?1 AND boot = ?2 AND space = ?3 AND pid = ?4 AND start = ?5 AND mark = ?6",
        )?
        .execute(params![
            holder.machine,
            holder.boot,
            holder.space,
            holder.pid,
            holder.start,
            mark
        ])?;
    Ok(())
}
