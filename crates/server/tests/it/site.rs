//! A site with a server on loopback, and clients of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use homestak_api::certificate::{Credential, Role, certificates};
use homestak_api::job_statement::JobStatement;
use homestak_api::publication::{
    AgentStatement, FirstContact, IssuedToken, PublishDirectory, PublishedSpec, ServerSecrets,
    SiteInfo, SpecStatement, sha256,
};
use homestak_api::runtime::{Clock, SharedClock};
use homestak_api::signature::{Purpose, SiteKey};
use homestak_api::trust::{Fingerprint, TlsCredential, Trust, client_config_with_credential};
use homestak_api::v1::node_job::{JobKind, JobOptions};
use homestak_core::observed::GuestUuid;
use homestak_core::token::{Claims, GuestClaims, SigningKey, mint};
use homestak_server::settings::{Limits, ServerSettings};
use homestak_server::{Server, ServerOptions};
use jiff::Timestamp;
use rcgen::KeyPair;
use tokio_util::sync::CancellationToken;

pub(crate) const WEB: &str = "11111111-1111-4111-8111-111111111111";
pub(crate) const DB: &str = "22222222-2222-4222-8222-222222222222";
pub(crate) const V1_KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
pub(crate) const REPO_TOKEN: &str = "token-for-repositories";
/// Webhooks with their secrets; that of `encoded` stands for 32 bytes.
pub(crate) const WEBHOOKS: [(&str, &str); 2] = [
    ("deploy", "secret-of-the-webhook-deploy"),
    (
        "encoded",
        "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
    ),
];
pub(crate) const V2_KEY: &str = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// A clock that tests set.
pub(crate) struct SetClock(pub(crate) Mutex<Timestamp>);

impl SetClock {
    pub(crate) fn set(&self, to: Timestamp) {
        *self.0.lock().expect("free") = to;
    }

    pub(crate) fn advance(&self, seconds: u64) {
        let mut now = self.0.lock().expect("free");
        *now += Duration::from_secs(seconds);
    }
}

#[async_trait::async_trait]
impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        *self.0.lock().expect("free")
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

/// A site, its published specs, and a server that runs.
pub(crate) struct TestSite {
    pub(crate) key: SiteKey,
    pub(crate) authority: Credential,
    pub(crate) operator: Credential,
    pub(crate) clock: Arc<SetClock>,
    pub(crate) directory: PublishDirectory,
    pub(crate) root: tempfile::TempDir,
    pub(crate) url: String,
    pub(crate) reload: Box<dyn Fn() -> Vec<String>>,
    epoch: Timestamp,
    info: SiteInfo,
    settings: Arc<Mutex<ServerSettings>>,
    stop: CancellationToken,
    running: Option<tokio::task::JoinHandle<()>>,
}

pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).expect("a time")
}

pub(crate) fn uuid(text: &str) -> GuestUuid {
    GuestUuid::new(text).expect("a UUID")
}

impl TestSite {
    /// Starts a server that serves the nodes `web` and `db`.
    pub(crate) async fn start() -> Self {
        Self::start_with(ServerSettings::default(), |_| ()).await
    }

    pub(crate) async fn start_with(
        settings: ServerSettings,
        change: impl FnOnce(&mut SiteInfo),
    ) -> Self {
        Self::start_at(at(0), settings, change).await
    }

    /// Starts a server whose certificates are valid by the clock of this machine.
    pub(crate) async fn start_now(settings: ServerSettings) -> Self {
        let now = homestak_api::runtime::WallClock.now();
        Self::start_at(now, settings, |_| ()).await
    }

    async fn start_at(
        epoch: Timestamp,
        settings: ServerSettings,
        change: impl FnOnce(&mut SiteInfo),
    ) -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let directory = PublishDirectory::new(root.path().join("published"));
        let clock = Arc::new(SetClock(Mutex::new(epoch)));
        let key = SiteKey::generate().expect("a key");
        let authority = Credential::authority("site", epoch).expect("an authority");
        let operator = authority
            .issue(Role::Operator("op".to_owned()), epoch)
            .expect("an operator");
        let fingerprint = operator.issued().fingerprint.clone();
        let mut info = SiteInfo {
            site: "site".to_owned(),
            keys: vec![key.public()],
            operators: BTreeMap::from([(fingerprint, "op".to_owned())]),
            specs: std::collections::BTreeSet::new(),
            trusted_networks: Vec::new(),
            server_names: Vec::new(),
        };
        change(&mut info);
        let settings = ServerSettings {
            bind: [127, 0, 0, 1].into(),
            port: 0,
            ..settings
        };
        let mut site = Self {
            url: String::new(),
            reload: Box::new(Vec::new),
            stop: CancellationToken::new(),
            running: None,
            key,
            authority,
            operator,
            clock,
            directory,
            root,
            epoch,
            info,
            settings: Arc::new(Mutex::new(settings)),
        };
        site.publish_intermediate(epoch);
        site.publish(WEB, "web", |_| ());
        site.publish(DB, "db", |_| ());
        site.launch().await;
        site
    }

    /// Starts a server on another port, with the state of the one before.
    async fn launch(&mut self) {
        let (clock, settings): (SharedClock, _) = (self.clock.clone(), self.settings.clone());
        let server = Server::open(ServerOptions {
            settings: Box::new(move || Ok(settings.lock().expect("free").clone())),
            published: self.directory.path().to_owned(),
            state: self.root.path().join("state"),
            listener: None,
            clock,
            hostname: "localhost".to_owned(),
        });
        let server = server.await.expect("it starts");
        self.url = format!("https://{}", server.address());
        let reload = server.reloader();
        self.reload = Box::new(move || reload().expect("reloaded"));
        self.running = Some(tokio::spawn(server.run(self.stop.clone())));
    }

    /// Ends the server without letting it finish anything, and starts another one in its place.
    pub(crate) async fn kill_and_start_again(&mut self) {
        let running = self.running.take().expect("it runs");
        running.abort();
        assert!(running.await.expect_err("aborted").is_cancelled());
        self.launch().await;
    }

    /// Changes the settings; the server reads them when it reloads or starts again.
    pub(crate) fn set(&self, change: impl FnOnce(&mut ServerSettings)) {
        change(&mut self.settings.lock().expect("free"));
    }

    /// Changes limits in the same way.
    pub(crate) fn set_limits(&self, limits: Limits) {
        self.set(|settings| settings.limits = limits);
    }

    fn second(&self, after: i64) -> i64 {
        self.epoch.as_second() + after
    }

    /// Publishes the site with an intermediate that is issued at a time.
    pub(crate) fn publish_intermediate(&self, now: Timestamp) {
        self.publish_keys(now, Some(V1_KEY), &[("k1", V2_KEY)]);
    }

    /// The same with other token keys.
    pub(crate) fn publish_keys(&self, now: Timestamp, v1: Option<&str>, v2: &[(&str, &str)]) {
        let intermediate = Role::Intermediate("site".to_owned());
        let by_id = v2.iter();
        let by_id = by_id.map(|(id, key)| ((*id).to_owned(), (*key).to_owned().into()));
        let secrets = ServerSecrets {
            signing_key: v1.map(|key| key.to_owned().into()),
            token_keys: by_id.collect(),
            intermediate: self.authority.issue(intermediate, now).expect("issued"),
            repo_token_sha256: Some(sha256(REPO_TOKEN.as_bytes())),
            webhooks: WEBHOOKS
                .map(|(name, secret)| (name.to_owned(), secret.to_owned().into()))
                .into(),
        };
        self.directory
            .put_site(&self.info, &secrets)
            .expect("published");
    }

    /// Publishes the spec of a node.
    pub(crate) fn publish(
        &self,
        guest: &str,
        node: &str,
        change: impl FnOnce(&mut PublishedSpec),
    ) -> PublishedSpec {
        let body = format!("{{\n  \"identity\": {{ \"hostname\": \"{node}\" }}\n}}\n");
        self.publish_body(guest, node, body, change)
    }

    /// The same with another body.
    pub(crate) fn publish_body(
        &self,
        guest: &str,
        node: &str,
        body: String,
        change: impl FnOnce(&mut PublishedSpec),
    ) -> PublishedSpec {
        let statement = SpecStatement {
            site: "site".to_owned(),
            manifest: "lab".to_owned(),
            host: "local".to_owned(),
            node: node.to_owned(),
            uuid: uuid(guest),
            generation: 7,
            issued: self.second(0),
            sha256: sha256(body.as_bytes()),
            servers: Vec::new(),
            fingerprints: Vec::new(),
            keys: vec![self.key.public()],
        };
        let mut spec = PublishedSpec {
            statement: self.key.sign(Purpose::Spec, &statement).expect("signed"),
            spec: "base".to_owned(),
            body,
            first_contact: FirstContact::NodeToken,
            token_sha256: None,
            single_use: false,
            had_token: true,
            revoked: None,
            mode: None,
            trigger: None,
            token: Some(IssuedToken {
                id: format!("t-{node}"),
                issued: self.second(0),
                expires: self.second(3600),
            }),
        };
        change(&mut spec);
        self.directory
            .put_spec(&uuid(guest), &spec)
            .expect("published");
        spec
    }

    /// Publishes a program as the agent of an architecture.
    pub(crate) fn publish_agent(&self, architecture: &str, program: &[u8]) {
        let statement = AgentStatement {
            architecture: architecture.to_owned(),
            version: "0.1.0".to_owned(),
            generation: 1,
            sha256: sha256(program),
            size: program.len() as u64,
        };
        let signed = self.key.sign(Purpose::Agent, &statement).expect("signed");
        let written = self.directory.put_agent(architecture, program, &signed);
        written.expect("published");
    }

    /// Returns a job for a node, issued now.
    pub(crate) fn job(&self, guest: &str, node: &str, id: &str) -> JobStatement {
        let now = self.clock.now().as_second();
        JobStatement {
            site: "site".to_owned(),
            node: node.to_owned(),
            uuid: uuid(guest),
            id: id.to_owned(),
            kind: JobKind::Check,
            options: JobOptions::default(),
            issued: now,
            expires: now + 3600,
            time_limit: 600,
            operator: "someone".to_owned(),
        }
    }

    /// Signs a job with the site's key.
    pub(crate) fn sign_job(&self, job: &JobStatement) -> String {
        self.key.sign(Purpose::Job, job).expect("signed")
    }

    /// Returns the claims of the token of a node.
    pub(crate) fn claims(&self, guest: &str, node: &str) -> Claims {
        Claims {
            node: node.to_owned(),
            spec: "base".to_owned(),
            issued_at: self.second(0),
            guest: Some(GuestClaims {
                uuid: guest.to_owned(),
                site: "site".to_owned(),
                token_id: format!("t-{node}"),
                key_id: "k1".to_owned(),
                expires_at: self.second(3600),
            }),
        }
    }

    /// Returns the TLS configuration of a client that trusts the site.
    pub(crate) fn tls(&self, own: Option<TlsCredential>) -> rustls::ClientConfig {
        let authority = Fingerprint::parse(&self.authority.issued().fingerprint);
        let trust = Trust::Site(vec![authority.expect("a fingerprint")]);
        client_config_with_credential(&trust, own).expect("a configuration")
    }

    /// Returns a client that trusts the site, with or without a certificate.
    pub(crate) fn client(&self, own: Option<TlsCredential>) -> reqwest::Client {
        let config = self.tls(own);
        reqwest::Client::builder()
            .tls_backend_preconfigured(config)
            .no_proxy()
            .build()
            .expect("a client")
    }

    pub(crate) fn operator(&self) -> reqwest::Client {
        self.client(Some(self.operator.for_tls().expect("usable")))
    }

    /// Enrols a node, and returns a client with its certificate.
    pub(crate) async fn enrol(&self, guest: &str, node: &str) -> reqwest::Client {
        self.client(Some(self.enrolled(guest, node).await.0))
    }

    /// Enrols a node, and returns its certificate in both forms.
    pub(crate) async fn enrolled(&self, guest: &str, node: &str) -> (TlsCredential, [String; 2]) {
        let key = KeyPair::generate().expect("a key");
        let token = v2(&self.claims(guest, node));
        let answer = enrol(&self.client(None), &self.url, guest, node, &key, &token).await;
        let (status, body) = (answer.status(), answer.text().await.expect("a body"));
        assert_eq!(status, 201, "{body}");
        let parsed: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        let chain = parsed["chain"].as_str().expect("a chain").to_owned();
        (credential(&body, &key), [chain, key.serialize_pem()])
    }

    /// Asks the server to stop; returns what ends when it has.
    pub(crate) fn stop(&mut self) -> tokio::task::JoinHandle<()> {
        self.stop.cancel();
        self.running.take().expect("it runs")
    }

    /// Returns the address of the server.
    pub(crate) fn address(&self) -> std::net::SocketAddr {
        let address = self.url.strip_prefix("https://").expect("a URL");
        address.parse().expect("an address")
    }
}

impl Drop for TestSite {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Returns the certificate of an answer with its key.
pub(crate) fn credential(body: &str, key: &KeyPair) -> TlsCredential {
    let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
    let chain = body["chain"].as_str().expect("a chain");
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der());
    (certificates(chain).expect("certificates"), key.into())
}

pub(crate) async fn enrol(
    client: &reqwest::Client,
    url: &str,
    guest: &str,
    node: &str,
    key: &KeyPair,
    token: &str,
) -> reqwest::Response {
    enrol_by(client, url, guest, node, key, Some(token)).await
}

/// The same with or without a token.
pub(crate) async fn enrol_by(
    client: &reqwest::Client,
    url: &str,
    guest: &str,
    node: &str,
    key: &KeyPair,
    token: Option<&str>,
) -> reqwest::Response {
    use base64::Engine as _;
    let public = base64::engine::general_purpose::STANDARD.encode(key.public_key_raw());
    let body = serde_json::json!({
        "node": node, "uuid": guest, "public_key": public, "agent": "0.1.0",
    });
    let request = client.post(format!("{url}/v1/enrol")).json(&body);
    let request = match token {
        Some(token) => request.bearer_auth(token),
        None => request,
    };
    request.send().await.expect("an answer")
}

pub(crate) fn v2(claims: &Claims) -> String {
    mint(claims, &SigningKey::from_hex(V2_KEY).expect("a key"))
}

pub(crate) fn v1(node: &str, spec: &str) -> String {
    let claims = Claims {
        node: node.to_owned(),
        spec: spec.to_owned(),
        issued_at: at(0).as_second(),
        guest: None,
    };
    mint(&claims, &SigningKey::from_hex(V1_KEY).expect("a key"))
}
