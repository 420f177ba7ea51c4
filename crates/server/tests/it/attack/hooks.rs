//! Forged, replayed, altered and malformed requests of webhooks.
//!
//! Long because: each attack is an entry of one table.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use homestak_core::resolve::trigger::ServerTrigger;
use sha2::Sha256;

use super::Target;
use crate::raw::{RawClient, request};
use crate::site::{TestSite, WEB, WEBHOOKS};

const BAD_REQUEST: (u16, &str) = (400, "E101");
const REFUSED: (u16, &str) = (401, "E301");
const REPEATED: (u16, &str) = (409, "E202");
const BODY: &str = r#"{"event":"deploy","at":"1"}"#;

/// Signs a request.
pub(crate) fn signature(key: &[u8], id: &str, timestamp: &str, body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length");
    mac.update(format!("{id}.{timestamp}.{body}").as_bytes());
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

/// A request that is about to be changed.
#[derive(Clone)]
struct Hook {
    path: String,
    method: &'static str,
    id: String,
    timestamp: String,
    signature: String,
    body: String,
    more: Vec<(&'static str, String)>,
    without: Option<&'static str>,
}

impl Hook {
    /// A valid request of `deploy` at the time of the server.
    fn new(site: &TestSite, id: &str) -> Self {
        Self::at(id, now(site))
    }

    fn at(id: &str, second: i64) -> Self {
        let timestamp = second.to_string();
        Self {
            path: "/v1/hooks/deploy".to_owned(),
            method: "POST",
            signature: signature(WEBHOOKS[0].1.as_bytes(), id, &timestamp, BODY),
            id: id.to_owned(),
            timestamp,
            body: BODY.to_owned(),
            more: Vec::new(),
            without: None,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut headers = vec![
            ("webhook-id", self.id.as_str()),
            ("webhook-timestamp", self.timestamp.as_str()),
            ("webhook-signature", self.signature.as_str()),
        ];
        headers.retain(|(name, _)| Some(*name) != self.without);
        headers.extend(
            self.more
                .iter()
                .map(|(name, value)| (*name, value.as_str())),
        );
        request(self.method, &self.path, &headers, &self.body)
    }

    /// Signs again after a change.
    fn signed(mut self, key: &str) -> Self {
        self.signature = signature(key.as_bytes(), &self.id, &self.timestamp, &self.body);
        self
    }
}

fn now(site: &TestSite) -> i64 {
    use homestak_api::runtime::Clock as _;
    site.clock.now().as_second()
}

/// Has `web` follow the webhook `deploy`.
pub(super) async fn start() -> Target {
    let mut target = Target::start().await;
    target.site.publish(WEB, "web", |spec| {
        spec.trigger = Some(ServerTrigger::Webhook {
            name: "deploy".to_owned(),
        });
        spec.token.as_mut().expect("a token").expires += 30 * 24 * 3600;
    });
    (target.site.reload)();
    _ = target.site.enrolled(WEB, "web").await;
    for (_, secret) in WEBHOOKS {
        target.secret(secret);
    }
    target
}

/// Sends a valid request, and returns the status of the answer.
pub(super) async fn send_valid(site: &TestSite, id: &str) -> u16 {
    send(site, &Hook::new(site, id)).await.0
}

async fn send(site: &TestSite, hook: &Hook) -> (u16, String) {
    let mut client = RawClient::connect(site, None).await;
    let answer = client.exchange(&hook.bytes()).await.expect("an answer");
    (answer.status, answer.body)
}

/// How many jobs were queued, ever.
async fn jobs(site: &TestSite) -> usize {
    let answer = site.operator().get(format!("{}/v1/jobs", site.url));
    let answer = answer.send().await.expect("an answer");
    let jobs: serde_json::Value = answer.json().await.expect("JSON");
    jobs["jobs"].as_array().expect("a list").len()
}

#[tokio::test]
async fn requests_that_are_not_signed_as_they_are_sent_start_nothing() {
    let mut target = start().await;
    let deploy = WEBHOOKS[0].1;
    type Change<'a> = Box<dyn Fn(Hook) -> Hook + 'a>;
    let mut attacks: Vec<(&str, Change<'_>, (u16, &str))> = Vec::new();
    let mut add = |what, change: Change<'static>, answer| attacks.push((what, change, answer));
    add(
        "another body",
        Box::new(|hook| Hook {
            body: BODY.replace('1', "2"),
            ..hook
        }),
        REFUSED,
    );
    add(
        "no body",
        Box::new(|hook| Hook {
            body: String::new(),
            ..hook
        }),
        REFUSED,
    );
    add(
        "a longer body",
        Box::new(|hook| Hook {
            body: format!("{BODY} "),
            ..hook
        }),
        REFUSED,
    );
    add(
        "another id",
        Box::new(|hook| Hook {
            id: "other".to_owned(),
            ..hook
        }),
        REFUSED,
    );
    add(
        "an id in capitals",
        Box::new(|hook| Hook {
            id: hook.id.to_uppercase(),
            ..hook
        }),
        REFUSED,
    );
    add(
        "a later time",
        Box::new(|hook| Hook {
            timestamp: (hook.timestamp.parse::<i64>().expect("a number") + 1).to_string(),
            ..hook
        }),
        REFUSED,
    );
    add(
        "an earlier time",
        Box::new(|hook| Hook {
            timestamp: (hook.timestamp.parse::<i64>().expect("a number") - 1).to_string(),
            ..hook
        }),
        REFUSED,
    );
    add(
        "another secret",
        Box::new(|hook| hook.signed("another-secret-of-a-webhook")),
        REFUSED,
    );
    add("an empty secret", Box::new(|hook| hook.signed("")), REFUSED);
    add(
        "a secret of zeros",
        Box::new(|hook| hook.signed(&"\0".repeat(32))),
        REFUSED,
    );
    add(
        "the name as secret",
        Box::new(|hook| hook.signed("deploy")),
        REFUSED,
    );
    add(
        "the secret of another webhook",
        Box::new(|hook| hook.signed(WEBHOOKS[1].1)),
        REFUSED,
    );
    add(
        "another webhook",
        Box::new(|hook| Hook {
            path: "/v1/hooks/encoded".to_owned(),
            ..hook
        }),
        REFUSED,
    );
    add(
        "the encoded secret as text",
        Box::new(|hook| {
            Hook {
                path: "/v1/hooks/encoded".to_owned(),
                ..hook
            }
            .signed(WEBHOOKS[1].1)
        }),
        REFUSED,
    );
    add(
        "an unknown webhook",
        Box::new(|hook| Hook {
            path: "/v1/hooks/nothing".to_owned(),
            ..hook
        }),
        REFUSED,
    );
    add(
        "an unknown webhook with the key of zeros",
        Box::new(|hook| {
            Hook {
                path: "/v1/hooks/nothing".to_owned(),
                ..hook
            }
            .signed(&"\0".repeat(32))
        }),
        REFUSED,
    );
    add(
        "a webhook in capitals",
        Box::new(|hook| Hook {
            path: "/v1/hooks/Deploy".to_owned(),
            ..hook
        }),
        REFUSED,
    );
    add(
        "an encoded name",
        Box::new(|hook| Hook {
            path: "/v1/hooks/%64eploy".to_owned(),
            ..hook
        }),
        REFUSED,
    );
    add(
        "a path upwards",
        Box::new(|hook| Hook {
            path: "/v1/hooks/..".to_owned(),
            ..hook
        }),
        REFUSED,
    );
    add(
        "another version",
        Box::new(|hook| Hook {
            signature: hook.signature.replace("v1,", "v1a,"),
            ..hook
        }),
        REFUSED,
    );
    add(
        "no version",
        Box::new(|hook| Hook {
            signature: hook.signature.replace("v1,", ""),
            ..hook
        }),
        REFUSED,
    );
    add(
        "a version in capitals",
        Box::new(|hook| Hook {
            signature: hook.signature.replace("v1,", "V1,"),
            ..hook
        }),
        REFUSED,
    );
    add(
        "an empty signature",
        Box::new(|hook| Hook {
            signature: "v1,".to_owned(),
            ..hook
        }),
        REFUSED,
    );
    add(
        "a signature without its end",
        Box::new(|hook| Hook {
            signature: hook.signature[..40].to_owned(),
            ..hook
        }),
        REFUSED,
    );
    add(
        "a signature with more",
        Box::new(|hook| Hook {
            signature: format!("{}AAAA", hook.signature),
            ..hook
        }),
        REFUSED,
    );
    add(
        "signatures joined by a comma",
        Box::new(|hook| Hook {
            signature: format!("v1,AAAA,{}", hook.signature),
            ..hook
        }),
        REFUSED,
    );
    add(
        "a signature in hexadecimal",
        Box::new(|hook| Hook {
            signature: format!("v1,{}", "ab".repeat(32)),
            ..hook
        }),
        REFUSED,
    );
    add(
        "a signature of another format",
        Box::new(|hook| Hook {
            more: vec![("x-hub-signature-256", format!("sha256={}", "ab".repeat(32)))],
            without: Some("webhook-signature"),
            ..hook
        }),
        BAD_REQUEST,
    );
    add(
        "nine signatures",
        Box::new(|hook| Hook {
            signature: [hook.signature.as_str(); 9].join(" "),
            ..hook
        }),
        BAD_REQUEST,
    );
    add(
        "signatures of many bytes",
        Box::new(|hook| Hook {
            signature: format!("{} v1,{}", hook.signature, "A".repeat(1100)),
            ..hook
        }),
        BAD_REQUEST,
    );
    add(
        "two headers with signatures",
        Box::new(|hook| Hook {
            more: vec![("webhook-signature", hook.signature.clone())],
            ..hook
        }),
        BAD_REQUEST,
    );
    add(
        "two ids",
        Box::new(|hook| Hook {
            more: vec![("webhook-id", "other".to_owned())],
            ..hook
        }),
        BAD_REQUEST,
    );
    add(
        "two times",
        Box::new(|hook| Hook {
            more: vec![("Webhook-Timestamp", hook.timestamp.clone())],
            ..hook
        }),
        BAD_REQUEST,
    );
    add(
        "no id",
        Box::new(|hook| Hook {
            without: Some("webhook-id"),
            ..hook
        }),
        BAD_REQUEST,
    );
    add(
        "no time",
        Box::new(|hook| Hook {
            without: Some("webhook-timestamp"),
            ..hook
        }),
        BAD_REQUEST,
    );
    add(
        "no signature",
        Box::new(|hook| Hook {
            without: Some("webhook-signature"),
            ..hook
        }),
        BAD_REQUEST,
    );
    add(
        "an empty id",
        Box::new(move |hook| {
            Hook {
                id: String::new(),
                ..hook
            }
            .signed(deploy)
        }),
        BAD_REQUEST,
    );
    add(
        "an id with a dot",
        Box::new(move |hook| {
            Hook {
                id: "a.1".to_owned(),
                ..hook
            }
            .signed(deploy)
        }),
        BAD_REQUEST,
    );
    add(
        "an id with a space",
        Box::new(move |hook| {
            Hook {
                id: "a b".to_owned(),
                ..hook
            }
            .signed(deploy)
        }),
        BAD_REQUEST,
    );
    add(
        "a long id",
        Box::new(move |hook| {
            Hook {
                id: "a".repeat(129),
                ..hook
            }
            .signed(deploy)
        }),
        BAD_REQUEST,
    );
    for time in [
        "",
        "now",
        "-1",
        "+1800000000",
        "01800000000",
        "1800000000.0",
        "1e9",
        "0x6b49d200",
        "99999999999999999999",
    ] {
        add(
            "a time in another form",
            Box::new(move |hook| {
                Hook {
                    timestamp: time.to_owned(),
                    ..hook
                }
                .signed(deploy)
            }),
            BAD_REQUEST,
        );
    }
    add(
        "an old request",
        Box::new(move |hook| {
            Hook::at(
                "old",
                hook.timestamp.parse::<i64>().expect("a number") - 301,
            )
        }),
        REFUSED,
    );
    add(
        "a request of the future",
        Box::new(move |hook| {
            Hook::at(
                "new",
                hook.timestamp.parse::<i64>().expect("a number") + 301,
            )
        }),
        REFUSED,
    );
    add(
        "a request of 1970",
        Box::new(move |_| Hook::at("epoch", 1)),
        REFUSED,
    );
    add(
        "GET",
        Box::new(|hook| Hook {
            method: "GET",
            ..hook
        }),
        (405, "E100"),
    );
    add(
        "PUT",
        Box::new(|hook| Hook {
            method: "PUT",
            ..hook
        }),
        (405, "E100"),
    );
    add(
        "no name",
        Box::new(|hook| Hook {
            path: "/v1/hooks".to_owned(),
            ..hook
        }),
        (404, "E100"),
    );
    add(
        "a longer path",
        Box::new(|hook| Hook {
            path: "/v1/hooks/deploy/now".to_owned(),
            ..hook
        }),
        (404, "E100"),
    );
    add(
        "a large body",
        Box::new(move |hook| {
            Hook {
                body: "x".repeat(70_000),
                ..hook
            }
            .signed(deploy)
        }),
        (413, "E101"),
    );
    add(
        "a body without length",
        Box::new(|hook| Hook {
            more: vec![("transfer-encoding", "chunked".to_owned())],
            body: String::new(),
            ..hook
        }),
        (411, "E101"),
    );
    for (nth, (what, change, answer)) in attacks.iter().enumerate() {
        // `refuse` advances the clock before it sends.
        let hook = change(Hook::at(&format!("m-{nth}"), now(&target.site) + 60));
        target.refuse(what, None, &hook.bytes(), *answer).await;
    }
    assert_eq!(jobs(&target.site).await, 0);
    assert!(target.finish().await >= 50);
}

#[tokio::test]
async fn a_request_is_accepted_once_also_after_a_restart() {
    let mut target = start().await;
    // `refuse` advances the clock by a minute each time.
    let hook = Hook::new(&target.site, "first");
    let (status, body) = send(&target.site, &hook).await;
    assert_eq!(
        (status, body.contains("\"jobs\": 1")),
        (202, true),
        "{body}"
    );
    target.refuse("again", None, &hook.bytes(), REPEATED).await;
    let later = Hook::at("first", now(&target.site) + 60);
    target
        .refuse("signed again", None, &later.bytes(), REPEATED)
        .await;
    target.site.kill_and_start_again().await;
    target
        .refuse("after a restart", None, &hook.bytes(), REPEATED)
        .await;
    (target.site.reload)();
    target
        .refuse("after a reload", None, &hook.bytes(), REPEATED)
        .await;
    target.site.clock.advance(120);
    target
        .refuse("when it is old", None, &hook.bytes(), REFUSED)
        .await;
    // Setting the clock back does not make it valid again.
    target.site.clock.set(crate::site::at(-120));
    target
        .refuse("with an earlier clock", None, &hook.bytes(), REPEATED)
        .await;
    assert_eq!(jobs(&target.site).await, 1);
    target.finish().await;
}

#[tokio::test]
async fn of_many_equal_requests_at_a_time_exactly_one_is_accepted() {
    let target = start().await;
    let hook = Hook::new(&target.site, "same");
    let all = (0..20).map(|_| send(&target.site, &hook));
    let mut statuses = Vec::new();
    let mut all: Vec<_> = all.map(Box::pin).collect();
    // All are sent before the first answer is awaited.
    for one in &mut all {
        let first = std::future::poll_fn(|context| {
            std::task::Poll::Ready(match one.as_mut().poll(context) {
                std::task::Poll::Ready(done) => Some(done.0),
                std::task::Poll::Pending => None,
            })
        });
        statuses.extend(first.await);
    }
    for one in all {
        statuses.push(one.await.0);
    }
    assert_eq!(
        statuses.iter().filter(|status| **status == 202).count(),
        1,
        "{statuses:?}"
    );
    assert_eq!(
        statuses.iter().filter(|status| **status == 409).count(),
        19,
        "{statuses:?}"
    );
    assert_eq!(jobs(&target.site).await, 1);
    target.finish().await;
}

#[tokio::test]
async fn an_unknown_webhook_and_a_wrong_signature_get_the_same_answer() {
    let target = start().await;
    let mut answers = Vec::new();
    for path in ["/v1/hooks/deploy", "/v1/hooks/nothing"] {
        let wrong = Hook {
            path: path.to_owned(),
            ..Hook::new(&target.site, "a").signed("another-secret-of-a-webhook")
        };
        let mut client = RawClient::connect(&target.site, None).await;
        let answer = client.exchange(&wrong.bytes()).await.expect("an answer");
        let head = answer.head.lines().filter(|line| !line.starts_with("date"));
        answers.push((head.map(str::to_owned).collect::<Vec<_>>(), answer.body));
    }
    assert_eq!(answers[0], answers[1]);
    target.finish().await;
}

#[tokio::test]
async fn guesses_are_throttled_together_with_valid_requests_of_the_same_client() {
    let target = start().await;
    let wrong = Hook::new(&target.site, "a").signed("another-secret-of-a-webhook");
    for _ in 0..10 {
        assert_eq!(send(&target.site, &wrong).await.0, 401);
    }
    assert_eq!(send(&target.site, &wrong).await.0, 429);
    let right = Hook::new(&target.site, "b");
    assert_eq!(send(&target.site, &right).await.0, 429);
    target.site.clock.advance(60);
    assert_eq!(send(&target.site, &right).await.0, 202);
    target.finish().await;
}

#[tokio::test]
async fn a_valid_request_may_have_other_forms_and_other_signatures() {
    let target = start().await;
    let site = &target.site;
    let hook = Hook::new(site, "several");
    let several = Hook {
        signature: format!(
            "v1,AAAA v2,abc v1,{} {}",
            STANDARD.encode([1; 32]),
            hook.signature
        ),
        ..hook
    };
    assert_eq!(send(site, &several).await.0, 202);
    let empty = Hook {
        body: String::new(),
        ..Hook::new(site, "empty")
    };
    assert_eq!(send(site, &empty.signed(WEBHOOKS[0].1)).await.0, 202);
    let form = Hook {
        more: vec![("content-type", "text/plain".to_owned())],
        ..Hook::new(site, "text")
    };
    assert_eq!(send(site, &form).await.0, 202);
    for offset in [-300, 300] {
        let hook = Hook::at(&format!("at{}", offset + 300), now(site) + offset);
        assert_eq!(send(site, &hook).await.0, 202, "{offset}");
    }
    let mut encoded = Hook {
        path: "/v1/hooks/encoded".to_owned(),
        ..Hook::new(site, "same-id")
    };
    let key: Vec<u8> = (0..32).collect();
    encoded.signature = signature(&key, &encoded.id, &encoded.timestamp, &encoded.body);
    assert_eq!(send(site, &encoded).await.0, 202);
    // The id is that of another webhook's request, which is another event.
    assert_eq!(send(site, &Hook::new(site, "same-id")).await.0, 202);
    // One node follows, and its job waits.
    assert_eq!(jobs(site).await, 1);
    target.finish().await;
}
