//! Attacks on the server. Each is refused with its code, is in the log with its reason, and learns
//! nothing: no answer and no line of the log has a key, a token, a spec or a path of the server.

mod bodies;
mod certificates;
mod connection_limits;
mod first_contact;
pub(crate) mod hooks;
mod job_reports;
mod jobs;
mod logged;
mod replaced;
mod requests;
mod slow;
mod tokens;

use std::io;
use std::sync::{Arc, Mutex};

use homestak_api::trust::TlsCredential;
use homestak_server::settings::ServerSettings;
use serde_json::json;
use tracing_subscriber::fmt::MakeWriter;

use crate::raw::{RawAnswer, RawClient};
use crate::site::{DB, TestSite, V1_KEY, V2_KEY, WEB};

/// What is logged of a request that hyper refused, and of a client that is too slow.
const BY_PARSER: &str = "refused: a malformed request or a slow client";

/// The log of the server. It runs on the thread of the test.
#[derive(Clone, Default)]
struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl io::Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("free").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for CapturedLog {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl CapturedLog {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("free").clone()).expect("text")
    }

    /// Waits until a line after the first bytes has a text. There is no limit but that of the test.
    async fn wait_for(&self, text: &str, after: usize) {
        while !self.text()[after..].contains(text) {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
}

/// A server under attack.
struct Target {
    site: TestSite,
    log: CapturedLog,
    /// What must not be in an answer or the log.
    secrets: Vec<String>,
    answers: Vec<RawAnswer>,
    _logging: tracing::subscriber::DefaultGuard,
}

impl Target {
    async fn start() -> Self {
        Self::start_with(ServerSettings::default()).await
    }

    async fn start_with(settings: ServerSettings) -> Self {
        let log = CapturedLog::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(log.clone())
            .finish();
        let logging = tracing::subscriber::set_default(subscriber);
        let site = TestSite::start_with(settings, |_| ()).await;
        for (guest, node) in [(WEB, "web"), (DB, "db")] {
            site.publish(guest, node, |spec| {
                // Longer than the attacks take.
                spec.token.as_mut().expect("a token").expires += 30 * 24 * 3600;
            });
        }
        site.publish_agent("x86_64", b"program");
        (site.reload)();
        let published = site.directory.path().join("secrets.json");
        let published: serde_json::Value =
            serde_json::from_slice(&fs_err::read(published).expect("read")).expect("JSON");
        let key = published["intermediate"]["key"].as_str().expect("a key");
        // The first line of the key's base64.
        let key = key.lines().nth(1).expect("a line").to_owned();
        let root = site.root.path().display().to_string();
        Self {
            secrets: vec![V1_KEY.to_owned(), V2_KEY.to_owned(), key, root],
            site,
            log,
            answers: Vec::new(),
            _logging: logging,
        }
    }

    /// Remembers a token that must not be repeated.
    fn secret(&mut self, token: &str) {
        // Short ones are parts of ordinary words.
        if token.len() > 20 {
            self.secrets.push(token.to_owned());
        }
    }

    /// Sends a request that is refused.
    async fn refuse(
        &mut self,
        what: &str,
        own: Option<&TlsCredential>,
        bytes: &[u8],
        (status, code): (u16, &str),
    ) {
        // What failed before is forgotten, so that this is not throttled.
        self.site.clock.advance(60);
        let before = self.log.text().len();
        let own = own.map(|(chain, key)| (chain.clone(), key.clone_key()));
        let mut client = RawClient::connect(&self.site, own).await;
        let answer = client.exchange(bytes).await;
        let answer = answer.unwrap_or_else(|| panic!("{what}: no answer"));
        let (found, message) = answer.refusal();
        assert_eq!(
            (answer.status, &*found),
            (status, code),
            "{what}: {answer:?}"
        );
        let log = self.log.text().split_off(before);
        if code.is_empty() {
            // hyper refused it, and logs when the connection ends.
            assert!(client.is_closed().await, "{what}");
            self.log.wait_for(BY_PARSER, before).await;
        } else {
            let line = log.lines().find(|line| line.contains("refused"));
            let line = line.unwrap_or_else(|| panic!("{what} is not in the log: {log}"));
            for part in [
                "INFO".to_owned(),
                "address=127.0.0.1".to_owned(),
                format!("status={status}"),
                format!("code={code:?}"),
                format!("reason={message:?}"),
            ] {
                assert!(line.contains(&part), "{what}: no {part} in {line}");
            }
        }
        self.answers.push(answer);
    }

    /// Checks that no secret leaked, and that the server still serves; returns how many attacks
    /// there were.
    async fn finish(self) -> usize {
        let log = self.log.text();
        for secret in &self.secrets {
            assert!(!log.contains(secret.as_str()), "in the log: {secret}");
            for answer in &self.answers {
                let text = format!("{}{}", answer.head, answer.body);
                assert!(!text.contains(secret.as_str()), "sent: {secret}");
            }
        }
        for answer in &self.answers {
            // What a spec begins with.
            assert!(!answer.body.contains("hostname"), "{}", answer.body);
            assert!(answer.header("homestak-statement").is_none());
            assert!(answer.header("etag").is_none());
        }
        assert!(!log.contains("ERROR"), "{log}");
        let mut client = RawClient::connect(&self.site, None).await;
        let health = crate::raw::request("GET", "/health", &[], "");
        let health = client.exchange(&health).await.expect("an answer");
        assert_eq!(health.status, 200);
        self.answers.len()
    }
}

/// Returns the body of an enrolment of `web`.
fn enrolment() -> String {
    let key = rcgen::KeyPair::generate().expect("a key");
    let engine = base64::engine::general_purpose::STANDARD;
    let public = base64::Engine::encode(&engine, key.public_key_raw());
    json!({ "node": "web", "uuid": WEB, "public_key": public, "agent": "0.1.0" }).to_string()
}
