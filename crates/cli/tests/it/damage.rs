//! A state directory that is read-only, damaged, truncated or full: the error is clear, nothing is
//! lost, and the run can be finished afterwards.

use std::path::Path;
use std::process::Command;

use crate::support::{Run, set_mode};
use crate::test_pve::TestPve;

const APPLY: [&str; 6] = ["manifest", "apply", "-M", "workers", "-H", "father"];
const BOTH: [&str; 2] = ["worker-1", "worker-2"];

/// A host on which a run of two machines was killed, with entries in the journal's WAL.
fn killed_at(crash_point: u32) -> TestPve {
    let host = TestPve::quick();
    // A finished run is in the database file itself.
    host.single();
    let single = ["manifest", "apply", "-M", "single-node", "-H", "father"];
    host.run(&single).good();
    host.run(&[
        "manifest",
        "destroy",
        "-M",
        "single-node",
        "-H",
        "father",
        "-y",
    ])
    .good();
    host.workers(2, "");
    let killed = host
        .command(&APPLY)
        .env("HOMESTAK_CRASH_AT", crash_point.to_string())
        .output()
        .map(Run::from)
        .unwrap();
    assert_eq!(killed.code, -1, "{}", killed.err);
    // Tasks that the program started continue without it.
    while !host.pve.is_idle() {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    host
}

/// Checks that the message has what failed, the file, the reason and a hint.
fn assert_reports(run: &Run, host: &TestPve, words: &[&str]) {
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    let file = host.state().join("journal.db").display().to_string();
    let all = ["error: The journal cannot be used: ", "hint: ", &file];
    for word in all.iter().chain(words) {
        assert!(run.err.contains(word), "no {word} in: {}", run.err);
    }
}

/// Resumes the run, or applies again when no run is recorded.
fn finish(host: &TestPve) {
    let resumed = host.run(&["manifest", "resume"]);
    if resumed.code == 3 {
        host.run(&APPLY).good();
    } else {
        resumed.good();
    }
    assert_eq!(host.guests(), BOTH);
    let again = host.run(&APPLY);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
}

/// Runs a script in its own mount namespace; `None` when that is not permitted.
fn in_mount_namespace(host: &TestPve, script: &str) -> Option<Run> {
    let tried = Command::new("unshare").args(["-m", "true"]).output();
    if !tried.is_ok_and(|tried| tried.status.success()) {
        println!("skipped: mount namespaces are not permitted here");
        return None;
    }
    let program = host.command(&[]);
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-euc", script]).env_clear();
    command.envs(
        program
            .get_envs()
            .filter_map(|(key, value)| Some((key, value?))),
    );
    command
        .env("PROGRAM", program.get_program())
        .env("STATE", host.state())
        .current_dir(program.get_current_dir().unwrap());
    Some(command.output().map(Run::from).unwrap())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_read_only_state_directory_is_reported_and_the_run_can_be_finished_later() {
    let host = killed_at(11);
    let before = host.pve.guests();
    for words in ["manifest resume", "manifest apply -M workers -H father"] {
        let run = if is_root() {
            let script = format!(
                "mount --bind $STATE $STATE; mount -o remount,bind,ro $STATE; exec $PROGRAM {words}"
            );
            match in_mount_namespace(&host, &script) {
                Some(run) => run,
                None => return,
            }
        } else {
            let words: Vec<&str> = words.split(' ').collect();
            let file = host.state().join("journal.db");
            set_mode(&file, 0o400);
            set_mode(&host.state(), 0o500);
            let run = host.run(&words);
            set_mode(&host.state(), 0o700);
            set_mode(&file, 0o600);
            run
        };
        assert_reports(&run, &host, &["writable", "HOMESTAK_STATE"]);
        assert_eq!(host.pve.guests(), before, "guests are unchanged");
    }
    finish(&host);
}

#[test]
fn a_journal_that_is_not_a_database_is_reported_and_kept() {
    let host = killed_at(11);
    let before = host.pve.guests();
    let file = host.state().join("journal.db");
    for name in ["journal.db-wal", "journal.db-shm"] {
        std::fs::remove_file(host.state().join(name)).unwrap();
    }
    std::fs::write(&file, "my notes, put here by mistake\n").unwrap();
    for words in [&["manifest", "resume"][..], &["manifest", "status"], &APPLY] {
        let run = host.run(words);
        assert_reports(&run, &host, &["not a database", "homestak state rebuild"]);
    }
    assert_eq!(host.pve.guests(), before, "guests are unchanged");
    let content = std::fs::read_to_string(&file).unwrap();
    assert_eq!(content, "my notes, put here by mistake\n");
    std::fs::rename(&file, file.with_extension("old")).unwrap();
    finish(&host);
}

fn truncate(path: &Path, part: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length * part / 8).unwrap();
}

/// Renames the journal and its WAL files.
fn move_journal_away(host: &TestPve) {
    for name in ["journal.db", "journal.db-wal", "journal.db-shm"] {
        let name = host.state().join(name);
        _ = std::fs::rename(&name, name.with_extension("old"));
    }
}

#[test]
fn a_truncated_journal_is_reported_and_kept() {
    for part in [1, 4, 7] {
        let host = TestPve::quick();
        host.workers(1, "");
        host.run(&APPLY).good();
        host.workers(2, "");
        let before = host.pve.guests();
        let file = host.state().join("journal.db");
        truncate(&file, part);
        let truncated = std::fs::read(&file).unwrap();
        for words in [&["manifest", "resume"][..], &["manifest", "status"], &APPLY] {
            let run = host.run(words);
            assert_reports(
                &run,
                &host,
                &["malformed", "keep them", "homestak state rebuild"],
            );
        }
        assert_eq!(host.pve.guests(), before, "guests are unchanged");
        assert!(
            std::fs::read(&file).unwrap() == truncated,
            "it is unchanged"
        );
        move_journal_away(&host);
        finish(&host);
    }
}

#[test]
fn a_journal_truncated_during_a_run_does_not_duplicate_guests() {
    for part in [0, 1, 4, 7] {
        let host = killed_at(11);
        truncate(&host.state().join("journal.db"), part);
        // The WAL may contain all that is needed.
        let run = host.run(&["manifest", "resume"]);
        if run.code == 1 {
            assert_reports(&run, &host, &["keep them", "homestak state rebuild"]);
            move_journal_away(&host);
        } else {
            run.good();
        }
        let again = host.run(&APPLY);
        if again.code == 1 {
            assert_reports(&again, &host, &["keep them", "homestak state rebuild"]);
            move_journal_away(&host);
            host.run(&APPLY).good();
        }
        assert_eq!(host.guests(), BOTH, "{part} of 8");
    }
}

#[test]
fn a_truncated_wal_ends_at_its_last_complete_entry_and_the_run_can_be_finished() {
    for part in 0..=8 {
        let host = killed_at(15);
        truncate(&host.state().join("journal.db-wal"), part);
        let history = host.run(&["manifest", "history", "--json-output"]).json();
        let runs = history["runs"].as_array().unwrap().len();
        assert!(runs == 2 || runs == 3, "finished runs are kept: {history}");
        if part == 8 {
            assert_eq!(runs, 3, "acknowledged entries are kept");
        }
        finish(&host);
    }
}

#[test]
fn a_full_disk_is_reported_and_the_run_can_be_finished_once_there_is_space() {
    let mut failures = 0;
    for free in [0, 60, 120, 160, 180, 200, 220, 240, 280] {
        let host = TestPve::quick();
        host.workers(2, "");
        std::fs::create_dir_all(host.state()).unwrap();
        let script = format!(
            "mount -t tmpfs -o size=1m,mode=700 none $STATE
             head -c $(((1024 - {free}) * 1024)) /dev/zero > $STATE/filler
             set +e
             $PROGRAM manifest apply -M workers -H father; echo first $?
             rm $STATE/filler
             $PROGRAM manifest resume; code=$?; echo second $code
             if [ $code = 3 ]; then $PROGRAM manifest apply -M workers -H father; echo third $?; fi
             $PROGRAM manifest apply -M workers -H father"
        );
        let Some(run) = in_mount_namespace(&host, &script) else {
            return;
        };
        let output = format!("{free} KiB:\n{}{}", run.out, run.err);
        if run.out.contains("first 1\n") {
            failures += 1;
            for words in [
                "error: The journal cannot be used: ",
                "hint: ",
                "journal.db",
            ] {
                assert!(run.err.contains(words), "{output}");
            }
            let next = if run.err.contains("record a new run") {
                "free space and repeat the command"
            } else {
                "free space and "
            };
            assert!(run.err.contains(next), "{output}");
        } else {
            assert!(run.out.contains("first 0\n"), "{output}");
        }
        let continued = run.out.contains("second 0\n") || run.out.contains("second 3\n");
        assert!(continued && !run.out.contains("third 1\n"), "{output}");
        assert!(run.err.contains("Nothing to do."), "{output}");
        assert_eq!(host.guests(), BOTH, "{output}");
    }
    println!("{failures} times it was full");
    assert!(failures > 2, "{failures}");
}
