//! The format of the file, and migrations from older formats.
//!
//! A migration is applied completely or not at all. Released migrations never change; add a new
//! one.

use rusqlite::{Connection, TransactionBehavior};

use super::error::StoreError;
use super::step_migration;

/// A migration.
pub(crate) enum Migration {
    /// SQL statements.
    Sql(&'static str),
    /// Code.
    Code(fn(&Connection) -> Result<(), StoreError>),
}

/// The migrations; the first creates format 1 from an empty file.
pub(super) const MIGRATIONS: &[Migration] = &[
    Migration::Sql(include_str!("../../migrations/0001.sql")),
    Migration::Sql(include_str!("../../migrations/0002.sql")),
    Migration::Code(step_migration::name_steps),
    Migration::Sql(include_str!("../../migrations/0004.sql")),
];

/// Migrates a file to the newest format, after a backup. Other processes cannot write during this
/// transaction.
pub(crate) fn migrate(
    connection: &mut Connection,
    application: i32,
    migrations: &[Migration],
    back_up: impl FnOnce(&Connection, usize) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    if version(connection)? == migrations.len() {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have migrated it.
    let from = version(&transaction)?;
    require_known(from, migrations.len())?;
    if from > 0 && from < migrations.len() {
        back_up(&transaction, from)?;
    }
    for migration in &migrations[from..] {
        match migration {
            Migration::Sql(sql) => transaction.execute_batch(sql)?,
            Migration::Code(code) => code(&transaction)?,
        }
    }
    transaction.pragma_update(None, "application_id", application)?;
    transaction.execute_batch(&format!("PRAGMA user_version = {}", migrations.len()))?;
    transaction.commit()?;
    Ok(())
}

/// Refuses files of other programs and of newer versions.
pub(crate) fn check(
    connection: &Connection,
    application: i32,
    migrations: &[Migration],
) -> Result<(), StoreError> {
    let found: i32 = connection.query_row("PRAGMA application_id", (), |row| row.get(0))?;
    let empty: bool = connection.query_row(
        "SELECT NOT EXISTS (SELECT 1 FROM sqlite_schema)",
        (),
        |row| row.get(0),
    )?;
    if found != application && !empty {
        return Err(StoreError::other(
            "it is the database of another program",
            "set `HOMESTAK_STATE` to another directory",
        ));
    }
    require_known(version(connection)?, migrations.len())
}

/// Returns the format of a file; 0 when it is empty.
pub(super) fn version(connection: &Connection) -> Result<usize, StoreError> {
    let version: i64 = connection.query_row("PRAGMA user_version", (), |row| row.get(0))?;
    usize::try_from(version).map_err(|_| StoreError::corrupt("its format is negative"))
}

/// Refuses unknown formats.
pub(super) fn require_known(version: usize, newest: usize) -> Result<(), StoreError> {
    if version <= newest {
        return Ok(());
    }
    Err(StoreError::other(
        format!("it has format {version}, and this version supports formats up to {newest}"),
        "use the newer version that wrote it, or set `HOMESTAK_STATE` to another directory",
    ))
}
