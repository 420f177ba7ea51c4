//! The form of the file, and how it came to be.
//!
//! In: a file of any older form. Out: the same file in the newest form.
//! Never: a form half changed; a change to a form that was handed out (add the next number).

use rusqlite::{Connection, TransactionBehavior};

use super::fault::Fault;
use super::steps;

/// What leads from a form to the next.
pub(super) enum Migration {
    /// Statements.
    Sql(&'static str),
    /// Code, for what SQL cannot say.
    Code(fn(&Connection) -> Result<(), Fault>),
}

/// What leads from each form to the next; the first from an empty file to form 1.
pub(super) const MIGRATIONS: &[Migration] = &[
    Migration::Sql(include_str!("../../migrations/0001.sql")),
    Migration::Sql(include_str!("../../migrations/0002.sql")),
    Migration::Code(steps::name),
    Migration::Sql(include_str!("../../migrations/0004.sql")),
];

/// Brings a file up to date, wholly or not at all. What it was is backed up before, by its form:
/// while this transaction is open, nobody else writes.
pub(super) fn migrate(
    connection: &mut Connection,
    application: i32,
    migrations: &[Migration],
    back_up: impl FnOnce(&Connection, usize) -> Result<(), Fault>,
) -> Result<(), Fault> {
    if version(connection)? == migrations.len() {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have been faster.
    let from = version(&transaction)?;
    known(from, migrations.len())?;
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

/// Returns which form a file has; 0 when it is empty.
pub(super) fn version(connection: &Connection) -> Result<usize, Fault> {
    let version: i64 = connection.query_row("PRAGMA user_version", (), |row| row.get(0))?;
    usize::try_from(version).map_err(|_| Fault::nonsense("its form is a negative number"))
}

/// Refuses a form that this program does not know.
pub(super) fn known(version: usize, newest: usize) -> Result<(), Fault> {
    if version <= newest {
        return Ok(());
    }
    Err(Fault::said(
        format!("it has form {version}, and this program knows forms up to {newest}"),
        "use the newer program that wrote it, or name another state directory with `HOMESTAK_STATE`",
    ))
}
