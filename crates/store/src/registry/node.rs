//! Nodes and tokens in the registry.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::entry::{CertificateEntry, NodeEntry, TokenEntry};
use super::file::{Registry, RegistryError};

impl Registry {
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
            write_node(connection, entry)
        })
    }

    /// Records a node that enrolled, and the use of its token, both or neither. Returns `false`, and
    /// records nothing, when the token was used before or revoked.
    pub fn enrol(
        &self,
        entry: &NodeEntry,
        token: Option<&str>,
        at: i64,
    ) -> Result<bool, RegistryError> {
        self.with("write a node to", |connection| {
            let transaction = connection.transaction()?;
            if let Some(id) = token
                && !use_token(&transaction, id, at)?
            {
                return Ok(false);
            }
            write_node(&transaction, entry)?;
            transaction.commit()?;
            Ok(true)
        })
    }

    /// Deletes the reports of guests, and those of their jobs that have expired. The nodes stay recorded,
    /// with their revocations.
    pub fn delete_history(&self, guests: &[&str], now: i64) -> Result<(), RegistryError> {
        self.with("delete reports and jobs of", |connection| {
            let transaction = connection.transaction()?;
            for guest in guests {
                transaction.execute("DELETE FROM report WHERE uuid = ?1", [guest])?;
                transaction.execute(
                    "DELETE FROM job WHERE uuid = ?1 AND expires <= ?2",
                    params![guest, now],
                )?;
            }
            transaction.commit()
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
            use_token(connection, id, at)
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
}

fn use_token(connection: &Connection, id: &str, at: i64) -> rusqlite::Result<bool> {
    let changed = connection.execute(
        "UPDATE token SET used = ?2 WHERE id = ?1 AND used IS NULL AND revoked IS NULL",
        params![id, at],
    )?;
    Ok(changed == 1)
}

fn write_node(connection: &Connection, entry: &NodeEntry) -> rusqlite::Result<()> {
    let certificate = entry.certificate.as_ref();
    connection.execute(
        "INSERT INTO node (uuid, name, manifest, host, fingerprint, not_before, not_after, \
         renewed_late, enrolled, revoked, reason, address, agent, last_contact, public_key, \
         replaced, replaced_until) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17) \
         ON CONFLICT (uuid) DO UPDATE SET name = ?2, manifest = ?3, host = ?4, \
         fingerprint = ?5, not_before = ?6, not_after = ?7, renewed_late = ?8, \
         enrolled = ?9, revoked = ?10, reason = ?11, address = ?12, agent = ?13, \
         last_contact = ?14, public_key = ?15, replaced = ?16, replaced_until = ?17",
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
            entry.public_key,
            entry.replaced,
            entry.replaced_until,
        ],
    )?;
    Ok(())
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
        public_key: row.get("public_key")?,
        replaced: row.get("replaced")?,
        replaced_until: match row.get("replaced_until") {
            // A reader does not migrate what an older server wrote.
            Err(rusqlite::Error::InvalidColumnName(_)) => None,
            found => found?,
        },
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
