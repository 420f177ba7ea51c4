//! Whose nodes on this machine are touched.

use std::process::Command;

use crate::bed::{Bed, text};

/// Makes the journal and the files of nodes what they were before sites had an id.
fn age(bed: &Bed) {
    let script = "import sqlite3, sys\n\
        db = sqlite3.connect(sys.argv[1])\n\
        db.execute(\"UPDATE nodes SET site = '', record = json_remove(record, '$.site')\")\n\
        db.commit()\n";
    let done = Command::new("python3")
        .args(["-c", script])
        .arg(bed.state().join("journal.db"))
        .status();
    assert!(done.unwrap().success());
    for node in bed.nodes() {
        let file = bed
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
fn nodes_of_older_programs_get_an_identity_of_the_site_while_they_run() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("two", 2);
    bed.apply("two");
    age(&bed);
    let started = |name: &str| bed.inside(name, "stat -c %Y /proc/1 && hostname -I").good();
    let before = ["peer-1", "peer-2"].map(started);
    let shown = |key: &str| {
        bed.nodes()
            .iter()
            .map(|node| text(&node[key]))
            .collect::<Vec<_>>()
    };
    let (ids, addresses) = (shown("id"), shown("address"));
    bed.manifest_run("reidentify", "two", &["--yes"]).good();
    assert_eq!((shown("id"), shown("address")), (ids, addresses));
    // Reached with the pinned host key, and not started again.
    for (name, before) in ["peer-1", "peer-2"].iter().zip(before) {
        let line = "stat -c %Y /proc/1 && hostname -I";
        assert_eq!(bed.run(&["ssh", name, "--", line]).good(), before);
    }
    let again = bed.manifest_run("apply", "two", &["--yes"]);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
    // Known without the journal now.
    std::fs::remove_file(bed.state().join("journal.db")).unwrap();
    bed.destroy("two");
    bed.is_as_before();
}

#[test]
fn another_site_with_the_same_manifest_leaves_our_nodes_running() {
    let Some(bed) = crate::new_bed() else { return };
    bed.peers("two", 1);
    bed.apply("two");
    let theirs = tempfile::tempdir().unwrap();
    let destroy = ["manifest", "destroy", "-M", "two", "-H", "local", "--yes"];
    bed.run(&["site", "new-id", "--yes"]).good();
    let run = bed
        .command(&destroy)
        .env("HOMESTAK_STATE", theirs.path().join("state"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(said.contains("Nothing to do."), "{said}");
    let site = text(&bed.nodes()[0]["site"]);
    assert_eq!(bed.names(), ["peer-1"]);
    bed.run(&["site", "new-id", "--id", &site, "--yes"]).good();
    bed.destroy("two");
    bed.is_as_before();
}
