//! Two operators working at the same time.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use homestak_sim::{Pace, Timing};
use rustix::process::{Pid, Signal, kill_process};

use crate::test_pve::TestPve;

/// A run that waits for a machine that never boots.
struct WaitingRun(Child);

impl WaitingRun {
    fn start(host: &TestPve, manifest: &str) -> Self {
        let arguments = [
            "manifest", "apply", "-M", manifest, "-H", "father", "--events",
        ];
        let mut child = host
            .command(&arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !(line.contains("step-started") && line.contains("\"ready\"")) {
            line.clear();
            assert_ne!(out.read_line(&mut line).unwrap(), 0, "it ended early");
        }
        // Output until it is killed fits into the pipe, so nobody needs to read it.
        child.stdout = Some(out.into_inner());
        Self(child)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn never_booting_host() -> TestPve {
    let timing = Timing {
        boot: Duration::from_secs(600_000),
        ..Timing::default()
    };
    let host = TestPve::new(Pace::Accelerated(200.0), timing);
    for name in ["one", "two"] {
        let nodes =
            format!("  - {{name: {name}-vm, spec: base, preset: vm-small, image: debian-12}}\n");
        host.manifest(name, "", &nodes);
    }
    host
}

#[test]
fn a_second_run_is_refused_and_names_the_lock_holder() {
    let host = never_booting_host();
    let first = WaitingRun::start(&host, "one");
    let before = host.pve.guests();
    for words in [
        &["manifest", "apply", "-M", "one", "-H", "father"][..],
        &["manifest", "destroy", "-M", "one", "-H", "father", "--yes"],
        &["manifest", "resume", "-M", "one"],
        &["manifest", "rollback", "-M", "one", "--yes"],
    ] {
        let second = host.run(words);
        assert_eq!(second.code, 3, "{words:?}: {}", second.err);
        let holder = format!("process {} on ", first.0.id());
        for part in [&*holder, "`one` on `father`", "homestak manifest status"] {
            assert!(second.err.contains(part), "{words:?}: {}", second.err);
        }
    }
    assert_eq!(host.pve.guests(), before, "guests are unchanged");
    first.kill();
}

#[test]
fn two_first_runs_of_a_site_without_an_id_end_with_one_id() {
    let host = TestPve::quick();
    for name in ["one", "two"] {
        let nodes = format!("  - {{name: {name}-vm, preset: vm-small, image: debian-12}}\n");
        host.manifest(name, "", &nodes);
    }
    host.env.write("site.yaml", "schema_version: 1\n");
    let apply = |name| host.run(&["manifest", "apply", "-M", name, "-H", "father"]);
    let runs = std::thread::scope(|scope| {
        let runs = ["one", "two"].map(|name| scope.spawn(move || (name, apply(name))));
        runs.map(|run| run.join().unwrap())
    });
    for (name, run) in runs {
        // The second run created nothing and prints what to do.
        if run.code != 0 {
            assert_eq!(run.code, 3, "{}", run.err);
            assert!(run.err.contains("repeat this one"), "{}", run.err);
            apply(name).good();
        }
    }
    assert_eq!(host.guests(), ["one-vm", "two-vm"]);
    let guests = host.pve.guests();
    let sites: std::collections::BTreeSet<&str> = guests
        .iter()
        .flat_map(|guest| guest.config["tags"].split(';'))
        .filter(|tag| tag.starts_with("homestak-s-"))
        .collect();
    assert_eq!(sites.len(), 1, "{sites:?}");
}

#[test]
fn two_first_runs_of_one_manifest_create_its_guests_once() {
    let host = TestPve::quick();
    host.single();
    host.env.write("site.yaml", "schema_version: 1\n");
    let apply = || host.run(&["manifest", "apply", "-M", "single-node", "-H", "father"]);
    let runs = std::thread::scope(|scope| {
        let runs = [(); 2].map(|()| scope.spawn(apply));
        runs.map(|run| run.join().unwrap())
    });
    assert!(runs.iter().any(|run| run.code == 0));
    for run in runs {
        assert!([0, 3].contains(&run.code), "{}", run.err);
        // It is the same site, so a new id is not suggested.
        assert!(!run.err.contains("site new-id"), "{}", run.err);
    }
    assert_eq!(host.guests(), ["test-vm"]);
}

#[test]
fn an_interrupt_ends_following_and_the_run_continues() {
    let host = never_booting_host();
    let first = WaitingRun::start(&host, "one");
    let mut follower = host
        .command(&["manifest", "report", "--follow"])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follower.stderr.take().unwrap()).lines();
    let is_waiting = |line: &String| line.contains("one-vm: waiting");
    lines.by_ref().map(Result::unwrap).find(is_waiting).unwrap();
    kill_process(Pid::from_child(&follower), Signal::INT).unwrap();
    let rest: String = lines.map(Result::unwrap).collect();
    assert_eq!(follower.wait().unwrap().code(), Some(130), "{rest}");
    assert!(rest.contains("Run 1 is no longer followed"), "{rest}");
    let status = host.run(&["manifest", "status", "-M", "one"]);
    assert!(status.err.contains("is being executed"), "{}", status.err);
    first.kill();
}

#[test]
fn runs_of_different_manifests_do_not_block_each_other() {
    let host = never_booting_host();
    let first = WaitingRun::start(&host, "one");
    // It reaches the same step while the first still runs.
    let second = WaitingRun::start(&host, "two");
    assert_eq!(host.guests(), ["one-vm", "two-vm"]);
    second.kill();
    first.kill();
}

#[test]
fn after_a_kill_the_next_run_gets_the_lock_at_once() {
    let host = never_booting_host();
    WaitingRun::start(&host, "one").kill();
    let destroy = ["manifest", "destroy", "-M", "one", "-H", "father", "--yes"];
    let second = host.run(&destroy);
    assert!(
        second.err.contains("was interrupted; this run replaces it"),
        "{}",
        second.err
    );
    second.good();
    assert_eq!(host.guests(), [""; 0]);
}
