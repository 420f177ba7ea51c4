//! Waits of the program itself: shown, ended by a signal, and as long as they are set.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Child, Stdio};

use homestak_sim::{Call, Fault, FaultKind};
use rustix::process::{Pid, Signal, kill_process};

use crate::father::Father;
use crate::support::{Run, World, set_mode};

/// A simulator whose machines boot for longer than anyone waits; it ends with the test.
struct Sim {
    world: World,
    server: Child,
}

impl Drop for Sim {
    fn drop(&mut self) {
        _ = self.server.kill();
        _ = self.server.wait();
    }
}

fn sim() -> Sim {
    let world = World::new();
    world.write(
        "manifests/one.yaml",
        "schema_version: 2\nnodes:\n  - {name: web, preset: vm-small, image: debian-12}\n",
    );
    world.write(
        "boot.yaml",
        "- {at: 0, event: {boot: {address: 5, agent: 900000, ssh: 900000}}}\n",
    );
    let state = world.home().join(".local/state/homestak/sim");
    let mut serve = world.command(&["sim", "serve", "--faults", "site/boot.yaml", "--state"]);
    let mut server = serve.arg(&state).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.starts_with("url:"), "{line}");
    Sim { world, server }
}

impl Sim {
    fn run(&self, verb: &str, more: &[&str], limits: Option<&str>) -> Run {
        let arguments = ["manifest", verb, "-M", "one", "-H", "sim"];
        let mut command = self.world.command(&[&arguments[..], more].concat());
        command.env("HOMESTAK_SITE_CONFIG", "site");
        if let Some(limits) = limits {
            command.env("HOMESTAK_TIMEOUTS", limits);
        }
        command.output().map(Run::from).unwrap()
    }
}

#[test]
fn what_is_waited_for_is_printed_and_one_signal_ends_the_wait() {
    let sim = sim();
    for signal in [Signal::TERM, Signal::INT] {
        let mut command = sim
            .world
            .command(&["manifest", "apply", "-M", "one", "-H", "sim"]);
        command.env("HOMESTAK_SITE_CONFIG", "site");
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let shown = lines.find(|line| {
            let line = line.as_ref().unwrap();
            line.contains("web: waiting for its guest agent")
        });
        assert!(shown.is_some(), "without -v, and not on a terminal");
        let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        let rest: Vec<String> = lines.map(Result::unwrap).collect();
        // The machine would boot for days: it ends because it was asked to.
        let code = child.wait().unwrap().code();
        assert_eq!(code, Some(4), "{rest:#?}");
        let hint = |line: &String| line.contains("homestak manifest resume");
        assert!(rest.iter().any(hint), "{rest:#?}");
    }
    let resumed = sim.run("resume", &["--timeout", "boot=1"], None);
    assert_eq!(resumed.code, 1, "{}", resumed.err);
    assert!(
        resumed
            .err
            .contains("timed out after 1 s waiting for its guest agent"),
        "{}",
        resumed.err
    );
}

#[test]
fn a_lock_of_another_process_is_named_while_it_is_waited_for_and_one_signal_ends_the_wait() {
    let sim = sim();
    // The driver has a key from now on, so that only that of the guest is to be made.
    sim.run("apply", &[], Some("boot=1"));
    sim.world.write(
        "manifests/two.yaml",
        "schema_version: 2\nnodes:\n  - {name: db, preset: vm-small, image: debian-12}\n",
    );
    let lock = sim.world.home().join(".local/state/homestak/ssh/lock");
    let lock = File::options().write(true).open(lock).unwrap();
    lock.lock().unwrap();
    let apply = |limits: &str| {
        let arguments = ["manifest", "apply", "-M", "two", "-H", "sim"];
        let mut apply = sim.world.command(&arguments);
        apply
            .env("HOMESTAK_SITE_CONFIG", "site")
            .env("HOMESTAK_TIMEOUTS", limits);
        apply
    };
    let mut child = apply("lock=3600").stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let own = format!(
        "db: waiting for a lock held by process {} (",
        std::process::id()
    );
    let shown = lines.find(|line| line.as_ref().unwrap().contains(&own));
    assert!(
        shown.is_some(),
        "what happens is shown while the lock is held"
    );
    let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    // The lock is held for as long as the test runs: it ends because it was asked to.
    assert_eq!(child.wait().unwrap().code(), Some(4), "{rest:#?}");
    let held = apply("lock=1").output().map(Run::from).unwrap();
    assert_ne!(held.code, 0, "{}", held.err);
    let own = format!("locked by process {} (", std::process::id());
    assert!(held.err.contains(&own), "{}", held.err);
    assert!(held.err.contains("; waited 1 s"), "{}", held.err);
    lock.unlock().unwrap();
    let free = apply("boot=1").output().map(Run::from).unwrap();
    assert!(
        free.err.contains("timed out after 1 s waiting for its"),
        "{}",
        free.err
    );
}

#[test]
fn a_program_that_hangs_is_ended_at_its_time_limit_and_named() {
    let sim = sim();
    let programs = sim.world.work().join("programs");
    std::fs::create_dir(&programs).unwrap();
    let hangs = programs.join("ssh-keygen");
    std::fs::write(&hangs, "#!/bin/sh\nsleep 1000\n").unwrap();
    set_mode(&hangs, 0o755);
    let mut apply = sim
        .world
        .command(&["manifest", "apply", "-M", "one", "-H", "sim"]);
    apply
        .env("PATH", format!("{}:/usr/bin:/bin", programs.display()))
        .env("HOMESTAK_SITE_CONFIG", "site")
        .env("HOMESTAK_TIMEOUTS", "ssh=1");
    let run = apply.output().map(Run::from).unwrap();
    assert_eq!(run.code, 1, "{}", run.err);
    let late = "`ssh-keygen` did not end within 1 s, and was killed";
    assert!(run.err.contains(late), "{}", run.err);
}

#[test]
fn a_flag_wins_over_the_environment_and_that_over_the_manifest() {
    let sim = sim();
    sim.world.write(
        "manifests/one.yaml",
        "schema_version: 2\nsettings: {timeouts: {boot: 1}}\n\
         nodes:\n  - {name: web, preset: vm-small, image: debian-12}\n",
    );
    for (flags, environment, waited) in [
        (vec![], None, "timed out after 1 s waiting for"),
        (
            vec![],
            Some("lock=9,boot=2"),
            "timed out after 2 s waiting for",
        ),
        (
            vec!["--timeout", "boot=3"],
            Some("boot=2"),
            "timed out after 3 s waiting for",
        ),
    ] {
        let run = sim.run("apply", &flags, environment);
        assert_eq!(run.code, 1, "{}", run.err);
        assert!(run.err.contains(waited), "{}", run.err);
    }
}

#[test]
fn a_wrong_time_limit_is_an_error_wherever_it_is_set() {
    let world = World::new();
    let list = ["manifest", "list"];
    for wrong in ["boot=0", "boot=soon", "boots=3", "boot", "boot=100000"] {
        let run = world.on_site(&[&list[..], &["--timeout", wrong]].concat());
        assert_eq!(run.code, 2, "{wrong}: {}", run.err);
        for (name, value) in [("HOMESTAK_TIMEOUTS", wrong), ("HOMESTAK_CONFIRM", "soon")] {
            let mut command = world.command(&list);
            command.env("HOMESTAK_SITE_CONFIG", "site").env(name, value);
            let run = command.output().map(Run::from).unwrap();
            assert_eq!(run.code, 2, "{name}={value}: {}", run.err);
            assert!(run.err.contains(name), "{}", run.err);
        }
    }
}

#[test]
fn a_variable_that_is_no_text_is_an_error_and_not_taken_for_unset() {
    let world = World::new();
    let bytes = OsStr::from_bytes(b"/tmp/\xff");
    for name in ["HOMESTAK_STATE", "HOMESTAK_SITE_CONFIG", "HOMESTAK_ROOT"] {
        let mut command = world.command(&["manifest", "list"]);
        let run = command.env(name, bytes).output().map(Run::from).unwrap();
        assert_eq!(run.code, 2, "{name}: {}", run.err);
        assert!(run.err.contains(&format!("`{name}` is not UTF-8 text")));
    }
}

#[test]
fn a_wrong_word_in_a_variable_is_an_error_and_not_replaced() {
    let world = World::new();
    for (name, wrong, way_out) in [
        ("HOMESTAK_VM_ENGINE", "kvm", "`auto`, `qemu`, `container`"),
        ("HOMESTAK_FIRST_BOOT", "cloudinit", "`direct`, `cloud-init`"),
        ("HOMESTAK_SIM_SPEED", "fast", "a number above 0"),
        ("HOMESTAK_SIM_SPEED", "0", "a number above 0"),
        ("HOMESTAK_DEBIAN_MIRROR", " ", "the URL of a mirror"),
        ("HOMESTAK_DEBIAN_MIRROR", "deb.example", "the URL of"),
        ("HOMESTAK_HURRY", "very", "a number above 0"),
        ("HOMESTAK_CRASH_AT", "soon", "a number"),
    ] {
        let mut command = world.command(&["manifest", "list"]);
        command.env("HOMESTAK_SITE_CONFIG", "site").env(name, wrong);
        let run = command.output().map(Run::from).unwrap();
        assert_eq!(run.code, 2, "{name}={wrong}: {}", run.err);
        for words in [name, wrong, way_out] {
            assert!(run.err.contains(words), "{words}: {}", run.err);
        }
    }
}

#[test]
fn time_limits_of_a_run_hold_when_it_is_undone() {
    let father = Father::quick();
    father.manifest(
        "one",
        "timeouts: {answer: 3}",
        "  - {name: web, preset: vm-small, image: debian-12}\n",
    );
    father
        .run(&["manifest", "apply", "-M", "one", "-H", "father"])
        .good();
    // An answer takes ten seconds of the test's time: less than the limit that holds otherwise.
    let slow = Fault::new(Call::any(), FaultKind::Slow(2_000.0));
    father.pve.add_fault(slow);
    let preview = father.run(&["manifest", "rollback", "-M", "one", "--dry-run"]);
    assert!(
        preview.out.contains("which is unknown"),
        "{}{}",
        preview.out,
        preview.err
    );
}
