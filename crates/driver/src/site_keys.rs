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
const PREVIOUS: &str = "previous.json";
/// How long another process may take to generate keys.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why keys of a site could not be read or made.
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
    /// Keys that signed specs before, and are still accepted.
    pub previous: Vec<SitePublicKey>,
    /// Issues certificates.
    pub authority: Credential,
    /// Identifies this driver to servers.
    pub operator: Credential,
    /// Mints tokens; the newest is first.
    pub token_keys: Vec<TokenKey>,
}

/// A key that tokens of version 2 are minted with.
#[derive(Clone, Serialize, Deserialize)]
pub struct TokenKey {
    /// Its id.
    pub id: String,
    /// 64 hexadecimal digits.
    pub key: Zeroizing<String>,
}

impl SiteKeys {
    /// Reads the keys of a site; generates those that are missing. It waits for the disk.
    pub fn open(state: &Path, site: &SiteId, now: Timestamp) -> Result<Self, SiteKeyError> {
        let directory = state.join(DIRECTORY).join(site.to_string());
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
        let files = Files(directory);
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
        if !is_new && now >= operator.due() {
            operator = issue()?;
            files.write(OPERATOR, operator.to_text()?.as_bytes())?;
        }
        let token_keys = match files.json(TOKENS)? {
            Some(keys) => keys,
            None => {
                let keys = vec![token_key()];
                files.write_json(TOKENS, &keys)?;
                keys
            }
        };
        let previous = files.json(PREVIOUS)?.unwrap_or_default();
        Ok(Self {
            site_key,
            previous,
            authority,
            operator,
            token_keys,
        })
    }

    /// Returns the keys that nodes accept: the one that signs now first.
    pub fn public_keys(&self) -> Vec<SitePublicKey> {
        let mut keys = vec![self.site_key.public()];
        keys.extend(&self.previous);
        keys
    }

    /// Mints a token for a guest. Returns it with its id.
    pub fn mint(
        &self,
        site: &SiteId,
        (node, spec, uuid): (&str, &str, &str),
        now: Timestamp,
        lifetime: Duration,
    ) -> Option<(Zeroizing<String>, GuestClaims)> {
        let key = self.token_keys.first()?;
        let signing = SigningKey::from_hex(&key.key).ok()?;
        let guest = GuestClaims {
            uuid: uuid.to_owned(),
            site: site.to_string(),
            token_id: uuid::Uuid::new_v4().simple().to_string(),
            key_id: key.id.clone(),
            expires_at: (now + lifetime).as_second(),
        };
        let claims = Claims {
            node: node.to_owned(),
            spec: spec.to_owned(),
            issued_at: now.as_second(),
            guest: Some(guest.clone()),
        };
        Some((Zeroizing::new(mint(&claims, &signing)), guest))
    }
}

fn token_key() -> TokenKey {
    let random = || uuid::Uuid::new_v4().simple().to_string();
    TokenKey {
        id: random()[..8].to_owned(),
        // Two random UUIDs have 244 random bits.
        key: Zeroizing::new(random() + &random()),
    }
}

/// The name of the operator in logs of a server.
fn operator_name() -> String {
    let name = rustix::system::uname();
    format!("driver on {}", name.nodename().to_string_lossy())
}

struct Files(PathBuf);

impl Files {
    fn read(&self, name: &str) -> Result<Option<Zeroizing<Vec<u8>>>, SiteKeyError> {
        let path = self.0.join(name);
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
        let path = self.0.join(name);
        durable::write(&path, content, Access::PRIVATE).map_err(|source| SiteKeyError::File {
            doing: "write",
            path,
            source,
        })
    }

    fn damaged(&self, name: &str) -> SiteKeyError {
        SiteKeyError::Damaged {
            path: self.0.join(name),
        }
    }

    /// Reads a credential, or stores a new one. Returns whether it is new.
    fn credential(
        &self,
        name: &str,
        issue: impl Fn() -> Result<Credential, CertificateError>,
    ) -> Result<(Credential, bool), SiteKeyError> {
        let Some(bytes) = self.read(name)? else {
            let new = issue()?;
            self.write(name, new.to_text()?.as_bytes())?;
            return Ok((new, true));
        };
        let text = std::str::from_utf8(&bytes).map_err(|_| self.damaged(name))?;
        let read = Credential::from_text(text).map_err(|_| self.damaged(name))?;
        Ok((read, false))
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
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use homestak_core::token::{TokenKeys, verify_at};

    use super::*;

    fn site() -> SiteId {
        SiteId::from_random([7; 16])
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).expect("a time")
    }

    #[test]
    fn keys_are_generated_once_and_only_their_owner_reads_them() {
        let state = tempfile::tempdir().expect("a directory");
        let first = SiteKeys::open(state.path(), &site(), now()).expect("keys");
        let again = SiteKeys::open(state.path(), &site(), now()).expect("the same keys");
        assert_eq!(first.public_keys(), again.public_keys());
        assert_eq!(first.authority.issued(), again.authority.issued());
        assert_eq!(first.operator.issued(), again.operator.issued());
        let directory = state.path().join(DIRECTORY).join(site().to_string());
        let mode = |path: &Path| {
            let found = fs_err::metadata(path).expect("there");
            found.permissions().mode() & 0o777
        };
        assert_eq!(mode(&directory), 0o700);
        for name in [SITE_KEY, AUTHORITY, OPERATOR, TOKENS] {
            assert_eq!(mode(&directory.join(name)), 0o600, "{name}");
        }
    }

    #[test]
    fn the_operators_certificate_is_renewed_before_it_expires() {
        let state = tempfile::tempdir().expect("a directory");
        let first = SiteKeys::open(state.path(), &site(), now()).expect("keys");
        let later = now() + Duration::from_secs(300 * 24 * 3600);
        let renewed = SiteKeys::open(state.path(), &site(), later).expect("keys");
        assert_ne!(first.operator.issued(), renewed.operator.issued());
        assert_eq!(first.authority.issued(), renewed.authority.issued());
    }

    #[test]
    fn a_minted_token_is_for_its_guest_and_expires() {
        let state = tempfile::tempdir().expect("a directory");
        let keys = SiteKeys::open(state.path(), &site(), now()).expect("keys");
        let hour = Duration::from_secs(3600);
        let guest = ("web", "base", "a-guest");
        let (token, claims) = keys.mint(&site(), guest, now(), hour).expect("a token");
        let key = &keys.token_keys[0];
        let known = TokenKeys::from_hex(None, [(key.id.as_str(), key.key.as_str())]);
        let known = known.expect("keys");
        let site = site().to_string();
        let verify = |at: Timestamp| verify_at(&token, &known, Some("web"), &site, at.as_second());
        assert_eq!(verify(now()).expect("valid").guest, Some(claims));
        verify(now() + hour).expect_err("expired");
    }

    #[test]
    fn a_damaged_file_is_named_and_not_replaced() {
        let state = tempfile::tempdir().expect("a directory");
        SiteKeys::open(state.path(), &site(), now()).expect("keys");
        let path = state
            .path()
            .join(DIRECTORY)
            .join(site().to_string())
            .join(AUTHORITY);
        fs_err::write(&path, "{").expect("written");
        let error = SiteKeys::open(state.path(), &site(), now())
            .map(drop)
            .expect_err("damaged");
        assert!(error.to_string().contains(AUTHORITY), "{error}");
        assert_eq!(fs_err::read(&path).expect("read"), b"{");
    }
}
