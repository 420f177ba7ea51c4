//! Ownership of nodes on this machine.

use std::process::Command;

use crate::test_host::{TestHost, text};

/// Changes the journal and the files of nodes to those from before sites had an id.
fn remove_site_ids(host: &TestHost) {
    let script = "import sqlite3, sys\n\
        db = sqlite3.connect(sys.argv[1])\n\
        db.execute(\"UPDATE nodes SET site = '', record = json_remove(record, '$.site')\")\n\
        db.commit()\n";
    let done = Command::new("python3")
        .args(["-c", script])
        .arg(host.state().join("journal.db"))
        .status();
    assert!(done.unwrap().success());
    for node in host.nodes() {
        let file = host
            .root()
            .join("nodes")
            .join(text(&node["uuid"]))
            .join("node.json");
        let mut json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let node = json.as_object_mut().unwrap();
        assert!(node.remove("site").is_some() && node.remove("run").is_some());
        std::fs::write(&file, serde_json::to_vec(&json).unwrap()).unwrap();
    }
}

#[test]
fn nodes_of_older_releases_get_a_site_identity_while_running() {
    let Some(host) = crate::host() else { return };
    host.peers("two", 2);
    host.apply("two");
    remove_site_ids(&host);
    let started = |name: &str| {
        host.inside(name, "stat -c %Y /proc/1 && hostname -I")
            .good()
    };
    let before = ["peer-1", "peer-2"].map(started);
    let shown = |key: &str| {
        host.nodes()
            .iter()
            .map(|node| text(&node[key]))
            .collect::<Vec<_>>()
    };
    let (ids, addresses) = (shown("id"), shown("address"));
    host.manifest_run("reidentify", "two", &["--yes"]).good();
    assert_eq!((shown("id"), shown("address")), (ids, addresses));
    // Reached with the pinned host key, and not restarted.
    for (name, before) in ["peer-1", "peer-2"].iter().zip(before) {
        let line = "stat -c %Y /proc/1 && hostname -I";
        assert_eq!(host.run(&["ssh", name, "--", line]).good(), before);
    }
    let again = host.manifest_run("apply", "two", &["--yes"]);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
    // Now it is identified without the journal.
    std::fs::remove_file(host.state().join("journal.db")).unwrap();
    host.destroy("two");
    host.assert_unchanged();
}

#[test]
fn another_site_with_the_same_manifest_leaves_our_nodes_running() {
    let Some(host) = crate::host() else { return };
    host.peers("two", 1);
    host.apply("two");
    let theirs = tempfile::tempdir().unwrap();
    let destroy = ["manifest", "destroy", "-M", "two", "-H", "local", "--yes"];
    host.run(&["site", "new-id", "--yes"]).good();
    let run = host
        .command(&destroy)
        .env("HOMESTAK_STATE", theirs.path().join("state"))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(stderr.contains("Nothing to do."), "{stderr}");
    let site = text(&host.nodes()[0]["site"]);
    assert_eq!(host.names(), ["peer-1"]);
    host.run(&["site", "new-id", "--id", &site, "--yes"]).good();
    host.destroy("two");
    host.assert_unchanged();
}
