//! Reports of nodes in the registry.

use rusqlite::{Row, params};

use super::entry::ReportEntry;
use super::file::{Registry, RegistryError};

impl Registry {
    /// Stores a report, and deletes older ones of the node beyond `keep`. Returns its number.
    pub fn add_report(
        &self,
        uuid: &str,
        at: i64,
        body: &str,
        keep: u32,
    ) -> Result<i64, RegistryError> {
        self.with("write a report to", |connection| {
            let transaction = connection.transaction()?;
            transaction.execute(
                "INSERT INTO report (uuid, received, body) VALUES (?1, ?2, ?3)",
                params![uuid, at, body],
            )?;
            let id = transaction.last_insert_rowid();
            transaction.execute(
                "DELETE FROM report WHERE uuid = ?1 AND id <= \
                 (SELECT id FROM report WHERE uuid = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
                params![uuid, keep],
            )?;
            transaction.execute(
                "UPDATE node SET last_contact = ?2 WHERE uuid = ?1",
                params![uuid, at],
            )?;
            transaction.commit()?;
            Ok(id)
        })
    }

    /// Returns reports of a node with a number above `after`, oldest first.
    pub fn reports(&self, uuid: &str, after: i64) -> Result<Vec<ReportEntry>, RegistryError> {
        self.with("read reports of", |connection| {
            let mut query = connection.prepare_cached(
                "SELECT id, uuid, received, body FROM report WHERE uuid = ?1 AND id > ?2 \
                 ORDER BY id",
            )?;
            query.query_map(params![uuid, after], report)?.collect()
        })
    }

    /// Reads the reports of all nodes one after the other, older ones first.
    pub fn each_report(&self, mut read: impl FnMut(ReportEntry)) -> Result<(), RegistryError> {
        self.with("read reports of", |connection| {
            let mut query =
                connection.prepare("SELECT id, uuid, received, body FROM report ORDER BY id")?;
            for entry in query.query_map((), report)? {
                read(entry?);
            }
            Ok(())
        })
    }
}

fn report(row: &Row<'_>) -> rusqlite::Result<ReportEntry> {
    Ok(ReportEntry {
        id: row.get(0)?,
        uuid: row.get(1)?,
        received: row.get(2)?,
        body: row.get(3)?,
    })
}
