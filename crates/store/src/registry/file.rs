//! The file of the registry: created, checked, migrated and opened.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use crate::sqlite::error::StoreError;
use crate::sqlite::schema::{self, Migration};

/// Identifies the file as a registry: `hreg`.
const APPLICATION_ID: i32 = 0x6872_6567;
const MIGRATIONS: &[Migration] = &[
    Migration::Sql(include_str!("../../migrations/registry/0001.sql")),
    Migration::Sql(include_str!("../../migrations/registry/0002.sql")),
    Migration::Sql(include_str!("../../migrations/registry/0003.sql")),
    Migration::Sql(include_str!("../../migrations/registry/0004.sql")),
];
/// How long to wait for another process that writes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the registry could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// SQLite failed.
    #[error("{doing} `{path}`")]
    Sql {
        /// What was being done.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
    /// The file belongs to another program, or to a newer version of this one.
    #[error("`{path}` is not a registry that this version can read")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
}

/// The registry of a server, in one SQLite file.
pub struct Registry {
    path: PathBuf,
    connection: Mutex<Connection>,
}

impl Registry {
    /// Opens the registry, and creates it when there is none.
    pub fn open(path: &Path) -> Result<Self, RegistryError> {
        let connection = set_up(path).map_err(|error| match error {
            StoreError::Sql(source) => RegistryError::Sql {
                doing: "open",
                path: path.to_owned(),
                source,
            },
            StoreError::Io(_) | StoreError::Answer(_) | StoreError::Other { .. } => {
                RegistryError::Foreign {
                    path: path.to_owned(),
                }
            }
        })?;
        Ok(Self {
            path: path.to_owned(),
            connection: Mutex::new(connection),
        })
    }

    /// Opens a registry that a server wrote, only to read it. `None` when there is none.
    pub fn open_to_read(path: &Path) -> Result<Option<Self>, RegistryError> {
        if !path.exists() {
            return Ok(None);
        }
        let sql = |source| RegistryError::Sql {
            doing: "open",
            path: path.to_owned(),
            source,
        };
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(sql)?;
        connection.busy_timeout(BUSY_TIMEOUT).map_err(sql)?;
        let number = |pragma| connection.query_row(pragma, (), |row| row.get::<_, i64>(0));
        let application = number("PRAGMA application_id").map_err(sql)?;
        let version = number("PRAGMA user_version").map_err(sql)?;
        // One that a server is about to create has no version yet, and nothing in it.
        if version == 0 {
            return Ok(None);
        }
        let is_known = usize::try_from(version).is_ok_and(|at| at <= MIGRATIONS.len());
        if application != i64::from(APPLICATION_ID) || !is_known {
            return Err(RegistryError::Foreign {
                path: path.to_owned(),
            });
        }
        Ok(Some(Self {
            path: path.to_owned(),
            connection: Mutex::new(connection),
        }))
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Works with the file. `doing` is the operation in messages, before the path.
    pub(super) fn with<T>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>,
    ) -> Result<T, RegistryError> {
        work(&mut self.connection()).map_err(|source| RegistryError::Sql {
            doing,
            path: self.path.clone(),
            source,
        })
    }
}

/// Opens a file, checks that it is a registry or empty, and migrates it.
fn set_up(path: &Path) -> Result<Connection, StoreError> {
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    schema::check(&connection, APPLICATION_ID, MIGRATIONS)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.execute_batch("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON")?;
    schema::migrate(&mut connection, APPLICATION_ID, MIGRATIONS, |_, _| Ok(()))?;
    Ok(connection)
}
