//! A user of a node who means harm: nothing outside the home directory is theirs to have, and
//! nobody else's things stay as they should not be because of them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bed::{Run, text};
use crate::drift::{change, is_mended, until};
use crate::lab::{AGENT, KEY, Lab, STATE, result};

/// What the user does on the node.
const ATTACK: &str = include_str!("attack.py");
/// How long the user tries.
const TRIES: Duration = Duration::from_secs(30);

/// Something of root that a link could lead to.
const PRIZE: &str = "mkdir -m 755 /etc/prize; for name in authorized_keys app.conf keep; do echo root >/etc/prize/$name; done; mkdir -p -m 700 /root/.ssh; test -s /root/.ssh/authorized_keys || echo '# root' >/root/.ssh/authorized_keys";

fn spec(lab: &Lab) -> Value {
    let mut spec = lab.spec("dev");
    spec["access"]["_posture"]["packages"] = json!([]);
    spec["platform"] = json!({});
    spec["access"]["users"] = json!([
        { "name": "alice", "sudo": false, "ssh_keys": [KEY] },
        { "name": "bob", "sudo": true, "ssh_keys": [KEY] },
    ]);
    spec["config"] = json!({
        "files": [
            { "path": "/etc/motd", "content": "managed\n" },
            { "path": "/home/alice/conf.d/app.conf", "content": "managed\n", "owner": "alice", "group": "alice" },
            { "path": "/home/alice/own/deep/app.conf", "content": "managed\n", "owner": "alice", "mode": "0600" },
        ],
        "converge": { "foreign_keys": "remove" },
    });
    spec["run"] = json!({ "trigger": "schedule", "interval": "1d" });
    spec
}

/// The same without alice.
fn without_alice(spec: &Value) -> Value {
    let mut spec = spec.clone();
    spec["access"]["users"].as_array_mut().unwrap().remove(0);
    spec["config"]["files"].as_array_mut().unwrap().truncate(1);
    spec
}

/// Everything but what is alice's.
fn of_others(lab: &Lab) -> Vec<String> {
    let mut lines = lab.outside();
    lines.retain(|line| !line.contains("home/alice"));
    lines
}

/// Nothing outside the home belongs to alice, and all else is as it was.
fn is_unharmed(lab: &Lab, before: &[String]) {
    let now = of_others(lab);
    let new: Vec<_> = now.iter().filter(|line| !before.contains(line)).collect();
    let gone: Vec<_> = before.iter().filter(|line| !now.contains(line)).collect();
    assert!(
        new.is_empty() && gone.is_empty(),
        "{new:#?} instead of {gone:#?}"
    );
    let theirs = lab.root("find / -xdev \\( -path /proc -o -path /sys -o -path /home/alice -o -path /tmp \\) -prune -o -user alice -print");
    assert_eq!(theirs.good(), "");
}

/// Runs a command as alice.
fn alice(lab: &Lab, command: &str) -> Run {
    lab.root(&format!(
        "cd /home/alice; runuser -u alice -- sh -ec '{command}'"
    ))
}

fn refused(status: &Value, id: &str) -> String {
    text(&status["drift"]["refused"][id])
}

#[test]
fn what_one_user_breaks_is_refused_and_everything_else_is_kept_up() {
    let Some(lab) = Lab::new() else { return };
    let spec = spec(&lab);
    lab.root(PRIZE).good();
    lab.apply(&spec);
    until(&lab, "watched", |status| status["watching"] == true);
    let before = of_others(&lab);
    locks_and_state_are_for_root(&lab);
    is_secured_by_an_upgrade(&lab, &spec);
    stops_nobody_else(&lab, &spec);

    // A file where a directory should be, and directories that are links.
    alice(
        &lab,
        "rm -r .ssh; mv conf.d old; touch .ssh; ln -s /etc/prize conf.d",
    )
    .good();
    let keys = "keys:alice//home/alice/.ssh";
    let conf = "file:/home/alice/conf.d/app.conf/content";
    let status = until(&lab, "refused", |status| {
        let refused = &status["drift"]["refused"];
        refused.get(keys).is_some() && refused.get(conf).is_some()
    });
    assert!(refused(&status, keys).contains("should be a directory"));
    assert!(refused(&status, conf).contains("is a symbolic link that a user can change"));
    let status = until(&lab, "not complete", |status| status["status"] == "failed");
    assert!(text(&status["failed"]["message"]).contains("keys:alice"));
    let shown = lab.root(&format!("{AGENT} status")).good();
    assert!(shown.contains(&format!("{keys} is refused")), "{shown}");
    // All else is corrected by the watch, and done by whoever asks.
    let motd = "file:/etc/motd/content";
    let at = change(
        &lab,
        "echo other >/etc/motd; rm /home/bob/.ssh/authorized_keys",
    );
    is_mended(&lab, "motd", motd, at);
    is_mended(
        &lab,
        "bob",
        "keys:bob//home/bob/.ssh/authorized_keys content",
        at,
    );
    let mut other = spec.clone();
    other["config"]["files"][0]["content"] = json!("another\n");
    let run = lab.agent("config apply --json-output", &other);
    assert_eq!(run.code, 2, "{}", run.err);
    assert!(
        run.err.contains(keys) && run.err.contains(conf),
        "{}",
        run.err
    );
    lab.root("test \"$(cat /etc/motd)\" = another").good();
    let check = lab.agent("config check --json-output", &other);
    let check: Value = serde_json::from_str(&check.out).unwrap();
    assert_eq!(check["settled"], false);
    assert_eq!(check["refused"].as_object().unwrap().len(), 2, "{check:#}");
    // The watch goes by the new spec, and once alice is done it is complete by itself.
    let at = change(&lab, "echo other >/etc/motd");
    is_mended(&lab, "after a failed apply", motd, at);
    lab.root("test \"$(cat /etc/motd)\" = another").good();
    alice(&lab, "rm .ssh conf.d").good();
    until(&lab, "complete", |status| status["status"] == "complete");
    lab.apply(&spec);
    is_unharmed(&lab, &before);

    undone_through_links(&lab, &spec);
    is_unharmed(&lab, &before);
    corrected_however_often(&lab);

    // Whoever goes takes nothing along that a link leads to.
    alice(&lab, "rm -r .ssh; ln -s /etc/prize .ssh").good();
    let gone = without_alice(&spec);
    lab.apply(&gone);
    lab.root("test -s /etc/prize/authorized_keys; test -s /root/.ssh/authorized_keys")
        .good();
    lab.root("getent shadow alice | cut -d: -f8 | grep -qx 1")
        .good();
    lab.root("rm /home/alice/.ssh").good();
    lab.apply(&spec);
    is_unharmed(&lab, &before);
    lab.bed.destroy("lab");
}

fn locks_and_state_are_for_root(lab: &Lab) {
    for command in [
        format!("flock -n {STATE}/lock true"),
        format!("flock -n {STATE}/watch.lock true"),
        format!("ls {STATE}"),
        format!("{AGENT} status"),
    ] {
        alice(lab, &command).bad();
    }
    let modes =
        format!("stat -c '%a %U' {STATE} {STATE}/lock {STATE}/watch.lock {STATE}/drift.json");
    assert_eq!(
        lab.root(&modes).good(),
        "700 root\n600 root\n600 root\n600 root\n"
    );
}

/// A state that an older version made is closed, and a lock that a user took then holds nobody up.
fn is_secured_by_an_upgrade(lab: &Lab, spec: &Value) {
    lab.root(&format!(
        "chmod 755 {STATE} {STATE}/jobs 2>/dev/null || true; chmod 644 {STATE}/*; touch {STATE}/old; chown alice {STATE}/old"
    ))
    .good();
    let status = format!(
        "{AGENT} status >/dev/null; stat -c '%a %U' {STATE} {STATE}/converge.json {STATE}/old; rm {STATE}/old"
    );
    assert_eq!(lab.root(&status).good(), "700 root\n600 root\n600 root\n");
    // Opened before it was closed.
    lab.root("systemctl stop homestak-agent").good();
    lab.root(&format!("chmod 755 {STATE}; chmod 644 {STATE}/lock; systemd-run --quiet --unit=holder --uid=alice sh -c 'exec 9<{STATE}/lock; touch /tmp/open; while test -e /tmp/open; do sleep 0.1; done; flock 9; touch /tmp/held; sleep 60'; for i in $(seq 50); do test -e /tmp/open && exit 0; sleep 0.1; done; exit 1")).good();
    lab.root(&format!("{AGENT} status >/dev/null; rm /tmp/open; for i in $(seq 50); do test -e /tmp/held && exit 0; sleep 0.1; done; exit 1")).good();
    lab.apply(spec);
    lab.root("systemctl stop holder; rm /tmp/held; systemctl start homestak-agent")
        .good();
    until(lab, "watched", |status| status["watching"] == true);
}

/// A directory of root that was moved, a file of keys without end, and a name that is no text.
fn stops_nobody_else(lab: &Lab, spec: &Value) {
    lab.root("install -d -m 700 /home/alice/prot; echo secret >/home/alice/prot/secret")
        .good();
    alice(lab, "mv .ssh kept; mv prot .ssh").good();
    let run = lab.agent("config apply", spec);
    assert_eq!(run.code, 2, "{}", run.err);
    assert!(
        run.err.contains("belongs to another user (id 0)"),
        "{}",
        run.err
    );
    let owner = lab.root("stat -c %u:%a /home/alice/.ssh").good();
    assert_eq!(owner.trim(), "0:700");
    lab.root("rm -r /home/alice/.ssh").good();
    let keys =
        "mv kept .ssh; yes ssh-ed25519 AAAAforeign eve | head -n 340000 >.ssh/authorized_keys";
    alice(lab, keys).good();
    lab.root("LC_ALL=C sed -i 's/^\\(alice:x:[0-9]*:[0-9]*:\\):/\\1\\xff:/' /etc/passwd; LC_ALL=C grep -q '^alice.*[^ -~]' /etc/passwd")
        .good();
    let at = change(lab, "echo other >/etc/motd");
    is_mended(lab, "motd", "file:/etc/motd/content", at);
    let id = "keys:alice//home/alice/.ssh";
    let status = until(lab, "too large", |status| {
        status["drift"]["refused"].get(id).is_some()
    });
    assert!(refused(&status, id).contains("is larger than 256 KiB"));
    lab.root("LC_ALL=C sed -i 's/^\\(alice:x:[0-9]*:[0-9]*:\\)\\xff:/\\1:/' /etc/passwd")
        .good();
    alice(lab, "rm .ssh/authorized_keys").good();
    lab.apply(spec);
}

/// Nobody confirms, and meanwhile a directory became a link: it is not followed on the way back.
fn undone_through_links(lab: &Lab, spec: &Value) {
    let mut other = spec.clone();
    other["config"]["files"][1]["content"] = json!("another\n");
    other["access"]["users"][1]["sudo"] = json!(false);
    // Copies of a run that was killed before its first change go.
    lab.root(&format!(
        "mkdir -p {STATE}/jobs/dead/before; echo secret >{STATE}/jobs/dead/before/1"
    ))
    .good();
    let mut job = lab.begin("--id back --confirm 3", &other, crate::bed::Way::Shared);
    job.until("confirm");
    alice(lab, "mv conf.d older; ln -s /etc/prize conf.d").good();
    let (code, events) = job.end();
    assert_eq!(code, 2);
    lab.root(&format!("test ! -e {STATE}/jobs/dead/before"))
        .good();
    let said = text(&result(&events)["message"]);
    assert!(
        said.contains("could not be taken back") && said.contains("conf.d"),
        "{said}"
    );
    lab.root("runuser -u bob -- sudo -n true").good();
    alice(lab, "rm conf.d").good();
    lab.apply(spec);
}

/// What decides who becomes root is never left as it is, however often it is changed.
fn corrected_however_often(lab: &Lab) {
    for n in 0..7 {
        let command = format!("echo 'alice ALL=(ALL) NOPASSWD: /bin/n{n}' >/etc/sudoers.d/zz");
        let at = change(lab, &command);
        is_mended(lab, &command, "sudo:alice/rule", at);
    }
}

#[test]
fn a_user_who_swaps_files_all_the_time_gets_nothing_outside_the_home_directory() {
    let Some(lab) = Lab::new() else { return };
    let spec = spec(&lab);
    lab.root(PRIZE).good();
    lab.apply(&spec);
    until(&lab, "watched", |status| status["watching"] == true);
    let before = of_others(&lab);
    let put = "tee /home/alice/attack.py >/dev/null";
    lab.bed
        .feed("web", &format!("sudo {put}"), ATTACK.as_bytes())
        .good();
    let seconds = TRIES.as_secs();
    lab.root(&format!("mkdir -p /home/alice/own; chown alice /home/alice/own; systemd-run --quiet --unit=attack --uid=alice python3 /home/alice/attack.py /home/alice {seconds}")).good();
    let end = Instant::now() + TRIES;
    let mut changed = spec.clone();
    changed["config"]["files"][1]["content"] = json!("another\n");
    changed["access"]["users"][1]["sudo"] = json!(false);
    let gone = without_alice(&spec);
    let mut n = 0;
    while Instant::now() < end {
        // Each ends, well or with what was refused.
        let code = match n % 4 {
            1 => lab.job(&format!("--id attack-{n} --confirm 1"), &changed).0,
            2 => apply(&lab, &gone),
            _ => apply(&lab, &spec),
        };
        assert!(matches!(code, 0 | 2), "{n}: {code}");
        // Others are looked after meanwhile.
        if n % 4 == 3 {
            let foreign =
                format!("echo 'ssh-ed25519 AAAAforeign{n} eve' >>/home/bob/.ssh/authorized_keys");
            let at = change(&lab, &foreign);
            let id = format!(
                "keys:bob/ssh-ed25519 ...{}",
                tail(&format!("ssh-ed25519 AAAAforeign{n}"))
            );
            let mended = is_mended(&lab, "bob", &id, at);
            println!("{n}: bob's keys corrected: {mended}");
        }
        n += 1;
    }
    lab.root("systemctl stop attack || true").good();
    let attempts = lab
        .root("for file in /home/alice/attempts.*; do cat $file; echo; done")
        .good();
    println!("{n} runs; attempts: {}", attempts.replace('\n', " "));
    let total: u64 = attempts
        .lines()
        .map(|line| line.parse::<u64>().unwrap())
        .sum();
    assert!(total > 2_000, "{total}");
    // Nothing is left of it once it ends.
    lab.root("rm -rf /home/alice/.ssh* /home/alice/conf.d* /home/alice/own* /home/alice/att*")
        .good();
    lab.apply(&spec);
    is_unharmed(&lab, &before);
    assert_eq!(lab.check(&spec), [""; 0]);
    lab.bed.destroy("lab");
}

/// Everything that alice creates, and everything that is created for her, is open to her.
const DEFAULT_LIST: &str = r#"import os, pwd, struct, sys
alice = pwd.getpwnam("alice").pw_uid
entries = [(1, 7, 0xFFFFFFFF), (2, 7, alice), (4, 7, 0xFFFFFFFF), (16, 7, 0xFFFFFFFF), (32, 0, 0xFFFFFFFF)]
data = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
os.setxattr(sys.argv[2], "system.posix_acl_" + sys.argv[1], data)
"#;

#[test]
fn a_user_neither_reads_files_of_root_nor_keeps_herself_from_being_removed() {
    let Some(lab) = Lab::new() else { return };
    let mut spec = spec(&lab);
    lab.apply(&spec);
    let put = "sudo tee /usr/local/bin/list.py >/dev/null";
    lab.bed.feed("web", put, DEFAULT_LIST.as_bytes()).good();
    let list = |kind: &str, path: &str| format!("python3 /usr/local/bin/list.py {kind} {path}");
    alice(&lab, &list("default", "/home/alice")).good();
    for (name, mode) in [("app.secret", "0640"), ("ro.conf", "0664")] {
        let path = format!("/home/alice/{name}");
        let file = json!({ "path": path, "content": "of root\n", "mode": mode });
        spec["config"]["files"].as_array_mut().unwrap().push(file);
    }
    lab.apply(&spec);
    alice(
        &lab,
        "touch own.txt; if cat app.secret || echo mine >ro.conf; then exit 1; fi",
    )
    .good();
    lab.root("test \"$(cat /home/alice/ro.conf)\" = \"of root\"")
        .good();
    assert_eq!(lab.check(&spec), [""; 0]);
    // One that an older version left is a difference.
    lab.root("systemctl stop homestak-agent").good();
    lab.root(&list("access", "/home/alice/app.secret")).good();
    lab.root("chmod 640 /home/alice/app.secret").good();
    alice(&lab, "cat app.secret").good();
    let differs = lab.check(&spec);
    assert!(differs.contains(&"file:/home/alice/app.secret/mode".to_owned()));
    lab.apply(&spec);
    alice(&lab, "cat app.secret").bad();

    // Nobody is asked to confirm what becomes of others, so that nobody can prevent it.
    let (code, events) = lab.job("--id gone --confirm 60", &without_alice(&spec));
    assert_eq!(code, 0, "{events:#?}");
    assert!(!events.iter().any(|event| event["event"] == "confirm"));
    lab.root("getent shadow alice | cut -d: -f8 | grep -qx 1")
        .good();
    lab.bed.destroy("lab");
}

#[test]
fn a_user_who_fills_tmp_keeps_neither_packages_nor_her_removal_from_being_had() {
    let Some(lab) = Lab::new() else { return };
    let spec = spec(&lab);
    lab.apply(&spec);
    lab.root("rm -rf /var/lib/apt/lists/*").good();
    let fill = "python3 -c \"n = 0\nwhile True: open(f\\\"/tmp/{n}\\\", \\\"x\\\"); n += 1\" || true; \
                rm /tmp/1; dd if=/dev/zero of=/tmp/x bs=1M count=600 || true; touch /tmp/y || true";
    let said = alice(&lab, fill);
    assert!(said.err.contains("No space left"), "{}", said.err);
    lab.root("touch /tmp/mine").bad();
    let mut gone = without_alice(&spec);
    gone["platform"] = json!({ "packages": ["tree"] });
    lab.apply(&gone);
    lab.root("test -x /usr/bin/tree; getent shadow alice | cut -d: -f8 | grep -qx 1")
        .good();
    lab.bed.destroy("lab");
}

#[test]
fn numbers_of_users_whose_creation_was_reverted_are_nobodys() {
    let Some(lab) = Lab::new() else { return };
    let mut spec = spec(&lab);
    spec["run"] = json!({ "trigger": "manual" });
    lab.apply(&spec);
    let with = |name: &str| {
        let mut spec = spec.clone();
        let user = json!({ "name": name, "sudo": true, "ssh_keys": [] });
        spec["access"]["users"].as_array_mut().unwrap().push(user);
        spec
    };
    let numbers = |name: &str| lab.root(&format!("id -u {name}; id -g {name}")).good();
    let mut gone = Vec::new();
    let mut reverted = |job: &str| {
        let words = format!("--id {job} --confirm 2");
        let mut job = lab.begin(&words, &with("carol"), crate::bed::Way::Shared);
        job.until("confirm");
        let carol = numbers("carol");
        assert_eq!(job.end().0, 2);
        gone.extend(carol.lines().map(str::to_owned));
        gone.clone()
    };
    // A group is in the way of the same number for the user and the group.
    lab.root("groupadd shared").good();
    let left = reverted("first");
    lab.apply(&with("dave"));
    let dave = numbers("dave");
    assert!(
        !left.iter().any(|one| dave.contains(one)),
        "{dave} {left:?}"
    );
    lab.apply(&spec);
    // The last numbers that there are.
    lab.root("useradd -u 59999 last").good();
    let left = reverted("last");
    assert!(left.contains(&"60000".to_owned()), "{left:?}");
    lab.apply(&with("erin"));
    let erin = numbers("erin");
    assert!(
        !left.iter().any(|one| erin.contains(one)),
        "{erin} {left:?}"
    );
    lab.bed.destroy("lab");
}

/// Applies a spec, which ends whatever is in the way, and returns the exit code.
fn apply(lab: &Lab, spec: &Value) -> i32 {
    let command = format!("sudo timeout 60 {AGENT} config apply --spec -");
    let run = lab.bed.feed("web", &command, spec.to_string().as_bytes());
    run.code
}

fn tail(text: &str) -> String {
    let end: String = text.chars().rev().take(16).collect();
    end.chars().rev().collect()
}
