//! Settings of a Proxmox VE connection: addresses, trust, credentials, limits. Secrets have no `Debug`.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use homestak_api::trust::Trust;
use homestak_core::doc::timeouts::{Limit, Timeouts};

/// How a Proxmox VE is reached.
#[derive(Clone)]
pub struct PveSettings {
    /// The address requests go to when no better one is known.
    pub endpoint: Endpoint,
    /// Addresses of single hosts by name, so that the host that owns a guest is asked directly.
    pub nodes: BTreeMap<String, Endpoint>,
    /// Our credentials.
    pub credential: Credential,
    /// Ids for guests whose id was left open. Those outside of the cluster's own range are not
    /// used.
    pub vmids: RangeInclusive<u32>,
    /// Limits and deadlines.
    pub limits: PveLimits,
}

impl PveSettings {
    /// Uses one address with the usual limits.
    pub fn new(endpoint: Endpoint, credential: Credential) -> Self {
        Self {
            endpoint,
            nodes: BTreeMap::new(),
            credential,
            // Far from where people count from (100), and five digits as in many manifests.
            vmids: 10_000..=89_999,
            limits: PveLimits::default(),
        }
    }
}

/// An address, and the certificate to trust there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Such as `https://pve1:8006`.
    pub url: String,
    /// Which certificate to trust.
    pub trust: Trust,
}

/// Credentials. There is no `Debug`.
#[derive(Clone)]
pub enum Credential {
    /// An API token.
    Token(ApiToken),
    /// A login, for the few things no token may do.
    Login {
        /// Such as `root@pam`.
        user: String,
        /// The password.
        password: Password,
    },
}

impl Credential {
    /// Returns the user that tasks are listed under.
    pub fn user(&self) -> &str {
        match self {
            Self::Token(token) => token.id(),
            Self::Login { user, .. } => user,
        }
    }
}

/// A password. There is no `Debug`.
#[derive(Clone)]
pub struct Password(String);

impl Password {
    /// Takes the text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Hands the text out; only the login uses it.
    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

/// An API token: `user@realm!name=secret`. There is no `Debug`.
#[derive(Clone)]
pub struct ApiToken {
    id: String,
    secret: String,
}

/// Why a text is no API token. The text itself is never part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiTokenError {
    /// There is no `=`.
    #[error("the token has no `=`; it is written `user@realm!name=secret`")]
    NoSecret,
    /// The part before `=` is wrong.
    #[error("the token's id is not `user@realm!name`")]
    BadId,
    /// The part after `=` is wrong.
    #[error("the token's secret is not a UUID")]
    BadSecret,
}

impl ApiToken {
    /// Reads `user@realm!name=secret`, also with `PVEAPIToken=` before it.
    pub fn parse(text: &str) -> Result<Self, ApiTokenError> {
        let text = text.trim();
        let text = text.strip_prefix("PVEAPIToken=").unwrap_or(text);
        let (id, secret) = text.split_once('=').ok_or(ApiTokenError::NoSecret)?;
        let (user, name) = id.rsplit_once('!').ok_or(ApiTokenError::BadId)?;
        let (account, realm) = user.rsplit_once('@').ok_or(ApiTokenError::BadId)?;
        let word = |text: &str, least: usize| {
            text.len() >= least
                && text.starts_with(|first: char| first.is_ascii_alphanumeric())
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        };
        // The API refuses names of one character.
        let plain = |byte: u8| byte.is_ascii_graphic() && !b":/!=\"".contains(&byte);
        if account.is_empty() || !account.bytes().all(plain) || !word(realm, 1) || !word(name, 2) {
            return Err(ApiTokenError::BadId);
        }
        let hex = secret
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        if !hex || secret.len() != 36 {
            return Err(ApiTokenError::BadSecret);
        }
        Ok(Self {
            id: id.to_owned(),
            secret: secret.to_owned(),
        })
    }

    /// Returns `user@realm!name`, which is no secret.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the header's value; only the transport uses it.
    pub(super) fn header(&self) -> String {
        format!("PVEAPIToken={}={}", self.id, self.secret)
    }
}

/// Limits and deadlines, each with its reason.
#[derive(Clone, Debug)]
pub struct PveLimits {
    /// Requests in flight per address. The proxy has three workers; more only queue.
    pub in_flight: usize,
    /// Uploads in flight per address; they do not hold a worker, but the disk.
    pub uploads: usize,
    /// How long a connection may take.
    pub connect: Duration,
    /// How long an answer may take. Locks take up to 10 s and queue behind each other, so less
    /// than 30 s would abort requests that succeed.
    pub answer: Duration,
    /// How long an upload may make no progress.
    pub upload_stall: Duration,
    /// How long to wait for a lock of another process.
    pub lock: Duration,
    /// How long a task may show no progress.
    pub task_stall: Duration,
    /// How long the host of a task may be unreachable before the step is retried.
    pub task_unreachable: Duration,
    /// How long to determine the result of a request whose response was lost.
    pub settle: Duration,
    /// How long a lost request may still be in transit: the proxy times out after 30 s.
    pub grace: Duration,
    /// Changes at once per (host, storage) at first; it adapts.
    pub per_storage: usize,
}

/// Limit of `task_unreachable`.
const LOST_CONTACT: Duration = Duration::from_secs(30);

impl From<&Timeouts> for PveLimits {
    fn from(timeouts: &Timeouts) -> Self {
        Self {
            in_flight: 4,
            uploads: 2,
            connect: timeouts.of(Limit::Connect),
            answer: timeouts.of(Limit::Answer),
            upload_stall: timeouts.of(Limit::Upload),
            lock: timeouts.of(Limit::Lock),
            task_stall: timeouts.of(Limit::Task),
            task_unreachable: timeouts.of(Limit::Api).min(LOST_CONTACT),
            settle: timeouts.of(Limit::Settle),
            grace: Duration::from_secs(30),
            per_storage: 2,
        }
    }
}

impl Default for PveLimits {
    fn default() -> Self {
        Self::from(&Timeouts::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_validated() {
        let secret = "0f0e0d0c-0b0a-4908-8706-050403020100";
        let token = ApiToken::parse(&format!("homestak@pve!driver={secret}\n")).expect("a token");
        assert_eq!(token.id(), "homestak@pve!driver");
        assert!(ApiToken::parse(&format!("PVEAPIToken=root@pam!lab={secret}")).is_ok());
        for (text, error) in [
            ("root@pam!lab".to_owned(), ApiTokenError::NoSecret),
            (format!("root@pam={secret}"), ApiTokenError::BadId),
            (format!("root!lab={secret}"), ApiTokenError::BadId),
            (format!("root@pam!t={secret}"), ApiTokenError::BadId),
            ("root@pam!lab=hunter2".to_owned(), ApiTokenError::BadSecret),
        ] {
            assert_eq!(ApiToken::parse(&text).err(), Some(error), "{text}");
        }
    }
}
