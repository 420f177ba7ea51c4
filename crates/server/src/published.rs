//! The published specs and agents, indexed by name and UUID.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use homestak_api::publication::{
    PublishDirectory, PublishedRepo, PublishedRevocation, PublishedSpec, ServerSecrets, SiteInfo,
    SpecStatement,
};
use homestak_api::signature::SitePublicKey;
use homestak_core::observed::GuestUuid;
use homestak_core::token::{Claims, TokenError, TokenKeys};
use http::HeaderValue;

use crate::error::ServerError;
use crate::trigger::target::Triggers;
use crate::verified::VerifiedTokens;

/// A spec, ready to be sent. There are thousands, so that each text is in memory once: `body` and
/// `header` are parts of `published`.
pub(crate) struct ServedSpec {
    pub(crate) statement: SpecStatement,
    pub(crate) published: Arc<PublishedSpec>,
    pub(crate) body: Bytes,
    pub(crate) etag: HeaderValue,
    pub(crate) header: HeaderValue,
}

/// The body of a spec.
struct SpecBody(Arc<PublishedSpec>);

impl AsRef<[u8]> for SpecBody {
    fn as_ref(&self) -> &[u8] {
        self.0.body.as_bytes()
    }
}

/// The signed statement of a spec.
struct SignedStatement(Arc<PublishedSpec>);

impl AsRef<[u8]> for SignedStatement {
    fn as_ref(&self) -> &[u8] {
        self.0.statement.as_bytes()
    }
}

/// An agent's program, ready to be sent.
pub(crate) struct ServedAgent {
    pub(crate) header: HeaderValue,
    pub(crate) program: Bytes,
}

/// Copies of repositories, which are read while they are sent.
#[derive(Default)]
pub(crate) struct Repos {
    pub(crate) directory: PathBuf,
    pub(crate) by_name: BTreeMap<String, PublishedRepo>,
}

impl Repos {
    fn read(directory: &PublishDirectory) -> Result<Self, ServerError> {
        let repos = directory.repos().map_err(|source| ServerError::Published {
            path: directory.repos_path(),
            source,
        })?;
        let by_name = repos.into_iter().map(|repo| (repo.name.clone(), repo));
        Ok(Self {
            directory: directory.repos_path(),
            by_name: by_name.collect(),
        })
    }

    /// Returns what is different from before, a line each.
    fn changes_since(&self, before: &Self) -> Vec<String> {
        let mut changes = Vec::new();
        for (name, repo) in &self.by_name {
            match before.by_name.get(name) {
                None => changes.push(format!("repository `{name}` added")),
                Some(was) if was.refs != repo.refs => {
                    let commit = repo.working.as_deref().unwrap_or("without commits");
                    let commit = commit.get(..12).unwrap_or(commit);
                    changes.push(format!("repository `{name}`: now {commit}"));
                }
                Some(_) => {}
            }
        }
        let removed = before.by_name.keys();
        let removed = removed.filter(|name| !self.by_name.contains_key(*name));
        changes.extend(removed.map(|name| format!("repository `{name}` removed")));
        changes
    }
}

/// Everything that is served.
pub(crate) struct ServedState {
    pub(crate) site: SiteInfo,
    pub(crate) secrets: ServerSecrets,
    pub(crate) token_keys: TokenKeys,
    verified: VerifiedTokens,
    pub(crate) agents: BTreeMap<String, Arc<ServedAgent>>,
    pub(crate) repos: Repos,
    pub(crate) triggers: Triggers,
    /// Guests whose spec was withdrawn, perhaps while no server ran.
    pub(crate) withdrawn: BTreeMap<GuestUuid, PublishedRevocation>,
    /// Files that could not be used, with the reason.
    unusable: Vec<(PathBuf, String)>,
    by_uuid: BTreeMap<String, Arc<ServedSpec>>,
    by_name: HashMap<String, Vec<Arc<ServedSpec>>>,
}

/// The specs of nodes with a name.
pub(crate) enum Named {
    None,
    One(Arc<ServedSpec>),
    /// Nodes of several manifests or hosts have the name.
    Several,
}

impl ServedState {
    /// Reads the published files. Invalid ones are logged and not served; a spec that was read before
    /// stays.
    pub(crate) fn read(
        directory: &PublishDirectory,
        before: Option<&Self>,
    ) -> Result<Self, ServerError> {
        let mut published = directory.read().map_err(|source| ServerError::Published {
            path: directory.path().to_owned(),
            source,
        })?;
        for (path, why) in &published.unusable {
            let kept = before.and_then(|before| before.still_valid(path, &published.site.keys));
            let is_kept = kept.is_some();
            tracing::warn!(file = %path.display(), why, is_kept, "cannot be used");
            if let Some((uuid, spec)) = kept {
                published.specs.insert(uuid, spec);
            }
        }
        let mut served = Self {
            token_keys: token_keys(&published.secrets)?,
            agents: BTreeMap::new(),
            repos: Repos::read(directory)?,
            triggers: Triggers::read(&published),
            site: published.site,
            secrets: published.secrets,
            withdrawn: published.withdrawn,
            unusable: published.unusable,
            by_uuid: BTreeMap::new(),
            by_name: HashMap::new(),
            verified: VerifiedTokens::default(),
        };
        for (uuid, (statement, spec)) in published.specs {
            let Some(ready) = ready(statement, spec) else {
                continue;
            };
            let ready = Arc::new(ready);
            let name = ready.statement.node.clone();
            served.by_name.entry(name).or_default().push(ready.clone());
            served.by_uuid.insert(uuid.as_str().to_owned(), ready);
        }
        for (architecture, (signed, statement, path)) in published.agents {
            let program = fs_err::read(&path).map_err(|source| ServerError::File {
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
            served.agents.insert(architecture, Arc::new(agent));
        }
        Ok(served)
    }

    /// Returns the spec that was read from a file which is damaged now, if its signature still counts.
    fn still_valid(
        &self,
        path: &Path,
        keys: &[SitePublicKey],
    ) -> Option<(GuestUuid, (SpecStatement, PublishedSpec))> {
        let uuid = GuestUuid::new(path.file_stem()?.to_str()?)?;
        let spec = self.by_uuid.get(uuid.as_str())?;
        let statement = spec.published.verify(keys).ok()?;
        Some((uuid, (statement, PublishedSpec::clone(&spec.published))))
    }

    /// Returns the names of specs.
    pub(crate) fn spec_names(&self) -> BTreeSet<&str> {
        let published = self.by_uuid.values();
        let published = published.map(|spec| spec.published.spec.as_str());
        let known = self.site.specs.iter().map(String::as_str);
        published.chain(known).collect()
    }

    /// Returns what a token for a node claims, if it is valid at a time in seconds since 1970.
    pub(crate) fn verify(
        &self,
        token: &str,
        node: &str,
        now: i64,
    ) -> Result<Arc<Claims>, TokenError> {
        let claims = self.verified.claims(token, &self.token_keys)?;
        claims.check(Some(node), &self.site.site, now)?;
        Ok(claims)
    }

    /// Returns all specs, by the guest's UUID.
    pub(crate) fn specs(&self) -> impl Iterator<Item = &Arc<ServedSpec>> {
        self.by_uuid.values()
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
        for (path, why) in &self.unusable {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            changes.push(format!(
                "`{name}` cannot be used, nothing of it was read: {why}"
            ));
        }
        let (site, was) = (&self.site, &before.site);
        for (what, is_same) in [
            ("site keys", site.keys == was.keys),
            ("operators", site.operators == was.operators),
            ("names of the server", site.server_names == was.server_names),
            ("names of specs", site.specs == was.specs),
            (
                "trusted networks",
                site.trusted_networks == was.trusted_networks,
            ),
        ] {
            if !is_same {
                changes.push(what.to_owned());
            }
        }
        let signed = |served: &Self| {
            let agents = served.agents.iter();
            let agents = agents.map(|(name, agent)| (name.clone(), agent.header.clone()));
            agents.collect::<BTreeMap<_, _>>()
        };
        if signed(self) != signed(before) {
            changes.push("agents".to_owned());
        }
        if self.token_keys != before.token_keys {
            changes.push("token keys".to_owned());
        }
        changes.extend(self.repos.changes_since(&before.repos));
        changes.extend(self.triggers.changes_since(&before.triggers));
        let token = |served: &Self| served.secrets.repo_token_sha256.clone();
        if token(self) != token(before) {
            changes.push("token of repositories".to_owned());
        }
        let issuer = |served: &Self| served.secrets.intermediate.issued().clone();
        if issuer(self) != issuer(before) {
            changes.push("intermediate certificate".to_owned());
        }
        changes.sort();
        changes
    }
}

fn ready(statement: SpecStatement, spec: PublishedSpec) -> Option<ServedSpec> {
    let etag = format!("\"{}-{}\"", statement.generation, &statement.sha256[..16]);
    let published = Arc::new(spec);
    let header = Bytes::from_owner(SignedStatement(published.clone()));
    Some(ServedSpec {
        etag: HeaderValue::from_str(&etag).ok()?,
        header: HeaderValue::from_maybe_shared(header).ok()?,
        body: Bytes::from_owner(SpecBody(published.clone())),
        statement,
        published,
    })
}

fn token_keys(secrets: &ServerSecrets) -> Result<TokenKeys, ServerError> {
    let first = secrets.signing_key.as_ref().map(|key| key.as_str());
    let others = secrets.token_keys.iter();
    let others = others.map(|(id, key)| (id.as_str(), key.as_str()));
    TokenKeys::from_hex(first, others).map_err(ServerError::TokenKey)
}
