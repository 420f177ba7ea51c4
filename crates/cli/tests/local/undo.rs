//! Plans and rollbacks of nodes that are there already: what is shown is what happens.

use crate::bed::Bed;

const BEFORE: &str = "\
schema_version: 1
access:
  posture: free
  users:
    - {name: ops, sudo: true}
    - {name: alice}
platform:
  packages: [tree]
config:
  files:
    - {path: /etc/motd, content: \"before\\n\"}
    - {path: /etc/note, content: \"of the first spec\\n\"}
";

fn write(bed: &Bed, spec: &str, memory: u32) {
    bed.write(
        "postures/free.yaml",
        "auth: {method: network}\n\
         ssh: {port: 22, permit_root_login: \"yes\", password_authentication: \"no\"}\n\
         sudo: {nopasswd: true}\n",
    );
    bed.write("specs/web.yaml", spec);
    bed.manifest(
        "lab",
        &format!("  - {{name: web, spec: web, memory: {memory}}}\n"),
    );
}

/// The same with another account and without a file, with another package and other content.
fn after() -> String {
    let spec = BEFORE.replace("{name: alice}", "{name: bob}");
    let spec = spec.replace("[tree]", "[cron]").replace("before", "after");
    spec.replace(
        "    - {path: /etc/note, content: \"of the first spec\\n\"}\n",
        "",
    )
}

/// Waits until a node that was started answers.
fn wait(bed: &Bed) {
    for _ in 0..120 {
        if bed.inside("web", "true").code == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    panic!("the node does not answer");
}

/// Runs lines on the node that must all succeed.
fn holds(bed: &Bed, lines: &str) {
    bed.inside("web", &format!("set -e\n{lines}")).good();
}

const IS_BEFORE: &str = "grep -qx before /etc/motd\ntest -e /etc/note\ncommand -v tree\n! command -v crontab\n\
     sudo chage -l alice | grep -q '^Account expires.*never'";
const IS_AFTER: &str = "grep -qx after /etc/motd\n! test -e /etc/note\n! command -v tree\ncommand -v crontab\n\
     ! sudo chage -l alice | grep -q '^Account expires.*never'";

#[test]
fn configuration_is_planned_with_hardware_asked_for_applied_and_rolled_back() {
    let Some(bed) = crate::new_bed() else { return };
    write(&bed, BEFORE, 768);
    bed.apply("lab");
    holds(&bed, IS_BEFORE);
    write(&bed, &after(), 640);
    let plan = bed.manifest_run("plan", "lab", &[]).good();
    for words in [
        "memory 768 -> 640 MiB",
        "it is restarted",
        "user:alice",
        "file:/etc/note",
        "package:tree",
        "+ after",
    ] {
        assert!(plan.contains(words), "{words}: {plan}");
    }
    let asked = bed.manifest_run("apply", "lab", &[]);
    assert_eq!(asked.code, 3, "{}", asked.err);
    assert!(asked.err.contains("accounts and data"), "{}", asked.err);
    holds(&bed, IS_BEFORE);
    bed.apply("lab");
    holds(&bed, IS_AFTER);
    let status = bed.manifest_run("status", "lab", &["--json-output"]).json();
    let node = &status["runs"][0]["nodes"][0];
    assert_eq!(
        (&node["power"], &node["differs"]),
        (&"running".into(), &false.into()),
        "{node}"
    );

    let shown = bed
        .run(&["manifest", "rollback", "-M", "lab", "--dry-run"])
        .good();
    assert!(
        shown.contains("by its own record of the spec `web`"),
        "{shown}"
    );
    assert!(shown.contains("768 MiB again"), "{shown}");
    holds(&bed, IS_AFTER);
    let back = bed.run(&[
        "manifest",
        "rollback",
        "-M",
        "lab",
        "--yes",
        "--json-output",
    ]);
    assert_eq!(back.code, 1, "{}{}", back.out, back.err);
    let back: serde_json::Value = serde_json::from_str(&back.out).unwrap();
    // What is the account's own stays, so not everything is undone.
    let kept = "accounts that it added stay closed, with their home directories: bob";
    assert_eq!(back["not_undone"][0]["text"], kept, "{back}");
    assert_eq!(back["success"], false, "{back}");
    wait(&bed);
    holds(&bed, IS_BEFORE);
    holds(
        &bed,
        "test -d /home/bob\n! sudo chage -l bob | grep -q '^Account expires.*never'",
    );
    // The site says otherwise, so that a plan shows the difference again.
    let status = bed.manifest_run("status", "lab", &["--json-output"]).json();
    assert_eq!(status["runs"][0]["nodes"][0]["differs"], true, "{status}");
    write(&bed, BEFORE, 768);
    let settled = bed.manifest_run("plan", "lab", &[]).good();
    assert!(settled.contains("Nothing to do."), "{settled}");
    bed.destroy("lab");
    bed.is_as_before();
}
