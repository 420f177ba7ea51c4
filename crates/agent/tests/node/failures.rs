//! Failures of the machine (full disks, locks, no DNS, failing units) are reported with their cause.

use serde_json::{Value, json};

use crate::refused::refused;
use crate::test_node::{STATE, TestNode};

/// Holds the lock of the package database, as another `apt-get` would.
const HOLDER: &str = "systemd-run --quiet --unit=holder python3 -c 'import fcntl, time; lock = open(\"/var/lib/dpkg/lock-frontend\", \"a\"); fcntl.lockf(lock, fcntl.LOCK_EX); open(\"/run/held\", \"w\"); time.sleep(600)'; for i in $(seq 100); do test -e /run/held && exit 0; sleep 0.1; done; exit 1";

/// Mounts a small file system with the same files over a directory, and fills it.
fn fill(node: &TestNode, directory: &str, size: &str) {
    node.root(&format!(
        "cp -a {directory} /tmp/kept; mount -t tmpfs -o mode=755,size={size} full {directory}; cp -a /tmp/kept/. {directory}/; rm -r /tmp/kept; head -c 100M /dev/zero >{directory}/.full 2>/dev/null || true"
    ))
    .good();
}

#[test]
fn failures_are_reported_and_the_next_apply_succeeds() {
    let Some(node) = TestNode::new() else { return };
    let good = node.spec("dev");
    node.apply(&good);
    let with = |path: &str, value: Value| {
        let mut spec = good.clone();
        *spec.pointer_mut(path).unwrap() = value;
        spec
    };
    let mut users = good["access"]["users"].clone();
    let dave = json!({ "name": "dave", "sudo": true, "ssh_keys": [] });
    users.as_array_mut().unwrap().push(dave);
    let dave = with("/access/users", users);

    // A full disk, for a sudo rule.
    fill(&node, "/etc/sudoers.d", "32k");
    let message = refused(&node, &node.system_snapshot(), &dave, 2);
    assert!(
        message.contains("write `/etc/sudoers.d/homestak-dave`")
            && message.contains("No space left")
            && message.contains("free some space"),
        "{message}"
    );
    node.root("umount /etc/sudoers.d").good();

    // A full disk, for the agent's state.
    fill(&node, STATE, "256k");
    let message = refused(&node, &node.system_snapshot(), &dave, 2);
    assert!(message.contains("No space left"), "{message}");
    let (code, events) = node.job("--id full", &dave);
    assert_eq!(code, 2, "{events:#?}");
    assert!(
        events[0]["result"]["message"]
            .as_str()
            .unwrap()
            .contains("No space left")
    );
    node.root(&format!("umount {STATE}")).good();

    // A file that cannot be written.
    node.root("mount --bind /etc/motd /etc/motd; mount -o remount,bind,ro /etc/motd")
        .good();
    let other = json!([{ "path": "/etc/motd", "content": "other\n" }, { "path": "/etc/aaa", "content": "" }]);
    let message = refused(
        &node,
        &node.system_snapshot(),
        &with("/config/files", other),
        2,
    );
    assert!(
        message.contains("write `/etc/motd`")
            && message.contains("Read-only file system")
            && message.contains("findmnt"),
        "{message}"
    );
    node.root("umount /etc/motd").good();

    // The package lock is held by another program.
    let more = with("/platform/packages", json!(["tree", "cron", "hello"]));
    node.root(HOLDER).good();
    let before = node.system_snapshot();
    let run = node.agent("config apply --lock-wait 1", &more);
    assert_eq!(run.code, 2, "{}", run.err);
    assert!(
        run.err.contains("lock") && run.err.contains("--lock-wait"),
        "{}",
        run.err
    );
    assert_eq!(node.system_snapshot(), before);
    node.root("systemctl stop holder").good();

    // No DNS.
    let mut lost = more.clone();
    lost.as_object_mut().unwrap().remove("network");
    node.apply(&good);
    let mut still = good.clone();
    still.as_object_mut().unwrap().remove("network");
    node.apply(&still);
    node.root(
        "apt-get clean; cp -p /etc/resolv.conf /root/; echo nameserver 127.0.0.1 >/etc/resolv.conf",
    )
    .good();
    let message = refused(&node, &node.system_snapshot(), &lost, 2);
    assert!(
        message.contains("resolving") && message.contains("/etc/resolv.conf"),
        "{message}"
    );
    node.root("cat /root/resolv.conf >/etc/resolv.conf; rm /root/resolv.conf")
        .good();

    // A service that fails: completed and remaining steps are reported.
    node.root("printf '[Service]\\nType=oneshot\\nExecStart=/bin/false\\n[Install]\\nWantedBy=multi-user.target\\n' >/etc/systemd/system/bad.service; printf '[Service]\\nExecStart=/bin/false\\n[Install]\\nWantedBy=multi-user.target\\n' >/etc/systemd/system/worse.service; systemctl daemon-reload").good();
    for (unit, words) in [
        ("bad", "start bad.service"),
        ("worse", "service:worse.service/active"),
    ] {
        let run = node.agent(
            "config apply",
            &with("/platform/services/enable", json!(["cron", unit])),
        );
        assert_eq!(run.code, 2, "{}", run.err);
        let hint = format!("journalctl -u {unit}.service");
        assert!(
            run.err.contains(words) && run.err.contains(&hint),
            "{}",
            run.err
        );
        if unit == "bad" {
            assert!(
                run.err
                    .contains("reconfigure eth0 and 1 more; not done: start bad.service"),
                "{}",
                run.err
            );
        }
        assert_eq!(node.status()["status"], "failed");
    }
    // Units that a failed run enabled are disabled again.
    node.apply(&good);
    let left = node.root(
        "find /etc/systemd/system -path '*wants/bad.service' -o -path '*wants/worse.service'",
    );
    assert_eq!(left.good(), "");
    node.root("rm /etc/systemd/system/bad.service /etc/systemd/system/worse.service; systemctl daemon-reload").good();

    // Once the causes are removed, it succeeds.
    node.apply(&dave);
    assert_eq!(node.check(&dave), [""; 0]);
    assert_eq!(node.status()["status"], "complete");
    node.root("runuser -u dave -- sudo -n true").good();
    node.host.destroy("lab");
}
