//! Forged, foreign, altered and expired jobs, and nodes that take jobs that are not theirs.

use homestak_api::job_statement::{JobStatement, MAX_LIFETIME};
use homestak_api::publication::{AgentStatement, SpecStatement};
use homestak_api::signature::Purpose;
use homestak_api::trust::TlsCredential;
use homestak_server::settings::ServerSettings;
use serde_json::{Value, json};

use super::Target;
use crate::raw::{RawClient, request};
use crate::site::{DB, TestSite, WEB, at};

pub(super) const BAD_REQUEST: (u16, &str) = (400, "E101");
pub(super) const UNKNOWN: (u16, &str) = (404, "E200");
pub(super) const NOT_NOW: (u16, &str) = (409, "E202");
const FORBIDDEN: (u16, &str) = (403, "E301");
pub(super) const TOO_LARGE: (u16, &str) = (413, "E101");

/// What only the operator may read.
const OUTPUT: &str = "a line that only the operator may read";

pub(super) fn id(nth: u32) -> String {
    format!("{nth:032x}")
}

pub(super) fn submission(uuid: &str, statement: &str) -> Vec<u8> {
    let body = json!({ "statement": statement }).to_string();
    request("POST", &format!("/v1/nodes/{uuid}/jobs"), &[], &body)
}

pub(super) fn of_job(method: &str, id: &str, what: &str, body: &str) -> Vec<u8> {
    request(method, &format!("/v1/jobs/{id}{what}"), &[], body)
}

pub(super) fn take(id: &str) -> Vec<u8> {
    of_job("POST", id, "/take", "{}")
}

pub(super) fn cancel(id: &str) -> Vec<u8> {
    of_job("POST", id, "/cancel", "{}")
}

pub(super) fn report(id: &str, body: &str) -> Vec<u8> {
    of_job("POST", id, "/report", body)
}

/// A server with two nodes, and who may use it.
pub(super) struct Jobs {
    pub(super) target: Target,
    pub(super) operator: TlsCredential,
    pub(super) web: TlsCredential,
    db: TlsCredential,
}

impl Jobs {
    pub(super) async fn start() -> Self {
        Self::start_with(ServerSettings::default()).await
    }

    pub(super) async fn start_with(settings: ServerSettings) -> Self {
        let target = Target::start_with(settings).await;
        let (web, _) = target.site.enrolled(WEB, "web").await;
        let (db, _) = target.site.enrolled(DB, "db").await;
        let operator = target.site.operator.for_tls().expect("usable");
        let mut jobs = Self {
            target,
            operator,
            web,
            db,
        };
        jobs.target.secret(OUTPUT);
        jobs
    }

    /// Returns a job for `web`, signed by the site.
    pub(super) fn signed(&mut self, change: impl FnOnce(&mut JobStatement)) -> String {
        let mut job = self.target.site.job(WEB, "web", &id(1));
        change(&mut job);
        let statement = self.target.site.sign_job(&job);
        self.target.secret(&statement);
        statement
    }

    /// Sends what is accepted.
    pub(super) async fn send(&self, own: &TlsCredential, bytes: &[u8]) -> Value {
        let own = (own.0.clone(), own.1.clone_key());
        let mut client = RawClient::connect(&self.target.site, Some(own)).await;
        let answer = client.exchange(bytes).await.expect("an answer");
        assert!((200..300).contains(&answer.status), "{answer:?}");
        serde_json::from_str(&answer.body).expect("JSON")
    }

    pub(super) async fn queue(&mut self, nth: u32) {
        let statement = self.signed(|job| job.id = id(nth));
        self.send(&self.operator, &submission(WEB, &statement))
            .await;
    }

    /// Submits what is refused.
    pub(super) async fn refuse_statement(
        &mut self,
        what: &str,
        statement: &str,
        code: (u16, &str),
    ) {
        self.target.secret(statement);
        let bytes = submission(WEB, statement);
        let own = Some(&self.operator);
        self.target.refuse(what, own, &bytes, code).await;
    }

    pub(super) async fn refuse(&mut self, what: &str, who: Who, bytes: &[u8], code: (u16, &str)) {
        let own = match who {
            Who::Operator => &self.operator,
            Who::Web => &self.web,
            Who::Db => &self.db,
        };
        self.target.refuse(what, Some(own), bytes, code).await;
    }

    pub(super) async fn states(&self) -> Vec<String> {
        let list = self
            .send(&self.operator, &request("GET", "/v1/jobs", &[], ""))
            .await;
        let jobs = list["jobs"].as_array().expect("jobs").iter();
        let states = jobs.map(|job| job["state"].as_str().expect("a state").to_owned());
        states.collect()
    }
}

#[derive(Clone, Copy)]
pub(super) enum Who {
    Operator,
    Web,
    Db,
}

#[tokio::test]
async fn only_what_the_site_signed_for_this_node_and_this_time_is_queued() {
    let mut jobs = Jobs::start().await;
    let other = TestSite::start().await;
    let good = jobs.signed(|_| ());
    let job = jobs.target.site.job(WEB, "web", &id(1));
    let (payload, signature) = good.split_once('.').expect("two parts");
    let sign = |purpose, value: &Value| {
        let signed = jobs.target.site.key.sign(purpose, value);
        signed.expect("signed")
    };
    let as_json = serde_json::to_value(&job).expect("JSON");
    let spec = SpecStatement {
        site: "site".to_owned(),
        manifest: "lab".to_owned(),
        host: "local".to_owned(),
        node: "web".to_owned(),
        uuid: crate::site::uuid(WEB),
        generation: 7,
        issued: at(0).as_second(),
        sha256: "0".repeat(64),
        servers: Vec::new(),
        fingerprints: Vec::new(),
        keys: Vec::new(),
    };
    let agent = AgentStatement {
        architecture: "x86_64".to_owned(),
        version: "1".to_owned(),
        sha256: "0".repeat(64),
        size: 1,
        generation: 1,
    };
    let mut shell = as_json.clone();
    shell["kind"] = "shell".into();
    let mut altered = as_json.clone();
    altered["kind"] = "reboot".into();
    let (of_spec, of_agent) = (
        serde_json::to_value(&spec).expect("JSON"),
        serde_json::to_value(&agent).expect("JSON"),
    );
    let altered = sign(Purpose::Job, &altered);
    let altered = altered.split('.').next().expect("a payload");
    let refused = vec![
        ("forged", other.sign_job(&job), FORBIDDEN),
        ("altered", format!("{altered}.{signature}"), FORBIDDEN),
        (
            "cut signature",
            format!("{payload}.{}", &signature[..60]),
            FORBIDDEN,
        ),
        ("no signature", format!("{payload}."), FORBIDDEN),
        ("a spec", sign(Purpose::Spec, &of_spec), FORBIDDEN),
        ("an agent", sign(Purpose::Agent, &of_agent), FORBIDDEN),
        ("signed as a spec", sign(Purpose::Spec, &as_json), FORBIDDEN),
        (
            "a spec signed as a job",
            sign(Purpose::Job, &of_spec),
            BAD_REQUEST,
        ),
        ("another kind", sign(Purpose::Job, &shell), BAD_REQUEST),
        ("no object", sign(Purpose::Job, &json!(7)), BAD_REQUEST),
        ("empty", String::new(), BAD_REQUEST),
        ("a dot", ".".to_owned(), FORBIDDEN),
        ("three parts", format!("{good}.x"), BAD_REQUEST),
        ("no base64", "***.***".to_owned(), BAD_REQUEST),
        ("padding", format!("{good}="), BAD_REQUEST),
        ("9 KiB", "a".repeat(9 << 10), BAD_REQUEST),
    ];
    for (what, statement, code) in refused {
        jobs.refuse_statement(what, &statement, code).await;
    }
    type Change = fn(&mut JobStatement);
    let changes: Vec<(&str, (u16, &str), Change)> = vec![
        ("another site", FORBIDDEN, |job| job.site = "x".to_owned()),
        ("no site", FORBIDDEN, |job| job.site = String::new()),
        ("another guest", FORBIDDEN, |job| {
            job.uuid = crate::site::uuid(DB);
        }),
        ("another node", FORBIDDEN, |job| job.node = "db".to_owned()),
        ("another case", FORBIDDEN, |job| job.node = "Web".to_owned()),
        ("expired", NOT_NOW, |job| {
            (job.issued, job.expires) = (job.issued - 100, job.issued - 1);
        }),
        ("never valid", BAD_REQUEST, |job| job.expires = job.issued),
        ("before it was issued", BAD_REQUEST, |job| {
            job.expires = job.issued - 1;
        }),
        ("a week and a second", BAD_REQUEST, |job| {
            job.expires = job.issued + MAX_LIFETIME + 1;
        }),
        ("for ever", BAD_REQUEST, |job| job.expires = i64::MAX),
        ("since ever", BAD_REQUEST, |job| job.issued = i64::MIN),
        ("always", BAD_REQUEST, |job| {
            (job.issued, job.expires) = (i64::MIN, i64::MAX);
        }),
        ("of the next year", BAD_REQUEST, |job| {
            job.issued += 365 * 24 * 3600;
            job.expires = job.issued + 60;
        }),
        ("without time", BAD_REQUEST, |job| job.time_limit = 0),
        ("all the time", BAD_REQUEST, |job| job.time_limit = u64::MAX),
        ("25 hours", BAD_REQUEST, |job| job.time_limit = 25 * 3600),
        ("escape sequences", BAD_REQUEST, |job| {
            job.operator = "op\u{1b}[2J".to_owned();
        }),
        ("another line of the log", BAD_REQUEST, |job| {
            job.operator = "op\njob queued".to_owned();
        }),
        ("a long name", BAD_REQUEST, |job| {
            job.operator = "o".repeat(129);
        }),
    ];
    for (what, code, change) in changes {
        let statement = jobs.signed(change);
        jobs.refuse_statement(what, &statement, code).await;
    }
    for wrong in [
        "",
        "..",
        "a",
        &"A".repeat(32),
        &"a".repeat(31),
        &"a".repeat(33),
        &"g".repeat(32),
        &format!("{}-", "a".repeat(31)),
        &format!("{}%2f", "a".repeat(29)),
        &format!("{}\0", "a".repeat(31)),
        &"é".repeat(16),
        &format!("0x{}", "a".repeat(30)),
    ] {
        let statement = jobs.signed(|job| job.id = wrong.to_owned());
        jobs.refuse_statement(wrong, &statement, BAD_REQUEST).await;
    }
    assert_eq!(jobs.states().await, [""; 0]);
    // The same is valid for its node, now.
    let good = jobs.signed(|_| ());
    jobs.send(&jobs.operator, &submission(WEB, &good)).await;
    jobs.refuse(
        "to another node",
        Who::Operator,
        &submission(DB, &good),
        FORBIDDEN,
    )
    .await;
    let again = jobs.signed(|job| job.time_limit = 1);
    jobs.refuse_statement("its id again", &again, NOT_NOW).await;
    let of_db = jobs.signed(|job| {
        (job.uuid, job.node) = (crate::site::uuid(DB), "db".to_owned());
    });
    jobs.refuse(
        "its id at another node",
        Who::Operator,
        &submission(DB, &of_db),
        NOT_NOW,
    )
    .await;
    assert_eq!(jobs.states().await, ["queued"]);
    assert_eq!(jobs.target.finish().await, 50);
}

#[tokio::test]
async fn submissions_of_another_form_or_for_no_node_are_refused() {
    let mut jobs = Jobs::start().await;
    let good = jobs.signed(|_| ());
    for uuid in [
        "..",
        "web",
        "0",
        &WEB.replace('-', ""),
        &format!("{{{WEB}}}"),
        &format!("{WEB}%00"),
        "33333333-3333-4333-8333-333333333333",
    ] {
        let bytes = submission(uuid, &good);
        jobs.refuse(uuid, Who::Operator, &bytes, UNKNOWN).await;
    }
    let path = format!("/v1/nodes/{WEB}/jobs");
    for body in [
        "",
        "{}",
        "[]",
        "null",
        "{\"statement\":null}",
        "{\"statement\":7}",
        "{\"statement\":[\"a\"]}",
        "{\"Statement\":\"a.b\"}",
        &"[".repeat(1000),
    ] {
        let bytes = request("POST", &path, &[], body);
        jobs.refuse(body, Who::Operator, &bytes, BAD_REQUEST).await;
    }
    let large = json!({ "statement": "a".repeat(70_000) }).to_string();
    let bytes = request("POST", &path, &[], &large);
    jobs.refuse("70 kB", Who::Operator, &bytes, TOO_LARGE).await;
    let form = [("content-type", "text/plain")];
    let bytes = request(
        "POST",
        &path,
        &form,
        &json!({ "statement": good }).to_string(),
    );
    let code = (415, "E101");
    jobs.refuse("from a browser", Who::Operator, &bytes, code)
        .await;
    for method in ["PUT", "DELETE", "PATCH"] {
        let bytes = request(method, &path, &[], "");
        let code = (405, "E100");
        jobs.refuse(method, Who::Operator, &bytes, code).await;
    }
    let chunked = [("transfer-encoding", "chunked")];
    let bytes = request("POST", &path, &chunked, "0\r\n\r\n");
    let code = (411, "E101");
    jobs.refuse("chunked", Who::Operator, &bytes, code).await;
    assert_eq!(jobs.states().await, [""; 0]);
    assert_eq!(jobs.target.finish().await, 22);
}

#[tokio::test]
async fn a_node_takes_its_own_jobs_once_and_before_they_are_cancelled() {
    let mut jobs = Jobs::start().await;
    for nth in 1..=3 {
        jobs.queue(nth).await;
    }
    let output = json!({ "offset": 0, "output": OUTPUT }).to_string();
    let end = |state: &str| {
        json!({ "offset": 0, "outcome": { "state": state, "result": {} } }).to_string()
    };
    let before = [
        ("another's", Who::Db, take(&id(1)), UNKNOWN),
        (
            "another's output",
            Who::Db,
            report(&id(1), &output),
            UNKNOWN,
        ),
        (
            "another's end",
            Who::Db,
            report(&id(1), &end("failed")),
            UNKNOWN,
        ),
        ("not taken", Who::Web, report(&id(1), &output), NOT_NOW),
        (
            "not begun",
            Who::Web,
            report(&id(1), &end("succeeded")),
            NOT_NOW,
        ),
    ];
    for (what, who, bytes, code) in before {
        jobs.refuse(what, who, &bytes, code).await;
    }
    jobs.send(&jobs.web, &take(&id(1))).await;
    jobs.send(&jobs.operator, &cancel(&id(2))).await;
    let then = [
        ("a second time", Who::Web, take(&id(1)), NOT_NOW),
        ("by another", Who::Db, take(&id(1)), UNKNOWN),
        ("cancelled", Who::Web, take(&id(2)), NOT_NOW),
        (
            "cancelled: output",
            Who::Web,
            report(&id(2), &output),
            NOT_NOW,
        ),
        (
            "cancelled: end",
            Who::Web,
            report(&id(2), &end("failed")),
            NOT_NOW,
        ),
        ("too late", Who::Operator, cancel(&id(1)), NOT_NOW),
        ("by a node", Who::Web, cancel(&id(3)), FORBIDDEN),
        ("by another node", Who::Db, cancel(&id(3)), FORBIDDEN),
        ("as a node", Who::Operator, take(&id(3)), FORBIDDEN),
        (
            "lies",
            Who::Operator,
            report(&id(1), &end("succeeded")),
            FORBIDDEN,
        ),
        (
            "in its name",
            Who::Db,
            report(&id(1), &end("succeeded")),
            UNKNOWN,
        ),
        ("to read", Who::Db, of_job("GET", &id(1), "", ""), FORBIDDEN),
        (
            "its own",
            Who::Web,
            of_job("GET", &id(1), "", ""),
            FORBIDDEN,
        ),
    ];
    for (what, who, bytes, code) in then {
        jobs.refuse(what, who, &bytes, code).await;
    }
    jobs.send(&jobs.web, &report(&id(1), &output)).await;
    jobs.send(&jobs.web, &report(&id(1), &end("failed"))).await;
    let after = [
        (
            "better",
            Who::Web,
            report(&id(1), &end("succeeded")),
            NOT_NOW,
        ),
        ("more", Who::Web, report(&id(1), &output), NOT_NOW),
        ("again", Who::Web, take(&id(1)), NOT_NOW),
        ("an ended one", Who::Operator, cancel(&id(1)), NOT_NOW),
    ];
    for (what, who, bytes, code) in after {
        jobs.refuse(what, who, &bytes, code).await;
    }
    jobs.target.site.clock.advance(3600);
    let expired = [
        ("expired", Who::Web, take(&id(3)), NOT_NOW),
        (
            "expired: end",
            Who::Web,
            report(&id(3), &end("failed")),
            NOT_NOW,
        ),
        ("expired: cancel", Who::Operator, cancel(&id(3)), NOT_NOW),
    ];
    for (what, who, bytes, code) in expired {
        jobs.refuse(what, who, &bytes, code).await;
    }
    assert_eq!(jobs.states().await, ["expired", "cancelled", "failed"]);
    let log = jobs.target.log.text();
    for line in [
        "job queued operator=\"op\"",
        "job taken",
        "job cancelled operator=\"op\"",
        "job ended",
    ] {
        let mut lines = log.lines();
        assert!(
            lines.any(|found| found.contains(line) && found.contains("node=\"web\"")),
            "{line}"
        );
    }
    // An operator's name that only the statement has is not in the log.
    assert!(!log.contains("someone"));
    assert_eq!(jobs.target.finish().await, 25);
}

#[tokio::test]
async fn a_signed_job_is_no_spec() {
    let mut jobs = Jobs::start().await;
    let statement = jobs.signed(|_| ());
    let (job, before) = (statement.clone(), jobs.target.log.text().len());
    jobs.target
        .site
        .publish(WEB, "web", |spec| spec.statement = job);
    (jobs.target.site.reload)();
    let log = jobs.target.log.text().split_off(before);
    assert!(log.contains("cannot be used"), "{log}");
    // The one before is served.
    let (chain, key) = (jobs.web.0.clone(), jobs.web.1.clone_key());
    let mut client = RawClient::connect(&jobs.target.site, Some((chain, key))).await;
    let bytes = request("GET", "/spec/web", &[], "");
    let answer = client.exchange(&bytes).await.expect("an answer");
    assert_eq!(answer.status, 200);
    let served = answer.header("homestak-statement");
    assert!(served.is_some_and(|served| served != statement));
}
