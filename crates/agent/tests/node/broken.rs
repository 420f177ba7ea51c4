//! Manual changes of every kind are detected, reported and corrected, and nothing else is changed.

use std::collections::BTreeSet;

use crate::sample;
use crate::test_node::TestNode;

/// How each kind of resource is changed, and the difference that must be detected.
const CHANGES: &[(&str, &str, &str)] = &[
    ("package", "dpkg --remove tree", "package:tree/state"),
    ("hostname", "hostname stolen", "hostname/kernel"),
    (
        "hostname",
        "echo stolen >/etc/hostname",
        "hostname//etc/hostname content",
    ),
    ("hosts", "sed -i /lab.example/d /etc/hosts", "hosts/line"),
    (
        "timezone",
        "ln -sf /usr/share/zoneinfo/Etc/UTC /etc/localtime",
        "timezone/zone",
    ),
    ("timezone", "rm /etc/localtime", "timezone/zone"),
    (
        "network",
        "ip address add 10.9.9.9/24 dev eth0",
        "network/address",
    ),
    (
        "network",
        "echo nameserver 192.0.2.1 >>/etc/resolv.conf",
        "network/dns",
    ),
    (
        "network",
        "rm /etc/systemd/network/05-homestak.network",
        "network//etc/systemd/network/05-homestak.network content",
    ),
    (
        "user",
        "usermod --shell /usr/sbin/nologin alice",
        "user:alice/login",
    ),
    ("user", "usermod --expiredate 1 alice", "user:alice/login"),
    ("user", "userdel bob", "user:bob/account"),
    (
        "keys",
        "rm -r /home/alice/.ssh",
        "keys:alice//home/alice/.ssh",
    ),
    (
        "keys",
        "echo 'ssh-ed25519 AAAAforeign eve' >>/home/alice/.ssh/authorized_keys",
        "keys:alice/ssh-ed25519 ...5519 AAAAforeign",
    ),
    (
        "keys",
        "chmod 666 /home/alice/.ssh/authorized_keys",
        "keys:alice//home/alice/.ssh/authorized_keys mode",
    ),
    (
        "sudo",
        "rm /etc/sudoers.d/homestak-alice",
        "sudo:alice/rule",
    ),
    ("sudo", "gpasswd -a bob sudo", "sudo:bob/rule"),
    (
        "sudo",
        "echo 'bob ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/zz; chmod 440 /etc/sudoers.d/zz",
        "sudo:bob/rule",
    ),
    (
        "sudo",
        "echo 'bob ALL=(ALL) ALL' >>/etc/sudoers",
        "sudo:bob/rule",
    ),
    (
        "sudo_groups",
        "echo '%sudo ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/zz",
        "sudo-groups/rules",
    ),
    (
        "sshd",
        "rm /etc/ssh/sshd_config.d/00-homestak.conf",
        "sshd/PermitRootLogin",
    ),
    (
        "sshd",
        "echo nonsense >/etc/ssh/sshd_config.d/00-homestak.conf",
        "sshd/PermitRootLogin",
    ),
    (
        "sshd",
        "sed -i '1i PasswordAuthentication yes' /etc/ssh/sshd_config",
        "sshd/PasswordAuthentication",
    ),
    (
        "sshd",
        "sed -i '1i Port 2222' /etc/ssh/sshd_config",
        "sshd/Port",
    ),
    (
        "sshd",
        "sed -i /^Include/d /etc/ssh/sshd_config",
        "sshd/PermitRootLogin",
    ),
    (
        "sshd",
        "printf 'Match User bob\\n PasswordAuthentication yes\\n' >>/etc/ssh/sshd_config",
        "sshd//etc/ssh/sshd_config exceptions",
    ),
    (
        "sshd",
        "sed -i '1i AuthorizedKeysFile /tmp/k' /etc/ssh/sshd_config",
        "sshd//etc/ssh/sshd_config exceptions",
    ),
    (
        "sudo_groups",
        "ln -s /root/rules /etc/sudoers.d/zz",
        "sudo-groups//etc/sudoers.d/zz rules",
    ),
    (
        "sudo_groups",
        "echo '@include /root/rules' >/etc/sudoers.d/zz",
        "sudo-groups//etc/sudoers.d/zz rules",
    ),
    (
        "sudo_groups",
        "echo 'Defaults:bob !authenticate' >/etc/sudoers.d/a~b",
        "sudo-groups//etc/sudoers.d/a~b rules",
    ),
    (
        "sudo",
        "printf '\"bob\" ALL=(ALL) NOPASSWD: ALL\\n# \\377\\n' >/etc/sudoers.d/zz",
        "sudo:bob/rule",
    ),
    (
        "keys",
        "sed -i 's/^ssh/command=\"sh\" ssh/' /home/alice/.ssh/authorized_keys",
        "keys:alice/ssh-ed25519 ...6m9QxkVxg3p2Jq1d with options",
    ),
    ("fail2ban", "systemctl stop fail2ban", "fail2ban/active"),
    ("fail2ban", "systemctl disable fail2ban", "fail2ban/enabled"),
    (
        "fail2ban",
        "rm /etc/fail2ban/jail.d/homestak.local",
        "fail2ban//etc/fail2ban/jail.d/homestak.local content",
    ),
    (
        "service",
        "systemctl stop cron",
        "service:cron.service/active",
    ),
    (
        "service",
        "systemctl disable cron",
        "service:cron.service/enabled",
    ),
    (
        "service",
        "systemctl mask --now cron",
        "service:cron.service/enabled",
    ),
    (
        "service",
        "systemctl enable nftables",
        "service:nftables.service/enabled",
    ),
    ("file", "echo other >/etc/motd", "file:/etc/motd/content"),
    ("file", "rm /etc/motd", "file:/etc/motd/content"),
    (
        "file",
        "ln -sf /etc/passwd /etc/motd",
        "file:/etc/motd/content",
    ),
    ("file", "chmod 600 /etc/motd", "file:/etc/motd/mode"),
    (
        "file",
        "chown alice:alice /etc/motd",
        "file:/etc/motd/owner",
    ),
    (
        "sysctl",
        "rm /etc/sysctl.d/90-homestak.conf",
        "sysctl//etc/sysctl.d/90-homestak.conf content",
    ),
    (
        "subscription_notice",
        "printf '%s' \"if (res.data.status.toLowerCase() !== 'active') {\" >/usr/share/javascript/proxmox-widget-toolkit/proxmoxlib.js",
        "subscription-notice/notice",
    ),
];

/// A file that is only partly managed.
const SSHD: &str = "/etc/ssh/sshd_config";

/// Kinds without anything on a node that could be changed.
const WITHOUT_FIELDS: &[&str] = &["data"];

#[test]
fn manual_changes_are_detected_and_corrected_and_nothing_else_is_changed() {
    let Some(node) = TestNode::new() else { return };
    let spec = node.spec("prod");
    // A file that only hypervisors have.
    node.root("mkdir -p /usr/share/javascript/proxmox-widget-toolkit; touch /usr/share/javascript/proxmox-widget-toolkit/proxmoxlib.js").good();
    node.apply(&spec);
    node.root(&format!("cp -p {SSHD} /root/")).good();
    let right = node.snapshot();
    let again = node.apply(&spec);
    assert_eq!(again["steps"].as_array().unwrap().len(), 0, "{again:#}");
    assert_eq!(node.snapshot(), right, "applied twice");
    every_kind_is_tried(&node, &spec);
    let mut wrong = Vec::new();
    let chosen = sample::some(CHANGES.len() / 3, CHANGES.len());
    println!(
        "{} of {} changes of {} kinds",
        chosen.len(),
        CHANGES.len(),
        kinds().len()
    );
    for (_, command, id) in chosen.into_iter().map(|nth| &CHANGES[nth]) {
        node.root(command).good();
        let found = node.check(&spec);
        if !found.iter().any(|change| change == id) {
            wrong.push(format!("`{command}`: {id} is not in {found:?}"));
        }
        let run = node.agent("config apply", &spec);
        if run.code != 0 {
            wrong.push(format!("`{command}`: {}", run.err));
            continue;
        }
        // In this file, wrong lines are commented out, and missing ones may be added elsewhere.
        if command.ends_with(SSHD) {
            node.root(&format!("cp -p /root/sshd_config {SSHD}")).good();
        }
        let now = node.snapshot();
        if now != right {
            let lines: BTreeSet<&str> = right.lines().collect();
            let now: BTreeSet<&str> = now.lines().collect();
            let differs: Vec<_> = lines.symmetric_difference(&now).collect();
            wrong.push(format!("`{command}` left {differs:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(node.check(&spec), [""; 0]);
    node.host.destroy("lab");
}

fn kinds() -> BTreeSet<&'static str> {
    CHANGES.iter().map(|(kind, ..)| *kind).collect()
}

/// Every kind of resource in the spec is changed in some way.
fn every_kind_is_tried(node: &TestNode, spec: &serde_json::Value) {
    let read = node.agent("spec validate --json-output", spec).json();
    for resource in read["resources"].as_array().unwrap() {
        let kind = resource["kind"].as_str().unwrap();
        let tried = kinds().contains(kind) || WITHOUT_FIELDS.contains(&kind);
        assert!(tried, "nothing changes {kind}");
    }
}
