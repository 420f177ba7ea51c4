//! Decides whether a spec that a server sent is accepted.
//!
//! An attacker who controls the server can withhold a spec, but needs the key of the site to change
//! it, to send that of another node, or to send an older one.

use homestak_api::publication::{SpecStatement, verify_spec};
use homestak_api::signature::{SignatureError, SitePublicKey};
use homestak_core::observed::GuestUuid;
use serde::{Deserialize, Serialize};

use crate::error::StatementError;

/// How long after an enrolment a spec is signed that begins a new numbering, in seconds: as long as
/// its token is valid. Those that a driver signed while its clock was further ahead begin none.
const RENUMBERING: i64 = 24 * 3600;
/// Longer statements are refused without being parsed.
const MAX_STATEMENT: usize = 64 << 10;

/// The spec that was accepted last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Accepted {
    pub(super) generation: u64,
    pub(super) sha256: String,
    /// The entity tag for requests, so that an unchanged spec is not sent again.
    pub(super) etag: Option<String>,
}

/// What a spec must be signed for.
pub(super) struct Expected<'a> {
    pub(super) site: &'a str,
    pub(super) node: &'a str,
    pub(super) uuid: &'a GuestUuid,
    pub(super) keys: &'a [SitePublicKey],
    pub(super) last: Option<&'a Accepted>,
    /// When an enrolment was issued, until a spec was accepted since. One that was signed after it may have
    /// a lower generation; without a last one, no other is accepted.
    pub(super) renumbered: Option<i64>,
    /// The time, if a numbering was given up: what was signed further ahead belongs to it.
    pub(super) not_after: Option<i64>,
}

/// Verifies a spec and the statement that came with it.
pub(super) fn verify(
    statement: Option<&str>,
    body: &[u8],
    expected: &Expected<'_>,
) -> Result<SpecStatement, StatementError> {
    let statement = statement.ok_or(StatementError::Missing)?;
    if statement.len() > MAX_STATEMENT {
        return Err(SignatureError::Malformed.into());
    }
    let statement = verify_spec(statement, body, expected.keys)?;
    if statement.site != expected.site {
        return Err(StatementError::Site);
    }
    if statement.node != expected.node {
        return Err(StatementError::Node);
    }
    if statement.uuid != *expected.uuid {
        return Err(StatementError::Guest);
    }
    let found = statement.generation;
    let is_renumbered = expected.renumbered.is_some_and(|issued| {
        let until = issued.saturating_add(RENUMBERING);
        (issued..=until).contains(&statement.issued)
    });
    let last = expected.last.filter(|_| !is_renumbered);
    // Servers may still have specs of the numbering that was given up, with higher numbers.
    let is_ahead = |now: i64| statement.issued > now.saturating_add(RENUMBERING);
    if !is_renumbered && expected.not_after.is_some_and(is_ahead) {
        let last = last.map_or(0, |last| last.generation);
        return Err(StatementError::Older { found, last });
    }
    match last {
        Some(last) if found < last.generation => Err(StatementError::Older {
            found,
            last: last.generation,
        }),
        Some(last) if found == last.generation && statement.sha256 != last.sha256 => {
            Err(StatementError::Changed(found))
        }
        // Of a former guest with the same UUID, whose servers may still have it.
        None if expected
            .renumbered
            .is_some_and(|issued| statement.issued < issued) =>
        {
            Err(StatementError::BeforeEnrolment)
        }
        Some(_) | None => Ok(statement),
    }
}

#[cfg(test)]
mod tests {
    use homestak_api::publication::sha256;
    use homestak_api::signature::{Purpose, SiteKey};

    use super::*;

    const BODY: &[u8] = b"{}";
    const WEB: &str = "11111111-1111-4111-8111-111111111111";
    const DB: &str = "22222222-2222-4222-8222-222222222222";

    fn uuid(text: &str) -> GuestUuid {
        GuestUuid::new(text).expect("a UUID")
    }

    fn statement() -> SpecStatement {
        SpecStatement {
            site: "site".to_owned(),
            manifest: "lab".to_owned(),
            host: "local".to_owned(),
            node: "web".to_owned(),
            uuid: uuid(WEB),
            generation: 7,
            issued: 0,
            sha256: sha256(BODY),
            servers: Vec::new(),
            fingerprints: Vec::new(),
            keys: Vec::new(),
        }
    }

    struct Case {
        key: SiteKey,
        last: Option<Accepted>,
        renumbered: Option<i64>,
    }

    impl Case {
        fn new() -> Self {
            let key = SiteKey::generate().expect("a key");
            Self {
                key,
                last: None,
                renumbered: None,
            }
        }

        fn after(generation: u64, body: &[u8]) -> Self {
            let last = Some(Accepted {
                generation,
                sha256: sha256(body),
                etag: None,
            });
            Self {
                last,
                ..Self::new()
            }
        }

        fn check(&self, signed: &str, body: &[u8]) -> Result<u64, StatementError> {
            let expected = Expected {
                site: "site",
                node: "web",
                uuid: &uuid(WEB),
                keys: &[self.key.public()],
                last: self.last.as_ref(),
                renumbered: self.renumbered,
                not_after: None,
            };
            verify(Some(signed), body, &expected).map(|accepted| accepted.generation)
        }

        fn sign(&self, change: impl FnOnce(&mut SpecStatement)) -> String {
            let mut statement = statement();
            change(&mut statement);
            self.key.sign(Purpose::Spec, &statement).expect("signed")
        }

        fn changed(&self, change: impl FnOnce(&mut SpecStatement)) -> Result<u64, StatementError> {
            self.check(&self.sign(change), BODY)
        }
    }

    #[test]
    fn the_spec_of_this_node_is_accepted() {
        let case = Case::new();
        assert_eq!(case.changed(|_| ()), Ok(7));
    }

    #[test]
    fn a_spec_without_a_statement_or_with_a_damaged_one_is_refused() {
        let case = Case::new();
        let expected = Expected {
            site: "site",
            node: "web",
            uuid: &uuid(WEB),
            keys: &[case.key.public()],
            last: None,
            renumbered: None,
            not_after: None,
        };
        let missing = verify(None, BODY, &expected);
        assert_eq!(missing, Err(StatementError::Missing));
        for damaged in ["", ".", "a.b", "a.b.c"] {
            assert!(case.check(damaged, BODY).is_err(), "{damaged}");
        }
        let malformed = StatementError::Signature(SignatureError::Malformed);
        let huge = "A".repeat(MAX_STATEMENT) + "." + &"A".repeat(86);
        assert_eq!(case.check(&huge, BODY), Err(malformed));
    }

    #[test]
    fn a_spec_that_was_altered_or_signed_by_someone_else_is_refused() {
        let case = Case::new();
        let refused = Err(StatementError::Signature(SignatureError::Signature));
        assert_eq!(case.check(&case.sign(|_| ()), b"{} "), refused);
        let foreign = Case::new();
        assert_eq!(case.check(&foreign.sign(|_| ()), BODY), refused);
        let agent = case.key.sign(Purpose::Agent, &statement());
        assert_eq!(case.check(&agent.expect("signed"), BODY), refused);
    }

    #[test]
    fn a_spec_for_another_site_node_or_guest_is_refused() {
        let case = Case::new();
        let site = case.changed(|statement| statement.site = "other".to_owned());
        assert_eq!(site, Err(StatementError::Site));
        let node = case.changed(|statement| statement.node = "db".to_owned());
        assert_eq!(node, Err(StatementError::Node));
        let guest = case.changed(|statement| statement.uuid = uuid(DB));
        assert_eq!(guest, Err(StatementError::Guest));
    }

    #[test]
    fn an_older_or_reused_generation_is_refused() {
        let case = Case::after(8, BODY);
        let older = StatementError::Older { found: 7, last: 8 };
        assert_eq!(case.changed(|_| ()), Err(older));
        assert_eq!(Case::after(7, BODY).changed(|_| ()), Ok(7));
        assert_eq!(Case::after(6, b"other").changed(|_| ()), Ok(7));
        let changed = Case::after(7, b"other").changed(|_| ());
        assert_eq!(changed, Err(StatementError::Changed(7)));
    }

    #[test]
    fn the_first_spec_is_not_older_than_the_enrolment() {
        let mut case = Case::new();
        case.renumbered = Some(1_000);
        let signed_at = |issued| case.changed(|statement| statement.issued = issued);
        for older in [i64::MIN, 0, 999] {
            assert_eq!(signed_at(older), Err(StatementError::BeforeEnrolment));
        }
        for since in [1_000, 1_001 + RENUMBERING, i64::MAX] {
            assert_eq!(signed_at(since), Ok(7), "{since}");
        }
    }

    #[test]
    fn after_an_enrolment_a_lower_generation_is_accepted_if_it_was_signed_since_then() {
        let mut case = Case::after(4_000_000_000, b"other");
        case.renumbered = Some(1_000);
        let signed_at = |issued| case.changed(|statement| statement.issued = issued);
        let older = StatementError::Older {
            found: 7,
            last: 4_000_000_000,
        };
        for since in [1_000, 1_001, 1_000 + RENUMBERING] {
            assert_eq!(signed_at(since), Ok(7), "{since}");
        }
        // Before it, or while the clock of the driver was ahead.
        for other in [i64::MIN, 0, 999, 1_001 + RENUMBERING, i64::MAX] {
            assert_eq!(signed_at(other), Err(older.clone()), "{other}");
        }
        case.renumbered = Some(i64::MAX);
        let refused = case.changed(|statement| statement.issued = 1_000);
        assert_eq!(refused, Err(older));
    }
}
