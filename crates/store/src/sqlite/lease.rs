//! Leases: one process at a time works on a manifest on a host.
//!
//! Scopes are taken all or none, without waiting. A lease ends when it is dropped, when its process
//! dies, or when it is unlocked. Each lease on a scope has a higher number than the one before.

use std::sync::Arc;

use homestak_engine::journal::{Fence, HolderState, JournalError, Lease, LeaseHolder, Scope};
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use serde_json::{from_str, to_string};

use super::error::StoreError;
use super::holder::{Holder, digest, process};
use super::row;
use super::write::WriteConnection;
use super::writer::Writer;

/// The scopes to lock, and for whom.
pub(super) struct LeaseRequest {
    pub(super) scopes: Vec<Scope>,
    pub(super) holder: Holder,
    pub(super) since: Timestamp,
    pub(super) writer: Arc<Writer>,
}

/// A lease of this process.
#[derive(Clone, Copy)]
pub(super) struct GrantedLease {
    /// The random mark of the lease.
    mark: i64,
    /// Its number.
    number: i64,
}

/// Locked scopes, until this is dropped.
pub(super) struct HeldLease {
    mark: i64,
    writer: Arc<Writer>,
}

impl Lease for HeldLease {}

impl Drop for HeldLease {
    fn drop(&mut self) {
        let mark = self.mark;
        self.writer.enqueue(move |db| free(db, mark));
    }
}

/// Locks all scopes, or none.
pub(super) fn take(
    db: &mut WriteConnection,
    request: &LeaseRequest,
) -> Result<HeldLease, StoreError> {
    for scope in &request.scopes {
        let found = holding(db.connection(), scope, &request.holder)?;
        if let Some(holding) = found.filter(|holding| holding.life != HolderState::Dead) {
            return Err(held(scope, &holding));
        }
    }
    let since = row::from_time(request.since)?;
    let holder = to_string(&request.holder).map_err(StoreError::corrupt)?;
    let mark: i64 = db
        .connection()
        .query_row("SELECT random()", (), |row| row.get(0))?;
    for scope in &request.scopes {
        let number = db
            .connection()
            .prepare_cached(
                "INSERT INTO leases (site, manifest, host, number, holder, mark, since, heartbeat)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7)
                 ON CONFLICT DO UPDATE SET number = max(number + 1, excluded.number),
                     holder = excluded.holder, mark = excluded.mark,
                     since = excluded.since, heartbeat = excluded.heartbeat
                 RETURNING number",
            )?
            .query_row(
                params![
                    row::site_key(scope),
                    scope.manifest,
                    scope.host,
                    at_least(since),
                    holder,
                    mark,
                    since
                ],
                |row| row.get(0),
            )?;
        tracing::debug!(
            manifest = scope.manifest,
            host = scope.host,
            number,
            "locked"
        );
        db.granted
            .insert(scope.clone(), GrantedLease { mark, number });
    }
    Ok(HeldLease {
        mark,
        writer: Arc::clone(&request.writer),
    })
}

/// Returns the lowest number at a time. A journal that was restored from a backup has lost numbers;
/// the time in milliseconds is higher than all of them.
fn at_least(nanoseconds: i64) -> i64 {
    nanoseconds / 1_000_000
}

fn held(scope: &Scope, holding: &LeaseHolder) -> StoreError {
    StoreError::Answer(JournalError::Held {
        scope: scope.clone(),
        holder: holding.to_string(),
        since: holding.since,
    })
}

/// Returns the holder of a scope; one that is or may be alive first.
pub(super) fn holding(
    connection: &Connection,
    scope: &Scope,
    own: &Holder,
) -> Result<Option<LeaseHolder>, StoreError> {
    let mut statement = connection.prepare_cached(
        // One without a site is of the first format, and holds for every site.
        "SELECT number, holder, since, heartbeat FROM leases
         WHERE site IN (?1, '') AND manifest = ?2 AND host = ?3 AND holder IS NOT NULL",
    )?;
    let mut rows = statement.query(params![row::site_key(scope), scope.manifest, scope.host])?;
    let mut dead = None;
    while let Some(row) = rows.next()? {
        let holder: Holder = from_str(&row.get::<_, String>(1)?).map_err(StoreError::corrupt)?;
        let holding = LeaseHolder {
            number: row.get(0)?,
            life: own.state_of(&holder, process),
            holder: holder.to_string(),
            since: row::to_time(row.get(2)?)?,
            heartbeat: row::to_time(row.get(3)?)?,
        };
        match holding.life {
            HolderState::Dead => dead = Some(holding),
            HolderState::Alive | HolderState::Unknown => return Ok(Some(holding)),
        }
    }
    Ok(dead)
}

/// Removes the lease with this number.
pub(super) fn unlock(
    db: &WriteConnection,
    scope: &Scope,
    number: i64,
    (own, now): (&Holder, Timestamp),
) -> Result<(), StoreError> {
    let Some(holding) = holding(db.connection(), scope, own)? else {
        return Ok(());
    };
    if holding.number != number || !holding.is_unlockable(now) {
        return Err(held(scope, &holding));
    }
    db.connection()
        .prepare_cached(
            "UPDATE leases SET number = max(number + 1, ?5), holder = NULL
             WHERE site IN (?1, '') AND manifest = ?2 AND host = ?3 AND number = ?4",
        )?
        .execute(params![
            row::site_key(scope),
            scope.manifest,
            scope.host,
            number,
            at_least(row::from_time(now)?)
        ])?;
    Ok(())
}

fn free(db: &mut WriteConnection, mark: i64) -> Result<(), StoreError> {
    db.granted.retain(|_, granted| granted.mark != mark);
    tracing::debug!("unlocked");
    db.connection()
        .prepare_cached("UPDATE leases SET holder = NULL WHERE mark = ?1 AND holder IS NOT NULL")?
        .execute(params![mark])?;
    Ok(())
}

/// Writes heartbeats for the leases of this process.
pub(super) fn write_heartbeats(db: &WriteConnection, at: Timestamp) -> Result<(), StoreError> {
    let mut statement = db.connection().prepare_cached(
        "UPDATE leases SET heartbeat = ?1
         WHERE site = ?2 AND manifest = ?3 AND host = ?4 AND number = ?5 AND holder IS NOT NULL",
    )?;
    for (scope, granted) in &db.granted {
        statement.execute(params![
            row::from_time(at)?,
            row::site_key(scope),
            scope.manifest,
            scope.host,
            granted.number
        ])?;
    }
    Ok(())
}

/// Fails when this process has lost a lease on one of the scopes.
pub(super) fn require(db: &WriteConnection, scopes: &[Scope]) -> Result<(), StoreError> {
    for scope in scopes {
        let Some(granted) = db.granted.get(scope) else {
            continue;
        };
        let row: Option<(i64, Option<String>)> = db
            .connection()
            .prepare_cached(
                "SELECT number, holder FROM leases WHERE site = ?1 AND manifest = ?2 AND host = ?3",
            )?
            .query_row(
                params![row::site_key(scope), scope.manifest, scope.host],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .optional()?;
        let (number, holder) = row.unwrap_or_default();
        if number == granted.number && holder.is_some() {
            continue;
        }
        let holder = holder.map(|text| from_str::<Holder>(&text)).transpose();
        return Err(StoreError::Answer(JournalError::Lost {
            scope: scope.clone(),
            holder: holder
                .map_err(StoreError::corrupt)?
                .map(|one| one.to_string()),
        }));
    }
    Ok(())
}

/// Fails when a live process uses the file in a format without lease numbers.
pub(super) fn require_free(connection: &Connection, own: &Holder) -> Result<(), StoreError> {
    let mut statement =
        connection.prepare("SELECT machine, boot, space, pid, start FROM leases")?;
    let mut rows = statement.query(())?;
    while let Some(row) = rows.next()? {
        let other = other(row)?;
        if own.state_of(&other, process) == HolderState::Alive {
            return Err(StoreError::other(
                format!(
                    "process {} on {} uses it in an older format",
                    other.pid, other.name
                ),
                "wait for that run to end, then repeat the command",
            ));
        }
    }
    Ok(())
}

fn other(row: &Row<'_>) -> rusqlite::Result<Holder> {
    Ok(Holder {
        machine: String::new(),
        name: row.get(0)?,
        boot: row.get(1)?,
        space: row.get(2)?,
        pid: row.get(3)?,
        start: row.get(4)?,
    })
}

/// Returns the fencing token of this process for a scope.
pub(super) fn fence(db: &WriteConnection, scope: &Scope) -> Result<Option<Fence>, StoreError> {
    let Some(granted) = db.granted.get(scope) else {
        return Ok(None);
    };
    let journal: String = db
        .connection()
        .prepare_cached("SELECT id FROM journal")?
        .query_row((), |row| row.get(0))?;
    let names = [&journal, row::site_key(scope), &scope.manifest, &scope.host];
    Ok(Some(Fence {
        scope: digest(&names),
        number: granted.number,
    }))
}
