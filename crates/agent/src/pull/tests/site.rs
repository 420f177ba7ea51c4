//! A site with a real server on loopback.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use homestak_api::certificate::{Credential, Role};
use homestak_api::publication::{
    AgentStatement, FirstContact, IssuedToken, PublishDirectory, PublishedSpec, ServerSecrets,
    SiteInfo, SpecStatement, sha256,
};
use homestak_api::runtime::{Clock, SharedClock};
use homestak_api::signature::{Purpose, SiteKey};
use homestak_api::trust::{Fingerprint, TlsCredential, Trust, client_config_with_credential};
use homestak_core::firstboot::Enrolment;
use homestak_core::observed::GuestUuid;
use homestak_core::token::{Claims, GuestClaims, SigningKey, mint};
use homestak_server::settings::ServerSettings;
use homestak_server::{Server, ServerOptions};
use jiff::Timestamp;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::sample::{WEB, at, spec, statement};

const TOKEN_KEY: &str = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// A clock that tests set.
struct ManualClock(Mutex<Timestamp>);

#[async_trait::async_trait]
impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.0.lock().expect("free")
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

type Reload = Box<dyn Fn() -> Vec<String>>;

/// A server that runs.
struct Running {
    runtime: Runtime,
    stop: CancellationToken,
    reload: Reload,
}

/// A site, what it published, and its server.
pub(crate) struct TestSite {
    pub(crate) url: String,
    pub(crate) key: SiteKey,
    authority: Credential,
    operator: Credential,
    clock: Arc<ManualClock>,
    /// When it was first started, in seconds from the time of the samples.
    first_start: i64,
    directory: PublishDirectory,
    root: tempfile::TempDir,
    running: Option<Running>,
}

impl TestSite {
    /// Starts a server that serves the first spec of `web`.
    pub(crate) fn start() -> Self {
        Self::start_at(0)
    }

    /// The same at another time, in seconds from that of the samples.
    pub(crate) fn start_at(second: i64) -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let authority = Credential::authority("site", at(second)).expect("an authority");
        let operator = authority.issue(Role::Operator("op".to_owned()), at(second));
        let mut site = Self {
            url: String::new(),
            key: SiteKey::generate().expect("a key"),
            operator: operator.expect("an operator"),
            authority,
            clock: Arc::new(ManualClock(Mutex::new(at(second)))),
            first_start: second,
            directory: PublishDirectory::new(root.path().join("published")),
            root,
            running: None,
        };
        site.publish_intermediate(at(second));
        site.publish(&spec("one"), |_| ());
        site.run();
        site
    }

    /// Starts the server; at another port than before.
    pub(crate) fn run(&mut self) {
        self.run_on(0);
    }

    /// Starts the server again, at the same port.
    pub(crate) fn run_again(&mut self) {
        let port = self
            .url
            .rsplit(':')
            .next()
            .and_then(|port| port.parse().ok());
        self.run_on(port.expect("a port"));
    }

    fn run_on(&mut self, port: u16) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let settings = ServerSettings {
            bind: [127, 0, 0, 1].into(),
            port,
            ..ServerSettings::default()
        };
        let clock: SharedClock = self.clock.clone();
        let server = runtime.block_on(Server::open(ServerOptions {
            settings: Box::new(move || Ok(settings.clone())),
            published: self.directory.path().to_owned(),
            state: self.root.path().join("state"),
            listener: None,
            clock,
            hostname: "localhost".to_owned(),
        }));
        let server = server.expect("it starts");
        self.url = format!("https://{}", server.address());
        let reload = server.reloader();
        let stop = CancellationToken::new();
        runtime.spawn(server.run(stop.clone()));
        self.running = Some(Running {
            runtime,
            stop,
            reload: Box::new(move || reload().expect("reloaded")),
        });
    }

    /// Stops the server, without waiting for anything.
    pub(crate) fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop.cancel();
            running.runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }

    /// Starts the server again without its registry.
    pub(crate) fn lose_registry(&mut self) {
        self.stop();
        let at = |name| self.root.path().join(name);
        fs_err::rename(at("state"), at("backup")).expect("moved");
        self.run_again();
    }

    /// Starts the server again with the registry that it had.
    pub(crate) fn restore_registry(&mut self) {
        self.stop();
        let at = |name| self.root.path().join(name);
        fs_err::remove_dir_all(at("state")).expect("removed");
        fs_err::rename(at("backup"), at("state")).expect("moved");
        self.run_again();
    }

    fn reload(&self) {
        if let Some(running) = &self.running {
            (running.reload)();
        }
    }

    pub(crate) fn publish_intermediate(&self, now: Timestamp) {
        let operator = self.operator.issued().fingerprint.clone();
        let info = SiteInfo {
            site: "site".to_owned(),
            keys: vec![self.key.public()],
            operators: BTreeMap::from([(operator, "op".to_owned())]),
            specs: BTreeSet::new(),
            trusted_networks: Vec::new(),
            server_names: Vec::new(),
        };
        let role = Role::Intermediate("site".to_owned());
        let secrets = ServerSecrets {
            signing_key: None,
            token_keys: BTreeMap::from([("k1".to_owned(), TOKEN_KEY.to_owned().into())]),
            intermediate: self.authority.issue(role, now).expect("issued"),
            repo_token_sha256: None,
            webhooks: BTreeMap::new(),
        };
        let written = self.directory.put_site(&info, &secrets);
        written.expect("published");
    }

    /// Returns an intermediate of this site with its key, as an attacker steals it from a server.
    pub(crate) fn stolen_intermediate(&self) -> Credential {
        let role = Role::Intermediate("site".to_owned());
        let issued = self.authority.issue(role, at(self.first_start));
        issued.expect("issued")
    }

    /// Returns the certificate of a node of this site, with its chain and its key. It has the name of
    /// this machine, which OpenSSL accepts as that of a server.
    pub(crate) fn node_credential(&self) -> TlsCredential {
        let issue = |issuer: &Credential, role| {
            let issued = issuer.issue(role, at(self.first_start));
            issued.expect("issued")
        };
        let intermediate = issue(&self.authority, Role::Intermediate("site".to_owned()));
        let role = Role::Node {
            name: "localhost".to_owned(),
            uuid: "22222222-2222-4222-8222-222222222222".to_owned(),
        };
        issue(&intermediate, role).for_tls().expect("usable")
    }

    /// Sets the clock and republishes the intermediate certificate.
    pub(crate) fn set_clock(&self, second: i64) {
        *self.clock.0.lock().expect("free") = at(second);
        self.publish_intermediate(at(second));
        self.reload();
    }

    /// Publishes a spec of `web`.
    pub(crate) fn publish(&self, body: &str, change: impl FnOnce(&mut SpecStatement)) {
        let mut statement = statement(body);
        statement.keys = vec![self.key.public()];
        statement.issued = at(self.first_start).as_second();
        change(&mut statement);
        let published = PublishedSpec {
            statement: self.key.sign(Purpose::Spec, &statement).expect("signed"),
            spec: "base".to_owned(),
            body: body.to_owned(),
            first_contact: FirstContact::NodeToken,
            token_sha256: None,
            single_use: true,
            had_token: true,
            token: Some(IssuedToken {
                id: "t1".to_owned(),
                issued: at(self.first_start).as_second(),
                expires: at(self.first_start + 3600).as_second(),
            }),
            revoked: None,
            mode: None,
            trigger: None,
        };
        let uuid = GuestUuid::new(WEB).expect("a UUID");
        self.directory
            .put_spec(&uuid, &published)
            .expect("published");
        self.reload();
    }

    /// Publishes a program as the agent of this machine's architecture.
    pub(crate) fn publish_agent(&self, program: &[u8], key: &SiteKey) {
        self.publish_changed_agent(program, key, |_| ());
    }

    /// Publishes an agent with a modified statement; the default is version 0.1.0, generation 1.
    pub(crate) fn publish_changed_agent(
        &self,
        program: &[u8],
        key: &SiteKey,
        change: impl FnOnce(&mut AgentStatement),
    ) {
        let architecture = std::env::consts::ARCH;
        let mut statement = AgentStatement {
            architecture: architecture.to_owned(),
            version: "0.1.0".to_owned(),
            sha256: sha256(program),
            size: program.len() as u64,
            generation: 1,
        };
        change(&mut statement);
        let signed = key.sign(Purpose::Agent, &statement).expect("signed");
        let written = self.directory.put_agent(architecture, program, &signed);
        written.expect("published");
        self.reload();
    }

    /// Returns the enrolment of `web`.
    pub(crate) fn enrolment(&self) -> Enrolment {
        let claims = Claims {
            node: "web".to_owned(),
            spec: "base".to_owned(),
            issued_at: at(self.first_start).as_second(),
            guest: Some(GuestClaims {
                uuid: WEB.to_owned(),
                site: "site".to_owned(),
                token_id: "t1".to_owned(),
                key_id: "k1".to_owned(),
                expires_at: at(self.first_start + 3600).as_second(),
            }),
        };
        Enrolment {
            identity: "web".to_owned(),
            uuid: GuestUuid::new(WEB).expect("a UUID"),
            servers: vec![self.url.clone()],
            authorities: vec![self.authority.issued().chain.clone()],
            site: "site".to_owned(),
            site_keys: vec![self.key.public().to_string()],
            token: mint(&claims, &SigningKey::from_hex(TOKEN_KEY).expect("a key")),
            issued: at(self.first_start).as_second(),
            agent_generation: 0,
        }
    }

    /// Sends an operator request; panics unless it succeeds.
    pub(crate) fn ask(&self, method: &str, path: &str) -> Value {
        self.try_ask(method, path).expect("an answer")
    }

    fn try_ask(&self, method: &str, path: &str) -> Option<Value> {
        self.try_send(method, path, &serde_json::json!({}))
    }

    /// Sends a body as the operator; panics unless the request succeeds.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        self.try_send("POST", path, body).expect("an answer")
    }

    fn try_send(&self, method: &str, path: &str, body: &Value) -> Option<Value> {
        let fingerprint = Fingerprint::parse(&self.authority.issued().fingerprint);
        let trust = Trust::Site(vec![fingerprint.expect("a fingerprint")]);
        let own = self.operator.for_tls().expect("usable");
        let config = client_config_with_credential(&trust, Some(own)).expect("valid");
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(config)
            .no_proxy()
            .build()
            .expect("a client");
        let url = format!("{}{path}", self.url);
        let request = match method {
            "GET" => client.get(url),
            _ => client.post(url).json(body),
        };
        let running = self.running.as_ref().expect("it runs");
        running.runtime.block_on(async {
            let answer = request.send().await.expect("an answer");
            match answer.status().is_success() {
                true => Some(answer.json().await.expect("JSON")),
                false => None,
            }
        })
    }

    /// Returns the states that `web` reported; none before it enrolled.
    pub(crate) fn reports(&self) -> Vec<String> {
        let Some(reports) = self.try_ask("GET", &format!("/v1/nodes/{WEB}/reports")) else {
            return Vec::new();
        };
        let reports = reports["reports"].as_array().expect("reports").iter();
        let state = |report: &Value| report["state"].as_str().unwrap_or_default().to_owned();
        reports.map(state).collect()
    }
}

impl Drop for TestSite {
    fn drop(&mut self) {
        self.stop();
    }
}
