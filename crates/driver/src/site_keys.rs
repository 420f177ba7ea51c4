//! The keys of a site, which only its driver has: they sign specs, issue certificates and mint tokens.
//!
//! They are generated when a site first needs them and stay in the state directory, readable by its
//! owner only. Nothing here reaches the process that listens but the intermediate certificate and
//! the keys that tokens are verified with.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use homestak_api::certificate::{CertificateError, Credential, Role};
use homestak_api::durable::{self, Access};
use homestak_api::lock;
use homestak_api::publication::IssuedToken;
use homestak_api::signature::{SignatureError, SiteKey, SitePublicKey};
use homestak_core::doc::scalar::SiteId;
use homestak_core::token::{Claims, GuestClaims, SigningKey, mint};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// The directory in the state directory; below it one for each site.
const DIRECTORY: &str = "site-keys";
const SITE_KEY: &str = "site.key";
const AUTHORITY: &str = "authority.json";
const OPERATOR: &str = "operator.json";
const TOKENS: &str = "tokens.json";
/// The key that signs after the current one is retired.
const NEXT_SITE_KEY: &str = "site-next.key";
/// The operator's certificate before the current one.
const PREVIOUS_OPERATOR: &str = "operator-previous.json";
/// Certificates of servers that the operator provides.
const SERVERS: &str = "servers.json";
/// How long another process may take to generate keys.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why keys of a site could not be read or created.
#[derive(Debug, thiserror::Error)]
pub enum SiteKeyError {
    /// A file could not be read or written.
    #[error("{doing} `{}`", path.display())]
    File {
        /// What was being done.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("`{}` is damaged", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// There is no key that tokens are minted with.
    #[error("the site has no usable key for provisioning tokens")]
    TokenKey,
    /// A key could not be generated or used.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// A certificate could not be issued.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

/// The keys of a site. There is no `Debug`.
pub struct SiteKeys {
    /// Signs specs.
    pub site_key: SiteKey,
    /// Signs specs once the current key is retired. Nodes learn it before that.
    pub next_site_key: Option<SiteKey>,
    /// Issues certificates.
    pub authority: Credential,
    /// Identifies this driver to servers.
    pub operator: Credential,
    /// What identified this driver before. A server that has not read the current one accepts it.
    pub previous_operator: Option<Credential>,
    /// Mints tokens; the newest is first.
    pub token_keys: Vec<TokenKey>,
    /// Certificates in PEM that servers are recognised by, beside the authority: the operator's own.
    pub servers: Vec<String>,
    /// Files that nodes rely on and that were missing: the site key and the authority are new.
    pub missing: Vec<&'static str>,
    files: Files,
}

/// A key that tokens of version 2 are minted with.
#[derive(Clone, Serialize, Deserialize)]
pub struct TokenKey {
    /// Its id.
    pub id: String,
    /// 64 hexadecimal digits.
    pub key: Zeroizing<String>,
    /// When it was generated, in seconds since 1970.
    #[serde(default)]
    pub created: i64,
}

impl SiteKeys {
    /// Reads the keys of a site without changing a file: those that are missing are replaced in
    /// memory only, and nothing recognises them.
    pub fn inspect(state: &Path, site: &SiteId, now: Timestamp) -> Result<Self, SiteKeyError> {
        let files = Files {
            directory: directory(state, site),
            is_read_only: true,
        };
        Self::read(files, site, now)
    }

    /// Reads the keys of a site; generates those that are missing. Blocks on disk I/O.
    pub fn open(state: &Path, site: &SiteId, now: Timestamp) -> Result<Self, SiteKeyError> {
        let directory = directory(state, site);
        durable::create_private(&directory).map_err(|source| SiteKeyError::File {
            doing: "create",
            path: directory.clone(),
            source,
        })?;
        let path = directory.join(".lock");
        let failed = |source| SiteKeyError::File {
            doing: "lock",
            path: path.clone(),
            source,
        };
        let file = fs_err::File::create(&path).map_err(failed)?;
        lock::lock(file.file(), PATIENCE, |_| ()).map_err(failed)?;
        let files = Files {
            directory,
            is_read_only: false,
        };
        // The lock is held until the keys are written.
        let keys = Self::read(files, site, now);
        drop(file);
        keys
    }

    /// Returns the directory of the keys.
    pub fn directory(&self) -> &Path {
        &self.files.directory
    }

    fn read(files: Files, site: &SiteId, now: Timestamp) -> Result<Self, SiteKeyError> {
        let is_missing = |name: &&str| !files.directory.join(name).exists();
        let missing = [SITE_KEY, AUTHORITY];
        let missing = missing.into_iter().filter(is_missing).collect();
        let site_key = match files.read(SITE_KEY)? {
            Some(der) => SiteKey::from_pkcs8(&der)?,
            None => {
                let key = SiteKey::generate()?;
                files.write(SITE_KEY, key.pkcs8())?;
                key
            }
        };
        let issue = || Credential::authority(&site.to_string(), now);
        let (authority, _) = files.credential(AUTHORITY, issue)?;
        let issue = || authority.issue(Role::Operator(operator_name()), now);
        let (mut operator, is_new) = files.credential(OPERATOR, issue)?;
        if !is_new && !files.is_read_only && now >= operator.due() {
            files.write(PREVIOUS_OPERATOR, operator.to_text()?.as_bytes())?;
            operator = issue()?;
            files.write(OPERATOR, operator.to_text()?.as_bytes())?;
        }
        let token_keys = match files.json(TOKENS)? {
            Some(keys) => keys,
            None => {
                let keys = vec![token_key(now)];
                files.write_json(TOKENS, &keys)?;
                keys
            }
        };
        let next = files.read(NEXT_SITE_KEY)?;
        let previous_operator = files.stored_credential(PREVIOUS_OPERATOR)?;
        Ok(Self {
            site_key,
            next_site_key: next.map(|der| SiteKey::from_pkcs8(&der)).transpose()?,
            authority,
            operator,
            previous_operator: previous_operator.filter(|one| now < one.issued().not_after),
            token_keys,
            servers: files.json(SERVERS)?.unwrap_or_default(),
            missing,
            files,
        })
    }

    /// Returns the keys that nodes accept: the one that signs now first.
    pub fn public_keys(&self) -> Vec<SitePublicKey> {
        let next = self.next_site_key.as_ref().map(SiteKey::public);
        [self.site_key.public()].into_iter().chain(next).collect()
    }

    /// Generates the key that follows the current one, unless there is one. The current one signs
    /// until it is retired: nodes accept only keys that they know.
    pub fn announce_site_key(&mut self) -> Result<(), SiteKeyError> {
        if self.next_site_key.is_none() {
            let key = SiteKey::generate()?;
            self.files.write(NEXT_SITE_KEY, key.pkcs8())?;
            self.next_site_key = Some(key);
        }
        Ok(())
    }

    /// Lets the next key sign in place of the current one, which is forgotten when
    /// [`Self::store_site_key`] is called. Returns whether there is a next one.
    pub fn retire_site_key(&mut self) -> bool {
        match self.next_site_key.take() {
            Some(next) => self.site_key = next,
            None => return false,
        }
        true
    }

    /// Stores that the next key signs now; the key before it is deleted.
    pub fn store_site_key(&self) -> Result<(), SiteKeyError> {
        let path = |name| self.files.directory.join(name);
        durable::rename(&path(NEXT_SITE_KEY), &path(SITE_KEY)).map_err(|source| {
            SiteKeyError::File {
                doing: "replace",
                path: path(SITE_KEY),
                source,
            }
        })
    }

    /// Generates a key that tokens are minted with from now on. Those before it stay valid.
    pub fn add_token_key(&mut self, now: Timestamp) -> Result<(), SiteKeyError> {
        self.token_keys.insert(0, token_key(now));
        self.files.write_json(TOKENS, &self.token_keys)
    }

    /// Forgets all token keys but the newest, and returns their ids.
    pub fn retire_token_keys(&mut self) -> Result<Vec<String>, SiteKeyError> {
        let old = self.token_keys.split_off(1.min(self.token_keys.len()));
        self.files.write_json(TOKENS, &self.token_keys)?;
        Ok(old.into_iter().map(|key| key.id).collect())
    }

    /// Stores which certificates servers are recognised by, beside the authority.
    pub fn set_servers(&mut self, servers: Vec<String>) -> Result<(), SiteKeyError> {
        self.files.write_json(SERVERS, &servers)?;
        self.servers = servers;
        Ok(())
    }

    /// Mints a token for a node and its guest. The same arguments give the same token.
    pub fn mint(
        &self,
        site: &SiteId,
        (node, spec, uuid): (&str, &str, &str),
        issued: &IssuedToken,
    ) -> Result<Zeroizing<String>, SiteKeyError> {
        let key = self.token_keys.first().ok_or(SiteKeyError::TokenKey)?;
        let signing = SigningKey::from_hex(&key.key).map_err(|_| SiteKeyError::TokenKey)?;
        let claims = Claims {
            node: node.to_owned(),
            spec: spec.to_owned(),
            issued_at: issued.issued,
            guest: Some(GuestClaims {
                uuid: uuid.to_owned(),
                site: site.to_string(),
                token_id: issued.id.clone(),
                key_id: key.id.clone(),
                expires_at: issued.expires,
            }),
        };
        Ok(Zeroizing::new(mint(&claims, &signing)))
    }
}

fn token_key(now: Timestamp) -> TokenKey {
    let random = || uuid::Uuid::new_v4().simple().to_string();
    TokenKey {
        id: random()[..8].to_owned(),
        // Two random UUIDs have 244 random bits.
        key: Zeroizing::new(random() + &random()),
        created: now.as_second(),
    }
}

/// The name of the operator in logs of a server.
fn operator_name() -> String {
    let name = rustix::system::uname();
    format!("driver on {}", name.nodename().to_string_lossy())
}

fn directory(state: &Path, site: &SiteId) -> PathBuf {
    state.join(DIRECTORY).join(site.to_string())
}

struct Files {
    directory: PathBuf,
    /// Whether nothing is written: what is generated is forgotten again.
    is_read_only: bool,
}

impl Files {
    fn read(&self, name: &str) -> Result<Option<Zeroizing<Vec<u8>>>, SiteKeyError> {
        let path = self.directory.join(name);
        match fs_err::read(&path) {
            Ok(bytes) => Ok(Some(Zeroizing::new(bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(SiteKeyError::File {
                doing: "read",
                path,
                source,
            }),
        }
    }

    fn write(&self, name: &str, content: &[u8]) -> Result<(), SiteKeyError> {
        if self.is_read_only {
            return Ok(());
        }
        let path = self.directory.join(name);
        durable::write(&path, content, Access::PRIVATE).map_err(|source| SiteKeyError::File {
            doing: "write",
            path,
            source,
        })
    }

    fn damaged(&self, name: &str) -> SiteKeyError {
        SiteKeyError::Damaged {
            path: self.directory.join(name),
        }
    }

    /// Reads a credential, or stores a new one. Returns whether it is new.
    fn credential(
        &self,
        name: &str,
        issue: impl Fn() -> Result<Credential, CertificateError>,
    ) -> Result<(Credential, bool), SiteKeyError> {
        if let Some(stored) = self.stored_credential(name)? {
            return Ok((stored, false));
        }
        let new = issue()?;
        self.write(name, new.to_text()?.as_bytes())?;
        Ok((new, true))
    }

    fn stored_credential(&self, name: &str) -> Result<Option<Credential>, SiteKeyError> {
        let Some(bytes) = self.read(name)? else {
            return Ok(None);
        };
        let text = std::str::from_utf8(&bytes).map_err(|_| self.damaged(name))?;
        let read = Credential::from_text(text).map_err(|_| self.damaged(name))?;
        Ok(Some(read))
    }

    fn json<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<Option<T>, SiteKeyError> {
        let Some(bytes) = self.read(name)? else {
            return Ok(None);
        };
        let read = serde_json::from_slice(&bytes);
        read.map(Some).map_err(|_| self.damaged(name))
    }

    fn write_json(&self, name: &str, value: &impl Serialize) -> Result<(), SiteKeyError> {
        let text = serde_json::to_vec_pretty(value).map_err(|_| self.damaged(name))?;
        self.write(name, &Zeroizing::new(text))
    }
}

#[cfg(test)]
mod tests;
