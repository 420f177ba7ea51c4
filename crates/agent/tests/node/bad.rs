//! What cannot be had is told clearly, marked as failed, and leaves nothing half done.

use serde_json::{Value, json};

use crate::bed::text;
use crate::lab::{Lab, STATE};

/// Applies a spec that cannot be had, and returns what was said. The node must stay as it was.
pub fn refused(lab: &Lab, before: &[String], spec: &Value, code: i32) -> String {
    let run = lab.agent("config apply --json-output", spec);
    assert_eq!(run.code, code, "{}\n{}", run.out, run.err);
    let result: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(result["success"], false);
    let status = lab.status();
    assert_eq!(status["status"], "failed", "{status:#}");
    assert_eq!(status["failed"]["message"], result["message"]);
    let now = lab.outside();
    let differs: Vec<_> = now.iter().filter(|line| !before.contains(line)).collect();
    assert!(now == before, "something was changed: {differs:#?}");
    text(&result["message"])
}

#[test]
fn what_cannot_be_had_is_told_and_leaves_nothing_half_done() {
    let Some(lab) = Lab::new() else { return };
    let good = lab.spec("dev");
    lab.apply(&good);
    assert_eq!(lab.status()["status"], "complete");
    let before = lab.outside();
    let with = |path: &str, value: Value| {
        let mut spec = good.clone();
        *spec.pointer_mut(path).unwrap() = value;
        spec
    };

    let said = refused(
        &lab,
        &before,
        &json!({ "schema_version": 1, "identity": { "hostname": "web" }, "access": {} }),
        1,
    );
    assert!(said.contains("access has no `_posture`"), "{said}");

    let said = refused(
        &lab,
        &before,
        &with(
            "/platform/packages",
            json!(["tree", "cron", "no-such-package"]),
        ),
        2,
    );
    assert!(
        said.contains("Unable to locate package no-such-package"),
        "{said}"
    );

    let said = refused(
        &lab,
        &before,
        &with("/platform/services/enable", json!(["cron", "no-such"])),
        2,
    );
    assert!(
        said.contains("unit `no-such.service` does not exist"),
        "{said}"
    );

    let said = refused(
        &lab,
        &before,
        &with("/config/timezone", json!("Europe/Nowhere")),
        2,
    );
    assert!(
        said.contains("time zone `Europe/Nowhere` does not exist"),
        "{said}"
    );

    let said = refused(
        &lab,
        &before,
        &with("/config/sysctl", json!({ "no.such.key": 1 })),
        2,
    );
    assert!(said.contains("no setting `no.such.key`"), "{said}");

    let said = refused(
        &lab,
        &before,
        &with(
            "/config/files",
            json!([{ "path": "/etc/sudoers.d/own", "content": "nonsense rule here\n", "mode": "0440" }]),
        ),
        2,
    );
    assert!(
        said.contains("`/etc/sudoers.d/own` would be unsound: /etc/sudoers.d/own:1:"),
        "{said}"
    );

    let said = refused(
        &lab,
        &before,
        &with(
            "/config/files",
            json!([{ "path": "/etc/ssh/sshd_config.d/10-own.conf", "content": "NoSuchSetting yes\n" }]),
        ),
        2,
    );
    assert!(said.contains("would be unsound"), "{said}");

    let said = refused(
        &lab,
        &before,
        &with(
            "/config/files",
            json!([{ "path": "/proc/own", "content": "" }]),
        ),
        2,
    );
    assert!(said.contains("/proc/own"), "{said}");

    // All at once, and known to whoever only asks.
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
    let check = lab.agent("config check --json-output", &several);
    let check: Value = serde_json::from_str(&check.out).unwrap();
    let refusals = check["refusals"].to_string();
    let said = refused(&lab, &before, &several, 2);
    for part in [
        "no time zone `Europe/Nowhere`",
        "no setting `no.such.key`",
        "`kernel.panic` cannot be changed on this node",
        "user `nobody-here` does not exist (owner of `/etc/app`)",
    ] {
        assert!(said.contains(part), "{part}: {said}");
        assert!(refusals.contains(part), "{part}: {refusals}");
    }
    assert!(said.len() < 500, "{said}");

    // Marked once more, and counted.
    assert_eq!(lab.status()["failed"]["attempts"], 9);

    // Packages in a bad state.
    lab.root("cp /var/lib/dpkg/status /root/status; sed -i '/^Package: tree$/,/^$/s/^Status: .*/Status: install ok half-configured/' /var/lib/dpkg/status").good();
    let said = refused(
        &lab,
        &lab.outside(),
        &with("/platform/packages", json!(["tree"])),
        2,
    );
    assert!(
        said.contains("tree is half installed") && said.contains("dpkg --configure -a"),
        "{said}"
    );
    lab.root("mv /root/status /var/lib/dpkg/status").good();

    // Another system.
    lab.root("cp -P /etc/os-release /root/link; rm /etc/os-release; printf 'ID=ubuntu\\nVERSION_ID=24.04\\n' >/etc/os-release").good();
    let said = refused(&lab, &lab.outside(), &good, 2);
    assert!(
        said.contains("unsupported operating system `ubuntu 24.04`"),
        "{said}"
    );
    lab.root("rm /etc/os-release; cp -P /root/link /etc/os-release; rm /root/link")
        .good();

    // Nobody but root.
    let run = lab.bed.feed(
        "web",
        "/usr/local/bin/homestak-agent config check --spec -",
        good.to_string().as_bytes(),
    );
    assert_eq!(run.code, 2);
    assert!(run.err.contains("only root"), "{}", run.err);

    // Good again: one marker, and what is secret is for root only.
    lab.apply(&good);
    assert_eq!(lab.status()["status"], "complete");
    let modes = lab
        .root(&format!("cd {STATE}; stat -c '%n %a' *.json spec.yaml"))
        .good();
    assert_eq!(
        modes,
        "config-complete.json 600\nconverge.json 600\nspec.yaml 600\n"
    );
    let kept = lab.root(&format!("cat {STATE}/spec.yaml")).json();
    assert_eq!(kept, good);
    lab.bed.destroy("lab");
}

#[test]
fn a_missing_spec_and_wrong_words_have_their_own_codes() {
    let agent = |words: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_homestak-agent"));
        command.args(words).output().unwrap()
    };
    let missing = agent(&["spec", "validate", "--spec", "/no/such/file"]);
    assert_eq!(missing.status.code(), Some(1));
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(
        said.contains("there is no spec at `/no/such/file`"),
        "{said}"
    );
    assert_eq!(agent(&["config", "aply"]).status.code(), Some(2));
    assert_eq!(agent(&["--version"]).status.code(), Some(0));
}
