//! A fetched spec is pending until it is applied.

use serde_json::{Value, json};

use crate::server::{Response, Server};
use crate::test_node::{AGENT, STATE, TestNode};

/// The port of the server on the node.
const PORT: u16 = 44_443;

fn spec(motd: &str) -> Value {
    json!({
        "schema_version": 1,
        "identity": { "hostname": "web" },
        "access": { "posture": "dev", "_posture": { "auth": { "method": "network" } } },
        "config": { "files": [{ "path": "/etc/motd", "content": format!("{motd}\n") }] },
    })
}

#[test]
fn a_fetched_spec_is_pending_until_it_is_applied_and_the_watch_enforces_the_old_one() {
    let Some(node) = TestNode::new() else { return };
    let refused = json!({ "error": { "code": "E301", "message": "not yours" } });
    let server = Server::new(vec![
        Response::Reply(401, refused.to_string()),
        Response::Reply(200, spec("two").to_string()),
        Response::Reply(200, spec("two").to_string()),
        Response::Reply(401, refused.to_string()),
    ]);
    node.host.forward_port(PORT, server.port);
    let get = |more: &str| {
        let line =
            format!("HOMESTAK_TOKEN=a.b {AGENT} spec get -s https://localhost:{PORT} {more}");
        node.root(&line)
    };
    let trust = format!("--fingerprint {}", server.fingerprint);
    let motd = || node.root("cat /etc/motd").good().trim().to_owned();
    let stored = |name: &str| node.root(&format!("cat {STATE}/{name}"));

    // The failure is reported while no spec has been applied.
    let run = get(&trust);
    assert_eq!(run.code, 1, "{}", run.err);
    let failed = node.status()["failed"].clone();
    assert_eq!(failed["error"], "refused_by_server");
    assert_eq!(failed["node"], "web");
    assert_eq!(failed["phase"], "fetch");

    node.apply(&spec("one"));
    assert!(node.status()["failed"].is_null());
    let run = get(&trust);
    assert_eq!(run.code, 0, "{}", run.err);
    assert_eq!(node.status()["fetched"], true);
    assert_eq!(
        node.root(&format!("stat -c '%a %U' {STATE}/spec.fetched.yaml"))
            .good()
            .trim(),
        "600 root"
    );
    node.root(&format!("{AGENT} run --once")).good();
    assert_eq!(motd(), "one");
    // Applying another spec does not remove it.
    node.apply(&spec("one"));
    assert_eq!(node.status()["fetched"], true);
    assert_eq!(node.root(&format!("{AGENT} config check")).code, 3);

    // The fingerprint is stored by now.
    get("").good();
    node.root(&format!("{AGENT} config apply")).good();
    assert_eq!(motd(), "two");
    assert_eq!(node.status()["fetched"], false);
    assert_eq!(stored("spec.yaml").good(), spec("two").to_string());
    assert_eq!(stored("spec.yaml.prev").good(), spec("one").to_string());
    node.root(&format!("{AGENT} run --once")).good();

    // A failed fetch does not change the status of a complete node.
    assert_eq!(get("").code, 1);
    assert_eq!(node.status()["status"], "complete");
    node.host.destroy("lab");
    node.host.assert_unchanged();
}
