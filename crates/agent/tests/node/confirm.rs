//! A change that could cut the node off stays when someone confirms it, and goes when nobody does.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::bed::{Way, text};
use crate::lab::{AGENT, KEY, Lab, STATE, result};

/// Nothing waits for a confirmation any more, and nothing of it is left.
fn nothing_is_awaited(lab: &Lab) {
    let left = lab.root(&format!(
        "find /etc/systemd/system -name 'homestak-undo-*'; ls -d {STATE}/unconfirmed {STATE}/jobs/*/before {STATE}/jobs/*/undo.json 2>/dev/null || true"
    ));
    assert_eq!(left.good(), "");
}

/// What a job says that was taken back, and that the node is as before.
fn taken_back(lab: &Lab, id: &str, before: &[String], spec: &Value) -> String {
    let (code, events) = lab.follow(&format!("--id {id}"));
    assert_eq!(code, 2, "{id}: {events:#?}");
    let kinds: Vec<String> = events.iter().map(|event| text(&event["event"])).collect();
    assert!(kinds.contains(&"reverted".to_owned()), "{id}: {events:#?}");
    let status = lab.status();
    assert_eq!(status["failed"]["message"], result(&events)["message"]);
    assert_eq!(status["failed"]["error"], result(&events)["error"]);
    let after: BTreeSet<String> = lab.outside().into_iter().collect();
    let before: BTreeSet<String> = before.iter().cloned().collect();
    let differs: Vec<_> = after.symmetric_difference(&before).collect();
    assert!(differs.is_empty(), "{id}: {differs:#?}");
    nothing_is_awaited(lab);
    assert_ne!(lab.check(spec), [""; 0], "{id}: the difference is seen");
    let late = lab.root(&format!("{AGENT} job confirm --id {id}"));
    assert_eq!(late.code, 1, "{}", late.err);
    text(&result(&events)["message"])
}

/// Tells whether a job has come to its end; a slow machine may be late to look.
fn is_over(lab: &Lab, id: &str) -> bool {
    let run = lab.root(&format!("grep -q reverted {STATE}/jobs/{id}/events"));
    run.code == 0
}

/// Another address in the network of the node.
fn other_address(spec: &Value) -> String {
    let address = text(&spec["network"]["ip"]);
    let (start, _) = address.rsplit_once('.').unwrap();
    format!("{start}.251/20")
}

#[test]
fn what_is_confirmed_stays_and_what_is_not_goes() {
    let Some(lab) = Lab::new() else { return };
    let first = lab.spec("local");
    // The very first converge of a node is dangerous, and is taken back to before any spec.
    let untouched = lab.outside();
    let packages = json!(["sudo", "openssh-server"]);
    let mut early = first.clone();
    early["platform"]["packages"] = packages;
    early["platform"]["services"] = json!({});
    early["config"]["timezone"].take();
    early["config"].as_object_mut().unwrap().remove("timezone");
    lab.begin("--id early --confirm 1", &early, Way::Shared)
        .end();
    let said = taken_back(&lab, "early", &untouched, &early);
    assert!(said.contains("nobody confirmed within 1 s"), "{said}");
    assert!(said.contains("create user alice"), "{said}");
    lab.apply(&first);
    // What was left of the user is nobody's, so the number is not given again.
    let retired = lab.root(&format!("cat {STATE}/retired-user")).good();
    let alice = lab.root("id -u alice").good();
    let mut numbers = retired.split_whitespace();
    assert!(
        numbers.all(|number| number != alice.trim()),
        "{alice} {retired}"
    );
    let before = lab.outside();

    confirmed(&lab, &first);
    lab.apply(&first);
    // An account that was made stays, closed.
    let before_dave = before;
    let before = lab.outside();
    assert_ne!(before, before_dave);

    // The SSH server at another port.
    let mut spec = first.clone();
    spec["access"]["_posture"]["ssh"]["port"] = json!(2222);
    let mut job = lab.begin("--id port --confirm 3", &spec, Way::Shared);
    job.until("confirm");
    let reached = lab.anew("true").code == 0;
    assert!(!reached || is_over(&lab, "port"), "still reached");
    drop(job);
    let said = taken_back(&lab, "port", &before, &spec);
    assert!(said.contains("write /etc/ssh/sshd_config.d/"), "{said}");

    // What fails for longer than a moment, as with all processes used up, is reverted later.
    lab.root("systemd-run --quiet sh -c 'until test -e /run/away; do sleep 0.1; done; sleep 10; mv /usr/bin/systemctl.away /usr/bin/systemctl; rm /run/away'").good();
    let mut job = lab.begin("--id later --confirm 2", &spec, Way::Shared);
    job.until("confirm");
    lab.root("mv /usr/bin/systemctl /usr/bin/systemctl.away; touch /run/away")
        .good();
    drop(job);
    let said = taken_back(&lab, "later", &before, &spec);
    assert!(!said.contains("could not be taken back"), "{said}");

    // The driver's own rule of sudo, and its account.
    let mut spec = first.clone();
    let ops = json!({ "name": "ops", "sudo": false, "ssh_keys": [KEY] });
    spec["access"]["users"].as_array_mut().unwrap().push(ops);
    let mut job = lab.begin("--id sudo --confirm 3", &spec, Way::Shared);
    job.until("confirm");
    let may = lab.bed.feed("web", "sudo -n true", b"").code == 0;
    assert!(!may || is_over(&lab, "sudo"), "still becomes root");
    drop(job);
    taken_back(&lab, "sudo", &before, &spec);

    lab.bed.destroy("lab");
}

#[test]
fn whatever_happens_to_whoever_waits_a_node_that_is_cut_off_comes_back() {
    let Some(mut lab) = Lab::new() else { return };
    let first = lab.spec("local");
    lab.apply(&first);
    let before = lab.outside();

    // Another address, gateway and name server.
    let mut spec = first.clone();
    spec["network"]["ip"] = json!(other_address(&first));
    spec["network"]["gateway"] = json!(other_address(&first).replace("251/20", "252"));
    spec["network"]["dns"] = json!(["192.0.2.1"]);
    let network = "ip -4 route show default; ip -br -4 address show eth0; cat /etc/resolv.conf";
    let was = lab.root(network).good();
    let mut job = lab.begin("--id network --confirm 2", &spec, Way::Anew);
    job.until("changes");
    let (code, _) = lab.follow("--id network");
    assert_eq!(code, 2);
    drop(job);
    lab.bed.share("web");
    taken_back(&lab, "network", &before, &spec);
    assert_eq!(lab.root(network).good(), was);

    // What cannot be had is taken back at once.
    lab.root("printf '[Service]\\nType=oneshot\\nExecStart=/bin/false\\n[Install]\\nWantedBy=multi-user.target\\n' >/etc/systemd/system/bad.service; systemctl daemon-reload").good();
    let with_unit = lab.outside();
    let mut spec = first.clone();
    spec["access"]["_posture"]["ssh"]["permit_root_login"] = json!("no");
    spec["platform"]["services"]["enable"] = json!(["cron", "bad"]);
    lab.begin("--id bad --confirm 60", &spec, Way::Shared).end();
    let said = taken_back(&lab, "bad", &with_unit, &spec);
    assert!(said.contains("start bad.service"), "{said}");
    assert!(said.contains("journalctl -u bad.service"), "{said}");
    lab.root("rm /etc/systemd/system/bad.service; systemctl daemon-reload; systemctl reset-failed")
        .good();

    killed_or_restarted(&mut lab, &first, &before);

    // By hand, and confirmed by hand.
    let mut spec = first.clone();
    spec["access"]["_posture"]["ssh"]["permit_root_login"] = json!("no");
    let command = format!("sudo {AGENT} config apply --json-output --confirm 60 --spec -");
    let input = spec.to_string();
    let mut apply = lab.bed.fed("web", &command, input.as_bytes(), Way::Shared);
    apply.stdout(std::process::Stdio::piped());
    let apply = apply.spawn().unwrap();
    until_confirmed(&lab, "config confirm");
    let output = apply.wait_with_output().unwrap();
    assert!(output.status.success());
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["kind"], "config.apply");
    assert_eq!(lab.check(&spec), [""; 0]);
    nothing_is_awaited(&lab);
    lab.bed.destroy("lab");
}

fn until_confirmed(lab: &Lab, words: &str) {
    for _ in 0..100 {
        if lab.root(&format!("{AGENT} {words}")).code == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("nothing to confirm");
}

fn confirmed(lab: &Lab, first: &Value) {
    let mut spec = first.clone();
    let dave = json!({ "name": "dave", "sudo": true, "ssh_keys": [KEY] });
    spec["access"]["users"].as_array_mut().unwrap().push(dave);
    let mut job = lab.begin("--id stays --confirm 60", &spec, Way::Shared);
    assert_eq!(job.until("confirm")["within"], 60);
    // Whoever comes in between waits.
    let run = lab.agent("config apply", first);
    assert_eq!(run.code, 2);
    assert!(run.err.contains("job confirm --id stays"), "{}", run.err);
    let confirm = format!("sudo {AGENT} job confirm --id stays");
    lab.anew(&confirm).good();
    let (code, events) = job.end();
    assert_eq!(code, 0, "{events:#?}");
    assert_eq!(result(&events)["users"], 3);
    lab.anew(&confirm).good();
    lab.root("runuser -u dave -- sudo -n true").good();
    assert_eq!(lab.status()["status"], "complete");
    assert_eq!(lab.check(&spec), [""; 0]);
    nothing_is_awaited(lab);
}

fn killed_or_restarted(lab: &mut Lab, first: &Value, before: &[String]) {
    let mut spec = first.clone();
    spec["access"]["_posture"]["ssh"]["permit_root_login"] = json!("no");
    spec["access"]["users"][1]["sudo"] = json!(true);
    spec["identity"]["hostname"] = json!("other");
    let waiting = |lab: &Lab, id: &str, seconds: u32| {
        let words = format!("--id {id} --confirm {seconds}");
        let mut job = lab.begin(&words, &spec, Way::Shared);
        job.until("confirm");
        job.lose();
    };
    // Whoever waits is killed, and whoever looks after that as well.
    waiting(lab, "killed", 3);
    lab.root(
        "systemctl kill -s KILL homestak-job-killed || true; systemctl kill -s KILL homestak-undo-killed || true",
    )
    .good();
    let said = taken_back(lab, "killed", before, &spec);
    assert!(said.contains("nobody confirmed within 3 s"), "{said}");

    // Killed between the steps, it is taken back at once.
    let command =
        format!("sudo env HOMESTAK_CRASH_AFTER=4 {AGENT} job run --id crash --confirm 60");
    let input = spec.to_string();
    lab.bed.feed("web", &command, input.as_bytes()).bad();
    let said = taken_back(lab, "crash", before, &spec);
    assert!(
        said.contains("the agent was killed before anyone confirmed"),
        "{said}"
    );

    // The node restarts while nobody reaches it.
    let mut lost = spec.clone();
    lost["network"]["ip"] = json!(other_address(first));
    lost["network"]["gateway"] = json!(other_address(first).replace("251/20", "252"));
    lab.root(&format!("systemd-run --quiet sh -c 'until test -e {STATE}/jobs/restart/asked.json; do sleep 0.2; done; systemctl reboot'")).good();
    let mut job = lab.begin("--id restart --confirm 600", &lost, Way::Anew);
    job.until("changes");
    lab.follow("--id restart");
    job.lose();
    lab.bed.share("web");
    let said = taken_back(lab, "restart", before, &lost);
    assert!(
        said.contains("the node was restarted before anyone confirmed"),
        "{said}"
    );

    // Killed, and confirmed then: it stays.
    waiting(lab, "late", 60);
    lab.root("systemctl kill -s KILL homestak-job-late").good();
    lab.root(&format!("{AGENT} job confirm --id late")).good();
    let (code, events) = lab.follow("--id late");
    assert_eq!(code, 0, "{events:#?}");
    assert_eq!(lab.check(&spec), [""; 0]);
    nothing_is_awaited(lab);
    lab.apply(first);
}
