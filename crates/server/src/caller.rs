//! Who sent a request: decided anew for each one by the certificate of its connection.
//!
//! Only the certificate that is recorded for a node counts. One that was replaced, revoked or never
//! recorded is refused, whoever signed it.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use homestak_api::trust::Fingerprint;
use homestak_store::registry::{NodeEntry, Registry, RegistryError};
use jiff::Timestamp;

/// Who sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// Someone without a certificate.
    Anonymous,
    /// A node with a valid certificate.
    Node(Arc<NodeEntry>),
    /// A node whose certificate has expired.
    ExpiredNode(Arc<NodeEntry>),
    /// An operator, by name.
    Operator(String),
    /// Someone with a certificate that does not count, and why.
    Refused(&'static str),
}

/// The nodes of the registry, in memory, since every request asks for one.
#[derive(Default)]
struct Index {
    by_uuid: HashMap<String, Arc<NodeEntry>>,
    by_certificate: HashMap<String, String>,
}

/// The nodes that the server knows.
pub(crate) struct Nodes {
    registry: Arc<Registry>,
    index: RwLock<Index>,
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

    /// Records a node. It waits for the disk.
    pub(crate) fn put(&self, entry: NodeEntry) -> Result<(), RegistryError> {
        self.registry.put_node(&entry)?;
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        index.put(entry);
        Ok(())
    }

    /// Returns whose certificate it is.
    pub(crate) fn identify(&self, certificate: Fingerprint, now: Timestamp) -> Caller {
        let node = self.read(|index| {
            let uuid = index.by_certificate.get(&certificate.to_string())?;
            index.by_uuid.get(uuid).cloned()
        });
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
        if let Some(certificate) = self
            .by_uuid
            .get(&entry.uuid)
            .and_then(|before| before.certificate.as_ref())
        {
            self.by_certificate.remove(&certificate.fingerprint);
        }
        if let Some(certificate) = &entry.certificate {
            self.by_certificate
                .insert(certificate.fingerprint.clone(), entry.uuid.clone());
        }
        self.by_uuid.insert(entry.uuid.clone(), Arc::new(entry));
    }
}
