//! Renders, signs and publishes specs for a server.
//!
//! A spec that has not changed keeps its generation and its signature, so that nodes fetch nothing.
//! A changed one gets a generation above the one before and not below the time in seconds: a driver
//! that lost its state directory and kept its keys is not refused by its nodes.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use homestak_api::certificate::Role;
use homestak_api::publication::{
    AgentStatement, FirstContact, IssuedToken, PublishDirectory, PublishedSpec, ServerSecrets,
    SiteInfo, SpecStatement, sha256,
};
use homestak_api::signature::Purpose;
use homestak_core::doc::scalar::SiteId;
use homestak_core::observed::GuestUuid;
use jiff::Timestamp;
use zeroize::Zeroizing;

use crate::site_keys::{SiteKeyError, SiteKeys};

/// How long a token may be shown for the first time: a guest must have booted by then.
const TOKEN_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Why something could not be published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// A key could not be used.
    #[error(transparent)]
    Keys(#[from] SiteKeyError),
    /// The directory could not be read or written.
    #[error("publish to `{}`", path.display())]
    Directory {
        /// The directory.
        path: std::path::PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// What a site tells its servers beside specs.
#[derive(Clone, Debug, Default)]
pub struct SiteSettings {
    /// Networks that the site trusts.
    pub trusted_networks: Vec<String>,
    /// The key of tokens of version 1.
    pub signing_key: Option<Zeroizing<String>>,
    /// Addresses of servers, such as `https://10.0.0.1:44443`.
    pub servers: Vec<String>,
    /// Fingerprints of certificates that the operator provides, beside the site's authority.
    pub fingerprints: Vec<String>,
}

/// A spec to be published.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// The manifest.
    pub manifest: String,
    /// The host.
    pub host: String,
    /// The node's name.
    pub node: String,
    /// The guest's UUID.
    pub uuid: GuestUuid,
    /// The name of the spec.
    pub spec: String,
    /// The spec, as the node gets it.
    pub body: String,
    /// How the node may prove itself at first contact.
    pub first_contact: FirstContact,
    /// SHA-256 of the token that the posture's method needs.
    pub token_sha256: Option<String>,
    /// Whether a provisioning token is valid for one request only.
    pub single_use: bool,
}

/// Publishes for the servers of a site.
pub struct Publisher {
    /// The site's id.
    pub site: SiteId,
    /// Its keys.
    pub keys: SiteKeys,
    /// Where to.
    pub directory: PublishDirectory,
    /// What servers must know.
    pub settings: SiteSettings,
}

impl Publisher {
    fn failed(&self, source: io::Error) -> PublishError {
        PublishError::Directory {
            path: self.directory.path().to_owned(),
            source,
        }
    }

    /// Publishes what servers must know of the site, with an intermediate that is valid for a while.
    pub fn publish_site(&self, now: Timestamp) -> Result<(), PublishError> {
        let published = self.directory.exists().then(|| self.directory.read());
        let current = published
            .and_then(Result::ok)
            .map(|found| found.secrets.intermediate);
        let authority = &self.keys.authority.issued().chain;
        let usable = |found: &homestak_api::certificate::Credential| {
            now < found.due() && found.issued().chain.ends_with(authority.as_str())
        };
        let intermediate = match current.filter(usable) {
            Some(current) => current,
            None => {
                let role = Role::Intermediate(self.site.to_string());
                let issued = self.keys.authority.issue(role, now);
                issued.map_err(SiteKeyError::from)?
            }
        };
        let operator = self.keys.operator.issued().fingerprint.clone();
        let site = SiteInfo {
            site: self.site.to_string(),
            keys: self.keys.public_keys(),
            operators: BTreeMap::from([(operator, "driver".to_owned())]),
            trusted_networks: self.settings.trusted_networks.clone(),
        };
        let token_keys = self.keys.token_keys.iter();
        let secrets = ServerSecrets {
            signing_key: self.settings.signing_key.clone(),
            token_keys: token_keys
                .map(|key| (key.id.clone(), key.key.clone()))
                .collect(),
            intermediate,
        };
        let written = self.directory.put_site(&site, &secrets);
        written.map_err(|source| self.failed(source))
    }

    /// Publishes a spec, and returns its statement. With `token`, a new token is minted for the
    /// guest and returned as well; one that was minted before is not valid for longer by that.
    pub fn publish_spec(
        &self,
        node: &NodeSpec,
        token: bool,
        now: Timestamp,
    ) -> Result<(SpecStatement, Option<Zeroizing<String>>), PublishError> {
        let before = self.directory.spec(&node.uuid);
        let before = before.map_err(|source| self.failed(source))?;
        let keys = self.keys.public_keys();
        let known = before.as_ref().and_then(|spec| spec.verify(&keys).ok());
        let mut statement = SpecStatement {
            site: self.site.to_string(),
            manifest: node.manifest.clone(),
            host: node.host.clone(),
            node: node.node.clone(),
            uuid: node.uuid.clone(),
            generation: 0,
            issued: now.as_second(),
            sha256: sha256(node.body.as_bytes()),
            servers: self.settings.servers.clone(),
            fingerprints: self.fingerprints(),
            keys,
        };
        let signed = match (&before, known) {
            (Some(before), Some(known)) if is_same(&known, &statement) => {
                statement = known;
                before.statement.clone()
            }
            (_, known) => {
                let next = known.map_or(0, |known| known.generation + 1);
                let time = u64::try_from(now.as_second()).unwrap_or(0);
                statement.generation = next.max(time);
                let signed = self.keys.site_key.sign(Purpose::Spec, &statement);
                signed.map_err(SiteKeyError::from)?
            }
        };
        let minted = token
            .then(|| {
                let guest = (node.node.as_str(), node.spec.as_str(), node.uuid.as_str());
                self.keys.mint(&self.site, guest, now, TOKEN_LIFETIME)
            })
            .flatten();
        let issued = minted.as_ref().map(|(_, claims)| IssuedToken {
            id: claims.token_id.clone(),
            issued: now.as_second(),
            expires: claims.expires_at,
        });
        let published = PublishedSpec {
            statement: signed,
            spec: node.spec.clone(),
            body: node.body.clone(),
            first_contact: node.first_contact,
            token_sha256: node.token_sha256.clone(),
            single_use: node.single_use,
            token: issued.or_else(|| before.and_then(|before| before.token)),
        };
        let written = self.directory.put_spec(&node.uuid, &published);
        written.map_err(|source| self.failed(source))?;
        Ok((statement, minted.map(|(token, _)| token)))
    }

    /// Publishes an agent's program.
    pub fn publish_agent(
        &self,
        architecture: &str,
        version: &str,
        program: &[u8],
    ) -> Result<(), PublishError> {
        let statement = AgentStatement {
            architecture: architecture.to_owned(),
            version: version.to_owned(),
            sha256: sha256(program),
            size: program.len() as u64,
        };
        let signed = self.keys.site_key.sign(Purpose::Agent, &statement);
        let signed = signed.map_err(SiteKeyError::from)?;
        let written = self.directory.put_agent(architecture, program, &signed);
        written.map_err(|source| self.failed(source))
    }

    /// Returns the fingerprints that servers are recognised by.
    pub fn fingerprints(&self) -> Vec<String> {
        let mut all = vec![self.keys.authority.issued().fingerprint.clone()];
        all.extend(self.settings.fingerprints.iter().cloned());
        all
    }
}

/// Tells whether a published statement still holds.
fn is_same(known: &SpecStatement, new: &SpecStatement) -> bool {
    let comparable = SpecStatement {
        generation: known.generation,
        issued: known.issued,
        ..new.clone()
    };
    *known == comparable
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).expect("a time")
    }

    fn publisher(root: &std::path::Path) -> Publisher {
        let site = SiteId::from_random([7; 16]);
        Publisher {
            keys: SiteKeys::open(&root.join("state"), &site, now(0)).expect("keys"),
            directory: PublishDirectory::new(root.join("published")),
            settings: SiteSettings::default(),
            site,
        }
    }

    fn node(body: &str) -> NodeSpec {
        NodeSpec {
            manifest: "lab".to_owned(),
            host: "local".to_owned(),
            node: "web".to_owned(),
            uuid: GuestUuid::new("11111111-1111-4111-8111-111111111111").expect("a UUID"),
            spec: "base".to_owned(),
            body: body.to_owned(),
            first_contact: FirstContact::NodeToken,
            token_sha256: None,
            single_use: false,
        }
    }

    #[test]
    fn a_generation_rises_with_every_change_and_only_then() {
        let root = tempfile::tempdir().expect("a directory");
        let publisher = publisher(root.path());
        let publish = |body, at| {
            let (statement, _) = publisher
                .publish_spec(&node(body), false, now(at))
                .expect("done");
            statement.generation
        };
        let first = publish("{}", 0);
        assert_eq!(publish("{}", 100), first);
        let second = publish("{\"a\":1}", 100);
        assert!(second > first);
        // A clock that was set back does not lower it.
        assert_eq!(publish("{}", -500), second + 1);
    }

    #[test]
    fn what_is_published_is_read_by_a_server() {
        let root = tempfile::tempdir().expect("a directory");
        let publisher = publisher(root.path());
        publisher.publish_site(now(0)).expect("published");
        let (_, token) = publisher
            .publish_spec(&node("{}"), true, now(0))
            .expect("published");
        assert!(token.is_some());
        publisher
            .publish_agent("x86_64", "0.1.0", b"program")
            .expect("published");
        let found = publisher.directory.read().expect("read");
        assert!(found.unusable.is_empty());
        assert_eq!((found.specs.len(), found.agents.len()), (1, 1));
        let issued = |found: homestak_api::publication::Published| {
            found.secrets.intermediate.issued().clone()
        };
        let first = issued(found);
        publisher.publish_site(now(3600)).expect("published again");
        assert_eq!(issued(publisher.directory.read().expect("read")), first);
        publisher
            .publish_site(now(25 * 24 * 3600))
            .expect("published late");
        assert_ne!(issued(publisher.directory.read().expect("read")), first);
    }
}
