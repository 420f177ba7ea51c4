//! The file of the journal: made, checked and opened.
//!
//! In: a state directory. Out: connections that write safely.
//! Never: a change to a file that is not ours, or of a newer program.

use std::fmt;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use homestak_engine::journal::HEARTBEAT;
use rusqlite::{Connection, OpenFlags};

use super::fault::Fault;
use super::holder::Holder;
use super::{lease, schema};

/// Its name in the state directory.
const NAME: &str = "journal.db";

/// Says in the file's header whose it is: `home`.
const APPLICATION: i32 = 0x686f_6d65;

/// How a journal is opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    /// How long to wait for another process that writes.
    pub(super) patience: Duration,
    /// How many pages the file may have; tests fill it up.
    pub(super) pages: Option<u32>,
    /// How often it is recorded that a holder of leases lives.
    pub(super) heartbeat: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            // A commit takes milliseconds; copying a large log back takes seconds on a slow disk.
            patience: Duration::from_secs(30),
            pages: None,
            heartbeat: HEARTBEAT,
        }
    }
}

/// Where the journal is, and how it is opened.
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

    /// Opens the connection that writes; makes the file, or brings it up to date.
    pub(super) fn open(&self, holder: &Holder) -> Result<Connection, Fault> {
        self.make()?;
        self.refuse_emptied()?;
        // Read-only, so that a file that is not for us keeps every byte.
        self.retry(|| {
            let mut connection = self.connect(OpenFlags::SQLITE_OPEN_READ_ONLY)?;
            // One snapshot: another process may just be making it.
            check(&*connection.transaction()?)
        })?;
        self.retry(|| {
            let mut connection = self.connect(OpenFlags::SQLITE_OPEN_READ_WRITE)?;
            // SQLite falls back to reading by itself; better now than at the first entry.
            if connection.is_readonly("main")? {
                return Err(std::io::Error::from(std::io::ErrorKind::PermissionDenied).into());
            }
            let mode: String =
                connection.query_row("PRAGMA journal_mode = WAL", (), |row| row.get(0))?;
            if mode != "wal" {
                return Err(Fault::said(
                    format!("its file system does not let several processes share it ({mode})"),
                    "name a directory on a disk of this machine with `HOMESTAK_STATE`",
                ));
            }
            // FULL: the log is on disk before a commit returns, whatever happens to the power.
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
                    self.back_up(form).map_err(|fault| {
                        fault.during(&format!(
                            "it has form {form} and was not changed, as it could not be backed up"
                        ))
                    })
                },
            )?;
            Ok(connection)
        })
    }

    /// Keeps a copy beside the file, such as `journal.form-2.db`; one that is there stays. The caller
    /// has a transaction open that writes, so this is what it changes.
    fn back_up(&self, form: usize) -> Result<(), Fault> {
        let names = (1..).map(|turn| match turn {
            1 => self.path.with_extension(format!("form-{form}.db")),
            _ => self.path.with_extension(format!("form-{form}.{turn}.db")),
        });
        let Some(target) = names.into_iter().find(|name| !name.exists()) else {
            return Ok(());
        };
        // Nobody else makes one now, so what is there was left behind by a process that was killed.
        let part = self.path.with_extension(format!("form-{form}.part"));
        drop(std::fs::remove_file(&part));
        let copied = || -> Result<(), Fault> {
            create_private(&part)?;
            let reader = self.connect(OpenFlags::SQLITE_OPEN_READ_ONLY)?;
            reader.execute("VACUUM INTO ?1", [part.to_string_lossy()])?;
            fs_err::File::open(&part)?.sync_all()?;
            homestak_api::durable::rename(&part, &target)?;
            Ok(())
        };
        copied().inspect_err(|_| drop(std::fs::remove_file(&part)))
    }

    /// Opens a connection that reads.
    pub(super) fn open_reader(&self) -> Result<Connection, Fault> {
        self.retry(|| self.connect(OpenFlags::SQLITE_OPEN_READ_ONLY))
    }

    fn connect(&self, how: OpenFlags) -> Result<Connection, Fault> {
        // Each connection stays with one thread at a time, so SQLite needs no locks of its own.
        let flags = how | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(self.options.patience)?;
        connection.set_prepared_statement_cache_capacity(32);
        Ok(connection)
    }

    /// Makes directory and file, closed to others. What is there keeps its mode.
    fn make(&self) -> Result<(), Fault> {
        if let Some(dir) = self.path.parent()
            && !dir.is_dir()
        {
            homestak_api::durable::create_private(dir)?;
        }
        // SQLite gives the files beside it the mode of this one.
        match create_private(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error.into()),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Refuses a file that is empty beside a log that is not: someone emptied it, and SQLite would
    /// take it for a new one and delete the log.
    fn refuse_emptied(&self) -> Result<(), Fault> {
        let log = self.path.with_extension("db-wal");
        let has_log = log.metadata().is_ok_and(|log| log.len() > 0);
        if has_log && self.path.metadata()?.len() == 0 {
            return Err(Fault::nonsense("it is empty, and its log is not"));
        }
        Ok(())
    }

    /// Tries again while another process opens it for the first time: some locks of that moment
    /// do not wait by themselves.
    fn retry<T>(&self, mut open: impl FnMut() -> Result<T, Fault>) -> Result<T, Fault> {
        const PAUSE: Duration = Duration::from_millis(10);
        let mut waited = Duration::ZERO;
        loop {
            match open() {
                Err(fault) if fault.is_busy() && waited < self.options.patience => {
                    std::thread::sleep(PAUSE);
                    waited += PAUSE;
                }
                result => return result,
            }
        }
    }
}

/// Creates an empty file, closed to others.
fn create_private(path: &Path) -> std::io::Result<()> {
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    file.map(drop)
}

/// Refuses a file that is not ours, or of a newer program.
fn check(connection: &Connection) -> Result<(), Fault> {
    let application: i32 = connection.query_row("PRAGMA application_id", (), |row| row.get(0))?;
    let empty: bool = connection.query_row(
        "SELECT NOT EXISTS (SELECT 1 FROM sqlite_schema)",
        (),
        |row| row.get(0),
    )?;
    if application != APPLICATION && !empty {
        return Err(Fault::said(
            "it is a database of another program",
            "name another state directory with `HOMESTAK_STATE`",
        ));
    }
    schema::known(schema::version(connection)?, schema::MIGRATIONS.len())
}
