//! Runs that are interrupted, resumed, undone, listed and forgotten.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use homestak_sim::{Call, Fault, FaultKind, Pace, Timing};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::father::Father;
use crate::support::Run;

/// A run under way whose events are read as they come.
pub(crate) struct Running {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Running {
    pub(crate) fn start(father: &Father, arguments: &[&str]) -> Self {
        let mut command = father.command(arguments);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    /// Reads events until one has both words in it.
    pub(crate) fn until(&mut self, event: &str, step: &str) {
        let mut line = String::new();
        while !(line.contains(event) && line.contains(step)) {
            line.clear();
            let read = self.out.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "it ended before {event} {step}");
        }
    }

    pub(crate) fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn end(mut self) -> Run {
        // What is not read would stop it.
        std::io::copy(&mut self.out, &mut std::io::sink()).unwrap();
        self.child.wait_with_output().map(Run::from).unwrap()
    }
}

/// A host on which booting takes longer than any test.
fn sleepy() -> Father {
    let timing = Timing {
        boot: Duration::from_secs(600_000),
        ..Timing::default()
    };
    Father::new(Pace::Accelerated(200.0), timing)
}

pub(crate) const APPLY: [&str; 7] = [
    "manifest", "apply", "-M", "workers", "-H", "father", "--events",
];

#[test]
fn one_interrupt_finishes_what_is_being_done_and_resume_does_the_rest() {
    let father = Father::quick();
    father.workers(6, "");
    let mut running = Running::start(&father, &[&APPLY[..], &["--parallel", "1"]].concat());
    running.until("step-done", "create");
    running.send(Signal::INT);
    let stopped = running.end();
    assert_eq!(stopped.code, 4, "{}", stopped.err);
    assert!(
        stopped.err.contains("no new steps are started"),
        "{}",
        stopped.err
    );
    assert!(
        stopped
            .err
            .contains("homestak manifest resume -M workers -H father"),
        "{}",
        stopped.err
    );
    assert!(father.guests().len() < 6, "{:?}", father.guests());

    let status = father.run(&["manifest", "status", "--json-output"]).json();
    let run = &status["runs"][0];
    assert_eq!(
        (&run["ending"], &run["resumable"]),
        (&"stopped".into(), &true.into())
    );
    let pending = |node: &&Value| node["status"] == "pending";
    assert!(
        run["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|node| pending(&node)),
        "{run}"
    );

    let resumed = father.run(&["manifest", "resume", "--json-output"]).json();
    assert_eq!(
        (&resumed["success"], &resumed["ending"]),
        (&true.into(), &"done".into())
    );
    assert_eq!(resumed["nodes"].as_array().unwrap().len(), 6);
    assert_eq!(father.guests().len(), 6);
    assert!(father.guests().iter().all(|name| !name.contains("off")));
    let again = father.run(&["manifest", "resume"]);
    assert_eq!(again.code, 3, "nothing is unfinished any more");
}

#[test]
fn two_interrupts_leave_at_once_and_a_later_apply_takes_over() {
    let father = sleepy();
    father.workers(1, "");
    let mut running = Running::start(&father, &APPLY);
    running.until("step-started", "ready");
    running.send(Signal::INT);
    // The second must not melt into the first.
    let mut err = BufReader::new(running.child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("Stopping") {
        line.clear();
        assert_ne!(err.read_line(&mut line).unwrap(), 0);
    }
    running.send(Signal::INT);
    assert_eq!(running.end().code, 130);
    let status = father.run(&["manifest", "status"]);
    assert!(status.out.contains("interrupted"), "{}", status.out);
    // The end of the wait may have been written down before the second came.
    let ways = [
        ("was interrupted", "was interrupted"),
        ("stopped", "was stopped"),
    ];
    let way = ways.iter().find(|(now, _)| status.err.contains(now));
    let (_, later) = way.unwrap_or_else(|| panic!("{}", status.err));
    let destroy = father.run(&[
        "manifest", "destroy", "-M", "workers", "-H", "father", "--yes",
    ]);
    let says = format!("Run 1 (apply) {later}; this run replaces it");
    assert!(destroy.err.contains(&says), "{}", destroy.err);
    destroy.good();
    assert_eq!(father.guests(), [""; 0]);
    let history = father.run(&["manifest", "history", "--json-output"]).json();
    let endings: Vec<_> = history["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["ending"].as_str().unwrap())
        .collect();
    assert_eq!(endings, ["done", "superseded"]);
}

#[test]
fn an_interrupt_between_the_runs_of_a_test_ends_it() {
    let father = Father::quick();
    father.workers(1, "");
    // Slow enough that what follows is in place before the nodes are verified.
    let addresses = Call::any().path("/network-get-interfaces");
    let slow = Fault::new(addresses, FaultKind::Slow(200.0));
    father.pve.add_fault(slow);
    let test = [&["manifest", "test"], &APPLY[2..]].concat();
    let mut running = Running::start(&father, &test);
    running.until("run-ended", "");
    let lists = || father.pve.calls().get("GET /cluster/resources").copied();
    let before = lists();
    let list = Call::any().path("/cluster/resources");
    father.pve.add_fault(Fault::new(list, FaultKind::Timeout));
    while lists() == before {
        std::thread::sleep(Duration::from_millis(20));
    }
    running.send(Signal::INT);
    let ended = running.end();
    assert_eq!(ended.code, 130, "{}", ended.err);
    assert!(
        ended.err.contains("what was created is kept"),
        "{}",
        ended.err
    );
    assert_eq!(father.guests().len(), 1);
}

#[test]
fn two_runs_on_one_manifest_and_host_never_overlap() {
    let father = sleepy();
    father.workers(1, "");
    let mut running = Running::start(&father, &APPLY);
    running.until("step-started", "ready");
    let second = father.run(&APPLY);
    assert_eq!(second.code, 3);
    assert!(
        second.err.contains("`workers` on `father` is locked by"),
        "{}",
        second.err
    );
    let status = father.run(&["manifest", "status", "-M", "workers"]);
    assert!(
        status.out.contains("running") && status.err.contains("is being executed by"),
        "{}{}",
        status.out,
        status.err
    );
    running.send(Signal::KILL);
    running.end();
}

#[test]
fn a_run_is_reported_long_after_it_ended() {
    let father = Father::quick();
    father.single();
    let made = father
        .run(&[
            "manifest",
            "apply",
            "-M",
            "single-node",
            "-H",
            "father",
            "--json-output",
        ])
        .json();
    let text = father.run(&["manifest", "report"]).good();
    assert!(
        text.starts_with("# Run 1: apply `single-node`") && text.contains("test-vm"),
        "{text}"
    );
    father
        .run(&["manifest", "report", "1", "--out", "run.json"])
        .good();
    let text = std::fs::read_to_string(father.site.work().join("run.json")).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&json["kind"], &json["ending"]),
        (&"manifest.report".into(), &"done".into())
    );
    assert_eq!(json["nodes"][0]["status"], "completed");
    for key in ["name", "status", "vm_id", "ip"] {
        assert_eq!(json["nodes"][0][key], made["nodes"][0][key], "{key}");
    }
    assert_eq!(father.run(&["manifest", "report", "77"]).code, 1);
}

#[test]
fn several_unfinished_runs_are_listed_instead_of_guessed() {
    let father = Father::quick();
    for name in ["one", "two"] {
        father.manifest(
            name,
            "",
            &format!("  - {{name: {name}-vm, spec: base, preset: vm-small, image: debian-12}}\n"),
        );
        let killed = father
            .command(&["manifest", "apply", "-M", name, "-H", "father"])
            .env("HOMESTAK_CRASH_AT", "6")
            .status()
            .unwrap();
        assert_eq!(killed.code(), None);
    }
    let unclear = father.run(&["manifest", "resume"]);
    assert_eq!(unclear.code, 2);
    assert!(
        unclear.err.contains("-M one -H father") && unclear.err.contains("-M two -H father"),
        "{}",
        unclear.err
    );
    father.run(&["manifest", "resume", "-M", "one"]).good();
    father.run(&["manifest", "resume"]).good();
    assert_eq!(father.guests(), ["one-vm", "two-vm"]);
}

#[test]
fn a_forgotten_node_is_left_alone_and_found_again() {
    let father = Father::quick();
    father.single();
    let apply = ["manifest", "apply", "-M", "single-node", "-H", "father"];
    father.run(&apply).good();
    assert_eq!(father.run(&["manifest", "forget", "test-vm"]).code, 3);
    father
        .run(&["manifest", "forget", "test-vm", "--yes"])
        .good();
    assert_eq!(father.guests(), ["test-vm"]);
    assert_eq!(
        father.run(&["manifest", "forget", "test-vm", "--yes"]).code,
        1
    );
    let again = father.run(&apply);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
}

#[test]
fn a_source_that_was_corrected_after_a_failed_fetch_is_used_by_resume() {
    let father = Father::quick();
    let right = "https://images.example/own.qcow2";
    father.pve.offer_download(right, 1 << 20, "");
    let image = |url: &str| {
        let text = format!("schema_version: 1\nsource: {url}\n");
        father.site.write("images/own.yaml", &text);
    };
    image("https://images.example/mistyped.qcow2");
    father.manifest(
        "single-node",
        "",
        "  - {name: test-vm, preset: vm-small, image: own}\n",
    );
    let on = ["-M", "single-node", "-H", "father"];
    let apply =
        father.run(&[&["manifest", "apply", "--yes", "--skip-preflight"], &on[..]].concat());
    assert_ne!(apply.code, 0, "{}", apply.out);
    assert!(apply.err.contains("404"), "{}", apply.err);
    for verb in ["status", "report"] {
        let run = father.run(&["manifest", verb, "-M", "single-node"]);
        let said = run.out + &run.err;
        assert!(said.contains("404"), "{verb}: {said}");
        let json = father.run(&["manifest", verb, "-M", "single-node", "--json-output"]);
        let body: serde_json::Value = serde_json::from_str(&json.out).unwrap();
        let run = body.get("runs").map_or(&body, |runs| &runs[0]);
        let cause = run["images"][0]["error"].as_str().unwrap_or_default();
        assert!(cause.contains("404"), "{verb}: {body:#}");
    }
    image(right);
    let resume = father.run(&[&["manifest", "resume"], &on[..]].concat());
    assert_eq!(resume.code, 0, "{}{}", resume.out, resume.err);
    assert!(
        resume.err.contains("`images/own.yaml` was changed since"),
        "{}",
        resume.err
    );
    assert_eq!(father.guests(), ["test-vm"]);
}

#[test]
fn a_new_guest_has_not_been_reached_because_the_one_before_was() {
    let father = Father::quick();
    father.workers(1, "");
    let contact = || {
        let status = [
            "manifest",
            "status",
            "-M",
            "workers",
            "--offline",
            "--json-output",
        ];
        let run = father.run(&status).good();
        let body: serde_json::Value = serde_json::from_str(&run).unwrap();
        body["runs"][0]["nodes"][0]["last_contact"].clone()
    };
    let on = ["-M", "workers", "-H", "father", "--yes"];
    father
        .run(&[&["manifest", "apply"], &on[..]].concat())
        .good();
    assert!(contact().is_string());
    father
        .run(&[&["manifest", "destroy"], &on[..]].concat())
        .good();
    assert!(contact().is_null());
}
