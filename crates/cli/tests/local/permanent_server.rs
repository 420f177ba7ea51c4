//! A permanent server of another user, with real nodes: what it loses, what is replaced, and how
//! nodes enrol again without being rebuilt.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::test_host::{TestHost, text};

/// A user and group without any rights.
const NOBODY: u32 = 65534;

const SPEC: &str = "\
schema_version: 1
access:
  posture: free
  users:
    - {name: ops, sudo: true}
platform:
  services: {disable: [nftables]}
config:
  files:
    - {path: /etc/motd, content: \"TEXT\\n\"}
run: {trigger: schedule, interval: 10s}
";

/// A server that reads the directory to which the driver publishes.
struct Server {
    directory: PathBuf,
    child: Option<Child>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Server {
    fn new(host: &mut TestHost) -> Self {
        let directory = host.state().with_file_name("server");
        for (path, owner, mode) in [
            (host.state().with_file_name(""), None, 0o711),
            (directory.clone(), None, 0o755),
            (directory.join("published"), None, 0o2750),
            (directory.join("state"), Some(NOBODY), 0o700),
        ] {
            std::fs::create_dir_all(&path).unwrap();
            if path.starts_with(&directory) && path != directory {
                std::os::unix::fs::chown(&path, owner, Some(NOBODY)).unwrap();
            }
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, mode).unwrap();
        }
        let published = directory.join("published").display().to_string();
        host.set("HOMESTAK_PUBLISH_TO", &published);
        Self {
            directory,
            child: None,
        }
    }

    fn start(&mut self, host: &TestHost) {
        let ids = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
        let settings = self.directory.join("server.toml");
        let child = Command::new("setpriv")
            .args(ids)
            .arg("--clear-groups")
            .arg(crate::program())
            .args(["server", "start", "--foreground", "--settings"])
            .arg(settings)
            .arg("--published")
            .arg(self.directory.join("published"))
            .arg("--state")
            .arg(self.directory.join("state"))
            .env_clear()
            .current_dir("/")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.child = Some(child.unwrap());
        wait("the server", || host.run(&["server", "status"]).code == 0);
    }

    /// Removes everything that the server recorded.
    fn lose_registry(&self) {
        for entry in std::fs::read_dir(self.directory.join("state")).unwrap() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap().is_dir() {
                true => std::fs::remove_dir_all(entry.path()).unwrap(),
                false => std::fs::remove_file(entry.path()).unwrap(),
            }
        }
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            _ = child.kill();
            _ = child.wait();
        }
    }
}

/// Waits for something that a node does at its interval of ten seconds.
fn wait(what: &str, is_done: impl Fn() -> bool) {
    for _ in 0..300 {
        if is_done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    panic!("still waiting for {what}");
}

fn write(host: &TestHost, motd: &str) {
    host.write(
        "postures/free.yaml",
        "auth: {method: network}\n\
         ssh: {port: 22, permit_root_login: \"yes\", password_authentication: \"no\"}\n\
         sudo: {nopasswd: true}\n",
    );
    host.write("specs/web.yaml", &SPEC.replace("TEXT", motd));
    host.manifest(
        "lab",
        "  - {name: web, spec: web, execution: {mode: pull}}\n",
    );
}

/// Changes the spec, and waits until the node has applied it.
fn apply(host: &TestHost, motd: &str) {
    write(host, motd);
    let run = host.manifest_run("apply", "lab", &["--yes"]);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    host.inside("web", &format!("grep -qx '{motd}' /etc/motd"))
        .good();
}

fn json_of(host: &TestHost, line: &str) -> Value {
    let words: Vec<&str> = line.split_whitespace().chain(["--json-output"]).collect();
    host.run(&words).json()
}

#[test]
fn nodes_of_a_permanent_server_outlive_its_registry_its_certificate_and_the_keys_of_the_site() {
    let Some(mut host) = crate::host() else {
        return;
    };
    let mut server = Server::new(&mut host);
    std::fs::write(server.directory.join("server.toml"), "").unwrap();
    write(&host, "one");
    host.run(&["server", "publish"]).good();
    server.start(&host);
    apply(&host, "one");
    let uuid = text(&json_of(&host, "node list")["nodes"][0]["uuid"]);

    // The registry is lost. Neither the certificate nor a token of before is accepted; the operator
    // lets the node enrol again.
    server.stop();
    server.lose_registry();
    server.start(&host);
    // It is expected, since its spec is published, and has not enrolled here.
    let node = &json_of(&host, "node list")["nodes"][0];
    assert_eq!(
        (&node["uuid"], &node["enrolled"]),
        (&json!(uuid), &json!(null))
    );
    let is_refused = |host: &TestHost| {
        let line = "sudo test -e /usr/local/etc/homestak/state/config-failed.json";
        host.inside("web", line).code == 0
    };
    wait("the node to be refused", || is_refused(&host));
    let is_active = "systemctl is-active --quiet homestak-pull.service";
    host.inside("web", is_active).good();
    let enrolled = json_of(&host, "node enrol web --yes");
    assert_eq!(enrolled["uuid"], uuid);
    apply(&host, "two");

    // The site key is replaced, and the node follows.
    let announced = json_of(&host, "server rotate-key site");
    wait("the node to learn the new key", || {
        json_of(&host, "server rotate-key site")["behind"] == json!([])
    });
    let retired = json_of(&host, "server rotate-key site --retire --yes");
    assert_eq!(retired["behind"], json!([]));
    assert_eq!(retired["current"], announced["next"]);
    apply(&host, "three");

    // An own certificate is announced, and then used.
    let profile = host.inside("web", ". /etc/profile.d/homestak.sh; echo $HOMESTAK_SERVER");
    let url = profile.good();
    let address = url.trim().trim_start_matches("https://");
    let (address, _) = address.rsplit_once(':').unwrap();
    let made = Command::new("openssl")
        .args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 9".split(' '))
        .args([
            "-subj", "/CN=own", "-keyout", "own.key", "-out", "own.pem", "-addext",
        ])
        .arg(format!("subjectAltName=IP:{address}"))
        .current_dir(&server.directory)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let (own, key) = (
        server.directory.join("own.pem"),
        server.directory.join("own.key"),
    );
    std::os::unix::fs::chown(&key, Some(NOBODY), Some(NOBODY)).unwrap();
    let trust = format!("server trust {}", own.display());
    let trusted = json_of(&host, &trust);
    assert_eq!(trusted["signed"], 1, "{trusted}");
    wait("the node to learn the certificate", || {
        json_of(&host, "server trust")["behind"] == json!([])
    });
    let settings = format!("cert = {own:?}\nkey = {key:?}\n");
    std::fs::write(server.directory.join("server.toml"), settings).unwrap();
    host.run(&["server", "reload"]).good();
    apply(&host, "four");

    // A new node accepts it on its first boot.
    host.destroy("lab");
    apply(&host, "five");

    // The keys of the site are lost: the node refuses everything until it enrols again.
    for site in std::fs::read_dir(host.state().join("site-keys")).unwrap() {
        std::fs::remove_dir_all(site.unwrap().path()).unwrap();
    }
    std::fs::write(server.directory.join("server.toml"), "").unwrap();
    server.stop();
    host.run(&["server", "publish"]).good();
    server.start(&host);
    json_of(&host, "node enrol web --yes");
    apply(&host, "six");

    // A node that was revoked stays so when the registry is lost.
    json_of(&host, "node revoke web --yes");
    server.stop();
    server.lose_registry();
    server.start(&host);
    wait("the node to be refused", || is_refused(&host));
    let node = &json_of(&host, "node list")["nodes"][0];
    assert_eq!(node["enrolled"], json!(null), "{node}");
    host.destroy("lab");
    server.stop();
    host.assert_unchanged();
}
