//! A site with enrolled nodes, as a driver would have published it and a server recorded it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use homestak_api::certificate::{Credential, Role};
use homestak_api::publication::{
    AgentStatement, FirstContact, IssuedToken, PublishDirectory, PublishedSpec, ServerSecrets,
    SiteInfo, SpecStatement, sha256,
};
use homestak_api::runtime::{Clock as _, WallClock};
use homestak_api::signature::{Purpose, SiteKey};
use homestak_core::observed::GuestUuid;
use homestak_core::token::{Claims, GuestClaims, SigningKey, mint};
use homestak_store::registry::{CertificateEntry, NodeEntry, Registry, TokenEntry};
use jiff::Timestamp;
use serde_json::json;

use crate::Failure;

const SITE: &str = "bench";
const SPEC: &str = "base";
const KEY_ID: &str = "k1";
/// Keys of tokens; they protect nothing.
const V1_KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const V2_KEY: &str = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
/// The node that has not enrolled.
const FIRST: &str = "first";
const TOKEN_LIFETIME: i64 = 24 * 3600;

/// A site whose files are written.
pub(crate) struct BenchSite<'a> {
    root: &'a Path,
    body: String,
    now: Timestamp,
    key: SiteKey,
    authority: Credential,
    directory: PublishDirectory,
}

impl<'a> BenchSite<'a> {
    pub(crate) fn new(root: &'a Path, body: String) -> Result<Self, Failure> {
        let now = WallClock.now();
        fs_err::create_dir_all(root.join("state"))?;
        Ok(Self {
            root,
            body,
            now,
            key: SiteKey::generate()?,
            authority: Credential::authority(SITE, now)?,
            directory: PublishDirectory::new(root.join("published")),
        })
    }

    /// Writes everything, and returns what a client without a certificate needs.
    pub(crate) fn write(&self, n_nodes: u32) -> Result<serde_json::Value, Failure> {
        let role = Role::Intermediate(SITE.to_owned());
        let intermediate = self.authority.issue(role, self.now)?;
        let registry = Registry::open(&self.root.join("state/server.db"))?;
        let mut agents = String::new();
        for number in 1..=n_nodes {
            let (name, uuid) = (format!("node-{number}"), uuid(number));
            let role = Role::Node {
                name: name.clone(),
                uuid: uuid.clone(),
            };
            let own = intermediate.issue(role, self.now)?;
            let token = self.publish(&name, &uuid)?;
            registry.add_token(&TokenEntry {
                id: token.id,
                uuid: uuid.clone(),
                node: name.clone(),
                issued: token.issued,
                expires: Some(token.expires),
                used: Some(token.issued),
                revoked: None,
            })?;
            registry.put_node(&enrolled(&own, name, uuid, self.now))?;
            agents += &serde_json::to_string(&own)?;
            agents.push('\n');
        }
        fs_err::write(self.root.join("agents.jsonl"), agents)?;
        let fingerprint = &self.authority.issued().fingerprint;
        fs_err::write(self.root.join("authority"), fingerprint)?;
        // Of the same kind as the one that the server issues for itself.
        let other = intermediate.issue(Role::Server(vec!["127.0.0.1".to_owned()]), self.now)?;
        let other = serde_json::to_value(&other)?;
        for (file, text) in [
            ("other.pem", &other["issued"]["chain"]),
            ("other.key", &other["key"]),
        ] {
            fs_err::write(self.root.join(file), text.as_str().unwrap_or_default())?;
        }
        let first = self.publish(FIRST, &uuid(0))?;
        let info = SiteInfo {
            site: SITE.to_owned(),
            keys: vec![self.key.public()],
            operators: BTreeMap::new(),
            specs: BTreeSet::from([SPEC.to_owned()]),
            trusted_networks: Vec::new(),
            server_names: Vec::new(),
        };
        let secrets = ServerSecrets {
            signing_key: Some(V1_KEY.to_owned().into()),
            token_keys: BTreeMap::from([(KEY_ID.to_owned(), V2_KEY.to_owned().into())]),
            intermediate,
            repo_token_sha256: None,
            webhooks: BTreeMap::new(),
        };
        self.directory.put_site(&info, &secrets)?;
        self.publish_agent()?;
        let mut claims = Claims {
            node: FIRST.to_owned(),
            spec: SPEC.to_owned(),
            issued_at: first.issued,
            guest: None,
        };
        let version_1 = mint(&claims, &SigningKey::from_hex(V1_KEY)?);
        claims.guest = Some(GuestClaims {
            uuid: uuid(0),
            site: SITE.to_owned(),
            token_id: first.id,
            key_id: KEY_ID.to_owned(),
            expires_at: first.expires,
        });
        let version_2 = mint(&claims, &SigningKey::from_hex(V2_KEY)?);
        Ok(
            json!({"path": format!("/spec/{FIRST}"), "version_1": version_1, "version_2": version_2}),
        )
    }

    /// Publishes an agent, which is not downloaded.
    fn publish_agent(&self) -> Result<(), Failure> {
        let program = b"an agent";
        let statement = AgentStatement {
            architecture: std::env::consts::ARCH.to_owned(),
            version: "0.1.0".to_owned(),
            sha256: sha256(program),
            size: program.len() as u64,
            generation: 1,
        };
        let statement = self.key.sign(Purpose::Agent, &statement)?;
        let architecture = std::env::consts::ARCH;
        self.directory
            .put_agent(architecture, program, &statement)?;
        Ok(())
    }

    /// Publishes the spec of a node, and returns the token that was issued for it.
    fn publish(&self, node: &str, uuid: &str) -> Result<IssuedToken, Failure> {
        let issued = self.now.as_second();
        let uuid = GuestUuid::new(uuid).ok_or("not a UUID")?;
        let statement = SpecStatement {
            site: SITE.to_owned(),
            manifest: "lab".to_owned(),
            host: "local".to_owned(),
            node: node.to_owned(),
            uuid: uuid.clone(),
            generation: 7,
            issued,
            sha256: sha256(self.body.as_bytes()),
            servers: vec!["https://127.0.0.1:44443".to_owned()],
            fingerprints: vec![self.authority.issued().fingerprint.clone()],
            keys: vec![self.key.public()],
        };
        let token = IssuedToken {
            id: format!("token-of-{node}"),
            issued,
            expires: issued + TOKEN_LIFETIME,
        };
        let spec = PublishedSpec {
            statement: self.key.sign(Purpose::Spec, &statement)?,
            spec: SPEC.to_owned(),
            body: self.body.clone(),
            first_contact: FirstContact::NodeToken,
            token_sha256: None,
            single_use: false,
            had_token: true,
            token: Some(token.clone()),
            revoked: None,
            mode: None,
            trigger: None,
        };
        self.directory.put_spec(&uuid, &spec)?;
        Ok(token)
    }
}

fn uuid(number: u32) -> String {
    format!("{number:08x}-0000-4000-8000-000000000000")
}

fn enrolled(own: &Credential, name: String, uuid: String, now: Timestamp) -> NodeEntry {
    let issued = own.issued();
    NodeEntry {
        uuid,
        name,
        manifest: "lab".to_owned(),
        host: "local".to_owned(),
        certificate: Some(CertificateEntry {
            fingerprint: issued.fingerprint.clone(),
            not_before: issued.not_before.as_second(),
            not_after: issued.not_after.as_second(),
        }),
        public_key: None,
        replaced: None,
        replaced_until: None,
        renewed_late: false,
        enrolled: Some(now.as_second()),
        revoked: None,
        address: None,
        agent: Some("0.1.0".to_owned()),
        last_contact: Some(now.as_second()),
    }
}
