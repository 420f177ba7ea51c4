//! Two operators at once.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use homestak_sim::{Pace, Timing};

use crate::father::Father;

/// An operator that waits for a machine that never comes up.
struct Waiting(Child);

impl Waiting {
    fn start(father: &Father, manifest: &str) -> Self {
        let arguments = [
            "manifest", "apply", "-M", manifest, "-H", "father", "--events",
        ];
        let mut child = father
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
        // Nobody reads on; what it says until it is killed fits into the pipe.
        child.stdout = Some(out.into_inner());
        Self(child)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn sleepy() -> Father {
    let timing = Timing {
        boot: Duration::from_secs(600_000),
        ..Timing::default()
    };
    let father = Father::new(Pace::Accelerated(200.0), timing);
    for name in ["one", "two"] {
        let nodes =
            format!("  - {{name: {name}-vm, spec: base, preset: vm-small, image: debian-12}}\n");
        father.manifest(name, "", &nodes);
    }
    father
}

#[test]
fn the_second_is_refused_and_told_who_holds_it() {
    let father = sleepy();
    let first = Waiting::start(&father, "one");
    let before = father.pve.guests();
    for words in [
        &["manifest", "apply", "-M", "one", "-H", "father"][..],
        &["manifest", "destroy", "-M", "one", "-H", "father", "--yes"],
        &["manifest", "resume", "-M", "one"],
        &["manifest", "rollback", "-M", "one", "--yes"],
    ] {
        let second = father.run(words);
        assert_eq!(second.code, 3, "{words:?}: {}", second.err);
        let holder = format!("process {} on ", first.0.id());
        for part in [&*holder, "`one` on `father`", "homestak manifest status"] {
            assert!(second.err.contains(part), "{words:?}: {}", second.err);
        }
    }
    assert_eq!(father.pve.guests(), before, "nothing was touched");
    first.kill();
}

#[test]
fn two_first_runs_of_a_site_without_an_id_end_with_one_id() {
    let father = Father::quick();
    for name in ["one", "two"] {
        let nodes = format!("  - {{name: {name}-vm, preset: vm-small, image: debian-12}}\n");
        father.manifest(name, "", &nodes);
    }
    father.site.write("site.yaml", "schema_version: 1\n");
    let apply = |name| father.run(&["manifest", "apply", "-M", name, "-H", "father"]);
    let runs = std::thread::scope(|scope| {
        let runs = ["one", "two"].map(|name| scope.spawn(move || (name, apply(name))));
        runs.map(|run| run.join().unwrap())
    });
    for (name, run) in runs {
        // Whoever was second created nothing, and says what to do.
        if run.code != 0 {
            assert_eq!(run.code, 3, "{}", run.err);
            assert!(run.err.contains("repeat this one"), "{}", run.err);
            apply(name).good();
        }
    }
    assert_eq!(father.guests(), ["one-vm", "two-vm"]);
    let guests = father.pve.guests();
    let sites: std::collections::BTreeSet<&str> = guests
        .iter()
        .flat_map(|guest| guest.config["tags"].split(';'))
        .filter(|tag| tag.starts_with("homestak-s-"))
        .collect();
    assert_eq!(sites.len(), 1, "{sites:?}");
}

#[test]
fn two_first_runs_of_one_manifest_create_its_guests_once() {
    let father = Father::quick();
    father.single();
    father.site.write("site.yaml", "schema_version: 1\n");
    let apply = || father.run(&["manifest", "apply", "-M", "single-node", "-H", "father"]);
    let runs = std::thread::scope(|scope| {
        let runs = [(); 2].map(|()| scope.spawn(apply));
        runs.map(|run| run.join().unwrap())
    });
    assert!(runs.iter().any(|run| run.code == 0));
    for run in runs {
        assert!([0, 3].contains(&run.code), "{}", run.err);
        // It is the same site, so nobody needs to give it another id.
        assert!(!run.err.contains("site new-id"), "{}", run.err);
    }
    assert_eq!(father.guests(), ["test-vm"]);
}

#[test]
fn on_different_manifests_nobody_waits() {
    let father = sleepy();
    let first = Waiting::start(&father, "one");
    // It comes as far as the first while that still runs.
    let second = Waiting::start(&father, "two");
    assert_eq!(father.guests(), ["one-vm", "two-vm"]);
    second.kill();
    first.kill();
}

#[test]
fn after_a_kill_the_next_gets_in_at_once() {
    let father = sleepy();
    Waiting::start(&father, "one").kill();
    let destroy = ["manifest", "destroy", "-M", "one", "-H", "father", "--yes"];
    let second = father.run(&destroy);
    assert!(
        second.err.contains("was interrupted; this run replaces it"),
        "{}",
        second.err
    );
    second.good();
    assert_eq!(father.guests(), [""; 0]);
}
