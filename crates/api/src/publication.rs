//! The files that a driver publishes for a server: signed specs, keys and information on the site.
//!
//! Flow: the driver writes a directory; the server reads it at start and on reload, and never
//! writes there.
//! Guarantees: each file is replaced whole; a spec is served only when its signature is the site's.
//! Assumptions: only the driver can write to the directory, and only the server and the driver can
//! read it, since `secrets.json` has the keys that tokens are verified with.
//! When it goes wrong: a file that cannot be used is reported by name and not served; the others are.

mod repo;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use homestak_core::doc::address::Cidr;
use homestak_core::doc::manifest::Mode;
use homestak_core::hex;
use homestak_core::observed::GuestUuid;
use homestak_core::resolve::trigger::ServerTrigger;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::certificate::Credential;
use crate::durable::{self, Access};
use crate::signature::{Purpose, SignatureError, SitePublicKey, verify};
use crate::trusted_path;

use repo::REPOS;
pub use repo::{PublishedPack, PublishedRepo, WORKING, is_repo_name};

/// The bit that gives new files the group of their directory.
const SETGID: u32 = 0o2000;

const SITE: &str = "site.json";
const SECRETS: &str = "secrets.json";
const SPECS: &str = "specs";
const AGENTS: &str = "agents";
const WITHDRAWN: &str = "withdrawn";
/// How the name of an agent's signed statement ends.
const STATEMENT: &str = ".signed";

/// The header that carries the signed statement of a spec.
pub const STATEMENT_HEADER: &str = "homestak-statement";

/// Why the spec of a guest that was destroyed is withdrawn, and its node revoked.
pub const DESTROYED: &str = "destroyed";

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
    /// Rises with every program that is published; a node refuses lower ones, so that a server cannot
    /// bring an older one back. 0 in statements of earlier versions.
    #[serde(default)]
    pub generation: u64,
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
    /// The provisioning token that was issued for the node, until the driver saw it used.
    pub token: Option<IssuedToken>,
    /// Whether a provisioning token was issued for the node at any time, or it has enrolled: the network
    /// is then no proof, also for a server that lost its registry. Absent in what earlier drivers
    /// published, who may have removed a token that was used.
    #[serde(default = "yes")]
    pub had_token: bool,
    /// Set when the operator revoked the node: a server that lost its registry still refuses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<PublishedRevocation>,
    /// Who starts the configuration of the node, for the driver; a server ignores it. Absent in what
    /// older drivers published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The trigger that the server handles. A job of it only has the node fetch and apply this spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<ServerTrigger>,
}

fn yes() -> bool {
    true
}

/// A node that was revoked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedRevocation {
    /// When, in seconds since 1970.
    pub at: i64,
    /// Why.
    pub reason: String,
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

/// Public information on a site that its server needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteInfo {
    /// The site's id.
    pub site: String,
    /// Keys that specs are signed with.
    pub keys: Vec<SitePublicKey>,
    /// Operators: fingerprints of their client certificates, with a name.
    pub operators: BTreeMap<String, String>,
    /// Names of the site's specs.
    #[serde(default)]
    pub specs: BTreeSet<String>,
    /// Networks from which [`FirstContact::Network`] is accepted.
    pub trusted_networks: Vec<String>,
    /// Names and addresses in the URLs that nodes use, for the certificate of the server. Empty in what
    /// earlier drivers published.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub server_names: Vec<String>,
}

impl SiteInfo {
    /// Returns whether an address is in one of the trusted networks.
    pub fn trusts(&self, address: std::net::IpAddr) -> bool {
        let networks = self.trusted_networks.iter();
        let mut networks = networks.filter_map(|network| Cidr::parse(network));
        networks.any(|network| network.contains(address))
    }
}

/// Secrets of the server. There is no `Debug`.
#[derive(Serialize, Deserialize)]
pub struct ServerSecrets {
    /// The key of tokens of version 1, in hexadecimal; they are refused when there is none.
    pub signing_key: Option<zeroize::Zeroizing<String>>,
    /// Keys of tokens of version 2 by their ids, in hexadecimal.
    pub token_keys: BTreeMap<String, zeroize::Zeroizing<String>>,
    /// What certificates of nodes are issued with.
    pub intermediate: Credential,
    /// SHA-256 of the token for repositories, in hexadecimal; none are served without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo_token_sha256: Option<String>,
    /// Secrets of webhooks by name, as the site's secrets have them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub webhooks: BTreeMap<String, zeroize::Zeroizing<String>>,
}

/// A directory that a driver publishes to.
#[derive(Clone, Debug)]
pub struct PublishDirectory(PathBuf);

/// Everything that was published.
pub struct Published {
    /// Public information on the site.
    pub site: SiteInfo,
    /// Secrets of the server.
    pub secrets: ServerSecrets,
    /// Specs by the guest's UUID.
    pub specs: BTreeMap<GuestUuid, (SpecStatement, PublishedSpec)>,
    /// Agents by architecture: the signed statement, its content, and the program's file.
    pub agents: BTreeMap<String, (String, AgentStatement, PathBuf)>,
    /// Guests whose spec was withdrawn, and not published again.
    pub withdrawn: BTreeMap<GuestUuid, PublishedRevocation>,
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

    /// Returns whether anything was published.
    pub fn exists(&self) -> bool {
        self.0.join(SITE).exists()
    }

    /// Writes the information on the site and the secrets of the server.
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

    /// Returns the spec of a guest, to be replaced: one that is damaged counts as missing.
    pub fn spec_to_replace(&self, uuid: &GuestUuid) -> io::Result<Option<PublishedSpec>> {
        match self.spec(uuid) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
            found => found,
        }
    }

    /// Returns whether a guest has a published spec, usable or not.
    pub fn has_spec(&self, uuid: &GuestUuid) -> bool {
        self.0.join(spec_file(uuid)).exists()
    }

    /// Writes the spec of a guest. It is no longer withdrawn then: another guest has its UUID, or it
    /// fetches its spec again.
    pub fn put_spec(&self, uuid: &GuestUuid, spec: &PublishedSpec) -> io::Result<()> {
        self.put(&spec_file(uuid), spec)?;
        self.remove(&withdrawn_file(uuid))
    }

    /// Removes the spec of a guest, if it exists.
    pub fn remove_spec(&self, uuid: &GuestUuid) -> io::Result<()> {
        self.remove(&spec_file(uuid))
    }

    /// Removes the spec of a guest, and has the next server that reads this revoke its node.
    pub fn withdraw_spec(&self, uuid: &GuestUuid, why: &PublishedRevocation) -> io::Result<()> {
        // First: it does not count while the spec is there, and nobody would write it afterwards.
        self.put(&withdrawn_file(uuid), why)?;
        self.remove_spec(uuid)
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        match fs_err::remove_file(self.0.join(file)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Returns the guests whose spec was withdrawn. A file that cannot be read is left out: its guest
    /// has no spec, which is enough to refuse it.
    fn withdrawn(&self) -> io::Result<BTreeMap<GuestUuid, PublishedRevocation>> {
        let mut withdrawn = BTreeMap::new();
        for path in self.files(WITHDRAWN)? {
            let name = path.file_stem().and_then(|name| name.to_str());
            if let Some(guest) = name.and_then(GuestUuid::new)
                && !self.has_spec(&guest)
                && let Ok(why) = read(&path)
            {
                withdrawn.insert(guest, why);
            }
        }
        Ok(withdrawn)
    }

    /// Returns the published specs of all guests, as they are. Files that cannot be read are left out.
    pub fn specs(&self) -> io::Result<Vec<PublishedSpec>> {
        let files = self.files(SPECS)?;
        Ok(files.iter().filter_map(|file| read(file).ok()).collect())
    }

    /// Returns the published statements of agents, by architecture.
    pub fn agents(&self) -> io::Result<Vec<(String, String)>> {
        let mut agents = Vec::new();
        for path in self.files(AGENTS)? {
            let name = path.file_name().and_then(|name| name.to_str());
            if let Some(architecture) = name.and_then(|name| name.strip_suffix(STATEMENT)) {
                agents.push((architecture.to_owned(), fs_err::read_to_string(&path)?));
            }
        }
        Ok(agents)
    }

    /// Writes the signed statement of an agent whose program is published.
    pub fn put_agent_statement(&self, architecture: &str, statement: &str) -> io::Result<()> {
        let file = Path::new(AGENTS).join(format!("{architecture}{STATEMENT}"));
        self.write(&file, statement.as_bytes())
    }

    /// Returns the paths of all files, relative to the directory, in the order in which they are
    /// written: what a statement is about comes before it.
    pub fn all_files(&self) -> io::Result<Vec<PathBuf>> {
        let mut all = self.repo_files()?;
        all.extend(self.small_files()?);
        Ok(all)
    }

    /// Returns the paths of all files but those of repositories.
    fn small_files(&self) -> io::Result<Vec<PathBuf>> {
        let mut all = [SECRETS, SITE].map(PathBuf::from).to_vec();
        all.retain(|file| self.0.join(file).exists());
        for directory in [AGENTS, WITHDRAWN, SPECS] {
            let files = self.files(directory)?;
            let names = files.iter().filter_map(|file| file.file_name());
            all.extend(names.map(|name| Path::new(directory).join(name)));
        }
        Ok(all)
    }

    /// Makes this directory equal to another. Files are replaced one by one, each whole. Returns
    /// whether anything was different.
    ///
    /// Files are written and deleted by name, so nobody else may be able to replace a directory.
    pub fn copy_from(&self, other: &Self) -> io::Result<bool> {
        self.require_own()?;
        let mut is_changed = self.copy_repos_from(other)?;
        let files = other.small_files()?;
        for file in &files {
            let content = match fs_err::read(other.0.join(file)) {
                // Removed since: whoever removed it copies again.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                content => content?,
            };
            if fs_err::read(self.0.join(file)).ok().as_ref() != Some(&content) {
                self.write(file, &content)?;
                is_changed = true;
            }
        }
        for file in self.small_files()? {
            if !files.contains(&file) && is_published(&file) {
                fs_err::remove_file(self.0.join(file))?;
                is_changed = true;
            }
        }
        Ok(is_changed)
    }

    /// Requires that the directory and those in it belong to root or this user, and that others can
    /// write to none of them.
    fn require_own(&self) -> io::Result<()> {
        let directory = trusted_path::resolve(&self.0)?;
        directory.require_unshared().map_err(io::Error::other)?;
        for name in [SPECS, AGENTS, WITHDRAWN, REPOS] {
            let expected = directory.path.join(name);
            let found = match trusted_path::resolve(&expected) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                found => found?,
            };
            if found.path != expected {
                let text = format!("`{}` is a link", expected.display());
                return Err(io::Error::other(text));
            }
            found.require_unshared().map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// Returns the published statement of the agent for an architecture, if it is one of the site's.
    pub fn agent(&self, architecture: &str, keys: &[SitePublicKey]) -> Option<AgentStatement> {
        let file = self
            .0
            .join(AGENTS)
            .join(format!("{architecture}{STATEMENT}"));
        let text = fs_err::read_to_string(file).ok()?;
        verify(Purpose::Agent, &text, keys).ok()
    }

    /// Writes an agent's program and its signed statement.
    pub fn put_agent(&self, architecture: &str, program: &[u8], statement: &str) -> io::Result<()> {
        self.write(&Path::new(AGENTS).join(architecture), program)?;
        self.put_agent_statement(architecture, statement)
    }

    fn put(&self, file: &Path, value: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_string_pretty(value).map_err(io::Error::other)?;
        self.write(file, text.as_bytes())
    }

    /// Writes a file that only its owner can read. In a directory with the setgid bit, its group can
    /// as well: that of a server with a user of its own.
    fn write(&self, file: &Path, content: &[u8]) -> io::Result<()> {
        let path = self.0.join(file);
        let parent = path.parent().unwrap_or(&self.0);
        durable::create_private(&self.0)?;
        let root = fs_err::metadata(&self.0)?;
        if root.mode() & SETGID == 0 {
            durable::create_private(parent)?;
            return durable::write(&path, content, Access::PRIVATE);
        }
        if !parent.exists() {
            durable::create_private(parent)?;
            std::os::unix::fs::chown(parent, None, Some(root.gid()))?;
            let mode = std::fs::Permissions::from_mode(SETGID | 0o750);
            fs_err::set_permissions(parent, mode)?;
        }
        let access = Access {
            mode: 0o640,
            owner: Some((root.uid(), root.gid())),
        };
        durable::write(&path, content, access)
    }

    /// Reads everything. Specs and agents that cannot be used are listed, not served.
    pub fn read(&self) -> io::Result<Published> {
        let site: SiteInfo = self.get(Path::new(SITE))?;
        let secrets: ServerSecrets = self.get(Path::new(SECRETS))?;
        let mut published = Published {
            specs: BTreeMap::new(),
            agents: BTreeMap::new(),
            withdrawn: self.withdrawn()?,
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
    hex::encode(&Sha256::digest(bytes))
}

/// Returns whether a file has a name of one that is published.
fn is_published(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    match file.parent() {
        Some(parent) if parent == Path::new(AGENTS) => {
            let architecture = name.strip_suffix(STATEMENT).unwrap_or(&name);
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            architecture.chars().all(is_word)
        }
        Some(parent) if parent == Path::new("") => true,
        _ => name.ends_with(".json"),
    }
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

fn withdrawn_file(uuid: &GuestUuid) -> PathBuf {
    Path::new(WITHDRAWN).join(format!("{}.json", uuid.as_str()))
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
mod tests;
