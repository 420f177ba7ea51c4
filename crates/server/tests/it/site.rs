//! A site with a server on loopback, and clients of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use homestak_api::certificate::{Credential, Role, certificates};
use homestak_api::publication::{
    FirstContact, IssuedToken, PublishDirectory, PublishedSpec, ServerSecrets, SiteInfo,
    SpecStatement, sha256,
};
use homestak_api::runtime::{Clock, SharedClock};
use homestak_api::signature::{Purpose, SiteKey};
use homestak_api::trust::{Fingerprint, TlsCredential, Trust, client_config_as};
use homestak_core::observed::GuestUuid;
use homestak_core::token::{Claims, GuestClaims, SigningKey, mint};
use homestak_server::settings::ServerSettings;
use homestak_server::{Server, ServerOptions};
use jiff::Timestamp;
use rcgen::KeyPair;
use tokio_util::sync::CancellationToken;

pub(crate) const WEB: &str = "11111111-1111-4111-8111-111111111111";
pub(crate) const DB: &str = "22222222-2222-4222-8222-222222222222";
pub(crate) const V1_KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
pub(crate) const V2_KEY: &str = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// A clock that tests set.
pub(crate) struct SetClock(Mutex<Timestamp>);

impl SetClock {
    pub(crate) fn set(&self, to: Timestamp) {
        *self.0.lock().expect("free") = to;
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
    info: SiteInfo,
    stop: CancellationToken,
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
        let root = tempfile::tempdir().expect("a directory");
        let directory = PublishDirectory::new(root.path().join("published"));
        let clock = Arc::new(SetClock(Mutex::new(at(0))));
        let key = SiteKey::generate().expect("a key");
        let authority = Credential::authority("site", at(0)).expect("an authority");
        let operator = authority
            .issue(Role::Operator("op".to_owned()), at(0))
            .expect("an operator");
        let fingerprint = operator.issued().fingerprint.clone();
        let mut info = SiteInfo {
            site: "site".to_owned(),
            keys: vec![key.public()],
            operators: BTreeMap::from([(fingerprint, "op".to_owned())]),
            trusted_networks: Vec::new(),
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
            key,
            authority,
            operator,
            clock,
            directory,
            root,
            info,
        };
        site.publish_intermediate(at(0));
        site.publish(WEB, "web", |_| ());
        site.publish(DB, "db", |_| ());
        let clock: SharedClock = site.clock.clone();
        let server = Server::open(ServerOptions {
            settings,
            published: site.directory.path().to_owned(),
            state: site.root.path().join("state"),
            listener: None,
            clock,
            hostname: "localhost".to_owned(),
        });
        let server = server.await.expect("it starts");
        site.url = format!("https://{}", server.address());
        let reload = server.reloader();
        site.reload = Box::new(move || reload().expect("reloaded"));
        tokio::spawn(server.run(site.stop.clone()));
        site
    }

    /// Publishes the site with an intermediate that is issued at a time.
    pub(crate) fn publish_intermediate(&self, now: Timestamp) {
        let intermediate = Role::Intermediate("site".to_owned());
        let secrets = ServerSecrets {
            signing_key: Some(V1_KEY.to_owned().into()),
            token_keys: BTreeMap::from([("k1".to_owned(), V2_KEY.to_owned().into())]),
            intermediate: self.authority.issue(intermediate, now).expect("issued"),
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
        let statement = SpecStatement {
            site: "site".to_owned(),
            manifest: "lab".to_owned(),
            host: "local".to_owned(),
            node: node.to_owned(),
            uuid: uuid(guest),
            generation: 7,
            issued: at(0).as_second(),
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
            token: Some(IssuedToken {
                id: format!("t-{node}"),
                issued: at(0).as_second(),
                expires: at(3600).as_second(),
            }),
        };
        change(&mut spec);
        self.directory
            .put_spec(&uuid(guest), &spec)
            .expect("published");
        spec
    }

    /// Returns the claims of the token of a node.
    pub(crate) fn claims(&self, guest: &str, node: &str) -> Claims {
        Claims {
            node: node.to_owned(),
            spec: "base".to_owned(),
            issued_at: at(0).as_second(),
            guest: Some(GuestClaims {
                uuid: guest.to_owned(),
                site: "site".to_owned(),
                token_id: format!("t-{node}"),
                key_id: "k1".to_owned(),
                expires_at: at(3600).as_second(),
            }),
        }
    }

    /// Returns a client that trusts the site, with or without a certificate.
    pub(crate) fn client(&self, own: Option<TlsCredential>) -> reqwest::Client {
        let authority = Fingerprint::parse(&self.authority.issued().fingerprint);
        let trust = Trust::Site(vec![authority.expect("a fingerprint")]);
        let config = client_config_as(&trust, own).expect("a configuration");
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
        let key = KeyPair::generate().expect("a key");
        let token = v2(&self.claims(guest, node));
        let answer = enrol(&self.client(None), &self.url, guest, node, &key, &token).await;
        let (status, body) = (answer.status(), answer.text().await.expect("a body"));
        assert_eq!(status, 201, "{body}");
        self.client(Some(credential(&body, &key)))
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
    use base64::Engine as _;
    let public = base64::engine::general_purpose::STANDARD.encode(key.public_key_raw());
    let body = serde_json::json!({
        "node": node, "uuid": guest, "public_key": public, "agent": "0.1.0",
    });
    let request = client.post(format!("{url}/v1/enrol")).bearer_auth(token);
    request.json(&body).send().await.expect("an answer")
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
