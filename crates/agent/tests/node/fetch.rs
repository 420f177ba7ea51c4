//! A spec that was fetched, until it is applied.

use serde_json::{Value, json};

use crate::lab::{AGENT, Lab, STATE};
use crate::server::{Answer, Server};

/// Where the node finds the server.
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
fn a_fetched_spec_waits_until_it_is_applied_and_the_watch_goes_by_the_old_one() {
    let Some(lab) = Lab::new() else { return };
    let refused = json!({ "error": { "code": "E301", "message": "not yours" } });
    let server = Server::new(vec![
        Answer::Says(401, refused.to_string()),
        Answer::Says(200, spec("two").to_string()),
        Answer::Says(200, spec("two").to_string()),
        Answer::Says(401, refused.to_string()),
    ]);
    lab.bed.lead(PORT, server.port);
    let get = |more: &str| {
        let line =
            format!("HOMESTAK_TOKEN=a.b {AGENT} spec get -s https://localhost:{PORT} {more}");
        lab.root(&line)
    };
    let trust = format!("--fingerprint {}", server.fingerprint);
    let motd = || lab.root("cat /etc/motd").good().trim().to_owned();
    let kept = |name: &str| lab.root(&format!("cat {STATE}/{name}"));

    // Whoever waits for a node that became nothing yet hears why.
    let run = get(&trust);
    assert_eq!(run.code, 1, "{}", run.err);
    let failed = lab.status()["failed"].clone();
    assert_eq!(failed["error"], "refused_by_server");
    assert_eq!(failed["node"], "web");
    assert_eq!(failed["phase"], "fetch");

    lab.apply(&spec("one"));
    assert!(lab.status()["failed"].is_null());
    let run = get(&trust);
    assert_eq!(run.code, 0, "{}", run.err);
    assert_eq!(lab.status()["fetched"], true);
    assert_eq!(
        lab.root(&format!("stat -c '%a %U' {STATE}/spec.fetched.yaml"))
            .good()
            .trim(),
        "600 root"
    );
    lab.root(&format!("{AGENT} run --once")).good();
    assert_eq!(motd(), "one");
    // Another spec that comes meanwhile does not take its place.
    lab.apply(&spec("one"));
    assert_eq!(lab.status()["fetched"], true);
    assert_eq!(lab.root(&format!("{AGENT} config check")).code, 3);

    // The certificate is known by now.
    get("").good();
    lab.root(&format!("{AGENT} config apply")).good();
    assert_eq!(motd(), "two");
    assert_eq!(lab.status()["fetched"], false);
    assert_eq!(kept("spec.yaml").good(), spec("two").to_string());
    assert_eq!(kept("spec.yaml.prev").good(), spec("one").to_string());
    lab.root(&format!("{AGENT} run --once")).good();

    // A node that is complete stays so when a server has nothing for it.
    assert_eq!(get("").code, 1);
    assert_eq!(lab.status()["status"], "complete");
    lab.bed.destroy("lab");
    lab.bed.is_as_before();
}
