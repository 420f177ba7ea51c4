//! The file of the journal: created, checked, migrated and opened.
//!
//! A file of another program, or of a newer version, is never changed.

use std::fmt;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use homestak_engine::journal::HEARTBEAT;
use rusqlite::{Connection, OpenFlags};

use super::error::StoreError;
use super::holder::Holder;
use super::{lease, schema};

/// File name in the state directory.
const NAME: &str = "journal.db";

/// Application id in the file header: `home`.
const APPLICATION: i32 = 0x686f_6d65;

/// Options of opening.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    /// How long to wait for other processes that write.
    pub(super) patience: Duration,
    /// Maximal size in pages; for tests.
    pub(super) pages: Option<u32>,
    /// Interval of heartbeats.
    pub(super) heartbeat: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            // A commit takes milliseconds; a checkpoint of a large log takes seconds on a slow
            // disk.
            patience: Duration::from_secs(30),
            pages: None,
            heartbeat: HEARTBEAT,
        }
    }
}

/// Path and options of the journal.
#[derive(Clone, Debug)]
pub(super) struct File {
    path: PathBuf,
    options: Options,
}

impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

impl File {
    pub(super) fn new(dir: &Path, options: Options) -> Self {
        Self {
            path: dir.join(NAME),
            options,
        }
    }

    /// Opens the writing connection, after creating or migrating the file.
    pub(super) fn open(&self, holder: &Holder) -> Result<Connection, StoreError> {
        self.make()?;
        self.refuse_emptied()?;
        // Read-only, so that a foreign file is not changed.
        self.retry(|| {
            let mut connection = self.connect(OpenFlags::SQLITE_OPEN_READ_ONLY)?;
            // One snapshot: another process may be creating it.
            schema::check(&*connection.transaction()?, APPLICATION, schema::MIGRATIONS)
        })?;
        self.retry(|| {
            let mut connection = self.connect(OpenFlags::SQLITE_OPEN_READ_WRITE)?;
            // SQLite falls back to read-only access by itself; better fail now than at the first
            // entry.
            if connection.is_readonly("main")? {
                return Err(std::io::Error::from(std::io::ErrorKind::PermissionDenied).into());
            }
            let mode: String =
                connection.query_row("PRAGMA journal_mode = WAL", (), |row| row.get(0))?;
            if mode != "wal" {
                return Err(StoreError::other(
                    format!("its file system does not support sharing between processes ({mode})"),
                    "set `HOMESTAK_STATE` to a directory on a local disk",
                ));
            }
            // FULL: the log is synced before a commit returns.
            connection.execute_batch("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON")?;
            if let Some(pages) = self.options.pages {
                connection.query_row(
                    &format!("PRAGMA max_page_count = {pages}"),
                    (),
                    |_| Ok(()),
                )?;
            }
            schema::migrate(
                &mut connection,
                APPLICATION,
                schema::MIGRATIONS,
                |old, form| {
                    lease::require_free(old, holder)?;
                    self.back_up(form).map_err(|error| {
                        error.during(&format!(
                            "it has format {form} and was not migrated, because it could not be backed up"
                        ))
                    })
                },
            )?;
            Ok(connection)
        })
    }

    /// Makes a copy such as `journal.form-2.db`, never overwriting one. The caller has an open
    /// write transaction, so that nothing changes.
    fn back_up(&self, form: usize) -> Result<(), StoreError> {
        let names = (1..).map(|turn| match turn {
            1 => self.path.with_extension(format!("form-{form}.db")),
            _ => self.path.with_extension(format!("form-{form}.{turn}.db")),
        });
        let Some(target) = names.into_iter().find(|name| !name.exists()) else {
            return Ok(());
        };
        // Leftover of a process that was killed: no other process makes a copy now.
        let part = self.path.with_extension(format!("form-{form}.part"));
        drop(std::fs::remove_file(&part));
        let copied = || -> Result<(), StoreError> {
            create_private(&part)?;
            let reader = self.connect(OpenFlags::SQLITE_OPEN_READ_ONLY)?;
            reader.execute("VACUUM INTO ?1", [part.to_string_lossy()])?;
            fs_err::File::open(&part)?.sync_all()?;
            homestak_api::durable::rename(&part, &target)?;
            Ok(())
        };
        copied().inspect_err(|_| drop(std::fs::remove_file(&part)))
    }

    /// Opens a reading connection.
    pub(super) fn open_reader(&self) -> Result<Connection, StoreError> {
        self.retry(|| self.connect(OpenFlags::SQLITE_OPEN_READ_ONLY))
    }

    fn connect(&self, how: OpenFlags) -> Result<Connection, StoreError> {
        // A connection is used by one thread at a time, so that SQLite needs no mutexes.
        let flags = how | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(self.options.patience)?;
        connection.set_prepared_statement_cache_capacity(32);
        Ok(connection)
    }

    /// Creates directory and file, private to the user. Existing ones keep their mode.
    fn make(&self) -> Result<(), StoreError> {
        if let Some(dir) = self.path.parent()
            && !dir.is_dir()
        {
            homestak_api::durable::create_private(dir)?;
        }
        // SQLite creates its other files with the same mode.
        match create_private(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error.into()),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Refuses an empty file beside a log that is not empty: SQLite would take it for new, and
    /// delete the log.
    fn refuse_emptied(&self) -> Result<(), StoreError> {
        let log = self.path.with_extension("db-wal");
        let has_log = log.metadata().is_ok_and(|log| log.len() > 0);
        if has_log && self.path.metadata()?.len() == 0 {
            return Err(StoreError::corrupt("it is empty, and its log is not"));
        }
        Ok(())
    }

    /// Retries while another process opens it for the first time: some of these locks do not wait.
    fn retry<T>(&self, mut open: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
        const PAUSE: Duration = Duration::from_millis(10);
        let mut waited = Duration::ZERO;
        loop {
            match open() {
                Err(error) if error.is_busy() && waited < self.options.patience => {
                    std::thread::sleep(PAUSE);
                    waited += PAUSE;
                }
                result => return result,
            }
        }
    }
}

/// Creates an empty file, private to the user.
fn create_private(path: &Path) -> std::io::Result<()> {
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    file.map(drop)
}
