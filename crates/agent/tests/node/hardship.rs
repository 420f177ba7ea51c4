//! What a machine can suffer from: it is told what and where, and nothing is left half done.

use serde_json::{Value, json};

use crate::bad::refused;
use crate::lab::{Lab, STATE};

/// Holds the lock of the package database, as another `apt-get` would.
const HOLDER: &str = "systemd-run --quiet --unit=holder python3 -c 'import fcntl, time; lock = open(\"/var/lib/dpkg/lock-frontend\", \"a\"); fcntl.lockf(lock, fcntl.LOCK_EX); open(\"/run/held\", \"w\"); time.sleep(600)'; for i in $(seq 100); do test -e /run/held && exit 0; sleep 0.1; done; exit 1";

/// Puts a small file system with the same files over a directory, and fills it.
fn fill(lab: &Lab, directory: &str, size: &str) {
    lab.root(&format!(
        "cp -a {directory} /tmp/kept; mount -t tmpfs -o mode=755,size={size} full {directory}; cp -a /tmp/kept/. {directory}/; rm -r /tmp/kept; head -c 100M /dev/zero >{directory}/.full 2>/dev/null || true"
    ))
    .good();
}

#[test]
fn hardship_is_told_and_the_next_apply_ends_well() {
    let Some(lab) = Lab::new() else { return };
    let good = lab.spec("dev");
    lab.apply(&good);
    let with = |path: &str, value: Value| {
        let mut spec = good.clone();
        *spec.pointer_mut(path).unwrap() = value;
        spec
    };
    let mut users = good["access"]["users"].clone();
    let dave = json!({ "name": "dave", "sudo": true, "ssh_keys": [] });
    users.as_array_mut().unwrap().push(dave);
    let dave = with("/access/users", users);

    // A full disk, where a rule belongs.
    fill(&lab, "/etc/sudoers.d", "32k");
    let said = refused(&lab, &lab.outside(), &dave, 2);
    assert!(
        said.contains("write `/etc/sudoers.d/homestak-dave`")
            && said.contains("No space left")
            && said.contains("free some space"),
        "{said}"
    );
    lab.root("umount /etc/sudoers.d").good();

    // A full disk, where the agent remembers.
    fill(&lab, STATE, "256k");
    let said = refused(&lab, &lab.outside(), &dave, 2);
    assert!(said.contains("No space left"), "{said}");
    let (code, events) = lab.job("--id full", &dave);
    assert_eq!(code, 2, "{events:#?}");
    assert!(
        events[0]["result"]["message"]
            .as_str()
            .unwrap()
            .contains("No space left")
    );
    lab.root(&format!("umount {STATE}")).good();

    // A file that cannot be written.
    lab.root("mount --bind /etc/motd /etc/motd; mount -o remount,bind,ro /etc/motd")
        .good();
    let other = json!([{ "path": "/etc/motd", "content": "other\n" }, { "path": "/etc/aaa", "content": "" }]);
    let said = refused(&lab, &lab.outside(), &with("/config/files", other), 2);
    assert!(
        said.contains("write `/etc/motd`")
            && said.contains("Read-only file system")
            && said.contains("findmnt"),
        "{said}"
    );
    lab.root("umount /etc/motd").good();

    // Packages that another program holds.
    let more = with("/platform/packages", json!(["tree", "cron", "hello"]));
    lab.root(HOLDER).good();
    let before = lab.outside();
    let run = lab.agent("config apply --lock-wait 1", &more);
    assert_eq!(run.code, 2, "{}", run.err);
    assert!(
        run.err.contains("lock") && run.err.contains("--lock-wait"),
        "{}",
        run.err
    );
    assert_eq!(lab.outside(), before);
    lab.root("systemctl stop holder").good();

    // No name service.
    let mut lost = more.clone();
    lost.as_object_mut().unwrap().remove("network");
    lab.apply(&good);
    let mut still = good.clone();
    still.as_object_mut().unwrap().remove("network");
    lab.apply(&still);
    lab.root(
        "apt-get clean; cp -p /etc/resolv.conf /root/; echo nameserver 127.0.0.1 >/etc/resolv.conf",
    )
    .good();
    let said = refused(&lab, &lab.outside(), &lost, 2);
    assert!(
        said.contains("resolving") && said.contains("/etc/resolv.conf"),
        "{said}"
    );
    lab.root("cat /root/resolv.conf >/etc/resolv.conf; rm /root/resolv.conf")
        .good();

    // A service that does not start: what was done is told, and what was not.
    lab.root("printf '[Service]\\nType=oneshot\\nExecStart=/bin/false\\n[Install]\\nWantedBy=multi-user.target\\n' >/etc/systemd/system/bad.service; printf '[Service]\\nExecStart=/bin/false\\n[Install]\\nWantedBy=multi-user.target\\n' >/etc/systemd/system/worse.service; systemctl daemon-reload").good();
    for (unit, words) in [
        ("bad", "start bad.service"),
        ("worse", "service:worse.service/active"),
    ] {
        let run = lab.agent(
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
                    .contains("set up eth0 and 1 more; not done: start bad.service"),
                "{}",
                run.err
            );
        }
        assert_eq!(lab.status()["status"], "failed");
    }
    // What a run that failed has enabled goes like everything that a spec brought.
    lab.apply(&good);
    let left = lab.root(
        "find /etc/systemd/system -path '*wants/bad.service' -o -path '*wants/worse.service'",
    );
    assert_eq!(left.good(), "");
    lab.root("rm /etc/systemd/system/bad.service /etc/systemd/system/worse.service; systemctl daemon-reload").good();

    // Once the causes are gone, all of it can be had.
    lab.apply(&dave);
    assert_eq!(lab.check(&dave), [""; 0]);
    assert_eq!(lab.status()["status"], "complete");
    lab.root("runuser -u dave -- sudo -n true").good();
    lab.bed.destroy("lab");
}
