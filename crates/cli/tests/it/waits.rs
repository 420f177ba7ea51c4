//! Waits of the program are printed, end at a signal, and have time limits.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Child, Stdio};

use homestak_sim::{Call, Fault, FaultKind};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Run, TestEnv, set_mode};
use crate::test_pve::TestPve;

/// A simulator whose machines never finish booting; it is stopped when the test ends.
struct Sim {
    env: TestEnv,
    server: Child,
}

impl Drop for Sim {
    fn drop(&mut self) {
        _ = self.server.kill();
        _ = self.server.wait();
    }
}

fn sim() -> Sim {
    let env = TestEnv::new();
    env.write(
        "manifests/one.yaml",
        "schema_version: 2\nnodes:\n  - {name: web, preset: vm-small, image: debian-12}\n",
    );
    env.write(
        "boot.yaml",
        "- {at: 0, event: {boot: {address: 5, agent: 900000, ssh: 900000}}}\n",
    );
    let state = env.home().join(".local/state/homestak/sim");
    let mut serve = env.command(&["sim", "serve", "--faults", "site/boot.yaml", "--state"]);
    let mut server = serve.arg(&state).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.starts_with("url:"), "{line}");
    Sim { env, server }
}

impl Sim {
    fn run(&self, verb: &str, more: &[&str], limits: Option<&str>) -> Run {
        let arguments = ["manifest", verb, "-M", "one", "-H", "sim"];
        let mut command = self.env.command(&[&arguments[..], more].concat());
        command.env("HOMESTAK_SITE_CONFIG", "site");
        if let Some(limits) = limits {
            command.env("HOMESTAK_TIMEOUTS", limits);
        }
        Run::of(&mut command)
    }
}

#[test]
fn a_wait_is_printed_and_ended_by_one_signal() {
    let sim = sim();
    for signal in [Signal::TERM, Signal::INT] {
        let mut command = sim
            .env
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
        // The machine would boot for days, so the signal ended the run.
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
fn a_wait_for_a_lock_names_its_holder_and_is_ended_by_one_signal() {
    let sim = sim();
    // Creates the key of the driver, so that only that of the guest is missing.
    sim.run("apply", &[], Some("boot=1"));
    sim.env.write(
        "manifests/two.yaml",
        "schema_version: 2\nnodes:\n  - {name: db, preset: vm-small, image: debian-12}\n",
    );
    let lock = sim.env.home().join(".local/state/homestak/ssh/lock");
    let lock = File::options().write(true).open(lock).unwrap();
    lock.lock().unwrap();
    let apply = |limits: &str| {
        let arguments = ["manifest", "apply", "-M", "two", "-H", "sim"];
        let mut apply = sim.env.command(&arguments);
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
        "the wait is printed while the lock is held"
    );
    let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    // The lock is still held, so the signal ended the run.
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
fn a_hanging_program_is_killed_at_its_time_limit_and_named() {
    let sim = sim();
    let programs = sim.env.work().join("programs");
    std::fs::create_dir(&programs).unwrap();
    let hangs = programs.join("ssh-keygen");
    std::fs::write(&hangs, "#!/bin/sh\nsleep 1000\n").unwrap();
    set_mode(&hangs, 0o755);
    let mut apply = sim
        .env
        .command(&["manifest", "apply", "-M", "one", "-H", "sim"]);
    apply
        .env("PATH", format!("{}:/usr/bin:/bin", programs.display()))
        .env("HOMESTAK_SITE_CONFIG", "site")
        .env("HOMESTAK_TIMEOUTS", "ssh=1");
    let run = apply.output().map(Run::from).unwrap();
    assert_eq!(run.code, 1, "{}", run.err);
    let message = "`ssh-keygen` did not end within 1 s, and was killed";
    assert!(run.err.contains(message), "{}", run.err);
}

#[test]
fn a_flag_overrides_the_environment_which_overrides_the_manifest() {
    let sim = sim();
    sim.env.write(
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
fn an_invalid_time_limit_is_an_error_wherever_it_is_set() {
    let env = TestEnv::new();
    let list = ["manifest", "list"];
    for wrong in ["boot=0", "boot=soon", "boots=3", "boot", "boot=100000"] {
        let run = env.on_site(&[&list[..], &["--timeout", wrong]].concat());
        assert_eq!(run.code, 2, "{wrong}: {}", run.err);
        for (name, value) in [("HOMESTAK_TIMEOUTS", wrong), ("HOMESTAK_CONFIRM", "soon")] {
            let mut command = env.command(&list);
            command.env("HOMESTAK_SITE_CONFIG", "site").env(name, value);
            let run = Run::of(&mut command);
            assert_eq!(run.code, 2, "{name}={value}: {}", run.err);
            assert!(run.err.contains(name), "{}", run.err);
        }
    }
}

#[test]
fn a_variable_that_is_not_utf_8_is_an_error() {
    let env = TestEnv::new();
    let bytes = OsStr::from_bytes(b"/tmp/\xff");
    for name in ["HOMESTAK_STATE", "HOMESTAK_SITE_CONFIG", "HOMESTAK_ROOT"] {
        let mut command = env.command(&["manifest", "list"]);
        let run = command.env(name, bytes).output().map(Run::from).unwrap();
        assert_eq!(run.code, 2, "{name}: {}", run.err);
        assert!(run.err.contains(&format!("`{name}` is not UTF-8 text")));
    }
}

#[test]
fn an_invalid_value_of_a_variable_is_an_error() {
    let env = TestEnv::new();
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
        let mut command = env.command(&["manifest", "list"]);
        command.env("HOMESTAK_SITE_CONFIG", "site").env(name, wrong);
        let run = Run::of(&mut command);
        assert_eq!(run.code, 2, "{name}={wrong}: {}", run.err);
        for words in [name, wrong, way_out] {
            assert!(run.err.contains(words), "{words}: {}", run.err);
        }
    }
}

#[test]
fn time_limits_of_a_run_apply_to_its_rollback() {
    let host = TestPve::quick();
    host.manifest(
        "one",
        "timeouts: {answer: 3}",
        "  - {name: web, preset: vm-small, image: debian-12}\n",
    );
    host.run(&["manifest", "apply", "-M", "one", "-H", "father"])
        .good();
    // An answer takes ten seconds: less than the default limit.
    let slow = Fault::new(Call::any(), FaultKind::Slow(2_000.0));
    host.pve.add_fault(slow);
    let preview = host.run(&["manifest", "rollback", "-M", "one", "--dry-run"]);
    assert!(
        preview.out.contains("which is unknown"),
        "{}{}",
        preview.out,
        preview.err
    );
}
