//! Runs that are interrupted, resumed, rolled back, listed and forgotten.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use homestak_sim::{Call, Fault, FaultKind, Pace, Timing};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::Run;
use crate::test_pve::TestPve;

/// A run in progress whose events are read as they arrive.
pub(crate) struct Running {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Running {
    pub(crate) fn start(host: &TestPve, arguments: &[&str]) -> Self {
        let mut command = host.command(arguments);
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
        // A full pipe would block it.
        std::io::copy(&mut self.out, &mut std::io::sink()).unwrap();
        self.child.wait_with_output().map(Run::from).unwrap()
    }
}

/// A host on which booting takes longer than any test.
fn never_booting_host() -> TestPve {
    let timing = Timing {
        boot: Duration::from_secs(600_000),
        ..Timing::default()
    };
    TestPve::new(Pace::Accelerated(200.0), timing)
}

pub(crate) const APPLY: [&str; 7] = [
    "manifest", "apply", "-M", "workers", "-H", "father", "--events",
];

#[test]
fn one_interrupt_stops_after_the_current_steps_and_resume_completes_the_run() {
    let host = TestPve::quick();
    host.workers(6, "");
    let mut running = Running::start(&host, &[&APPLY[..], &["--parallel", "1"]].concat());
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
    assert!(host.guests().len() < 6, "{:?}", host.guests());

    let status = host.run(&["manifest", "status", "--json-output"]).json();
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

    let resumed = host.run(&["manifest", "resume", "--json-output"]).json();
    assert_eq!(
        (&resumed["success"], &resumed["ending"]),
        (&true.into(), &"done".into())
    );
    assert_eq!(resumed["nodes"].as_array().unwrap().len(), 6);
    assert_eq!(host.guests().len(), 6);
    assert!(host.guests().iter().all(|name| !name.contains("off")));
    let again = host.run(&["manifest", "resume"]);
    assert_eq!(again.code, 3, "nothing is unfinished any more");
}

#[test]
fn two_interrupts_abort_at_once_and_a_later_run_replaces_the_run() {
    let host = never_booting_host();
    host.workers(1, "");
    let mut running = Running::start(&host, &APPLY);
    running.until("step-started", "ready");
    running.send(Signal::INT);
    // Wait until the first signal is handled, or both count as one.
    let mut err = BufReader::new(running.child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("Stopping") {
        line.clear();
        assert_ne!(err.read_line(&mut line).unwrap(), 0);
    }
    running.send(Signal::INT);
    assert_eq!(running.end().code, 130);
    let status = host.run(&["manifest", "status"]);
    assert!(status.out.contains("interrupted"), "{}", status.out);
    // The end of the wait may have been recorded before the second signal arrived.
    let endings = [
        ("was interrupted", "was interrupted"),
        ("stopped", "was stopped"),
    ];
    let ending = endings.iter().find(|(now, _)| status.err.contains(now));
    let (_, later) = ending.unwrap_or_else(|| panic!("{}", status.err));
    let destroy = host.run(&[
        "manifest", "destroy", "-M", "workers", "-H", "father", "--yes",
    ]);
    let expected = format!("Run 1 (apply) {later}; this run replaces it");
    assert!(destroy.err.contains(&expected), "{}", destroy.err);
    destroy.good();
    assert_eq!(host.guests(), [""; 0]);
    let history = host.run(&["manifest", "history", "--json-output"]).json();
    let endings: Vec<_> = history["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["ending"].as_str().unwrap())
        .collect();
    assert_eq!(endings, ["done", "superseded"]);
}

#[test]
fn after_an_interrupted_destroy_a_changed_manifest_is_no_reason_to_destroy_again() {
    let host = TestPve::quick();
    host.workers(1, "");
    host.run(&APPLY[..6]).good();
    let destroy = [
        "manifest", "destroy", "-M", "workers", "-H", "father", "--yes",
    ];
    let mut command = host.command(&destroy);
    command.env("HOMESTAK_CRASH_AT", "6").output().unwrap();
    let status = host.run(&["manifest", "status", "-M", "workers", "-H", "father"]);
    assert!(
        status.err.contains("homestak manifest resume"),
        "{}",
        status.err
    );
    assert!(!status.err.contains("was changed"), "{}", status.err);
}

#[test]
fn an_interrupt_between_the_runs_of_a_test_ends_the_test() {
    let host = TestPve::quick();
    host.workers(1, "");
    // Slow enough that the fault below is added before the nodes are verified.
    let addresses = Call::any().path("/network-get-interfaces");
    let slow = Fault::new(addresses, FaultKind::Slow(200.0));
    host.pve.add_fault(slow);
    let test = [&["manifest", "test"], &APPLY[2..]].concat();
    let mut running = Running::start(&host, &test);
    running.until("run-ended", "");
    let lists = || host.pve.calls().get("GET /cluster/resources").copied();
    let before = lists();
    let list = Call::any().path("/cluster/resources");
    host.pve.add_fault(Fault::new(list, FaultKind::Timeout));
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
    assert_eq!(host.guests().len(), 1);
}

#[test]
fn two_runs_on_one_manifest_and_host_never_overlap() {
    let host = never_booting_host();
    host.workers(1, "");
    let mut running = Running::start(&host, &APPLY);
    running.until("step-started", "ready");
    let second = host.run(&APPLY);
    assert_eq!(second.code, 3);
    assert!(
        second.err.contains("`workers` on `father` is locked by"),
        "{}",
        second.err
    );
    let status = host.run(&["manifest", "status", "-M", "workers"]);
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
fn a_finished_run_can_be_reported() {
    let host = TestPve::quick();
    host.single();
    let applied = host
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
    let text = host.run(&["manifest", "report"]).good();
    assert!(
        text.starts_with("# Run 1: apply `single-node`") && text.contains("test-vm"),
        "{text}"
    );
    host.run(&["manifest", "report", "1", "--out", "run.json"])
        .good();
    let text = std::fs::read_to_string(host.env.work().join("run.json")).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&json["kind"], &json["ending"]),
        (&"manifest.report".into(), &"done".into())
    );
    assert_eq!(json["nodes"][0]["status"], "completed");
    for key in ["name", "status", "vm_id", "ip"] {
        assert_eq!(json["nodes"][0][key], applied["nodes"][0][key], "{key}");
    }
    assert_eq!(host.run(&["manifest", "report", "77"]).code, 1);
}

#[test]
fn a_run_of_another_process_is_followed_until_it_ends() {
    let host = TestPve::quick();
    host.single();
    let apply = ["manifest", "apply", "-M", "single-node", "-H", "father"];
    let follow = ["manifest", "report", "--follow"];
    // Killed before it was complete: nothing executes it, so that there is nothing to wait for.
    let killed = host
        .command(&apply)
        .env("HOMESTAK_CRASH_AT", "6")
        .status()
        .unwrap();
    assert_eq!(killed.code(), None);
    let gone = host.run(&follow);
    assert_eq!(gone.code, 4, "{}{}", gone.out, gone.err);
    for part in [
        "Run 1: apply `single-node`",
        "test-vm: creating",
        "nothing executes it",
    ] {
        assert!(gone.err.contains(part), "{part}: {}", gone.err);
    }
    assert!(!gone.err.contains("test-vm: reachable"), "{}", gone.err);
    host.run(&["manifest", "resume"]).good();
    let ended = host.run(&follow).good();
    assert!(ended.contains("# Run 1: apply"), "{ended}");
    let ended = host.run(&follow);
    for part in ["test-vm: created", "test-vm: reachable"] {
        assert!(ended.err.contains(part), "{part}: {}", ended.err);
    }
    let refused = host.run(&[&follow[..], &["--json-output"]].concat());
    assert_eq!(refused.code, 2, "{}", refused.err);
}

#[test]
fn resume_lists_the_unfinished_runs_when_there_are_several() {
    let host = TestPve::quick();
    for name in ["one", "two"] {
        host.manifest(
            name,
            "",
            &format!("  - {{name: {name}-vm, spec: base, preset: vm-small, image: debian-12}}\n"),
        );
        let killed = host
            .command(&["manifest", "apply", "-M", name, "-H", "father"])
            .env("HOMESTAK_CRASH_AT", "6")
            .status()
            .unwrap();
        assert_eq!(killed.code(), None);
    }
    let unclear = host.run(&["manifest", "resume"]);
    assert_eq!(unclear.code, 2);
    assert!(
        unclear.err.contains("-M one -H father") && unclear.err.contains("-M two -H father"),
        "{}",
        unclear.err
    );
    host.run(&["manifest", "resume", "-M", "one"]).good();
    host.run(&["manifest", "resume"]).good();
    assert_eq!(host.guests(), ["one-vm", "two-vm"]);
}

#[test]
fn a_forgotten_node_is_unchanged_and_found_again() {
    let host = TestPve::quick();
    host.single();
    let apply = ["manifest", "apply", "-M", "single-node", "-H", "father"];
    host.run(&apply).good();
    assert_eq!(host.run(&["manifest", "forget", "test-vm"]).code, 3);
    host.run(&["manifest", "forget", "test-vm", "--yes"]).good();
    assert_eq!(host.guests(), ["test-vm"]);
    assert_eq!(
        host.run(&["manifest", "forget", "test-vm", "--yes"]).code,
        1
    );
    let again = host.run(&apply);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
}

#[test]
fn a_source_that_was_corrected_after_a_failed_fetch_is_used_by_resume() {
    let host = TestPve::quick();
    let right = "https://images.example/own.qcow2";
    host.pve.offer_download(right, 1 << 20, "");
    let image = |url: &str| {
        let text = format!("schema_version: 1\nsource: {url}\n");
        host.env.write("images/own.yaml", &text);
    };
    image("https://images.example/mistyped.qcow2");
    host.manifest(
        "single-node",
        "",
        "  - {name: test-vm, preset: vm-small, image: own}\n",
    );
    let on = ["-M", "single-node", "-H", "father"];
    let apply = host.run(&[&["manifest", "apply", "--yes", "--skip-preflight"], &on[..]].concat());
    assert_ne!(apply.code, 0, "{}", apply.out);
    assert!(apply.err.contains("404"), "{}", apply.err);
    for verb in ["status", "report"] {
        let run = host.run(&["manifest", verb, "-M", "single-node"]);
        let output = run.out + &run.err;
        assert!(output.contains("404"), "{verb}: {output}");
        let json = host.run(&["manifest", verb, "-M", "single-node", "--json-output"]);
        let body: serde_json::Value = serde_json::from_str(&json.out).unwrap();
        let run = body.get("runs").map_or(&body, |runs| &runs[0]);
        let cause = run["images"][0]["error"].as_str().unwrap_or_default();
        assert!(cause.contains("404"), "{verb}: {body:#}");
    }
    image(right);
    let resume = host.run(&[&["manifest", "resume"], &on[..]].concat());
    assert_eq!(resume.code, 0, "{}{}", resume.out, resume.err);
    assert!(
        resume
            .err
            .contains("`images/own.yaml` was changed after the run started"),
        "{}",
        resume.err
    );
    assert_eq!(host.guests(), ["test-vm"]);
}

#[test]
fn last_contact_is_cleared_when_a_guest_is_destroyed() {
    let host = TestPve::quick();
    host.workers(1, "");
    let contact = || {
        let status = [
            "manifest",
            "status",
            "-M",
            "workers",
            "--offline",
            "--json-output",
        ];
        let run = host.run(&status).good();
        let body: serde_json::Value = serde_json::from_str(&run).unwrap();
        body["runs"][0]["nodes"][0]["last_contact"].clone()
    };
    let on = ["-M", "workers", "-H", "father", "--yes"];
    host.run(&[&["manifest", "apply"], &on[..]].concat()).good();
    assert!(contact().is_string());
    host.run(&[&["manifest", "destroy"], &on[..]].concat())
        .good();
    assert!(contact().is_null());
}
