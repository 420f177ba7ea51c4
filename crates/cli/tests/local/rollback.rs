//! Plans and rollbacks of existing nodes match what happens.

use crate::test_host::TestHost;

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

fn write(host: &TestHost, spec: &str, memory: u32) {
    host.write(
        "postures/free.yaml",
        "auth: {method: network}\n\
         ssh: {port: 22, permit_root_login: \"yes\", password_authentication: \"no\"}\n\
         sudo: {nopasswd: true}\n",
    );
    host.write("specs/web.yaml", spec);
    host.manifest(
        "lab",
        &format!("  - {{name: web, spec: web, memory: {memory}}}\n"),
    );
}

/// [`BEFORE`] with another account, package and content, and without a file.
fn after() -> String {
    let spec = BEFORE.replace("{name: alice}", "{name: bob}");
    let spec = spec.replace("[tree]", "[cron]").replace("before", "after");
    spec.replace(
        "    - {path: /etc/note, content: \"of the first spec\\n\"}\n",
        "",
    )
}

/// Waits until the node answers.
fn wait_until_reachable(host: &TestHost) {
    for _ in 0..120 {
        if host.inside("web", "true").code == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    panic!("the node does not answer");
}

/// Runs lines on the node, which must all succeed.
fn assert_on_node(host: &TestHost, lines: &str) {
    host.inside("web", &format!("set -e\n{lines}")).good();
}

const IS_BEFORE: &str = "grep -qx before /etc/motd\ntest -e /etc/note\ncommand -v tree\n! command -v crontab\n\
     sudo chage -l alice | grep -q '^Account expires.*never'";
const IS_AFTER: &str = "grep -qx after /etc/motd\n! test -e /etc/note\n! command -v tree\ncommand -v crontab\n\
     ! sudo chage -l alice | grep -q '^Account expires.*never'";

#[test]
fn configuration_and_hardware_are_planned_confirmed_applied_and_rolled_back() {
    let Some(host) = crate::host() else { return };
    write(&host, BEFORE, 768);
    host.apply("lab");
    assert_on_node(&host, IS_BEFORE);
    write(&host, &after(), 640);
    let plan = host.manifest_run("plan", "lab", &[]).good();
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
    let unconfirmed = host.manifest_run("apply", "lab", &[]);
    assert_eq!(unconfirmed.code, 3, "{}", unconfirmed.err);
    assert!(
        unconfirmed.err.contains("This needs confirmation"),
        "{}",
        unconfirmed.err
    );
    assert_on_node(&host, IS_BEFORE);
    host.apply("lab");
    assert_on_node(&host, IS_AFTER);
    let status = host
        .manifest_run("status", "lab", &["--json-output"])
        .json();
    let node = &status["runs"][0]["nodes"][0];
    assert_eq!(
        (&node["power"], &node["differs"]),
        (&"running".into(), &false.into()),
        "{node}"
    );

    let shown = host
        .run(&["manifest", "rollback", "-M", "lab", "--dry-run"])
        .good();
    assert!(
        shown.contains("from its own record of the spec `web`"),
        "{shown}"
    );
    assert!(shown.contains("restore 1 CPUs and 768 MiB"), "{shown}");
    assert_on_node(&host, IS_AFTER);
    let rollback = host.run(&[
        "manifest",
        "rollback",
        "-M",
        "lab",
        "--yes",
        "--json-output",
    ]);
    assert_eq!(rollback.code, 1, "{}{}", rollback.out, rollback.err);
    let rollback: serde_json::Value = serde_json::from_str(&rollback.out).unwrap();
    // Home directories of added accounts are kept, so not everything is reverted.
    let expected = "accounts that it added stay disabled, with their home directories: bob";
    assert_eq!(rollback["not_undone"][0]["text"], expected, "{rollback}");
    assert_eq!(rollback["success"], false, "{rollback}");
    wait_until_reachable(&host);
    assert_on_node(&host, IS_BEFORE);
    assert_on_node(
        &host,
        "test -d /home/bob\n! sudo chage -l bob | grep -q '^Account expires.*never'",
    );
    // The site still has the new spec, so the plan shows the difference again.
    let status = host
        .manifest_run("status", "lab", &["--json-output"])
        .json();
    assert_eq!(status["runs"][0]["nodes"][0]["differs"], true, "{status}");
    write(&host, BEFORE, 768);
    let plan = host.manifest_run("plan", "lab", &[]).good();
    assert!(plan.contains("Nothing to do."), "{plan}");
    host.destroy("lab");
    host.assert_unchanged();
}
