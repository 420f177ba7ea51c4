//! Third-party clients of the server: curl, OpenSSL, schemathesis.
//!
//! Requires `tests/prepare`. Without it a test is skipped, or fails if `HOMESTAK_TEST_REQUIRE` is set.
#![expect(
    clippy::disallowed_methods,
    reason = "the tests run other programs, and are set up by environment"
)]

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use homestak_api::runtime::Clock as _;
use homestak_api::v1::openapi::document;
use homestak_server::settings::{Limits, ServerSettings};
use serde_json::{Map, Value, json};

use crate::site::{DB, TestSite, WEB, v1, v2};

/// Returns whether a program can be run.
fn has(program: &Path, version: &str) -> bool {
    let found = Command::new(program).arg(version).output();
    if found.is_ok_and(|output| output.status.success()) {
        return true;
    }
    let line = format!("skipped: no {}: run tests/prepare\n", program.display());
    assert!(std::env::var("HOMESTAK_TEST_REQUIRE").is_err(), "{line}");
    // Not `eprintln!`, whose output is captured in passing tests.
    std::io::stderr().write_all(line.as_bytes()).ok();
    false
}

/// A site whose files programs can read.
struct ClientSite {
    site: TestSite,
    files: tempfile::TempDir,
}

impl ClientSite {
    async fn start() -> Self {
        let limits = Limits {
            // Programs that try values of `wait` wait less than this.
            request: 1,
            ..Limits::default()
        };
        let site = TestSite::start_now(ServerSettings {
            limits,
            ..ServerSettings::default()
        });
        let site = Self {
            site: site.await,
            files: tempfile::tempdir().expect("a directory"),
        };
        site.write("ca.pem", &site.site.authority.issued().chain);
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        fs_err::write(self.path(name), text).expect("written");
        self.path(name)
    }

    /// Runs a program to its end; the server answers meanwhile.
    fn run(&self, program: impl AsRef<OsStr>, arguments: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.files.path());
        command.env("NO_PROXY", "*").stdin(Stdio::null());
        tokio::task::block_in_place(|| command.output().expect("it runs"))
    }

    /// Runs curl; returns its exit code, the status of the answer and the body.
    fn curl(&self, path: &str, arguments: &[&str]) -> (i32, u16, String) {
        let url = format!("{}{path}", self.site.url);
        let mut all = vec!["-sS", "--max-time", "60", "-w", "\n%{http_code}", &*url];
        all.extend(arguments);
        let output = self.run("curl", &all);
        let text = String::from_utf8(output.stdout).expect("text");
        let (body, status) = text.rsplit_once('\n').unwrap_or_default();
        let code = output.status.code().expect("an exit code");
        (code, status.parse().unwrap_or(0), body.to_owned())
    }

    /// Writes the header with a token to a file, so that it is not among the arguments.
    fn token(&self, token: &str) -> String {
        self.write("header", &format!("Authorization: Bearer {token}\n"));
        "@header".to_owned()
    }

    async fn enrol(&self, guest: &str, node: &str) {
        let (_, [chain, key]) = self.site.enrolled(guest, node).await;
        self.write(&format!("{node}.pem"), &chain);
        self.write(&format!("{node}.key"), &key);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_fetches_a_spec_by_token_and_saves_the_body_of_an_unchanged_one() {
    if !has(Path::new("curl"), "--version") {
        return;
    }
    let site = ClientSite::start().await;
    let header = site.token(&v2(&site.site.claims(WEB, "web")));
    let trusted = ["--cacert", "ca.pem", "-H", &header];
    let (code, status, body) = site.curl("/spec/web", &trusted);
    let spec: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((code, status), (0, 200));
    assert_eq!(spec["identity"]["hostname"], "web");

    let save = [&trusted[..], &["--etag-save", "tag"]].concat();
    assert_eq!(site.curl("/spec/web", &save).1, 200);
    let compare = [&trusted[..], &["--etag-compare", "tag"]].concat();
    assert_eq!(site.curl("/spec/web", &compare), (0, 304, String::new()));

    let (code, status, head) = site.curl("/spec/web", &[&trusted[..], &["-I"]].concat());
    assert_eq!((code, status), (0, 200));
    assert!(
        head.to_lowercase().contains("homestak-statement: "),
        "{head}"
    );
    assert_eq!(site.curl("/spec/db", &trusted).1, 401);
    assert_eq!(site.curl("/spec/web", &["--cacert", "ca.pem"]).1, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_trusts_the_authority_of_the_site_only_and_speaks_tls_1_3_only() {
    if !has(Path::new("curl"), "--version") {
        return;
    }
    let site = ClientSite::start().await;
    let other = TestSite::start_now(ServerSettings::default()).await;
    site.write("other.pem", &other.authority.issued().chain);
    assert_eq!(site.curl("/health", &["--cacert", "ca.pem"]).1, 200);
    // 60: the certificate is not trusted; 35: the handshake failed.
    assert_eq!(site.curl("/health", &[]).0, 60);
    assert_eq!(site.curl("/health", &["--cacert", "other.pem"]).0, 60);
    let old = ["--cacert", "ca.pem", "--tls-max", "1.2"];
    assert_eq!(site.curl("/health", &old).0, 35);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shell_with_curl_and_openssl_enrols_and_uses_its_certificate() {
    if !has(Path::new("curl"), "--version") || !has(Path::new("openssl"), "version") {
        return;
    }
    let site = ClientSite::start().await;
    let key = [
        "ecparam",
        "-name",
        "prime256v1",
        "-genkey",
        "-noout",
        "-out",
        "web.key",
    ];
    assert!(site.run("openssl", &key).status.success());
    let public = ["ec", "-in", "web.key", "-pubout", "-outform", "DER"];
    let public = site.run("openssl", &public).stdout;
    let point = &public[public.len() - 65..];
    let point = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, point);
    let body = json!({ "node": "web", "uuid": WEB, "public_key": point, "agent": "curl" });
    site.write("enrol.json", &body.to_string());
    let header = site.token(&v2(&site.site.claims(WEB, "web")));
    let json = "Content-Type: application/json";
    let enrol = [
        "--cacert",
        "ca.pem",
        "-H",
        &header,
        "-H",
        json,
        "-d",
        "@enrol.json",
    ];
    let (_, status, body) = site.curl("/v1/enrol", &enrol);
    assert_eq!(status, 201, "{body}");
    let answer: Value = serde_json::from_str(&body).expect("JSON");
    site.write("web.pem", answer["chain"].as_str().expect("a chain"));

    let own = [
        "--cacert", "ca.pem", "--cert", "web.pem", "--key", "web.key",
    ];
    assert_eq!(site.curl("/spec/web", &own).1, 200);
    assert_eq!(site.curl("/spec/db", &own).1, 403);
    assert_eq!(site.curl("/v1/nodes", &own).1, 403);
    site.write(
        "report.json",
        r#"{"run":"1","state":"converged","agent":"curl"}"#,
    );
    let report = [&own[..], &["-H", json, "-d", "@report.json"]].concat();
    assert_eq!(site.curl("/v1/reports", &report).1, 201);
    // The same key with the certificate of another node cannot prove that it is that node.
    site.enrol(DB, "db").await;
    let stolen = ["--cacert", "ca.pem", "--cert", "db.pem", "--key", "web.key"];
    assert_ne!(site.curl("/spec/db", &stolen).0, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openssl_verifies_the_chain_and_gets_no_older_tls() {
    if !has(Path::new("openssl"), "version") {
        return;
    }
    let site = ClientSite::start().await;
    let address = site.site.address().to_string();
    let connect = |more: &[&str]| {
        let always = [
            "s_client",
            "-connect",
            &address,
            "-CAfile",
            "ca.pem",
            "-showcerts",
        ];
        let output = site.run("openssl", &[&always[..], more].concat());
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        (output.status.success(), text)
    };
    let (is_done, text) = connect(&["-verify_return_error", "-verify_ip", "127.0.0.1"]);
    assert!(is_done, "{text}");
    assert!(text.contains("Verify return code: 0 (ok)"), "{text}");
    assert!(text.contains("TLSv1.3"), "{text}");
    // The server's own certificate, the intermediate and the authority.
    assert_eq!(text.matches("-----BEGIN CERTIFICATE-----").count(), 3);
    let (is_done, text) = connect(&["-verify_return_error", "-verify_ip", "127.0.0.9"]);
    assert!(!is_done, "another address: {text}");
    for version in ["-tls1_2", "-tls1_1", "-tls1"] {
        let (is_done, text) = connect(&[version]);
        assert!(!is_done, "{version}: {text}");
        assert!(text.contains("no peer certificate available"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemathesis_finds_no_answer_that_the_document_does_not_describe() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let given = std::env::var("HOMESTAK_TEST_VENV").map(PathBuf::from);
    let venv = given.unwrap_or_else(|_| root.join("target/test-venv"));
    let program = venv.join("bin/schemathesis");
    if !has(&program, "--version") {
        return;
    }
    let program = std::path::absolute(program).expect("a path");
    let site = ClientSite::start().await;
    site.enrol(WEB, "web").await;
    site.site.publish_agent("x86_64", b"program");
    (site.site.reload)();
    let id = "a".repeat(32);
    let statement = site.site.sign_job(&site.site.job(WEB, "web", &id));
    let submit = site.site.operator();
    let submit = submit.post(format!("{}/v1/nodes/{WEB}/jobs", site.site.url));
    let submit = submit.json(&json!({ "statement": statement }));
    assert_eq!(submit.send().await.expect("an answer").status(), 201);
    let operator = site.site.operator.to_text().expect("text");
    let operator: Value = serde_json::from_str(&operator).expect("JSON");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    site.write("op.pem", &text(&operator["issued"]["chain"]));
    site.write("op.key", &text(&operator["key"]));
    // It knows no type of git.
    let hooks = "hooks = \"hooks.py\"\n";
    let alias = "import schemathesis\nschemathesis.serializer.alias(\
                 'application/x-git-upload-pack-request', 'application/octet-stream')\n";
    site.write("hooks.py", alias);
    let parameters = format!(
        "{hooks}[parameters]\n\"path.identity\" = \"web\"\n\"path.uuid\" = \"{WEB}\"\n\
         \"path.id\" = \"t-web\"\n\"path.architecture\" = \"x86_64\"\n\
         \"path.job\" = \"{id}\"\n"
    );
    site.write("fixed.toml", &parameters);
    site.write("any.toml", hooks);
    let examples = match std::env::var("HOMESTAK_TEST_FULL") {
        Ok(_) => "200",
        Err(_) => "5",
    };
    let url = format!("{}/v1/openapi.json", site.site.url);
    let header = format!("Authorization: Bearer {}", v1("db", "base"));
    let paths = document()["paths"].as_object().expect("paths").clone();
    let n_operations: usize = paths
        .values()
        .filter_map(Value::as_object)
        .map(Map::len)
        .sum();
    let clock = site.site.clock.clone();
    let now = clock.now();
    // The server's certificate is issued for the first client, while its clock is right.
    let health = format!("{}/health", site.site.url);
    let reached = site.run("curl", &["--silent", "--cacert", "ca.pem", &health]);
    assert!(reached.status.success());
    // Failed attempts are forgotten quickly, so that requests are answered and not throttled.
    let passing = tokio::spawn(async move {
        loop {
            clock.advance(60);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    // The operator last: it revokes the node.
    let node = ["--request-cert", "web.pem", "--request-cert-key", "web.key"];
    let operator = ["--request-cert", "op.pem", "--request-cert-key", "op.key"];
    for (who, config, more) in [
        ("anyone", "any.toml", &["-H", &*header][..]),
        ("a node", "fixed.toml", &node[..]),
        ("an operator", "fixed.toml", &operator[..]),
    ] {
        let always = [
            "--config-file",
            config,
            "run",
            &*url,
            "--tls-verify",
            "ca.pem",
            "--checks",
            "not_a_server_error,status_code_conformance,content_type_conformance,\
             response_schema_conformance,response_headers_conformance,unsupported_method,\
             allow_header_conformance",
            "--phases",
            "examples,coverage,fuzzing",
            "--max-examples",
            examples,
            "--seed",
            "15",
            "--no-color",
        ];
        let mut output = site.run(&program, &[&always[..], more].concat());
        // The server closes a connection on which it refused a request without reading its body, and
        // then a client that still sends sees an error of the network.
        for _ in 0..2 {
            let text = String::from_utf8_lossy(&output.stdout);
            if output.status.success() || !text.contains("Network Error") {
                break;
            }
            output = site.run(&program, &[&always[..], more].concat());
        }
        // Certificates that are issued from now on must be valid by the clock of this machine.
        passing.abort();
        site.site.clock.set(now);
        let text = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{who}: {text}\n{error}");
        // All but the one that the document comes from.
        let tested = format!("Tested: {}\n", n_operations - 1);
        assert!(text.contains(&tested), "{who}: {text}");
    }
}
