//! Replaces the site key and the keys of provisioning tokens, in two steps each.
//!
//! Flow: the first step makes a new key known; the second retires the old one. In between both are
//! accepted. Nodes accept only site keys that they know, so the old site key signs until it is
//! retired, and every statement that it signs names the new one.
//! Guarantees: killed at any point, the step can be repeated.
//! When it goes wrong: a node that has not fetched a statement with the new key refuses everything
//! after the second step, and must enrol again.

use homestak_api::publication::SpecStatement;
use homestak_api::signature::SitePublicKey;
use jiff::Timestamp;

use super::{ServerEndpoint, ServerLease, SiteServer};
use crate::blocking::run_blocking;
use crate::error::DriverError;
use crate::publish::PublishError;

/// The keys after a rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRotation {
    /// The id of the key that is used from now on.
    pub current: String,
    /// The id of the site key that follows it.
    pub next: Option<String>,
    /// The ids of keys that are no longer accepted.
    pub retired: Vec<String>,
    /// How many specs were signed again.
    pub n_signed: usize,
}

impl KeyRotation {
    fn of_site(
        site: &SiteServer,
        retired: Option<SitePublicKey>,
        signed: &[SpecStatement],
    ) -> Self {
        let keys = site.publisher.keys.public_keys();
        let mut ids = keys.iter().map(SitePublicKey::id);
        Self {
            current: ids.next().unwrap_or_default(),
            next: ids.next(),
            retired: retired.iter().map(SitePublicKey::id).collect(),
            n_signed: signed.len(),
        }
    }
}

/// Makes a new site key known to nodes, or retires the current one in favour of it.
pub async fn rotate_site_key(
    lease: &ServerLease,
    is_retired: bool,
) -> Result<KeyRotation, DriverError> {
    let change = move |site: &mut SiteServer, now| {
        let publisher = &mut site.publisher;
        if !is_retired {
            publisher.keys.announce_site_key()?;
            let signed = publisher.sign_again(&[], now)?;
            return Ok(Some(KeyRotation::of_site(site, None, &signed)));
        }
        let old = publisher.keys.site_key.public();
        if !publisher.keys.retire_site_key() {
            return Ok(None);
        }
        // Before it is stored: with both keys, this can be repeated.
        let signed = publisher.sign_again(&[old], now)?;
        publisher.keys.store_site_key()?;
        Ok(Some(KeyRotation::of_site(site, Some(old), &signed)))
    };
    let rotated = lease.change_keys(change).await?;
    rotated.ok_or_else(|| nothing_to_retire("site"))
}

/// Mints tokens with a new key from now on, or retires all keys but the newest.
pub async fn rotate_token_key(
    lease: &ServerLease,
    is_retired: bool,
) -> Result<KeyRotation, DriverError> {
    let change = move |site: &mut SiteServer, now| {
        let keys = &mut site.publisher.keys;
        let retired = match is_retired {
            true if keys.token_keys.len() < 2 => return Ok(None),
            true => keys.retire_token_keys()?,
            false => {
                keys.add_token_key(now)?;
                Vec::new()
            }
        };
        let current = keys.token_keys.first().map(|key| key.id.clone());
        Ok(Some(KeyRotation {
            current: current.unwrap_or_default(),
            next: None,
            retired,
            n_signed: 0,
        }))
    };
    let rotated = lease.change_keys(change).await?;
    rotated.ok_or_else(|| nothing_to_retire("token"))
}

fn nothing_to_retire(key: &str) -> DriverError {
    DriverError::refused(format!("There is only one {key} key.")).hint(format!(
        "first run homestak server rotate-key {key}: it publishes a new key"
    ))
}

impl ServerLease {
    /// Changes keys or certificates, publishes the result, and has a server that runs read it.
    pub(super) async fn change_keys<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut SiteServer, Timestamp) -> Result<T, PublishError> + Send + 'static,
    ) -> Result<T, DriverError> {
        let (session, settings) = (self.session.clone(), self.settings.clone());
        // Not that of this lease, whose keys stay what they were.
        let changed = run_blocking(move || {
            let endpoint = ServerEndpoint::of_site(&session, &settings)?;
            let mut site = SiteServer::open(&session, &settings, endpoint)?;
            let client = site.client()?;
            let now = settings.time.now();
            let done = change(&mut site, now).map_err(|error| super::site::failed(&error))?;
            site.publish_site(now)?;
            site.copy_to_server(&settings)?;
            Ok((done, site, client))
        });
        // Cancel safety: each step can be repeated.
        let (done, site, before) = changed.await?;
        // By the certificates before the change, or by those after it.
        for client in [before, site.client()?] {
            if site.is_healthy(&client).await? {
                client.reload().await?;
                break;
            }
        }
        Ok(done)
    }

    /// Returns the names of nodes that have not reported the generation that is published for them:
    /// they do not know its keys and certificates.
    pub async fn nodes_behind(&self) -> Result<Vec<String>, DriverError> {
        let site = self.site().await?;
        // Cancel safety: only reads.
        let published = run_blocking(move || {
            let directory = &site.publisher.directory;
            let failed = |error| DriverError::file("read", directory.path(), &error);
            let keys = site.publisher.keys.public_keys();
            let specs = directory.specs().map_err(failed)?.into_iter();
            let specs = specs.filter(|spec| spec.revoked.is_none());
            Ok(specs
                .filter_map(|spec| spec.verify(&keys).ok())
                .collect::<Vec<_>>())
        });
        let mut behind = Vec::new();
        for statement in published.await? {
            let reports = self.reports(statement.uuid.as_str()).await?;
            let has = |of: Option<u64>| of.is_some_and(|of| of >= statement.generation);
            if !reports.iter().any(|one| has(one.report.generation)) {
                behind.push(statement.node);
            }
        }
        behind.sort();
        Ok(behind)
    }

    /// Returns the names of nodes whose tokens are not used yet and were minted with an older key.
    pub async fn nodes_with_old_tokens(&self) -> Result<Vec<String>, DriverError> {
        let (site, now) = (self.site().await?, self.settings.time.now().as_second());
        // Cancel safety: only reads.
        run_blocking(move || {
            let (publisher, directory) = (&site.publisher, &site.publisher.directory);
            let failed = |error| DriverError::file("read", directory.path(), &error);
            let newest = publisher.keys.token_keys.first();
            let newest = newest.map_or(0, |key| key.created);
            let keys = publisher.keys.public_keys();
            let mut nodes = Vec::new();
            for spec in directory.specs().map_err(failed)? {
                let is_old = |token: &homestak_api::publication::IssuedToken| {
                    token.issued < newest && now < token.expires
                };
                if spec.token.as_ref().is_some_and(is_old)
                    && let Ok(statement) = spec.verify(&keys)
                {
                    nodes.push(statement.node);
                }
            }
            Ok(nodes)
        })
        .await
    }
}
