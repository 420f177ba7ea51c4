//! What is served of what was published: specs by name and UUID, ready to be sent.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use homestak_api::publication::{PublishDirectory, Published, PublishedSpec, SpecStatement};
use homestak_core::token::TokenKeys;
use http::HeaderValue;

use crate::error::ServerError;

/// A spec, ready to be sent.
pub(crate) struct ServedSpec {
    pub(crate) statement: SpecStatement,
    pub(crate) published: PublishedSpec,
    pub(crate) body: Bytes,
    pub(crate) etag: HeaderValue,
    pub(crate) header: HeaderValue,
}

/// An agent's program, ready to be sent.
pub(crate) struct ServedAgent {
    pub(crate) header: HeaderValue,
    pub(crate) program: Bytes,
}

/// Everything that is served.
pub(crate) struct Served {
    pub(crate) published: Published,
    pub(crate) token_keys: Arc<TokenKeys>,
    pub(crate) agents: BTreeMap<String, Arc<ServedAgent>>,
    by_uuid: HashMap<String, Arc<ServedSpec>>,
    by_name: HashMap<String, Vec<Arc<ServedSpec>>>,
}

/// The specs that a name stands for.
pub(crate) enum Named {
    None,
    One(Arc<ServedSpec>),
    /// Nodes of several manifests or hosts have the name.
    Several,
}

impl Served {
    /// Reads what was published. What cannot be used is logged and not served.
    pub(crate) fn read(directory: &PublishDirectory) -> Result<Self, ServerError> {
        let published = directory.read().map_err(|source| ServerError::Published {
            path: directory.path().to_owned(),
            source,
        })?;
        for (path, why) in &published.unusable {
            tracing::warn!(file = %path.display(), why, "not served");
        }
        let token_keys = Arc::new(token_keys(&published)?);
        let mut served = Self {
            agents: BTreeMap::new(),
            by_uuid: HashMap::new(),
            by_name: HashMap::new(),
            token_keys,
            published,
        };
        for (statement, spec) in served.published.specs.values() {
            let Some(ready) = ready(statement, spec) else {
                continue;
            };
            let ready = Arc::new(ready);
            let uuid = statement.uuid.as_str().to_owned();
            served.by_uuid.insert(uuid, ready.clone());
            let of_name = served.by_name.entry(statement.node.clone()).or_default();
            of_name.push(ready);
        }
        for (architecture, (signed, statement, path)) in &served.published.agents {
            let program = fs_err::read(path).map_err(|source| ServerError::File {
                doing: "read the agent",
                path: path.clone(),
                source,
            })?;
            if homestak_api::publication::sha256(&program) != statement.sha256 {
                tracing::warn!(file = %path.display(), "not served: it is not what was signed");
                continue;
            }
            let Ok(header) = HeaderValue::from_str(signed.trim()) else {
                continue;
            };
            let agent = ServedAgent {
                program: program.into(),
                header,
            };
            served.agents.insert(architecture.clone(), Arc::new(agent));
        }
        Ok(served)
    }

    /// Returns the names of specs.
    pub(crate) fn spec_names(&self) -> BTreeSet<&str> {
        let specs = self.published.specs.values();
        specs.map(|(_, spec)| spec.spec.as_str()).collect()
    }

    /// Returns the spec of a guest.
    pub(crate) fn of_guest(&self, uuid: &str) -> Option<Arc<ServedSpec>> {
        self.by_uuid.get(uuid).cloned()
    }

    /// Returns the spec of a node.
    pub(crate) fn of_node(&self, name: &str) -> Named {
        match self.by_name.get(name).map(Vec::as_slice) {
            None | Some([]) => Named::None,
            Some([one]) => Named::One(one.clone()),
            Some(_) => Named::Several,
        }
    }

    /// Returns what is different from before, a line each.
    pub(crate) fn changes_since(&self, before: &Self) -> Vec<String> {
        let mut changes = Vec::new();
        for (uuid, now) in &self.by_uuid {
            let statement = &now.statement;
            let generation = statement.generation;
            match before.by_uuid.get(uuid) {
                None => changes.push(format!("spec of `{}` added", statement.node)),
                Some(was) if was.statement.generation != generation => changes.push(format!(
                    "spec of `{}`: generation {} to {generation}",
                    statement.node, was.statement.generation
                )),
                Some(_) => {}
            }
        }
        for (uuid, was) in &before.by_uuid {
            if !self.by_uuid.contains_key(uuid) {
                changes.push(format!("spec of `{}` removed", was.statement.node));
            }
        }
        if self.published.site != before.published.site {
            changes.push("site keys, operators or trusted networks".to_owned());
        }
        if *self.token_keys != *before.token_keys {
            changes.push("token keys".to_owned());
        }
        let issuer = |served: &Self| served.published.secrets.intermediate.issued().clone();
        if issuer(self) != issuer(before) {
            changes.push("intermediate certificate".to_owned());
        }
        changes.sort();
        changes
    }
}

fn ready(statement: &SpecStatement, spec: &PublishedSpec) -> Option<ServedSpec> {
    let etag = format!("\"{}-{}\"", statement.generation, &statement.sha256[..16]);
    Some(ServedSpec {
        etag: HeaderValue::from_str(&etag).ok()?,
        header: HeaderValue::from_str(&spec.statement).ok()?,
        body: Bytes::from(spec.body.clone()),
        statement: statement.clone(),
        published: spec.clone(),
    })
}

fn token_keys(published: &Published) -> Result<TokenKeys, ServerError> {
    let secrets = &published.secrets;
    let first = secrets.signing_key.as_ref().map(|key| key.as_str());
    let others = secrets.token_keys.iter();
    let others = others.map(|(id, key)| (id.as_str(), key.as_str()));
    TokenKeys::from_hex(first, others).map_err(ServerError::TokenKey)
}
