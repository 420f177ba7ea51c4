//! Renders, signs and publishes specs for a server.
//!
//! A spec that has not changed keeps its generation and its signature, so that nodes fetch nothing. It
//! is signed again with each new token: a guest that is created with it accepts nothing older, which a
//! server may still have of a former guest with the same UUID.
//! A changed one gets a generation above the one before and not below the time in seconds: a driver
//! that lost its state directory and kept its keys is not refused by its nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use homestak_api::certificate::{Role, certificates};
use homestak_api::publication::{
    AgentStatement, FirstContact, IssuedToken, PublishDirectory, PublishedSpec, ServerSecrets,
    SiteInfo, SpecStatement, sha256,
};
use homestak_api::runtime::{Clock as _, WallClock};
use homestak_api::signature::{Purpose, SitePublicKey, verify};
use homestak_api::trust::Fingerprint;
use homestak_core::doc::manifest::Mode;
use homestak_core::doc::scalar::SiteId;
use homestak_core::observed::GuestUuid;
use homestak_core::resolve::trigger::ServerTrigger;
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

/// The data of a site that servers need besides specs.
#[derive(Clone, Debug, Default)]
pub struct SiteSettings {
    /// Names of the site's specs.
    pub specs: BTreeSet<String>,
    /// Networks that the site trusts.
    pub trusted_networks: Vec<String>,
    /// Names and addresses in the URLs of the server that nodes use.
    pub server_names: Vec<String>,
    /// SHA-256 of the token for repositories; none are served without it.
    pub repo_token_sha256: Option<String>,
    /// What comes from the secrets of the site; `None` if they cannot be read: what is published of
    /// them stays then.
    pub secrets: Option<SiteSecrets>,
}

/// What servers need of the secrets of a site.
#[derive(Clone, Debug, Default)]
pub struct SiteSecrets {
    /// The key of tokens of version 1.
    pub signing_key: Option<Zeroizing<String>>,
    /// Secrets of webhooks, by name.
    pub webhooks: BTreeMap<String, Zeroizing<String>>,
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
    /// Addresses of servers as the node reaches them, such as `https://10.0.0.1:44443`.
    pub servers: Vec<String>,
    /// Whether it had a token before, as far as is known from elsewhere: what was published may be lost.
    pub had_token: bool,
    /// Who starts the configuration of the node, if that is known.
    pub mode: Option<Mode>,
    /// The trigger that the server handles.
    pub trigger: Option<ServerTrigger>,
}

/// Which provisioning token a published spec gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenIssue {
    /// The one that was published before, if any. It is not returned.
    Keep,
    /// The one that was published before, as long as it has not expired; otherwise a new one.
    Valid,
    /// A new one: the one before was used or revoked.
    New,
}

/// Whether a spec that has not changed gets a new generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// It keeps its generation.
    Same,
    /// It gets a new one, so that its node applies it again.
    Next,
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
        let current = published.and_then(Result::ok).map(|found| found.secrets);
        let (current, published) = current
            .map(|found| {
                let secrets = SiteSecrets {
                    signing_key: found.signing_key,
                    webhooks: found.webhooks,
                };
                (found.intermediate, secrets)
            })
            .unzip();
        let of_site = self.settings.secrets.clone().or(published);
        let of_site = of_site.unwrap_or_default();
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
        let operators = [
            Some(&self.keys.operator),
            self.keys.previous_operator.as_ref(),
        ];
        let operators = operators.into_iter().flatten();
        let operators = operators.map(|one| (one.issued().fingerprint.clone(), "driver".into()));
        let site = SiteInfo {
            site: self.site.to_string(),
            keys: self.keys.public_keys(),
            operators: operators.collect(),
            specs: self.settings.specs.clone(),
            trusted_networks: self.settings.trusted_networks.clone(),
            server_names: self.settings.server_names.clone(),
        };
        let token_keys = self.keys.token_keys.iter();
        let secrets = ServerSecrets {
            signing_key: of_site.signing_key,
            token_keys: token_keys
                .map(|key| (key.id.clone(), key.key.clone()))
                .collect(),
            intermediate,
            repo_token_sha256: self.settings.repo_token_sha256.clone(),
            webhooks: of_site.webhooks,
        };
        let written = self.directory.put_site(&site, &secrets);
        written.map_err(|source| self.failed(source))
    }

    /// Publishes a spec. Returns its statement, and its token unless that is only kept.
    ///
    /// Tokens are not stored: the same claims and key give the same token.
    pub fn publish_spec(
        &self,
        node: &NodeSpec,
        (token, generation): (TokenIssue, Generation),
        now: Timestamp,
    ) -> Result<(SpecStatement, Option<Zeroizing<String>>), PublishError> {
        let before = self.directory.spec_to_replace(&node.uuid);
        let before = before.map_err(|source| self.failed(source))?;
        let keys = self.keys.public_keys();
        let known = before.as_ref().and_then(|spec| spec.verify(&keys).ok());
        // A token names the spec, and servers of earlier versions compare it.
        let is_same_spec = before.as_ref().is_some_and(|spec| spec.spec == node.spec);
        let last = before.as_ref().and_then(|spec| spec.token.clone());
        let is_valid = |last: &IssuedToken| now.as_second() < last.expires && is_same_spec;
        let issued = match token {
            TokenIssue::Keep => last.clone(),
            TokenIssue::Valid => {
                let valid = last.clone().filter(is_valid);
                Some(valid.unwrap_or_else(|| new_token(now)))
            }
            TokenIssue::New => Some(new_token(now)),
        };
        // A guest that was created with this token accepts nothing that was signed before its first-boot
        // data, also if the clock was set back since.
        let token_issued = issued.as_ref().map(|token| token.issued);
        let signed_before = known
            .as_ref()
            .filter(|_| issued.is_some() && issued == last);
        let earliest = token_issued.max(signed_before.map(|known| known.issued));
        let mut statement = SpecStatement {
            site: self.site.to_string(),
            manifest: node.manifest.clone(),
            host: node.host.clone(),
            node: node.node.clone(),
            uuid: node.uuid.clone(),
            generation: 0,
            issued: earliest.map_or(now.as_second(), |earliest| earliest.max(now.as_second())),
            sha256: sha256(node.body.as_bytes()),
            servers: node.servers.clone(),
            fingerprints: self.fingerprints(),
            keys,
        };
        let signed = match (&before, known) {
            (Some(before), Some(known))
                if generation == Generation::Same
                    && is_same(&known, &statement)
                    && issued == last
                    && token_issued.is_none_or(|token| known.issued >= token) =>
            {
                statement = known;
                before.statement.clone()
            }
            (_, known) => {
                statement.generation = next_generation(known.as_ref(), now);
                let signed = self.keys.site_key.sign(Purpose::Spec, &statement);
                signed.map_err(SiteKeyError::from)?
            }
        };
        // The digest comes from the secrets of the site.
        let token_sha256 = match (&self.settings.secrets, &before) {
            (None, Some(before)) if before.first_contact == node.first_contact => {
                before.token_sha256.clone()
            }
            _ => node.token_sha256.clone(),
        };
        let had_token = before.as_ref().is_some_and(|one| one.had_token);
        let revoked = before.and_then(|one| one.revoked);
        let guest = (node.node.as_str(), node.spec.as_str(), node.uuid.as_str());
        let minted = match &issued {
            Some(issued) if token != TokenIssue::Keep => {
                Some(self.keys.mint(&self.site, guest, issued)?)
            }
            Some(_) | None => None,
        };
        let published = PublishedSpec {
            statement: signed,
            spec: node.spec.clone(),
            body: node.body.clone(),
            first_contact: node.first_contact,
            token_sha256,
            single_use: node.single_use,
            had_token: had_token || node.had_token || issued.is_some(),
            token: issued,
            // A node that gets a new token may enrol again.
            revoked: revoked.filter(|_| token == TokenIssue::Keep),
            mode: node.mode,
            trigger: node.trigger.clone(),
        };
        let written = self.directory.put_spec(&node.uuid, &published);
        written.map_err(|source| self.failed(source))?;
        Ok((statement, minted))
    }

    /// Publishes an agent's program, unless it is published.
    pub fn publish_agent(
        &self,
        architecture: &str,
        version: &str,
        program: &[u8],
    ) -> Result<(), PublishError> {
        let keys = self.keys.public_keys();
        let known = self.directory.agent(architecture, &keys);
        let last = known.as_ref().map_or(0, |known| known.generation);
        let mut statement = AgentStatement {
            architecture: architecture.to_owned(),
            version: version.to_owned(),
            sha256: sha256(program),
            size: program.len() as u64,
            generation: last,
        };
        if known.as_ref() == Some(&statement) {
            return Ok(());
        }
        // As for specs: a driver that lost its files still publishes higher ones.
        let time = u64::try_from(WallClock.now().as_second()).unwrap_or(0);
        statement.generation = time.max(last + 1);
        let signed = self.keys.site_key.sign(Purpose::Agent, &statement);
        let signed = signed.map_err(SiteKeyError::from)?;
        let written = self.directory.put_agent(architecture, program, &signed);
        written.map_err(|source| self.failed(source))
    }

    /// Signs everything that is published again, as far as keys, certificates of servers or the key
    /// that signs have changed. `accepted` are the keys of earlier signatures. Specs stay the same.
    /// Returns the statements that are new.
    pub fn sign_again(
        &self,
        accepted: &[SitePublicKey],
        now: Timestamp,
    ) -> Result<Vec<SpecStatement>, PublishError> {
        let failed = |source| self.failed(source);
        let current = self.keys.site_key.public();
        let accepted = [accepted, &self.keys.public_keys()].concat();
        let mut signed = Vec::new();
        for published in self.directory.specs().map_err(failed)? {
            let Ok(before) = published.verify(&accepted) else {
                // It is not served, and `server check` lists it.
                continue;
            };
            let mut statement = SpecStatement {
                fingerprints: self.fingerprints(),
                keys: self.keys.public_keys(),
                ..before.clone()
            };
            if statement == before && published.verify(&[current]).is_ok() {
                continue;
            }
            statement.generation = next_generation(Some(&before), now);
            // As above: a guest may have been created with the token that is published.
            let earliest = published.token.as_ref().map(|_| before.issued);
            statement.issued =
                earliest.map_or(now.as_second(), |earliest| earliest.max(now.as_second()));
            let text = self.keys.site_key.sign(Purpose::Spec, &statement);
            let published = PublishedSpec {
                statement: text.map_err(SiteKeyError::from)?,
                ..published
            };
            let written = self.directory.put_spec(&statement.uuid, &published);
            written.map_err(failed)?;
            signed.push(statement);
        }
        for (architecture, text) in self.directory.agents().map_err(failed)? {
            let of_current = verify::<AgentStatement>(Purpose::Agent, &text, &[current]);
            let Ok(statement) = verify::<AgentStatement>(Purpose::Agent, &text, &accepted) else {
                continue;
            };
            if of_current.is_err() {
                let text = self.keys.site_key.sign(Purpose::Agent, &statement);
                let text = text.map_err(SiteKeyError::from)?;
                let written = self.directory.put_agent_statement(&architecture, &text);
                written.map_err(failed)?;
            }
        }
        Ok(signed)
    }

    /// Changes what is published of a guest beside its spec; nothing if it has none. Returns whether
    /// anything changed.
    pub fn change_spec(
        &self,
        guest: &GuestUuid,
        change: impl FnOnce(&mut PublishedSpec),
    ) -> Result<bool, PublishError> {
        let before = self.directory.spec(guest);
        let Some(before) = before.map_err(|source| self.failed(source))? else {
            return Ok(false);
        };
        let mut after = before.clone();
        change(&mut after);
        if after == before {
            return Ok(false);
        }
        let written = self.directory.put_spec(guest, &after);
        written.map_err(|source| self.failed(source))?;
        Ok(true)
    }

    /// Returns the fingerprints that servers are recognised by.
    pub fn fingerprints(&self) -> Vec<String> {
        let own = self.keys.servers.iter().filter_map(|pem| {
            let found = certificates(pem).ok()?;
            Some(Fingerprint::of(found.first()?).to_string())
        });
        let authority = self.keys.authority.issued().fingerprint.clone();
        [authority].into_iter().chain(own).collect()
    }

    /// Returns the certificates that servers are recognised by, in PEM.
    pub fn authorities(&self) -> Vec<String> {
        let authority = self.keys.authority.issued().chain.clone();
        let own = self.keys.servers.iter().cloned();
        [authority].into_iter().chain(own).collect()
    }
}

/// Returns the generation after one, and not below the time in seconds.
fn next_generation(before: Option<&SpecStatement>, now: Timestamp) -> u64 {
    let next = before.map_or(0, |before| before.generation + 1);
    next.max(u64::try_from(now.as_second()).unwrap_or(0))
}

fn new_token(now: Timestamp) -> IssuedToken {
    IssuedToken {
        id: uuid::Uuid::new_v4().simple().to_string(),
        issued: now.as_second(),
        expires: (now + TOKEN_LIFETIME).as_second(),
    }
}

/// Returns whether a published statement still holds.
fn is_same(known: &SpecStatement, new: &SpecStatement) -> bool {
    let comparable = SpecStatement {
        generation: known.generation,
        issued: known.issued,
        ..new.clone()
    };
    *known == comparable
}

#[cfg(test)]
mod tests;
