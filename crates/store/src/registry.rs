//! What a server records: enrolled nodes and their certificates, the use of tokens, reports.
//!
//! Every write is on disk before its call returns. The calls wait for the disk, so callers on a
//! runtime move them to a thread that may block.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, Row, params};

/// Identifies the file as a registry: `hreg`.
const APPLICATION_ID: i32 = 0x6872_6567;
const MIGRATIONS: &[&str] = &[include_str!("../migrations/registry/0001.sql")];
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

/// A node as the server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEntry {
    /// The guest's UUID.
    pub uuid: String,
    /// The node's name.
    pub name: String,
    /// Its manifest.
    pub manifest: String,
    /// The host it runs on.
    pub host: String,
    /// Its certificate, once it enrolled.
    pub certificate: Option<CertificateEntry>,
    /// Whether it renewed a certificate that had expired, which is allowed once.
    pub renewed_late: bool,
    /// When it enrolled.
    pub enrolled: Option<i64>,
    /// When it was revoked, and why.
    pub revoked: Option<(i64, String)>,
    /// The address of its last request.
    pub address: Option<String>,
    /// The version of its agent.
    pub agent: Option<String>,
    /// When it was last heard from.
    pub last_contact: Option<i64>,
}

/// The client certificate of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateEntry {
    /// Its SHA-256.
    pub fingerprint: String,
    /// Valid from.
    pub not_before: i64,
    /// Valid until.
    pub not_after: i64,
}

/// A provisioning token, without the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenEntry {
    /// Its id.
    pub id: String,
    /// The guest it is for.
    pub uuid: String,
    /// The node it is for.
    pub node: String,
    /// When it was issued.
    pub issued: i64,
    /// When it expires.
    pub expires: Option<i64>,
    /// When it was used for the first time.
    pub used: Option<i64>,
    /// When it was revoked.
    pub revoked: Option<i64>,
}

/// A report of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportEntry {
    /// Its number; later reports have higher ones.
    pub id: i64,
    /// The guest.
    pub uuid: String,
    /// When it arrived.
    pub received: i64,
    /// The report, as JSON.
    pub body: String,
}

/// The registry of a server, in one SQLite file.
pub struct Registry {
    path: PathBuf,
    connection: Mutex<Connection>,
}

impl Registry {
    /// Opens the registry, and creates it when there is none.
    pub fn open(path: &Path) -> Result<Self, RegistryError> {
        let sql = |doing| {
            move |source| RegistryError::Sql {
                doing,
                path: path.to_owned(),
                source,
            }
        };
        let mut connection = Connection::open(path).map_err(sql("open"))?;
        let setup = |connection: &mut Connection| -> rusqlite::Result<Option<()>> {
            connection.busy_timeout(BUSY_TIMEOUT)?;
            let application: i32 =
                connection.query_row("PRAGMA application_id", (), |row| row.get(0))?;
            let version: i64 = connection.query_row("PRAGMA user_version", (), |row| row.get(0))?;
            let known = usize::try_from(version)
                .ok()
                .filter(|at| *at <= MIGRATIONS.len());
            let Some(from) = known.filter(|at| *at == 0 || application == APPLICATION_ID) else {
                return Ok(None);
            };
            let tables: i64 =
                connection.query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get(0))?;
            if from == 0 && tables > 0 {
                return Ok(None);
            }
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.execute_batch("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON")?;
            let transaction = connection.transaction()?;
            for migration in &MIGRATIONS[from..] {
                transaction.execute_batch(migration)?;
            }
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
            let version = format!("PRAGMA user_version = {}", MIGRATIONS.len());
            transaction.execute_batch(&version)?;
            transaction.commit()?;
            Ok(Some(()))
        };
        let found = setup(&mut connection).map_err(sql("set up"))?;
        found.ok_or_else(|| RegistryError::Foreign {
            path: path.to_owned(),
        })?;
        Ok(Self {
            path: path.to_owned(),
            connection: Mutex::new(connection),
        })
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(
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

    /// Returns every node.
    pub fn nodes(&self) -> Result<Vec<NodeEntry>, RegistryError> {
        self.with("read nodes of", |connection| {
            let mut query = connection.prepare("SELECT * FROM node ORDER BY name, uuid")?;
            query.query_map((), node)?.collect()
        })
    }

    /// Records a node whole, in place of what was recorded of its UUID.
    pub fn put_node(&self, entry: &NodeEntry) -> Result<(), RegistryError> {
        self.with("write a node to", |connection| {
            let certificate = entry.certificate.as_ref();
            connection.execute(
                "INSERT INTO node (uuid, name, manifest, host, fingerprint, not_before, not_after, \
                 renewed_late, enrolled, revoked, reason, address, agent, last_contact) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14) \
                 ON CONFLICT (uuid) DO UPDATE SET name = ?2, manifest = ?3, host = ?4, \
                 fingerprint = ?5, not_before = ?6, not_after = ?7, renewed_late = ?8, \
                 enrolled = ?9, revoked = ?10, reason = ?11, address = ?12, agent = ?13, \
                 last_contact = ?14",
                params![
                    entry.uuid,
                    entry.name,
                    entry.manifest,
                    entry.host,
                    certificate.map(|found| &found.fingerprint),
                    certificate.map(|found| found.not_before),
                    certificate.map(|found| found.not_after),
                    entry.renewed_late,
                    entry.enrolled,
                    entry.revoked.as_ref().map(|(at, _)| at),
                    entry.revoked.as_ref().map(|(_, reason)| reason),
                    entry.address,
                    entry.agent,
                    entry.last_contact,
                ],
            )?;
            Ok(())
        })
    }

    /// Returns every token.
    pub fn tokens(&self) -> Result<Vec<TokenEntry>, RegistryError> {
        self.with("read tokens of", |connection| {
            let mut query = connection.prepare("SELECT * FROM token ORDER BY issued, id")?;
            query.query_map((), token)?.collect()
        })
    }

    /// Returns one token.
    pub fn token(&self, id: &str) -> Result<Option<TokenEntry>, RegistryError> {
        self.with("read a token of", |connection| {
            let mut query = connection.prepare_cached("SELECT * FROM token WHERE id = ?1")?;
            query.query_row([id], token).optional()
        })
    }

    /// Records a token that was issued; one that is recorded stays as it is.
    pub fn add_token(&self, entry: &TokenEntry) -> Result<(), RegistryError> {
        self.with("write a token to", |connection| {
            connection.execute(
                "INSERT INTO token (id, uuid, node, issued, expires, used, revoked) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (id) DO NOTHING",
                params![
                    entry.id,
                    entry.uuid,
                    entry.node,
                    entry.issued,
                    entry.expires,
                    entry.used,
                    entry.revoked
                ],
            )?;
            Ok(())
        })
    }

    /// Records the first use of a token. Returns whether this was the first; of several at the same
    /// time exactly one is.
    pub fn use_token(&self, id: &str, at: i64) -> Result<bool, RegistryError> {
        self.with("write a token to", |connection| {
            let changed = connection.execute(
                "UPDATE token SET used = ?2 WHERE id = ?1 AND used IS NULL AND revoked IS NULL",
                params![id, at],
            )?;
            Ok(changed == 1)
        })
    }

    /// Revokes a token. Returns whether there is one.
    pub fn revoke_token(&self, id: &str, at: i64) -> Result<bool, RegistryError> {
        self.with("write a token to", |connection| {
            let changed = connection.execute(
                "UPDATE token SET revoked = coalesce(revoked, ?2) WHERE id = ?1",
                params![id, at],
            )?;
            Ok(changed == 1)
        })
    }

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
            let found = query.query_map(params![uuid, after], |row| {
                Ok(ReportEntry {
                    id: row.get(0)?,
                    uuid: row.get(1)?,
                    received: row.get(2)?,
                    body: row.get(3)?,
                })
            })?;
            found.collect()
        })
    }
}

fn node(row: &Row<'_>) -> rusqlite::Result<NodeEntry> {
    let fingerprint: Option<String> = row.get("fingerprint")?;
    let certificate = match fingerprint {
        Some(fingerprint) => Some(CertificateEntry {
            fingerprint,
            not_before: row.get("not_before")?,
            not_after: row.get("not_after")?,
        }),
        None => None,
    };
    let revoked: Option<i64> = row.get("revoked")?;
    let reason: Option<String> = row.get("reason")?;
    Ok(NodeEntry {
        uuid: row.get("uuid")?,
        name: row.get("name")?,
        manifest: row.get("manifest")?,
        host: row.get("host")?,
        certificate,
        renewed_late: row.get("renewed_late")?,
        enrolled: row.get("enrolled")?,
        revoked: revoked.map(|at| (at, reason.unwrap_or_default())),
        address: row.get("address")?,
        agent: row.get("agent")?,
        last_contact: row.get("last_contact")?,
    })
}

fn token(row: &Row<'_>) -> rusqlite::Result<TokenEntry> {
    Ok(TokenEntry {
        id: row.get("id")?,
        uuid: row.get("uuid")?,
        node: row.get("node")?,
        issued: row.get("issued")?,
        expires: row.get("expires")?,
        used: row.get("used")?,
        revoked: row.get("revoked")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(uuid: &str) -> NodeEntry {
        NodeEntry {
            uuid: uuid.to_owned(),
            name: "web".to_owned(),
            manifest: "lab".to_owned(),
            host: "local".to_owned(),
            certificate: None,
            renewed_late: false,
            enrolled: None,
            revoked: None,
            address: None,
            agent: None,
            last_contact: None,
        }
    }

    fn registry() -> (tempfile::TempDir, Registry) {
        let directory = tempfile::tempdir().expect("a directory");
        let registry = Registry::open(&directory.path().join("server.db")).expect("a registry");
        (directory, registry)
    }

    #[test]
    fn what_was_recorded_is_there_after_a_restart() {
        let (directory, registry) = registry();
        let mut web = entry("a");
        registry.put_node(&web).expect("written");
        web.certificate = Some(CertificateEntry {
            fingerprint: "AA".to_owned(),
            not_before: 1,
            not_after: 2,
        });
        web.revoked = Some((7, "stolen".to_owned()));
        registry.put_node(&web).expect("written again");
        drop(registry);
        let registry = Registry::open(&directory.path().join("server.db")).expect("opened");
        assert_eq!(registry.nodes().expect("read"), [web]);
    }

    #[test]
    fn a_token_is_used_once_and_a_revoked_one_never() {
        let (_directory, registry) = registry();
        let token = TokenEntry {
            id: "t".to_owned(),
            uuid: "a".to_owned(),
            node: "web".to_owned(),
            issued: 1,
            expires: None,
            used: None,
            revoked: None,
        };
        registry.add_token(&token).expect("written");
        assert!(registry.use_token("t", 5).expect("written"));
        registry.add_token(&token).expect("stays as it is");
        assert!(!registry.use_token("t", 6).expect("read"));
        assert_eq!(
            registry.token("t").expect("read").and_then(|t| t.used),
            Some(5)
        );
        let other = TokenEntry {
            id: "u".to_owned(),
            ..token
        };
        registry.add_token(&other).expect("written");
        assert!(registry.revoke_token("u", 7).expect("written"));
        assert!(!registry.use_token("u", 8).expect("read"));
        assert!(!registry.revoke_token("missing", 8).expect("read"));
    }

    #[test]
    fn the_last_reports_of_each_node_are_kept_and_numbers_only_rise() {
        let (_directory, registry) = registry();
        for uuid in ["a", "b"] {
            registry.put_node(&entry(uuid)).expect("written");
        }
        let mut last = 0;
        for at in 0..10 {
            for uuid in ["a", "b"] {
                let id = registry.add_report(uuid, at, "{}", 3).expect("written");
                assert!(id > last);
                last = id;
            }
        }
        let kept = registry.reports("a", 0).expect("read");
        assert_eq!(
            kept.iter().map(|one| one.received).collect::<Vec<_>>(),
            [7, 8, 9]
        );
        assert_eq!(registry.reports("a", kept[1].id).expect("read").len(), 1);
    }

    #[test]
    fn a_file_of_another_program_is_refused_and_not_changed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("other.db");
        let other = Connection::open(&path).expect("a file");
        other
            .execute_batch("CREATE TABLE theirs (x)")
            .expect("theirs");
        drop(other);
        let before = fs_err::read(&path).expect("read");
        let refused = Registry::open(&path).map(drop);
        assert!(matches!(refused, Err(RegistryError::Foreign { .. })));
        assert_eq!(fs_err::read(&path).expect("read"), before);
    }
}
