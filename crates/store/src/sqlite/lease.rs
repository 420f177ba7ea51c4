//! Leases: one process at a time works on a manifest on a host.
//!
//! Scopes are taken all or none, without waiting, until the lease is dropped, its process dies, or a
//! person takes it away. Each time a scope is taken its number grows.

use std::sync::Arc;

use homestak_engine::journal::{Fence, Holding, JournalError, Lease, Life, Scope};
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use serde_json::{from_str, to_string};

use super::fault::Fault;
use super::holder::{Holder, digest, process};
use super::row;
use super::write::Desk;
use super::writer::Writer;

/// What is to be taken.
pub(super) struct Taking {
    pub(super) scopes: Vec<Scope>,
    pub(super) holder: Holder,
    pub(super) since: Timestamp,
    pub(super) writer: Arc<Writer>,
}

/// A lease that was granted, as its program remembers it.
#[derive(Clone, Copy)]
pub(super) struct Granted {
    /// Which lease it is.
    mark: i64,
    /// The number of the scope.
    number: i64,
}

/// Scopes that are held until this is dropped.
pub(super) struct Held {
    mark: i64,
    writer: Arc<Writer>,
}

impl Lease for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        let mark = self.mark;
        self.writer.tell(move |desk| free(desk, mark));
    }
}

/// Takes every scope, or none.
pub(super) fn take(desk: &mut Desk, taking: &Taking) -> Result<Held, Fault> {
    for scope in &taking.scopes {
        let found = holding(desk.connection(), scope, &taking.holder)?;
        if let Some(holding) = found.filter(|holding| holding.life != Life::Dead) {
            return Err(held(scope, &holding));
        }
    }
    let since = row::from_time(taking.since)?;
    let holder = to_string(&taking.holder).map_err(Fault::nonsense)?;
    let mark: i64 = desk
        .connection()
        .query_row("SELECT random()", (), |row| row.get(0))?;
    for scope in &taking.scopes {
        let number = desk
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
        desk.granted.insert(scope.clone(), Granted { mark, number });
    }
    Ok(Held {
        mark,
        writer: Arc::clone(&taking.writer),
    })
}

/// Returns the least number that is given out at a time. A journal that was restored from a backup
/// has forgotten numbers; the time, in milliseconds, is higher than all of them.
fn at_least(nanoseconds: i64) -> i64 {
    nanoseconds / 1_000_000
}

fn held(scope: &Scope, holding: &Holding) -> Fault {
    Fault::Answer(JournalError::Held {
        scope: scope.clone(),
        holder: holding.to_string(),
        since: holding.since,
    })
}

/// Returns who holds a scope: one who lives, or may live, before one who is dead.
pub(super) fn holding(
    connection: &Connection,
    scope: &Scope,
    own: &Holder,
) -> Result<Option<Holding>, Fault> {
    let mut statement = connection.prepare_cached(
        // One without a site is of the first form, and holds for every site.
        "SELECT number, holder, since, heartbeat FROM leases
         WHERE site IN (?1, '') AND manifest = ?2 AND host = ?3 AND holder IS NOT NULL",
    )?;
    let mut rows = statement.query(params![row::site_key(scope), scope.manifest, scope.host])?;
    let mut dead = None;
    while let Some(row) = rows.next()? {
        let holder: Holder = from_str(&row.get::<_, String>(1)?).map_err(Fault::nonsense)?;
        let holding = Holding {
            number: row.get(0)?,
            life: own.judge(&holder, process),
            holder: holder.to_string(),
            since: row::to_time(row.get(2)?)?,
            heartbeat: row::to_time(row.get(3)?)?,
        };
        match holding.life {
            Life::Dead => dead = Some(holding),
            Life::Alive | Life::Unknown => return Ok(Some(holding)),
        }
    }
    Ok(dead)
}

/// Takes the lease of a number away from its holder.
pub(super) fn unlock(
    desk: &Desk,
    scope: &Scope,
    number: i64,
    (own, now): (&Holder, Timestamp),
) -> Result<(), Fault> {
    let Some(holding) = holding(desk.connection(), scope, own)? else {
        return Ok(());
    };
    if holding.number != number || !holding.is_takeable(now) {
        return Err(held(scope, &holding));
    }
    desk.connection()
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

fn free(desk: &mut Desk, mark: i64) -> Result<(), Fault> {
    desk.granted.retain(|_, granted| granted.mark != mark);
    desk.connection()
        .prepare_cached("UPDATE leases SET holder = NULL WHERE mark = ?1 AND holder IS NOT NULL")?
        .execute(params![mark])?;
    Ok(())
}

/// Records that the holder of the leases of this program lives.
pub(super) fn beat(desk: &Desk, at: Timestamp) -> Result<(), Fault> {
    let mut statement = desk.connection().prepare_cached(
        "UPDATE leases SET heartbeat = ?1
         WHERE site = ?2 AND manifest = ?3 AND host = ?4 AND number = ?5 AND holder IS NOT NULL",
    )?;
    for (scope, granted) in &desk.granted {
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

/// Refuses when a lease on one of some scopes was granted to this program and taken from it since.
pub(super) fn require(desk: &Desk, scopes: &[Scope]) -> Result<(), Fault> {
    for scope in scopes {
        let Some(granted) = desk.granted.get(scope) else {
            continue;
        };
        let row: Option<(i64, Option<String>)> = desk
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
        return Err(Fault::Answer(JournalError::Lost {
            scope: scope.clone(),
            holder: holder.map_err(Fault::nonsense)?.map(|one| one.to_string()),
        }));
    }
    Ok(())
}

/// Refuses to change the form of the file while a process works with it that knows the old one, in
/// which leases had no numbers.
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
                    other.pid, other.name
                ),
                "wait until that run has ended, then repeat the command",
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

/// Returns the number under which this program holds a scope.
pub(super) fn fence(desk: &Desk, scope: &Scope) -> Result<Option<Fence>, Fault> {
    let Some(granted) = desk.granted.get(scope) else {
        return Ok(None);
    };
    let journal: String = desk
        .connection()
        .prepare_cached("SELECT id FROM journal")?
        .query_row((), |row| row.get(0))?;
    let names = [&journal, row::site_key(scope), &scope.manifest, &scope.host];
    Ok(Some(Fence {
        scope: digest(&names),
        number: granted.number,
    }))
}
