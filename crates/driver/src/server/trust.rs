//! Certificates of servers that the operator provides: nodes accept them beside the site's own.

use homestak_api::certificate::{CertificateDer, certificates, pem};
use homestak_api::trust::{Fingerprint, is_public_authority};
use jiff::Timestamp;

use super::{ServerLease, SiteServer};
use crate::error::DriverError;
use crate::publish::PublishError;

/// Which certificates servers are recognised by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustChange {
    /// The fingerprint of the site's authority.
    pub authority: String,
    /// Fingerprints of certificates that the operator provides.
    pub certificates: Vec<String>,
    /// How many specs were signed again to make it known.
    pub n_signed: usize,
}

fn parse(text: &str) -> Result<Vec<CertificateDer<'static>>, DriverError> {
    let wrong = |_| DriverError::failed("The file holds no certificate in PEM.");
    certificates(text).map_err(wrong)
}

/// Refuses certificates of public authorities, which sign for everyone.
fn require_private(found: &[CertificateDer<'_>]) -> Result<(), DriverError> {
    if !found.iter().any(is_public_authority) {
        return Ok(());
    }
    Err(DriverError::refused(
        "The file has a certificate of a public certificate authority: anyone can obtain a \
         certificate from it.",
    )
    .hint("use the server's own certificate, or the root of an authority of your own"))
}

impl TrustChange {
    fn of(site: &SiteServer, n_signed: usize) -> Self {
        let mut all = site.publisher.fingerprints().into_iter();
        Self {
            authority: all.next().unwrap_or_default(),
            certificates: all.collect(),
            n_signed,
        }
    }
}

impl SiteServer {
    /// Returns whether nodes accept a server with this certificate chain.
    pub fn recognises(&self, chain: &str) -> Result<bool, DriverError> {
        Ok(self.trusted_of(&parse(chain)?).is_some())
    }

    /// Returns the fingerprint of the certificate of a chain that is trusted.
    fn trusted_of(&self, chain: &[CertificateDer<'_>]) -> Option<String> {
        let trusted = self.publisher.fingerprints();
        let mut prints = chain.iter().map(|one| Fingerprint::of(one).to_string());
        prints.find(|print| trusted.contains(print))
    }

    /// Returns the fingerprint that a server with this chain is recognised by, or one with a
    /// certificate of the site.
    pub fn fingerprint(&self, chain: Option<&str>) -> String {
        let chain = chain.and_then(|chain| parse(chain).ok());
        let own = chain.and_then(|chain| self.trusted_of(&chain));
        own.unwrap_or_else(|| self.publisher.keys.authority.issued().fingerprint.clone())
    }

    /// Signs everything that is published again, with the certificates of now.
    pub fn sign_again(&self, now: Timestamp) -> Result<(), DriverError> {
        let signed = self.publisher.sign_again(&[], now);
        signed
            .map(drop)
            .map_err(|error| super::site::failed(&error))
    }

    /// Recognises a server by the first certificate of its chain, unless it is recognised by any of
    /// them already. Returns the fingerprint that it is recognised by, and whether it is new.
    pub fn recognise(&mut self, chain: &str) -> Result<(String, bool), DriverError> {
        let found = parse(chain)?;
        if let Some(trusted) = self.trusted_of(&found) {
            return Ok((trusted, false));
        }
        let own = &found[0];
        require_private(std::slice::from_ref(own))?;
        let mut servers = self.publisher.keys.servers.clone();
        servers.push(pem(own));
        let stored = self.publisher.keys.set_servers(servers);
        stored.map_err(|error| super::site::failed(&PublishError::from(error)))?;
        Ok((Fingerprint::of(own).to_string(), true))
    }
}

impl ServerLease {
    /// Returns which certificates servers are recognised by.
    pub async fn trusted(&self) -> Result<TrustChange, DriverError> {
        Ok(TrustChange::of(&*self.site().await?, 0))
    }

    /// Recognises servers by the certificates of a PEM text too, or by certificates that they signed.
    pub async fn trust(&self, text: &str) -> Result<TrustChange, DriverError> {
        let found = parse(text)?;
        require_private(&found)?;
        self.change_keys(move |site, now| {
            let mut servers = site.publisher.keys.servers.clone();
            servers.extend(found.iter().map(|one| pem(one)));
            let mut once = std::collections::BTreeSet::new();
            servers.retain(|one| once.insert(one.clone()));
            site.publisher.keys.set_servers(servers)?;
            let signed = site.publisher.sign_again(&[], now)?;
            Ok(TrustChange::of(site, signed.len()))
        })
        .await
    }

    /// No longer recognises servers by a certificate.
    pub async fn distrust(&self, fingerprint: &str) -> Result<TrustChange, DriverError> {
        let unknown = || {
            DriverError::failed(format!("No such certificate is trusted: `{fingerprint}`."))
                .hint("homestak server trust lists them")
        };
        let removed = Fingerprint::parse(fingerprint).ok_or_else(unknown)?;
        let is_gone = move |one: &String| {
            let found = certificates(one).unwrap_or_default();
            found
                .first()
                .is_some_and(|one| Fingerprint::of(one) == removed)
        };
        let site = self.site().await?;
        if !site.publisher.keys.servers.iter().any(is_gone) {
            return Err(unknown());
        }
        self.change_keys(move |site, now| {
            let mut servers = site.publisher.keys.servers.clone();
            servers.retain(|one| !is_gone(one));
            site.publisher.keys.set_servers(servers)?;
            let signed = site.publisher.sign_again(&[], now)?;
            Ok(TrustChange::of(site, signed.len()))
        })
        .await
    }
}
