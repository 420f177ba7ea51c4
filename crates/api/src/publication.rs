//! What a driver publishes for a server: signed specs, and what the server must know of the site.
//!
//! Flow: the driver writes a directory; the server reads it at start and on reload, and never
//! writes there.
//! Guarantees: each file is replaced whole; a spec is served only when its signature is the site's.
//! Assumptions: only the driver can write to the directory, and only the server and the driver can
//! read it, since `secrets.json` has the keys that tokens are verified with.
//! When it goes wrong: a file that cannot be used is reported by name and not served; the others are.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use homestak_core::doc::address::Cidr;
use homestak_core::observed::GuestUuid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::certificate::Credential;
use crate::durable::{self, Access};
use crate::signature::{Purpose, SignatureError, SitePublicKey, verify};

const SITE: &str = "site.json";
const SECRETS: &str = "secrets.json";
const SPECS: &str = "specs";
const AGENTS: &str = "agents";

/// The header that carries the signed statement of a spec.
pub const STATEMENT_HEADER: &str = "homestak-statement";

/// What the site's key signs of a spec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecStatement {
    /// The site's id.
    pub site: String,
    /// The manifest.
    pub manifest: String,
    /// The host that the guest runs on.
    pub host: String,
    /// The node's name.
    pub node: String,
    /// The guest's UUID.
    pub uuid: GuestUuid,
    /// Rises with every change; a node refuses lower ones.
    pub generation: u64,
    /// When it was signed, in seconds since 1970.
    pub issued: i64,
    /// SHA-256 of the spec's bytes, in hexadecimal.
    pub sha256: String,
    /// Where the site's servers are, the preferred first.
    pub servers: Vec<String>,
    /// Fingerprints of authorities and certificates that servers are recognised by.
    pub fingerprints: Vec<String>,
    /// Keys of the site that are valid from now on.
    pub keys: Vec<SitePublicKey>,
}

/// What the site's key signs of an agent's program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatement {
    /// The processor it runs on, such as `x86_64`.
    pub architecture: String,
    /// Its version.
    pub version: String,
    /// SHA-256 of the program, in hexadecimal.
    pub sha256: String,
    /// Its size in bytes.
    pub size: u64,
}

/// How a node proves itself at its first contact, beside a provisioning token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FirstContact {
    /// By an address in one of the site's trusted networks.
    Network,
    /// By the token that the nodes of the site share.
    SiteToken,
    /// By a token of its own.
    NodeToken,
}

/// A spec as it is published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedSpec {
    /// The signed [`SpecStatement`].
    pub statement: String,
    /// The name of the spec in the site.
    pub spec: String,
    /// The spec, as it is served.
    pub body: String,
    /// How the node may prove itself at first contact.
    pub first_contact: FirstContact,
    /// SHA-256 of the token that [`FirstContact::SiteToken`] and [`FirstContact::NodeToken`] need.
    pub token_sha256: Option<String>,
    /// Whether a provisioning token is valid for one request only.
    pub single_use: bool,
    /// The provisioning token that was issued for the node.
    pub token: Option<IssuedToken>,
}

/// A provisioning token that was issued; the token itself is not published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuedToken {
    /// Its id.
    pub id: String,
    /// When it was issued, in seconds since 1970.
    pub issued: i64,
    /// When it expires.
    pub expires: i64,
}

/// What a server must know of its site, and everyone may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteInfo {
    /// The site's id.
    pub site: String,
    /// Keys that specs are signed with.
    pub keys: Vec<SitePublicKey>,
    /// Operators: fingerprints of their client certificates, with a name.
    pub operators: BTreeMap<String, String>,
    /// Networks from which [`FirstContact::Network`] is accepted.
    pub trusted_networks: Vec<String>,
}

impl SiteInfo {
    /// Tells whether an address is in one of the trusted networks.
    pub fn trusts(&self, address: std::net::IpAddr) -> bool {
        let networks = self.trusted_networks.iter();
        let mut networks = networks.filter_map(|network| Cidr::parse(network));
        networks.any(|network| network.contains(address))
    }
}

/// What only the server may know. There is no `Debug`.
#[derive(Serialize, Deserialize)]
pub struct ServerSecrets {
    /// The key of tokens of version 1, in hexadecimal; they are refused when there is none.
    pub signing_key: Option<zeroize::Zeroizing<String>>,
    /// Keys of tokens of version 2 by their ids, in hexadecimal.
    pub token_keys: BTreeMap<String, zeroize::Zeroizing<String>>,
    /// What certificates of nodes are issued with.
    pub intermediate: Credential,
}

/// A directory that a driver publishes to.
#[derive(Clone, Debug)]
pub struct PublishDirectory(PathBuf);

/// Everything that was published.
pub struct Published {
    /// What everyone may know of the site.
    pub site: SiteInfo,
    /// What only the server may know.
    pub secrets: ServerSecrets,
    /// Specs by the guest's UUID.
    pub specs: BTreeMap<GuestUuid, (SpecStatement, PublishedSpec)>,
    /// Agents by architecture: the signed statement, what it says, and the program's file.
    pub agents: BTreeMap<String, (String, AgentStatement, PathBuf)>,
    /// Files that could not be used, with the reason.
    pub unusable: Vec<(PathBuf, String)>,
}

impl PublishDirectory {
    /// Names a directory.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Tells whether anything was published.
    pub fn exists(&self) -> bool {
        self.0.join(SITE).exists()
    }

    /// Writes what the server must know of the site.
    pub fn put_site(&self, site: &SiteInfo, secrets: &ServerSecrets) -> io::Result<()> {
        self.put(Path::new(SECRETS), secrets)?;
        // Last: a directory with it is complete.
        self.put(Path::new(SITE), site)
    }

    /// Returns the published spec of a guest, as it is.
    pub fn spec(&self, uuid: &GuestUuid) -> io::Result<Option<PublishedSpec>> {
        match self.get(&spec_file(uuid)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    /// Writes the spec of a guest.
    pub fn put_spec(&self, uuid: &GuestUuid, spec: &PublishedSpec) -> io::Result<()> {
        self.put(&spec_file(uuid), spec)
    }

    /// Removes the spec of a guest; one that is not there is no error.
    pub fn remove_spec(&self, uuid: &GuestUuid) -> io::Result<()> {
        match fs_err::remove_file(self.0.join(spec_file(uuid))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Writes an agent's program and its signed statement.
    pub fn put_agent(&self, architecture: &str, program: &[u8], statement: &str) -> io::Result<()> {
        let directory = self.0.join(AGENTS);
        durable::create_private(&directory)?;
        durable::write(&directory.join(architecture), program, Access::PRIVATE)?;
        let statement_file = directory.join(format!("{architecture}.signed"));
        durable::write(&statement_file, statement.as_bytes(), Access::PRIVATE)
    }

    fn put(&self, file: &Path, value: &impl Serialize) -> io::Result<()> {
        let path = self.0.join(file);
        if let Some(parent) = path.parent() {
            durable::create_private(parent)?;
        }
        let text = serde_json::to_string_pretty(value).map_err(io::Error::other)?;
        durable::write(&path, text.as_bytes(), Access::PRIVATE)
    }

    /// Reads everything. Specs and agents that cannot be used are listed, not served.
    pub fn read(&self) -> io::Result<Published> {
        let site: SiteInfo = self.get(Path::new(SITE))?;
        let secrets: ServerSecrets = self.get(Path::new(SECRETS))?;
        let mut published = Published {
            specs: BTreeMap::new(),
            agents: BTreeMap::new(),
            unusable: Vec::new(),
            site,
            secrets,
        };
        for path in self.files(SPECS)? {
            match verified_spec(&path, &published.site) {
                Ok((statement, spec)) => {
                    let uuid = statement.uuid.clone();
                    published.specs.insert(uuid, (statement, spec));
                }
                Err(why) => published.unusable.push((path, why)),
            }
        }
        for path in self.files(AGENTS)? {
            if path.extension().is_none_or(|ending| ending != "signed") {
                continue;
            }
            match agent(&path, &published.site) {
                Ok((text, statement)) => {
                    let program = path.with_extension("");
                    let architecture = statement.architecture.clone();
                    published
                        .agents
                        .insert(architecture, (text, statement, program));
                }
                Err(why) => published.unusable.push((path, why)),
            }
        }
        Ok(published)
    }

    fn get<T: DeserializeOwned>(&self, file: &Path) -> io::Result<T> {
        read(&self.0.join(file))
    }

    fn files(&self, directory: &str) -> io::Result<Vec<PathBuf>> {
        let entries = match fs_err::read_dir(self.0.join(directory)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let paths = entries.map(|entry| Ok(entry?.path()));
        let mut paths: Vec<PathBuf> = paths.collect::<io::Result<_>>()?;
        // Files that are being written begin with a dot.
        paths.retain(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| !name.starts_with('.'))
        });
        paths.sort();
        Ok(paths)
    }
}

impl PublishedSpec {
    /// Verifies the signature, and that the body is what was signed.
    pub fn verify(&self, keys: &[SitePublicKey]) -> Result<SpecStatement, SignatureError> {
        verify_spec(&self.statement, self.body.as_bytes(), keys)
    }
}

/// Verifies the signature of a spec, and that the body is what was signed.
pub fn verify_spec(
    statement: &str,
    body: &[u8],
    keys: &[SitePublicKey],
) -> Result<SpecStatement, SignatureError> {
    let statement: SpecStatement = verify(Purpose::Spec, statement, keys)?;
    if statement.sha256 != sha256(body) {
        return Err(SignatureError::Signature);
    }
    Ok(statement)
}

/// Returns the SHA-256 of bytes in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn verified_spec(path: &Path, site: &SiteInfo) -> Result<(SpecStatement, PublishedSpec), String> {
    let spec: PublishedSpec = read(path).map_err(|error| error.to_string())?;
    let statement = spec.verify(&site.keys).map_err(|error| error.to_string())?;
    if statement.site != site.site {
        return Err("it is signed for another site".to_owned());
    }
    if path.file_name() != spec_file(&statement.uuid).file_name() {
        return Err("its name is not the UUID that was signed".to_owned());
    }
    Ok((statement, spec))
}

fn agent(path: &Path, site: &SiteInfo) -> Result<(String, AgentStatement), String> {
    let text = fs_err::read_to_string(path).map_err(|error| error.to_string())?;
    let statement: AgentStatement =
        verify(Purpose::Agent, &text, &site.keys).map_err(|error| error.to_string())?;
    Ok((text, statement))
}

fn spec_file(uuid: &GuestUuid) -> PathBuf {
    Path::new(SPECS).join(format!("{}.json", uuid.as_str()))
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    let bytes = fs_err::read(path)?;
    serde_json::from_slice(&bytes).map_err(|error| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("`{}`: {error}", path.display()),
        )
    })
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::signature::SiteKey;

    fn uuid() -> GuestUuid {
        GuestUuid::new("11111111-1111-4111-8111-111111111111").expect("a UUID")
    }

    fn signed(key: &SiteKey, site: &str, body: &str) -> PublishedSpec {
        let statement = SpecStatement {
            site: site.to_owned(),
            manifest: "lab".to_owned(),
            host: "local".to_owned(),
            node: "web".to_owned(),
            uuid: uuid(),
            generation: 1,
            issued: 1_800_000_000,
            sha256: sha256(body.as_bytes()),
            servers: Vec::new(),
            fingerprints: Vec::new(),
            keys: vec![key.public()],
        };
        PublishedSpec {
            statement: key.sign(Purpose::Spec, &statement).expect("signed"),
            spec: "base".to_owned(),
            body: body.to_owned(),
            first_contact: FirstContact::NodeToken,
            token_sha256: None,
            single_use: false,
            token: None,
        }
    }

    fn directory(key: &SiteKey) -> (tempfile::TempDir, PublishDirectory) {
        let root = tempfile::tempdir().expect("a directory");
        let directory = PublishDirectory::new(root.path());
        let now = Timestamp::from_second(1_800_000_000).expect("a time");
        let site = SiteInfo {
            site: "s".to_owned(),
            keys: vec![key.public()],
            operators: BTreeMap::new(),
            trusted_networks: vec!["127.0.0.0/8".to_owned()],
        };
        let secrets = ServerSecrets {
            signing_key: None,
            token_keys: BTreeMap::new(),
            intermediate: Credential::authority("s", now).expect("an authority"),
        };
        directory.put_site(&site, &secrets).expect("written");
        (root, directory)
    }

    #[test]
    fn what_was_published_is_read_back_and_removed() {
        let key = SiteKey::generate().expect("a key");
        let (_root, directory) = directory(&key);
        let spec = signed(&key, "s", "{}");
        directory.put_spec(&uuid(), &spec).expect("written");
        let published = directory.read().expect("read");
        assert_eq!(published.specs[&uuid()].1, spec);
        assert!(published.unusable.is_empty());
        assert!(published.site.trusts([127, 0, 0, 9].into()));
        assert!(!published.site.trusts([10, 0, 0, 9].into()));
        directory.remove_spec(&uuid()).expect("removed");
        directory.remove_spec(&uuid()).expect("nothing to do");
        assert!(directory.read().expect("read").specs.is_empty());
    }

    #[test]
    fn a_spec_that_the_site_did_not_sign_is_listed_and_not_served() {
        let key = SiteKey::generate().expect("a key");
        let (root, directory) = directory(&key);
        let mut changed = signed(&key, "s", "{}");
        changed.body = "{\"more\": 1}".to_owned();
        let foreign = signed(&SiteKey::generate().expect("a key"), "s", "{}");
        let other_site = signed(&key, "t", "{}");
        for spec in [changed, foreign, other_site] {
            directory.put_spec(&uuid(), &spec).expect("written");
            let published = directory.read().expect("read");
            assert!(published.specs.is_empty());
            assert_eq!(published.unusable.len(), 1);
        }
        let renamed = root
            .path()
            .join("specs/22222222-2222-4222-8222-222222222222.json");
        directory
            .put_spec(&uuid(), &signed(&key, "s", "{}"))
            .expect("written");
        fs_err::rename(root.path().join(spec_file(&uuid())), renamed).expect("renamed");
        fs_err::write(root.path().join("specs/x.json"), "{").expect("written");
        let published = directory.read().expect("read");
        assert!(published.specs.is_empty());
        assert_eq!(published.unusable.len(), 2);
    }
}
