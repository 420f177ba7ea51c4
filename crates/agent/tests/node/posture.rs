//! Changing the posture of a node grants and revokes access.

use std::collections::BTreeSet;

use serde_json::json;

use crate::sample;
use crate::test_host::text;
use crate::test_node::TestNode;

/// Checks what a posture must and must not permit.
fn holds(node: &TestNode, posture: &str) {
    let yes = |command: &str| assert_eq!(node.root(command).code, 0, "{posture}: {command}");
    let no = |command: &str| assert_ne!(node.root(command).code, 0, "{posture}: {command}");
    let free = matches!(posture, "dev" | "local");
    let strict = matches!(posture, "stage" | "prod");
    let root = match posture {
        "dev" => "yes",
        "prod" => "no",
        _ => "without-password",
    };
    yes(&format!("sshd -T | grep -qx 'permitrootlogin {root}'"));
    let passwords = if posture == "dev" { "yes" } else { "no" };
    yes(&format!(
        "sshd -T | grep -qx 'passwordauthentication {passwords}'"
    ));
    if free {
        yes("runuser -u alice -- sudo -n true");
    } else {
        no("runuser -u alice -- sudo -n true");
    }
    no("runuser -u bob -- sudo -n true");
    if strict {
        yes("systemctl is-active --quiet fail2ban && systemctl is-enabled --quiet fail2ban");
        yes("fail2ban-client status sshd");
    } else {
        no("systemctl is-active --quiet fail2ban");
        no("test -e /etc/fail2ban/jail.d/homestak.local");
    }
    if matches!(posture, "dev" | "stage") {
        yes("command -v strace");
    } else {
        no("command -v strace");
    }
}

#[test]
fn every_change_of_posture_grants_and_revokes_access() {
    let Some(node) = TestNode::new() else { return };
    // Every ordered pair of the four postures once. A sample starts anywhere in it and makes at least
    // four changes, until every posture was applied.
    let walk = [
        "dev", "stage", "dev", "prod", "dev", "local", "stage", "prod", "stage", "local", "prod",
        "local",
    ];
    let start = sample::some(1, walk.len())[0];
    let mut seen = BTreeSet::new();
    for (n_moves, posture) in walk
        .iter()
        .cycle()
        .skip(start)
        .take(walk.len() + 1)
        .enumerate()
    {
        if n_moves > 4 && seen.len() == 4 && !sample::is_full() {
            break;
        }
        seen.insert(posture);
        let spec = node.spec(posture);
        node.apply(&spec);
        assert_eq!(node.check(&spec), [""; 0], "{posture}");
        holds(&node, posture);
    }
    node.host.destroy("lab");
}

#[test]
fn users_keys_rules_and_files_removed_from_the_spec_are_removed() {
    let Some(node) = TestNode::new() else { return };
    let mut spec = node.spec("dev");
    node.root("useradd -m -s /bin/bash carol; install -d -m 700 -o carol -g carol /home/carol/.ssh; echo 'ssh-ed25519 AAAAown carol' >/home/carol/.ssh/authorized_keys; chown carol: /home/carol/.ssh/authorized_keys; chmod 600 /home/carol/.ssh/authorized_keys").good();
    spec["config"]["converge"]["foreign_keys"] = json!("report");
    let users = spec["access"]["users"].as_array_mut().unwrap();
    users.push(
        json!({ "name": "carol", "sudo": true, "ssh_keys": ["ssh-ed25519 AAAAgiven given"] }),
    );
    node.apply(&spec);
    // A foreign key is reported, and kept.
    let reported = node.check(&spec);
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(reported[0].contains("AAAAown"));
    node.root("runuser -u carol -- sudo -n true").good();
    // Only bob is left.
    let users = spec["access"]["users"].as_array_mut().unwrap();
    users.retain(|user| user["name"] == "bob");
    spec["config"] = json!({});
    spec["platform"] = json!({});
    let result = node.apply(&spec);
    assert_eq!(node.check(&spec), [""; 0]);
    node.root("runuser -u alice -- sudo -n true").bad();
    node.root("test -e /home/alice/.ssh/authorized_keys").bad();
    let closed = node
        .root("getent shadow alice | cut -d: -f8; getent passwd alice | cut -d: -f7")
        .good();
    assert_eq!(closed, "1\n/usr/sbin/nologin\n");
    // What the spec did not create is kept: the account and its own key.
    node.root("runuser -u carol -- sudo -n true").bad();
    let keys = node.root("cat /home/carol/.ssh/authorized_keys").good();
    assert_eq!(keys, "ssh-ed25519 AAAAown carol\n");
    assert_eq!(
        node.root("getent passwd carol | cut -d: -f7").good(),
        "/bin/bash\n"
    );
    node.root("test -e /etc/sysctl.d/90-homestak.conf").bad();
    node.root("command -v tree").bad();
    let since: Vec<String> = result["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| text(&change["since"]))
        .collect();
    assert!(since.iter().all(|since| since == "spec"), "{result:#}");
    node.host.destroy("lab");
}
