//! Moving from one posture to another gives access and takes it away.

use std::collections::BTreeSet;

use serde_json::json;

use crate::bed::text;
use crate::lab::Lab;
use crate::sample;

/// What must hold on a node of a posture, and what must not.
fn holds(lab: &Lab, posture: &str) {
    let yes = |command: &str| assert_eq!(lab.root(command).code, 0, "{posture}: {command}");
    let no = |command: &str| assert_ne!(lab.root(command).code, 0, "{posture}: {command}");
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
fn every_move_between_postures_gives_and_takes_what_it_should() {
    let Some(lab) = Lab::new() else { return };
    // Every ordered pair once: a walk over all moves between four postures. A sample begins at
    // some place of it and makes four moves, or more until it has been to all of them.
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
        let spec = lab.spec(posture);
        lab.apply(&spec);
        assert_eq!(lab.check(&spec), [""; 0], "{posture}");
        holds(&lab, posture);
    }
    lab.bed.destroy("lab");
}

#[test]
fn a_user_a_key_a_rule_and_a_file_that_are_no_longer_wanted_are_gone() {
    let Some(lab) = Lab::new() else { return };
    let mut spec = lab.spec("dev");
    lab.root("useradd -m -s /bin/bash carol; install -d -m 700 -o carol -g carol /home/carol/.ssh; echo 'ssh-ed25519 AAAAown carol' >/home/carol/.ssh/authorized_keys; chown carol: /home/carol/.ssh/authorized_keys; chmod 600 /home/carol/.ssh/authorized_keys").good();
    spec["config"]["converge"]["foreign_keys"] = json!("report");
    let users = spec["access"]["users"].as_array_mut().unwrap();
    users.push(
        json!({ "name": "carol", "sudo": true, "ssh_keys": ["ssh-ed25519 AAAAgiven given"] }),
    );
    lab.apply(&spec);
    // A key that nobody put into the spec is named, and stays.
    let reported = lab.check(&spec);
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(reported[0].contains("AAAAown"));
    lab.root("runuser -u carol -- sudo -n true").good();
    // Only bob is left, and nothing but what every node has.
    let users = spec["access"]["users"].as_array_mut().unwrap();
    users.retain(|user| user["name"] == "bob");
    spec["config"] = json!({});
    spec["platform"] = json!({});
    let result = lab.apply(&spec);
    assert_eq!(lab.check(&spec), [""; 0]);
    lab.root("runuser -u alice -- sudo -n true").bad();
    lab.root("test -e /home/alice/.ssh/authorized_keys").bad();
    let closed = lab
        .root("getent shadow alice | cut -d: -f8; getent passwd alice | cut -d: -f7")
        .good();
    assert_eq!(closed, "1\n/usr/sbin/nologin\n");
    // What was not ours stays: the account, and its own key.
    lab.root("runuser -u carol -- sudo -n true").bad();
    let keys = lab.root("cat /home/carol/.ssh/authorized_keys").good();
    assert_eq!(keys, "ssh-ed25519 AAAAown carol\n");
    assert_eq!(
        lab.root("getent passwd carol | cut -d: -f7").good(),
        "/bin/bash\n"
    );
    lab.root("test -e /etc/sysctl.d/90-homestak.conf").bad();
    lab.root("command -v tree").bad();
    let since: Vec<String> = result["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| text(&change["since"]))
        .collect();
    assert!(since.iter().all(|since| since == "spec"), "{result:#}");
    lab.bed.destroy("lab");
}
