//! Specs that cannot be applied are refused with a clear message and change nothing.

use serde_json::{Value, json};

use crate::test_host::text;
use crate::test_node::{AGENT, STATE, TestNode};

/// Applies a spec that must fail without changing the node, and returns the message.
pub fn refused(node: &TestNode, before: &[String], spec: &Value, code: i32) -> String {
    let run = node.agent("config apply --json-output", spec);
    assert_eq!(run.code, code, "{}\n{}", run.out, run.err);
    let result: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(result["success"], false);
    let status = node.status();
    assert_eq!(status["status"], "failed", "{status:#}");
    assert_eq!(status["failed"]["message"], result["message"]);
    let now = node.system_snapshot();
    let differs: Vec<_> = now.iter().filter(|line| !before.contains(line)).collect();
    assert!(now == before, "something was changed: {differs:#?}");
    text(&result["message"])
}

#[test]
fn specs_that_cannot_be_applied_are_refused_and_change_nothing() {
    let Some(node) = TestNode::new() else { return };
    let good = node.spec("dev");
    node.apply(&good);
    assert_eq!(node.status()["status"], "complete");
    let before = node.system_snapshot();
    let with = |path: &str, value: Value| {
        let mut spec = good.clone();
        *spec.pointer_mut(path).unwrap() = value;
        spec
    };

    let message = refused(
        &node,
        &before,
        &json!({ "schema_version": 1, "identity": { "hostname": "web" }, "access": {} }),
        1,
    );
    assert!(message.contains("access has no `_posture`"), "{message}");

    let message = refused(
        &node,
        &before,
        &with(
            "/platform/packages",
            json!(["tree", "cron", "no-such-package"]),
        ),
        2,
    );
    assert!(
        message.contains("Unable to locate package no-such-package"),
        "{message}"
    );

    let message = refused(
        &node,
        &before,
        &with("/platform/services/enable", json!(["cron", "no-such"])),
        2,
    );
    assert!(
        message.contains("unit `no-such.service` does not exist"),
        "{message}"
    );

    let message = refused(
        &node,
        &before,
        &with("/config/timezone", json!("Europe/Nowhere")),
        2,
    );
    assert!(
        message.contains("time zone `Europe/Nowhere` does not exist"),
        "{message}"
    );

    let message = refused(
        &node,
        &before,
        &with("/config/sysctl", json!({ "no.such.key": 1 })),
        2,
    );
    assert!(
        message.contains("kernel setting `no.such.key` does not exist"),
        "{message}"
    );

    let message = refused(
        &node,
        &before,
        &with(
            "/config/files",
            json!([{ "path": "/etc/sudoers.d/own", "content": "nonsense rule here\n", "mode": "0440" }]),
        ),
        2,
    );
    assert!(
        message.contains("`/etc/sudoers.d/own` would be invalid: /etc/sudoers.d/own:1:"),
        "{message}"
    );

    let message = refused(
        &node,
        &before,
        &with(
            "/config/files",
            json!([{ "path": "/etc/ssh/sshd_config.d/10-own.conf", "content": "NoSuchSetting yes\n" }]),
        ),
        2,
    );
    assert!(message.contains("would be invalid"), "{message}");

    let message = refused(
        &node,
        &before,
        &with(
            "/config/files",
            json!([{ "path": "/proc/own", "content": "" }]),
        ),
        2,
    );
    assert!(message.contains("/proc/own"), "{message}");

    // All at once, and also reported by `config check`.
    let several = with(
        "/config",
        json!({
            "timezone": "Europe/Nowhere",
            "sysctl": { "no.such.key": 1, "kernel.panic": 77 },
            "files": [
                { "path": "/etc/app", "content": "", "owner": "nobody-here" },
                { "path": "/etc/sudoers.d/own", "content": "nonsense rule here\n", "mode": "0440" },
            ],
        }),
    );
    let check = node.agent("config check --json-output", &several);
    let check: Value = serde_json::from_str(&check.out).unwrap();
    let refusals = check["refusals"].to_string();
    let message = refused(&node, &before, &several, 2);
    for part in [
        "time zone `Europe/Nowhere` does not exist",
        "kernel setting `no.such.key` does not exist",
        "`kernel.panic` cannot be changed on this node",
        "user `nobody-here` does not exist (owner of `/etc/app`)",
    ] {
        assert!(message.contains(part), "{part}: {message}");
        assert!(refusals.contains(part), "{part}: {refusals}");
    }
    assert!(message.len() < 500, "{message}");

    // Every attempt is counted.
    assert_eq!(node.status()["failed"]["attempts"], 9);

    // Packages in an inconsistent state.
    node.root("cp /var/lib/dpkg/status /root/status; sed -i '/^Package: tree$/,/^$/s/^Status: .*/Status: install ok half-configured/' /var/lib/dpkg/status").good();
    let message = refused(
        &node,
        &node.system_snapshot(),
        &with("/platform/packages", json!(["tree"])),
        2,
    );
    assert!(
        message.contains("tree is half installed") && message.contains("dpkg --configure -a"),
        "{message}"
    );
    node.root("mv /root/status /var/lib/dpkg/status").good();

    // An unsupported distribution.
    node.root("cp -P /etc/os-release /root/link; rm /etc/os-release; printf 'ID=ubuntu\\nVERSION_ID=24.04\\n' >/etc/os-release").good();
    let message = refused(&node, &node.system_snapshot(), &good, 2);
    assert!(
        message.contains("unsupported operating system `ubuntu 24.04`"),
        "{message}"
    );
    node.root("rm /etc/os-release; cp -P /root/link /etc/os-release; rm /root/link")
        .good();

    // Not as root.
    let run = node.host.run_with_input(
        "web",
        "/usr/local/bin/homestak-agent config check --spec -",
        good.to_string().as_bytes(),
    );
    assert_eq!(run.code, 2);
    assert!(run.err.contains("must be run as root"), "{}", run.err);

    // Applied again: one marker, and only root can read the state.
    node.apply(&good);
    assert_eq!(node.status()["status"], "complete");
    let modes = node
        .root(&format!("cd {STATE}; stat -c '%n %a' *.json spec.yaml"))
        .good();
    assert_eq!(
        modes,
        "config-complete.json 600\nconverge.json 600\nspec.yaml 600\n"
    );
    let stored = node.root(&format!("cat {STATE}/spec.yaml")).json();
    assert_eq!(stored, good);
    node.host.destroy("lab");
}

#[test]
fn a_missing_spec_and_wrong_usage_have_different_exit_codes() {
    let agent = |words: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_homestak-agent"));
        command.args(words).output().unwrap()
    };
    let missing = agent(&["spec", "validate", "--spec", "/no/such/file"]);
    assert_eq!(missing.status.code(), Some(1));
    let message = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(
        message.contains("no spec found at `/no/such/file`"),
        "{message}"
    );
    assert_eq!(agent(&["config", "aply"]).status.code(), Some(2));
    assert_eq!(agent(&["--version"]).status.code(), Some(0));
}

#[test]
fn without_a_spec_commands_fail_with_a_hint_and_create_nothing() {
    let Some(node) = TestNode::new() else { return };
    let home = "/usr/local/etc/homestak";
    let before = node
        .root(&format!("find {home} 2>/dev/null || true"))
        .good();
    for words in ["run --once", "run --once --dry-run", "config check"] {
        let run = node.root(&format!("{AGENT} {words}"));
        assert_eq!(run.code, 1, "{words}: {}", run.err);
        for part in ["homestak spec get", "homestak manifest apply"] {
            assert!(run.err.contains(part), "{words}: {}", run.err);
        }
        assert_eq!(
            run.err.matches("spec.yaml").count(),
            1,
            "{words}: {}",
            run.err
        );
    }
    let after = node
        .root(&format!("find {home} 2>/dev/null || true"))
        .good();
    assert_eq!(after, before);
    // Without root, the reason is given instead of a path.
    node.apply(&node.spec("dev"));
    for words in [
        "config check",
        "config apply --dry-run",
        "spec validate",
        "status",
    ] {
        let run = node.root(&format!(
            "setpriv --reuid 65534 --regid 65534 --clear-groups {AGENT} {words}"
        ));
        assert_eq!(run.code, 2, "{words}: {}", run.err);
        assert!(
            run.err.contains("must be run as root"),
            "{words}: {}",
            run.err
        );
        assert!(!run.err.contains("spec.yaml"), "{words}: {}", run.err);
    }
    // Nothing watches this node, so only the last run is known.
    let watched = node.root("systemctl is-active homestak-agent");
    assert_ne!(watched.code, 0, "{}", watched.out);
    let output = node.root(&format!("{AGENT} status")).good();
    assert!(
        output.starts_with("complete as of the last run"),
        "{output}"
    );
    node.host.destroy("lab");
}
