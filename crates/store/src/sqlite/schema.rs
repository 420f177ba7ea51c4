//! The form of the file, and how it came to be.
//!
//! In: a file of any older form. Out: the same file in the newest form.
//! Never: a form half changed; a change to a form that was handed out (add the next number).

use rusqlite::{Connection, TransactionBehavior};

use super::fault::Fault;

/// What leads from each form to the next; the first from an empty file to form 1.
pub(super) const MIGRATIONS: &[&str] = &[
    include_str!("../../migrations/0001.sql"),
    include_str!("../../migrations/0002.sql"),
    include_str!("../../migrations/0003.sql"),
];

/// Brings a file up to date, wholly or not at all.
pub(super) fn migrate(
    connection: &mut Connection,
    application: i32,
    migrations: &[&str],
) -> Result<(), Fault> {
    if version(connection)? == migrations.len() {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have been faster.
    let from = version(&transaction)?;
    known(from, migrations.len())?;
    for migration in &migrations[from..] {
        transaction.execute_batch(migration)?;
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
