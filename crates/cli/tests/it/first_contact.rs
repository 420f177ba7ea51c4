//! Nodes that prove themselves at their first contact by what their posture names, at a server to which
//! the driver has published them.

use std::process::{Command, Stdio};
use std::time::Duration;

use homestak_api::node_key::NodeKey;
use serde_json::{Value, json};

use crate::server_sharing::{command, free_port, run};
use crate::support::Run;
use crate::test_pve::TestPve;

const NODES: &str =
    "  - {name: app, spec: shared, preset: vm-small, image: debian-12, execution: {mode: pull}}
  - {name: app-2, spec: shared, preset: vm-small, image: debian-12, execution: {mode: pull}}
  - {name: edge, spec: own, preset: vm-small, image: debian-12, execution: {mode: pull}}
  - {name: bare, spec: own, preset: vm-small, image: debian-12, execution: {mode: pull}}
";

/// A site with nodes whose postures name tokens, and a server that stays.
struct Site {
    host: TestPve,
    port: u16,
    authority: String,
}

impl Drop for Site {
    fn drop(&mut self) {
        let line = format!("server stop --port {}", self.port);
        _ = command(&self.host.env, self.port, &line).output();
    }
}

impl Site {
    fn start() -> Self {
        let host = TestPve::quick();
        for (name, method) in [("shared", "site_token"), ("own", "node_token")] {
            let posture = format!("auth: {{method: {method}}}\n");
            host.env.write(&format!("postures/{name}.yaml"), &posture);
            let spec = format!("schema_version: 1\naccess: {{posture: {name}}}\n");
            host.env.write(&format!("specs/{name}.yaml"), &spec);
        }
        host.manifest("lab", "", NODES);
        let mut site = Self {
            host,
            port: free_port(),
            authority: String::new(),
        };
        site.secrets(
            "auth:\n  site_token: of-the-site\n  node_tokens: {edge: of-the-edge, app: of-the-app}\n",
        );
        let started = site.run(&format!("server start --port {} --json", site.port));
        let started: Value = serde_json::from_str(&started.good()).unwrap();
        site.authority = started["authority_file"].as_str().unwrap().to_owned();
        site
    }

    /// Sets the tokens in the secrets.
    fn secrets(&self, tokens: &str) {
        let file = self.host.env.site().join("secrets.yaml");
        let text = std::fs::read_to_string(file).unwrap();
        let (kept, _) = text.split_once("auth:").unwrap_or((&text, ""));
        self.host.env.secrets(&format!("{kept}{tokens}"));
    }

    fn run(&self, line: &str) -> Run {
        run(&self.host.env, self.port, line)
    }

    /// Creates the nodes, which never report, and publishes their specs.
    fn apply(&self) {
        let log = self.host.env.work().join("apply.log");
        let line = "manifest apply -M lab -H father --yes";
        let mut applied = command(&self.host.env, self.port, line)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let seen = || std::fs::read_to_string(&log).unwrap();
        while seen().matches("configuring").count() < 4 {
            assert_eq!(applied.try_wait().unwrap(), None, "{}", seen());
            std::thread::sleep(Duration::from_millis(100));
        }
        applied.kill().unwrap();
        applied.wait().unwrap();
    }

    /// Sends a request with curl. Returns the status and the body.
    fn curl(&self, token: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "60", "-w", "\n%{http_code}"])
            .args(["--cacert", &self.authority])
            .env("NO_PROXY", "*")
            .current_dir(self.host.env.work());
        if !token.is_empty() {
            curl.arg("-H").arg(format!("Authorization: Bearer {token}"));
        }
        if let Some(body) = body {
            curl.args([
                "-H",
                "Content-Type: application/json",
                "-d",
                &body.to_string(),
            ]);
        }
        curl.arg(format!("https://127.0.0.1:{}{path}", self.port));
        let out = curl.output().map(Run::from).unwrap().good();
        let (body, status) = out.rsplit_once('\n').unwrap();
        (status.parse().unwrap(), serde_json::from_str(body).unwrap())
    }

    /// Returns the status of a request for a spec, and its error code.
    fn fetch(&self, token: &str, node: &str) -> (u16, String) {
        let (status, body) = self.curl(token, &format!("/spec/{node}"), None);
        if status == 200 {
            assert_eq!(body["identity"]["hostname"], node, "{body}");
        }
        let code = body["error"]["code"].as_str().unwrap_or_default();
        (status, code.to_owned())
    }

    fn enrol(&self, token: &str, node: &str) -> (u16, Value) {
        let listed = self.run("node list --json-output").json();
        let all = listed["nodes"].as_array().unwrap();
        let found = all.iter().find(|one| one["name"] == node).unwrap();
        let key = NodeKey::generate().unwrap();
        let request = json!({
            "node": node, "uuid": found["uuid"], "public_key": key.public(), "agent": "0.0.0",
        });
        self.curl(token, "/v1/enrol", Some(&request))
    }
}

#[test]
fn tokens_that_a_posture_names_count_for_its_nodes_until_they_enrol() {
    let site = Site::start();
    site.apply();
    // Fewer than ten refusals, after which the address would have to wait.
    for (token, node, expected) in [
        ("of-the-site", "app", (200, String::new())),
        ("of-the-site", "app-2", (200, String::new())),
        ("of-the-edge", "edge", (200, String::new())),
        ("", "app", (400, "E300".to_owned())),
        // Its posture names the other token.
        ("of-the-app", "app", (400, "E300".to_owned())),
        ("of-the-site", "edge", (400, "E300".to_owned())),
        // The secrets have none for it.
        ("of-the-edge", "bare", (400, "E300".to_owned())),
    ] {
        assert_eq!(site.fetch(token, node), expected, "{token} {node}");
    }
    let (status, body) = site.enrol("of-the-site", "edge");
    assert_eq!(status, 400, "{body}");

    // What the node enrolled with is spent for it, and not for others.
    let (status, body) = site.enrol("of-the-site", "app");
    assert_eq!(status, 201, "{body}");
    let spent = (403, "E302".to_owned());
    assert_eq!(site.fetch("of-the-site", "app"), spent);
    assert_eq!(site.enrol("of-the-site", "app").0, 403);
    assert_eq!(site.fetch("of-the-site", "app-2").0, 200);

    // A replaced token is published with the specs.
    site.secrets("auth:\n  site_token: replaced\n  node_tokens: {bare: added}\n");
    site.run("server publish").good();
    assert_ne!(site.fetch("of-the-site", "app-2").0, 200);
    assert_eq!(site.fetch("replaced", "app-2").0, 200);
    assert_ne!(site.fetch("of-the-edge", "edge").0, 200);
    assert_eq!(site.fetch("added", "bare").0, 200);
}
