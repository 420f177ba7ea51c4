//! An authenticated session with the servers: enrols, and renews the certificate when it is due.
//!
//! The key is stored before the token is exchanged for a certificate, and the token is deleted after the
//! registration is stored. So a machine that was killed at any point continues: the server issues a
//! certificate for the same key again, and a certificate whose replacement was lost can still renew.
//! Earlier certificates are kept, so that a compromised server cannot replace the one that the repaired
//! server has recorded.
//!
//! A refusal is permanent, other errors are retried. The daemon of an enrolled machine also retries
//! after a refusal.

use std::sync::Arc;

use homestak_api::node_key::NodeKey;
use homestak_api::v1::enrol::EnrolRequest;
use homestak_api::v1::report::Report;
use homestak_core::error::chain;
use homestak_core::firstboot::Enrolment;

use super::client::{Client, FetchedSpec, IssuedCertificate};
use super::confirm::Probe;
use super::registration::{Registration, RevertedSpec};
use super::store::Store;
use super::verify::verify;
use crate::clock;
use crate::error::{AgentError, FetchError, PullError};

/// The longest chain of certificates, in bytes of PEM; one of the site has less than a tenth. Servers
/// end handshakes with longer ones, so that a machine that stored one would reach none.
const MAX_CHAIN: usize = 32 << 10;

/// The version that is reported to servers.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// An enrolled machine and its connection to the servers.
pub(super) struct Session<'a> {
    store: &'a Store,
    key: Arc<NodeKey>,
    pub(super) registration: Registration,
    client: Client,
    /// An enrolment that is not deleted yet: its token may still be needed.
    enrolment: Option<Enrolment>,
    /// How many certificates this session obtained.
    n_certificates: u32,
}

impl<'a> Session<'a> {
    /// Enrols the machine, unless it has enrolled, and renews its certificate if that is due.
    pub(super) fn open(store: &'a Store) -> Result<Self, AgentError> {
        let enrolment = store.enrolment()?;
        let registration = match store.registration() {
            // A new enrolment replaces a damaged registration.
            Err(error) if enrolment.is_none() || !error.is_permanent() => return Err(error),
            registration => registration.ok().flatten(),
        };
        if enrolment.is_some() {
            // It replaces a damaged key too.
            store.remove_damaged_key()?;
        }
        let has_key = |registration: &Registration| -> Result<bool, AgentError> {
            Ok(client(registration, &store.key()?).is_ok())
        };
        let registration = match (registration, &enrolment) {
            (None, None) => return Err(PullError::NotEnrolled.into()),
            (Some(registration), None) => registration,
            (Some(before), Some(enrolment)) if before.is_for(enrolment) && has_key(&before)? => {
                let mut registration = before.clone();
                registration.update(enrolment)?;
                // Before the enrolment is deleted, which may be all that this pass does.
                if registration != before {
                    store.put_registration(&registration)?;
                }
                registration
            }
            (before, Some(enrolment)) => {
                let other = |before: &Registration| before.uuid != enrolment.uuid;
                if before.as_ref().is_some_and(other) {
                    store.forget()?;
                }
                enrol(store, enrolment, before.as_ref())?
            }
        };
        let key = Arc::new(store.key()?);
        let client = client(&registration, &key)?;
        let mut session = Self {
            store,
            key,
            registration,
            client,
            enrolment,
            n_certificates: 0,
        };
        if session
            .registration
            .is_renewal_due(clock::now().as_second())
            && let Err(error) = session.renew()
        {
            // It is still valid, or will be refused.
            tracing::warn!(error = chain(&error), "the certificate is not renewed");
        }
        Ok(session)
    }

    /// Returns how many certificates this session obtained: clients with an earlier one are refused.
    pub(super) fn n_certificates(&self) -> u32 {
        self.n_certificates
    }

    /// Returns the client of this session.
    pub(super) fn own_client(&self) -> &Client {
        &self.client
    }

    /// Creates another client, for a thread of its own.
    pub(super) fn client(&self) -> Result<Client, AgentError> {
        client(&self.registration, &self.key)
    }

    /// Returns a probe: whether a server accepts a report over a new connection.
    pub(super) fn probe(&self, report: Report) -> Probe {
        let (registration, key) = (self.registration.clone(), self.key.clone());
        Arc::new(move || {
            let sent = client(&registration, &key).map(|client| client.report(&report));
            match sent {
                Ok(Ok(())) => true,
                Ok(Err(error)) => {
                    tracing::debug!("{error}");
                    error.is_answer()
                }
                Err(error) => {
                    tracing::warn!("{}", error.message());
                    false
                }
            }
        })
    }

    /// Fetches the spec; `None` if it is the one with the entity tag. A certificate that is refused is
    /// renewed.
    pub(super) fn fetch(&mut self, etag: Option<&str>) -> Result<Option<FetchedSpec>, AgentError> {
        let node = self.registration.identity.clone();
        match self.client.spec(&node, etag) {
            Err(error) if error.is_unauthorized() => {
                self.recover(error)?;
                Ok(self.client.spec(&node, etag)?)
            }
            fetched => Ok(fetched?),
        }
    }

    /// Returns the signed statement of the agent that is published for this machine, if there is one.
    pub(super) fn agent_statement(&self) -> Result<Option<String>, AgentError> {
        Ok(self.client.agent_statement()?)
    }

    /// Downloads the agent, of a size in bytes.
    pub(super) fn agent(&self, size: u64) -> Result<Vec<u8>, AgentError> {
        Ok(self.client.agent(size)?)
    }

    /// Deletes the token: the certificate was accepted.
    pub(super) fn remove_token(&mut self) {
        let Some(enrolment) = &self.enrolment else {
            return;
        };
        match self.store.remove_enrolment(enrolment) {
            Ok(()) => self.enrolment = None,
            // The next pass tries again.
            Err(error) => tracing::warn!("the token is not removed: {}", error.message()),
        }
    }

    /// Records which spec was reverted because it cut this machine off.
    pub(super) fn set_reverted(&mut self, spec: Option<RevertedSpec>) -> Result<(), AgentError> {
        if self.registration.reverted == spec {
            return Ok(());
        }
        self.registration.reverted = spec;
        self.save()
    }

    /// Stores what was accepted.
    pub(super) fn save(&self) -> Result<(), AgentError> {
        self.store.put_registration(&self.registration)
    }

    fn renew(&mut self) -> Result<(), AgentError> {
        let request = request(&self.registration, &self.key);
        let issued = self.client.renew(&request, clock::now().as_second())?;
        self.replace(issued)
    }

    /// Stores a certificate that was issued in exchange for another, and uses it.
    fn replace(&mut self, issued: IssuedCertificate) -> Result<(), AgentError> {
        check_chain(&issued.chain, &self.registration, &self.key)?;
        let now = clock::now().as_second();
        self.registration
            .replace_chain(issued.chain, issued.renew_after, now);
        self.save()?;
        tracing::info!("the certificate was renewed");
        self.reconnect()
    }

    fn reconnect(&mut self) -> Result<(), AgentError> {
        self.client = self.client()?;
        self.n_certificates += 1;
        Ok(())
    }

    /// Obtains another certificate after the current one was refused: it expired, or the answer with
    /// its replacement was lost, or the server does not know this machine any more.
    fn recover(&mut self, refusal: FetchError) -> Result<(), AgentError> {
        tracing::warn!("{refusal}");
        match self.renew() {
            Err(AgentError::Fetch(error)) if error.is_refusal() => {
                let Some(enrolment) = &self.enrolment else {
                    return self.renew_earlier(error);
                };
                self.registration = enrol(self.store, enrolment, Some(&self.registration))?;
                self.reconnect()
            }
            renewed => renewed,
        }
    }

    /// Exchanges an earlier certificate after the current one was refused: a compromised server may
    /// have issued it. The earliest is tried first, since such a server may have issued the others too.
    fn renew_earlier(&mut self, refusal: FetchError) -> Result<(), AgentError> {
        let request = request(&self.registration, &self.key);
        for one in self.registration.earlier.clone() {
            let own = self.key.with_chain(&one.chain).ok();
            let client =
                own.and_then(|own| Client::new(&self.registration.contact, Some(own)).ok());
            // One of a key that was replaced since is of no use.
            let Some(client) = client else {
                continue;
            };
            match client.renew(&request, clock::now().as_second()) {
                Ok(issued) => {
                    tracing::warn!("an earlier certificate is accepted instead of the current one");
                    return self.replace(issued);
                }
                Err(error) if error.is_refusal() => {
                    tracing::debug!(%error, "an earlier certificate is refused too");
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(PullError::CertificateDenied(refusal).into())
    }
}

/// Checks that this program can obtain the spec of this machine, and changes nothing.
pub(super) fn check(store: &Store) -> Result<(), AgentError> {
    let registration = store.registration()?.ok_or(PullError::NotEnrolled)?;
    let client = client(&registration, &store.key()?)?;
    let fetched = client.spec(&registration.identity, None)?;
    let fetched = fetched.ok_or(FetchError::NoSpec(Vec::new()))?;
    let expected = registration.expected();
    let is_first = expected.last.is_none();
    verify(fetched.statement.as_deref(), &fetched.body, &expected)
        .map_err(|why| PullError::Statement { why, is_first })?;
    Ok(())
}

fn client(registration: &Registration, key: &NodeKey) -> Result<Client, AgentError> {
    let own = key.with_chain(&registration.chain);
    let own = own.map_err(PullError::Key)?;
    Ok(Client::new(&registration.contact, Some(own))?)
}

/// Refuses a certificate that is not for this machine's key. Stored, it would end every later pass.
fn check_chain(chain: &str, registration: &Registration, key: &NodeKey) -> Result<(), FetchError> {
    let chain = Some(chain).filter(|chain| chain.len() <= MAX_CHAIN);
    let own = chain.and_then(|chain| key.with_chain(chain).ok());
    let client = own.and_then(|own| Client::new(&registration.contact, Some(own)).ok());
    let why = "its certificate is too long, or not for the key of this machine";
    client
        .map(drop)
        .ok_or_else(|| FetchError::NoSpec(vec![why.to_owned()]))
}

fn request(registration: &Registration, key: &NodeKey) -> EnrolRequest {
    EnrolRequest {
        node: registration.identity.clone(),
        uuid: registration.uuid.as_str().to_owned(),
        public_key: key.public(),
        agent: VERSION.to_owned(),
    }
}

/// Exchanges the token for a certificate, and stores the registration.
fn enrol(
    store: &Store,
    enrolment: &Enrolment,
    before: Option<&Registration>,
) -> Result<Registration, AgentError> {
    let mut registration = Registration::new(enrolment, before)?;
    // Stored before the request: with it, the request can be repeated.
    let key = store.key()?;
    let client = Client::new(&registration.contact, None)?;
    let now = clock::now().as_second();
    let issued = client.enrol(&enrolment.token, &request(&registration, &key), now);
    let issued = issued.map_err(|error| match error.is_refusal() {
        true => AgentError::from(PullError::Denied(error)),
        false => error.into(),
    })?;
    check_chain(&issued.chain, &registration, &key)?;
    registration.chain = issued.chain;
    registration.renew_after = issued.renew_after;
    store.put_registration(&registration)?;
    tracing::info!(site = registration.site, "enrolled");
    Ok(registration)
}
