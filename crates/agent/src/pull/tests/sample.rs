//! Samples for tests.

use homestak_api::certificate::Credential;
use homestak_api::publication::{SpecStatement, sha256};
use homestak_api::signature::SiteKey;
use homestak_core::firstboot::Enrolment;
use homestak_core::observed::GuestUuid;
use jiff::Timestamp;

/// The guest of the samples.
pub(crate) const WEB: &str = "11111111-1111-4111-8111-111111111111";

pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).expect("a time")
}

/// An enrolment of a site of its own, and the key of that site.
pub(crate) fn enrolment() -> (Enrolment, SiteKey) {
    let key = SiteKey::generate().expect("a key");
    let authority = Credential::authority("site", at(0)).expect("an authority");
    let enrolment = Enrolment {
        identity: "web".to_owned(),
        uuid: GuestUuid::new(WEB).expect("a UUID"),
        servers: vec!["https://10.0.0.1:44443".to_owned()],
        authorities: vec![authority.issued().chain.clone()],
        site: "site".to_owned(),
        site_keys: vec![key.public().to_string()],
        token: "a.b".to_owned(),
        issued: 0,
        agent_generation: 0,
    };
    (enrolment, key)
}

/// A statement about a spec of the samples, of generation 7.
pub(crate) fn statement(body: &str) -> SpecStatement {
    SpecStatement {
        site: "site".to_owned(),
        manifest: "lab".to_owned(),
        host: "local".to_owned(),
        node: "web".to_owned(),
        uuid: GuestUuid::new(WEB).expect("a UUID"),
        generation: 7,
        issued: at(0).as_second(),
        sha256: sha256(body.as_bytes()),
        servers: Vec::new(),
        fingerprints: Vec::new(),
        keys: Vec::new(),
    }
}

/// A spec with a file.
pub(crate) fn spec(motd: &str) -> String {
    let spec = serde_json::json!({
        "schema_version": 1,
        "identity": { "hostname": "web" },
        "access": { "posture": "dev", "_posture": { "auth": { "method": "network" } } },
        "config": { "files": [{ "path": "/etc/motd", "content": motd }] },
    });
    format!("{spec:#}\n")
}
