//! The registration of this machine: its site, its servers, their keys, and its identity there.

use homestak_api::certificate::certificates;
use homestak_api::publication::SpecStatement;
use homestak_api::signature::SitePublicKey;
use homestak_api::trust::Fingerprint;
use homestak_core::firstboot::Enrolment;
use homestak_core::observed::GuestUuid;
use serde::{Deserialize, Serialize};

use super::verify::{Accepted, Expected};
use crate::clock;
use crate::error::PullError;
use crate::fetch::client::host_and_port;

/// Servers that are remembered. Earlier ones stay at the end: a statement may list an address that
/// this machine does not reach.
const MAX_SERVERS: usize = 8;

/// The longest life of a certificate, in seconds, and some more.
pub(super) const MAX_LIFETIME: i64 = 31 * 24 * 3600;

/// How many earlier certificates are kept.
const MAX_EARLIER: usize = 4;

/// How servers of the site are reached and recognised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Contact {
    /// Their addresses, the preferred first.
    pub(super) servers: Vec<String>,
    /// Fingerprints of authorities, or of certificates of servers.
    pub(super) fingerprints: Vec<String>,
    /// The latest time that the site has signed, in seconds since 1970. Certificates of servers that
    /// ended before it are refused.
    #[serde(default)]
    pub(super) latest: i64,
}

/// An enrolled machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Registration {
    /// The node's name.
    pub(super) identity: String,
    pub(super) uuid: GuestUuid,
    /// The site's id.
    pub(super) site: String,
    #[serde(flatten)]
    pub(super) contact: Contact,
    pub(super) site_keys: Vec<SitePublicKey>,
    /// The certificate and those that signed it, in PEM.
    pub(super) chain: String,
    /// When the certificate is renewed, by the clock of this machine.
    pub(super) renew_after: i64,
    /// Certificates that were replaced, the earliest first. If a compromised server issued the current
    /// one, the repaired server does not know it, but still one of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) earlier: Vec<EarlierCertificate>,
    /// The last spec that was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) accepted: Option<Accepted>,
    /// The last enrolment, which may begin a new numbering of specs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) renumbering: Option<Renumbering>,
    /// The spec that was reverted because it cut this machine off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reverted: Option<RevertedSpec>,
}

/// A certificate that was replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EarlierCertificate {
    /// It and those that signed it, in PEM.
    pub(super) chain: String,
    /// When it was replaced, by the clock of this machine.
    pub(super) replaced: i64,
}

/// The last enrolment: what the site signed before it may be of a former guest with the same UUID. It also
/// decides whether specs may be numbered anew. A driver whose clock was far ahead has published high numbers;
/// if it lost them too, it continues with lower ones. Only root on this machine can hand over an
/// enrolment, and only what the site signed after that is accepted with a lower number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Renumbering {
    /// When the enrolment was issued.
    pub(super) issued: i64,
    /// Until a spec was accepted.
    pub(super) is_open: bool,
    /// Whether a spec with a lower number was accepted, now or after an earlier enrolment.
    #[serde(default)]
    pub(super) was_lowered: bool,
}

/// A spec that was reverted because no server was reached after its changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RevertedSpec {
    pub(super) generation: u64,
    pub(super) message: String,
    /// Whether a server was reached without the changes: then they are the cause, and not the server.
    pub(super) is_cause: bool,
}

impl Contact {
    fn of(enrolment: &Enrolment) -> Result<Self, PullError> {
        let mut fingerprints = Vec::new();
        for pem in &enrolment.authorities {
            let found = certificates(pem);
            let found =
                found.map_err(|_| PullError::IncompleteEnrolment("an invalid authority"))?;
            fingerprints.extend(found.iter().map(|one| Fingerprint::of(one).to_string()));
        }
        if fingerprints.is_empty() {
            return Err(PullError::IncompleteEnrolment("no authority"));
        }
        let servers = usable(&enrolment.servers);
        if servers.is_empty() {
            return Err(PullError::IncompleteEnrolment("no valid server address"));
        }
        Ok(Self {
            servers,
            fingerprints,
            latest: enrolment.issued,
        })
    }

    /// Puts servers in front of those that are known.
    fn prefer(&mut self, servers: &[String]) {
        let mut all = usable(servers);
        all.append(&mut self.servers);
        self.servers = without_repetitions(all);
        self.servers.truncate(MAX_SERVERS);
    }
}

fn usable(servers: &[String]) -> Vec<String> {
    let servers = servers
        .iter()
        .map(|one| one.trim_end_matches('/').to_owned());
    servers.filter(|one| host_and_port(one).is_ok()).collect()
}

fn without_repetitions<T: PartialEq>(list: Vec<T>) -> Vec<T> {
    let mut once = Vec::new();
    for one in list {
        if !once.contains(&one) {
            once.push(one);
        }
    }
    once
}

fn keys(enrolment: &Enrolment) -> Result<Vec<SitePublicKey>, PullError> {
    let keys = enrolment.site_keys.iter();
    let keys: Result<Vec<_>, _> = keys.map(|key| SitePublicKey::parse(key)).collect();
    match keys {
        Ok(keys) if !keys.is_empty() => Ok(keys),
        Ok(_) => Err(PullError::IncompleteEnrolment("no key of the site")),
        Err(_) => Err(PullError::IncompleteEnrolment("an invalid key of the site")),
    }
}

impl Registration {
    /// Starts from an enrolment, without a certificate. A spec that was accepted before stays so if
    /// it is of the same guest.
    pub(super) fn new(enrolment: &Enrolment, before: Option<&Self>) -> Result<Self, PullError> {
        let same = |before: &&Self| before.uuid == enrolment.uuid && before.site == enrolment.site;
        Ok(Self {
            identity: enrolment.identity.clone(),
            uuid: enrolment.uuid.clone(),
            site: enrolment.site.clone(),
            contact: Contact::of(enrolment)?,
            site_keys: keys(enrolment)?,
            chain: String::new(),
            renew_after: 0,
            earlier: Vec::new(),
            accepted: before
                .filter(same)
                .and_then(|before| before.accepted.clone()),
            renumbering: Some(renumbering(enrolment, before.filter(same))),
            reverted: before
                .filter(same)
                .and_then(|before| before.reverted.clone()),
        })
    }

    /// Returns whether an enrolment is of this guest at this site. Without a common key, the site
    /// has lost its keys, and the machine enrols again.
    pub(super) fn is_for(&self, enrolment: &Enrolment) -> bool {
        let known = |key: &String| self.site_keys.iter().any(|one| one.to_string() == *key);
        self.uuid == enrolment.uuid
            && self.site == enrolment.site
            && self.identity == enrolment.identity
            && enrolment.site_keys.iter().any(known)
    }

    /// Adds the servers and keys of an enrolment of the same guest: only root can have written it.
    pub(super) fn update(&mut self, enrolment: &Enrolment) -> Result<(), PullError> {
        let new = Contact::of(enrolment)?;
        self.contact.prefer(&new.servers);
        // Also an earlier one: that of a driver whose clock was wrong must not last for ever.
        self.contact.latest = new.latest;
        self.renumbering = Some(renumbering(enrolment, Some(self)));
        self.contact.fingerprints = joined(new.fingerprints, &self.contact.fingerprints);
        self.site_keys = joined(keys(enrolment)?, &self.site_keys);
        Ok(())
    }

    /// Returns whether the certificate is to be renewed. A time far in the future was calculated
    /// while the clock was wrong.
    pub(super) fn is_renewal_due(&self, now: i64) -> bool {
        now >= self.renew_after || self.renew_after.saturating_sub(now) > MAX_LIFETIME
    }

    /// Replaces the certificate, and keeps the one before. The new one may be from a compromised server,
    /// which can also accept it in requests and have it renewed at once. So nothing that a server does
    /// removes an earlier one: each is kept for as long as a certificate lives, and while there is no
    /// space, the later ones are not kept.
    pub(super) fn replace_chain(&mut self, chain: String, renew_after: i64, now: i64) {
        let lifetime = MAX_LIFETIME.unsigned_abs();
        self.earlier
            .retain(|one| now.abs_diff(one.replaced) <= lifetime);
        let before = std::mem::replace(&mut self.chain, chain);
        if self.earlier.len() < MAX_EARLIER {
            self.earlier.push(EarlierCertificate {
                chain: before,
                replaced: now,
            });
        }
        self.renew_after = renew_after;
    }

    fn was_lowered(&self) -> bool {
        let renumbering = self.renumbering.as_ref();
        renumbering.is_some_and(|renumbering| renumbering.was_lowered)
    }

    /// Returns what a spec must be signed for.
    pub(super) fn expected(&self) -> Expected<'_> {
        Expected {
            site: &self.site,
            node: &self.identity,
            uuid: &self.uuid,
            keys: &self.site_keys,
            last: self.accepted.as_ref(),
            renumbered: self
                .renumbering
                .as_ref()
                .filter(|renumbering| renumbering.is_open)
                .map(|renumbering| renumbering.issued),
            not_after: self
                .was_lowered()
                .then(|| clock::now().as_second().max(self.contact.latest)),
        }
    }

    /// Applies a verified statement. Values that it does not contain are kept.
    pub(super) fn accept(&mut self, statement: &SpecStatement, etag: Option<String>) {
        self.contact.prefer(&statement.servers);
        self.contact.latest = self.contact.latest.max(statement.issued);
        let is_valid = |text: &&String| Fingerprint::parse(text).is_some();
        let fingerprints = statement.fingerprints.iter().filter(is_valid);
        let fingerprints: Vec<String> = fingerprints.cloned().collect();
        if !fingerprints.is_empty() {
            self.contact.fingerprints = fingerprints;
        }
        if !statement.keys.is_empty() {
            self.site_keys.clone_from(&statement.keys);
        }
        if let Some(renumbering) = &mut self.renumbering {
            let before = self.accepted.as_ref().map(|last| last.generation);
            let is_lower = before.is_some_and(|before| statement.generation < before);
            renumbering.was_lowered |= is_lower;
            renumbering.is_open = false;
        }
        self.accepted = Some(Accepted {
            generation: statement.generation,
            sha256: statement.sha256.clone(),
            etag,
        });
    }
}

/// An enrolment that is handed over again begins nothing new: it is read until it can be deleted.
fn renumbering(enrolment: &Enrolment, before: Option<&Registration>) -> Renumbering {
    let known = before.and_then(|before| before.renumbering.as_ref());
    match known.filter(|known| known.issued == enrolment.issued) {
        Some(known) => known.clone(),
        None => Renumbering {
            issued: enrolment.issued,
            is_open: true,
            was_lowered: before.is_some_and(Registration::was_lowered),
        },
    }
}

fn joined<T: Clone + PartialEq>(mut new: Vec<T>, old: &[T]) -> Vec<T> {
    new.extend(old.iter().cloned());
    without_repetitions(new)
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    fn servers(registration: &Registration) -> Vec<&str> {
        let servers = registration.contact.servers.iter();
        servers.map(String::as_str).collect()
    }

    #[test]
    fn servers_of_a_statement_come_first_and_known_ones_stay() {
        let (enrolment, _) = sample::enrolment();
        let mut registration = Registration::new(&enrolment, None).expect("valid");
        let before = registration.contact.fingerprints.clone();
        let mut statement = sample::statement("{}");
        statement.servers = vec![
            "https://10.0.0.2:44443/".to_owned(),
            "http://10.0.0.3".to_owned(),
        ];
        registration.accept(&statement, None);
        assert_eq!(
            servers(&registration),
            ["https://10.0.0.2:44443", "https://10.0.0.1:44443"]
        );
        assert_eq!(registration.contact.fingerprints, before);
        let keys = registration.site_keys.clone();
        assert!(!keys.is_empty());
        for n in 0..20 {
            statement.servers = vec![format!("https://10.0.1.{n}:44443")];
            registration.accept(&statement, None);
        }
        assert_eq!(servers(&registration).len(), MAX_SERVERS);
        assert_eq!(registration.site_keys, keys);
    }

    #[test]
    fn the_latest_signed_time_rises_with_statements_and_is_set_by_an_enrolment() {
        let (mut enrolment, _) = sample::enrolment();
        enrolment.issued = 100;
        let mut registration = Registration::new(&enrolment, None).expect("valid");
        assert_eq!(registration.contact.latest, 100);
        let mut statement = sample::statement("{}");
        for (issued, latest) in [(90, 100), (300, 300), (200, 300)] {
            statement.issued = issued;
            registration.accept(&statement, None);
            assert_eq!(registration.contact.latest, latest);
        }
        // The driver's clock was wrong, and was corrected.
        enrolment.issued = 250;
        registration.update(&enrolment).expect("valid");
        assert_eq!(registration.contact.latest, 250);
        // That of an earlier version had none.
        let mut text = serde_json::to_value(&registration).expect("JSON");
        text.as_object_mut().expect("an object").remove("latest");
        let read: Registration = serde_json::from_value(text).expect("a registration");
        assert_eq!(read.contact.latest, 0);
    }

    #[test]
    fn an_enrolment_begins_a_new_numbering_once_until_a_spec_is_accepted() {
        let (mut enrolment, _) = sample::enrolment();
        let mut registration = Registration::new(&enrolment, None).expect("valid");
        let since = |registration: &Registration| registration.expected().renumbered;
        assert_eq!(since(&registration), Some(0));
        registration.accept(&sample::statement("{}"), None);
        assert_eq!(since(&registration), None);
        // The same one, which could not be deleted.
        registration.update(&enrolment).expect("valid");
        assert_eq!(since(&registration), None);
        let again = Registration::new(&enrolment, Some(&registration)).expect("valid");
        assert_eq!(since(&again), None);
        // Another one; its number is lower if the clock of the driver was ahead.
        for issued in [7, -7] {
            enrolment.issued = issued;
            let again = Registration::new(&enrolment, Some(&registration)).expect("valid");
            assert_eq!(since(&again), Some(issued));
            registration.update(&enrolment).expect("valid");
            assert_eq!(since(&registration), Some(issued));
            registration.accept(&sample::statement("{}"), None);
        }
        // That of an earlier version had none.
        let mut text = serde_json::to_value(&registration).expect("JSON");
        text.as_object_mut()
            .expect("an object")
            .remove("renumbering");
        let read: Registration = serde_json::from_value(text).expect("a registration");
        assert_eq!(since(&read), None);
    }

    #[test]
    fn the_first_certificates_that_were_replaced_are_kept_for_the_life_of_a_certificate() {
        let (enrolment, _) = sample::enrolment();
        let mut registration = Registration::new(&enrolment, None).expect("valid");
        registration.chain = "0".to_owned();
        let kept = |registration: &Registration| -> Vec<String> {
            let earlier = registration.earlier.iter();
            earlier.map(|one| one.chain.clone()).collect()
        };
        for n in 1..20 {
            registration.replace_chain(n.to_string(), n, 1_000 + n);
        }
        assert_eq!(kept(&registration), ["0", "1", "2", "3"]);
        assert_eq!((&*registration.chain, registration.renew_after), ("19", 19));
        let text = serde_json::to_value(&registration).expect("JSON");
        let read: Registration = serde_json::from_value(text.clone()).expect("a registration");
        assert!(read == registration);
        // That of an earlier version had none.
        let mut text = text;
        text.as_object_mut().expect("an object").remove("earlier");
        let read: Registration = serde_json::from_value(text).expect("a registration");
        assert!(read.earlier.is_empty());
        registration.replace_chain("20".to_owned(), 0, 1_002 + MAX_LIFETIME);
        assert_eq!(kept(&registration), ["1", "2", "3", "19"]);
        // The clock was corrected by years.
        registration.replace_chain("21".to_owned(), 0, i64::MIN);
        assert_eq!(kept(&registration), ["20"]);
    }

    #[test]
    fn keys_and_fingerprints_of_a_statement_replace_those_that_are_known() {
        let (enrolment, _) = sample::enrolment();
        let mut registration = Registration::new(&enrolment, None).expect("valid");
        let (other, other_key) = sample::enrolment();
        let new = Registration::new(&other, None).expect("valid");
        let mut statement = sample::statement("{}");
        statement.keys = vec![other_key.public()];
        statement.fingerprints = new.contact.fingerprints.clone();
        statement.fingerprints.push("not one".to_owned());
        registration.accept(&statement, Some("\"7\"".to_owned()));
        assert_eq!(registration.site_keys, [other_key.public()]);
        assert_eq!(registration.contact.fingerprints, new.contact.fingerprints);
        assert_eq!(
            registration.accepted.as_ref().map(|one| one.generation),
            Some(7)
        );
    }

    #[test]
    fn a_rotated_key_replaces_the_old_one() {
        use homestak_api::signature::{Purpose, SiteKey};

        use super::super::verify::verify;

        let (enrolment, old) = sample::enrolment();
        let new = SiteKey::generate().expect("a key");
        let mut registration = Registration::new(&enrolment, None).expect("valid");
        let signed = |key: &SiteKey, generation, keys: &[SitePublicKey]| {
            let mut statement = sample::statement("{}");
            statement.generation = generation;
            statement.keys = keys.to_vec();
            key.sign(Purpose::Spec, &statement).expect("signed")
        };
        let mut receive = |text: &str| {
            let verified = verify(Some(text), b"{}", &registration.expected());
            verified.map(|statement| registration.accept(&statement, None))
        };
        let both = [old.public(), new.public()];
        receive(&signed(&new, 7, &both)).expect_err("not known yet");
        receive(&signed(&old, 7, &both)).expect("announced by the old one");
        receive(&signed(&old, 8, &both)).expect("still valid");
        receive(&signed(&new, 9, &both[1..])).expect("retires the old one");
        receive(&signed(&old, 10, &both)).expect_err("retired");
        receive(&signed(&new, 10, &both[1..])).expect("valid");
    }

    #[test]
    fn an_enrolment_is_of_the_same_guest_if_it_shares_a_key() {
        let (mut enrolment, _) = sample::enrolment();
        let mut registration = Registration::new(&enrolment, None).expect("valid");
        assert!(registration.is_for(&enrolment));
        enrolment.servers = vec!["https://10.0.0.9:44443".to_owned()];
        registration.update(&enrolment).expect("valid");
        assert_eq!(servers(&registration)[0], "https://10.0.0.9:44443");
        let (other, _) = sample::enrolment();
        assert!(!registration.is_for(&other), "other keys");
        enrolment.site_keys.extend(other.site_keys.iter().cloned());
        assert!(registration.is_for(&enrolment));
        enrolment.uuid = GuestUuid::new("22222222-2222-4222-8222-222222222222").expect("a UUID");
        assert!(!registration.is_for(&enrolment), "another guest");
    }

    #[test]
    fn an_enrolment_without_servers_authorities_or_keys_is_refused() {
        let (whole, _) = sample::enrolment();
        let changes: [fn(&mut Enrolment); 6] = [
            |one| one.servers.clear(),
            |one| one.servers = vec!["ftp://x".to_owned()],
            |one| one.authorities.clear(),
            |one| one.authorities = vec!["PEM".to_owned()],
            |one| one.site_keys.clear(),
            |one| one.site_keys = vec!["AAAA".to_owned()],
        ];
        for change in changes {
            let mut enrolment = whole.clone();
            change(&mut enrolment);
            let refused = Registration::new(&enrolment, None);
            assert!(matches!(refused, Err(PullError::IncompleteEnrolment(_))));
        }
    }
}
