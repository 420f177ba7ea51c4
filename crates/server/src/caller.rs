//! Who sent a request: determined for each request from the certificate of its connection.
//!
//! Only the certificate that is recorded for a node is valid. One that was replaced, revoked or never
//! recorded is refused, even if the site signed it. A replaced certificate can still be exchanged for a
//! new one until its successor is used, because the response with the successor may have been lost.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use homestak_api::trust::Fingerprint;
use homestak_store::registry::{NodeEntry, Registry, RegistryError};
use jiff::Timestamp;

/// Who sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// A client without a certificate.
    Anonymous,
    /// A node with a valid certificate.
    Node(Arc<NodeEntry>),
    /// A node whose certificate has expired.
    ExpiredNode(Arc<NodeEntry>),
    /// An operator, by name.
    Operator(String),
    /// A client whose certificate is not accepted, and why.
    Refused(&'static str),
}

/// Formats a caller for the log.
impl std::fmt::Display for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Anonymous => f.write_str("anonymous"),
            Self::Node(node) | Self::ExpiredNode(node) => write!(f, "node {}", node.name),
            Self::Operator(name) => write!(f, "operator {name}"),
            Self::Refused(_) => f.write_str("not accepted"),
        }
    }
}

/// The nodes of the registry, cached in memory because every request needs one.
#[derive(Default)]
struct Index {
    by_uuid: HashMap<String, Arc<NodeEntry>>,
    /// The UUID of a node by its current certificate.
    by_certificate: HashMap<String, String>,
    /// The UUID of a node by its replaced certificate, until the node uses the current one.
    by_replaced: HashMap<String, String>,
}

/// The recorded nodes.
pub(crate) struct Nodes {
    registry: Arc<Registry>,
    index: RwLock<Index>,
    /// Held from reading an entry until it is written: a renewal must not undo a revocation.
    writing: Mutex<()>,
}

/// Why a certificate cannot be exchanged for a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRenewal {
    /// No node has it, or the node was revoked.
    Refused,
    /// It has expired, and the node's last renewal was of an expired certificate too: only one late
    /// renewal is allowed.
    LateAgain,
    /// It was replaced, and has expired since.
    ReplacedAndExpired,
}

/// The outcome of an enrolment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnrolOutcome {
    /// The node is recorded.
    Recorded,
    /// The token was used, or the guest enrolled with another key.
    Spent,
    /// The guest was revoked.
    Revoked,
}

impl Nodes {
    /// Reads all nodes.
    pub(crate) fn open(registry: Arc<Registry>) -> Result<Self, RegistryError> {
        let mut index = Index::default();
        for entry in registry.nodes()? {
            index.put(entry);
        }
        Ok(Self {
            registry,
            index: RwLock::new(index),
            writing: Mutex::new(()),
        })
    }

    fn read<T>(&self, read: impl FnOnce(&Index) -> T) -> T {
        read(&self.index.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns a node.
    pub(crate) fn by_uuid(&self, uuid: &str) -> Option<Arc<NodeEntry>> {
        self.read(|index| index.by_uuid.get(uuid).cloned())
    }

    /// Returns all nodes, by name.
    pub(crate) fn all(&self) -> Vec<Arc<NodeEntry>> {
        let mut all: Vec<_> = self.read(|index| index.by_uuid.values().cloned().collect());
        all.sort_by(|a, b| (&a.name, &a.uuid).cmp(&(&b.name, &b.uuid)));
        all
    }

    /// Returns a node as it is to be recorded next: without the replaced certificate, if the node has
    /// used its successor.
    fn current(&self, uuid: &str) -> Option<NodeEntry> {
        self.read(|index| {
            let mut entry = NodeEntry::clone(index.by_uuid.get(uuid)?);
            let replaced = entry.replaced.as_ref();
            if !replaced.is_some_and(|replaced| index.by_replaced.contains_key(replaced)) {
                entry.replaced = None;
                entry.replaced_until = None;
            }
            Some(entry)
        })
    }

    fn remember(&self, entry: NodeEntry) {
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        index.put(entry);
    }

    /// Changes the entry of a node, and returns the new one. `None` if there is no such node, or
    /// `change` returns `None`. Blocks on disk I/O.
    pub(crate) fn change(
        &self,
        uuid: &str,
        change: impl FnOnce(&NodeEntry) -> Option<NodeEntry>,
    ) -> Result<Option<NodeEntry>, RegistryError> {
        self.change_or_add(uuid, || None, change)
    }

    /// Like [`Self::change`], but changes the entry that `new` returns if the node is not recorded.
    pub(crate) fn change_or_add(
        &self,
        uuid: &str,
        new: impl FnOnce() -> Option<NodeEntry>,
        change: impl FnOnce(&NodeEntry) -> Option<NodeEntry>,
    ) -> Result<Option<NodeEntry>, RegistryError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = self.current(uuid).or_else(new);
        let Some(entry) = entry.and_then(|entry| change(&entry)) else {
            return Ok(None);
        };
        self.registry.put_node(&entry)?;
        self.remember(entry.clone());
        Ok(Some(entry))
    }

    /// Records that a node has used its current certificate, so that the replaced one cannot be
    /// exchanged after a restart of the server either. If this fails, the next request of the node tries
    /// again. Blocks on disk I/O.
    pub(crate) fn forget_replaced(&self, uuid: &str) -> Result<(), RegistryError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(before), Some(entry)) = (self.by_uuid(uuid), self.current(uuid)) else {
            return Ok(());
        };
        if before.replaced != entry.replaced {
            self.registry.put_node(&entry)?;
            self.remember(entry);
        }
        Ok(())
    }

    /// Exchanges the certificate that a node presented, if that is still allowed. Blocks on disk I/O.
    pub(crate) fn renew(
        &self,
        presented: Fingerprint,
        now: i64,
        renewed: impl FnOnce(NodeEntry) -> NodeEntry,
    ) -> Result<Result<NodeEntry, NoRenewal>, RegistryError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let (node, is_late) = match self.may_renew(presented, now) {
            Ok(found) => found,
            Err(refused) => return Ok(Err(refused)),
        };
        let before = NodeEntry::clone(&node);
        let presented = presented.to_string();
        // What the node presented is the only certificate it certainly has: several responses in a row
        // may have been lost.
        let replaced_until = match &before.certificate {
            Some(current) if current.fingerprint == presented => Some(current.not_after),
            Some(_) | None => before.replaced_until,
        };
        let entry = NodeEntry {
            replaced: Some(presented),
            replaced_until,
            // A renewal before expiry resets it.
            renewed_late: is_late,
            ..renewed(before)
        };
        self.registry.put_node(&entry)?;
        self.remember(entry.clone());
        Ok(Ok(entry))
    }

    /// Returns the node whose certificate may be exchanged, and whether the certificate has expired.
    pub(crate) fn may_renew(
        &self,
        presented: Fingerprint,
        now: i64,
    ) -> Result<(Arc<NodeEntry>, bool), NoRenewal> {
        let presented = presented.to_string();
        let (node, is_replaced) = self.read(|index| {
            let current = index.by_certificate.get(&presented);
            let uuid = current.or_else(|| index.by_replaced.get(&presented));
            let node = uuid.and_then(|uuid| index.by_uuid.get(uuid).cloned());
            (node, current.is_none())
        });
        let node = node.filter(|node| node.revoked.is_none());
        let node = node.ok_or(NoRenewal::Refused)?;
        let until = match is_replaced {
            true => node.replaced_until,
            false => node.certificate.as_ref().map(|current| current.not_after),
        };
        match until.is_none_or(|until| until <= now) {
            true if is_replaced => Err(NoRenewal::ReplacedAndExpired),
            true if node.renewed_late => Err(NoRenewal::LateAgain),
            is_late => Ok((node, is_late)),
        }
    }

    /// Records an enrolment, and that its token was used if the token has an id. A guest may repeat an
    /// enrolment with the same key and token, because it may not have received the response. Blocks on
    /// disk I/O.
    pub(crate) fn enrol(
        &self,
        mut entry: NodeEntry,
        token: Option<&str>,
        at: i64,
    ) -> Result<EnrolOutcome, RegistryError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = self.by_uuid(&entry.uuid) {
            if before.revoked.is_some() {
                return Ok(EnrolOutcome::Revoked);
            }
            if let Some(certificate) = &before.certificate {
                let used = match token {
                    Some(id) => self.registry.token(id)?.and_then(|token| token.used),
                    None => before.enrolled,
                };
                // If the token was used at another time, the recorded guest enrolled with another token:
                // it was an earlier guest with the same UUID.
                if before.public_key != entry.public_key || used != before.enrolled {
                    return Ok(EnrolOutcome::Spent);
                }
                // Keeps the certificate that the node certainly has, if there is one.
                let kept = self
                    .current(&entry.uuid)
                    .filter(|kept| kept.replaced.is_some());
                (entry.replaced, entry.replaced_until) = match kept {
                    Some(kept) => (kept.replaced, kept.replaced_until),
                    None => {
                        let replaced = certificate.fingerprint.clone();
                        (Some(replaced), Some(certificate.not_after))
                    }
                };
                entry.renewed_late = before.renewed_late;
                entry.enrolled = before.enrolled;
                self.registry.put_node(&entry)?;
                self.remember(entry);
                return Ok(EnrolOutcome::Recorded);
            }
        }
        if !self.registry.enrol(&entry, token, at)? {
            return Ok(EnrolOutcome::Spent);
        }
        self.remember(entry);
        Ok(EnrolOutcome::Recorded)
    }

    /// Returns whether a certificate is the current one of a node that was not revoked.
    pub(crate) fn has(&self, certificate: Fingerprint) -> bool {
        self.read(|index| {
            let uuid = index.by_certificate.get(&certificate.to_string());
            let node = uuid.and_then(|uuid| index.by_uuid.get(uuid));
            node.is_some_and(|node| node.revoked.is_none())
        })
    }

    /// Returns who presented a certificate.
    pub(crate) fn identify(&self, certificate: Fingerprint, now: Timestamp) -> Caller {
        let certificate = certificate.to_string();
        let node_in = |index: &Index| {
            let uuid = index.by_certificate.get(&certificate)?;
            index.by_uuid.get(uuid).cloned()
        };
        let (node, is_first_use) = self.read(|index| {
            let node = node_in(index);
            let replaced = node.as_ref().and_then(|node| node.replaced.as_ref());
            let is_first = replaced.is_some_and(|one| index.by_replaced.contains_key(one));
            (node, is_first)
        });
        if is_first_use {
            // The node has received its current certificate. `forget_replaced` records this on disk.
            let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(replaced) = node_in(&index).and_then(|node| node.replaced.clone()) {
                index.by_replaced.remove(&replaced);
            }
        }
        let Some(node) = node else {
            return Caller::Refused("the certificate is not known here; the node must enrol again");
        };
        if node.revoked.is_some() {
            return Caller::Refused("the certificate was revoked");
        }
        let dates = node.certificate.as_ref();
        if dates.is_some_and(|dates| dates.not_after <= now.as_second()) {
            return Caller::ExpiredNode(node);
        }
        Caller::Node(node)
    }
}

impl Index {
    fn put(&mut self, entry: NodeEntry) {
        if let Some(before) = self.by_uuid.get(&entry.uuid) {
            if let Some(certificate) = &before.certificate {
                self.by_certificate.remove(&certificate.fingerprint);
            }
            if let Some(replaced) = &before.replaced {
                self.by_replaced.remove(replaced);
            }
        }
        if let Some(replaced) = &entry.replaced {
            self.by_replaced
                .insert(replaced.clone(), entry.uuid.clone());
        }
        if let Some(certificate) = &entry.certificate {
            self.by_certificate
                .insert(certificate.fingerprint.clone(), entry.uuid.clone());
        }
        self.by_uuid.insert(entry.uuid.clone(), Arc::new(entry));
    }
}
