//! A memory that is read-only, damaged, cut off or full: said clearly, nothing destroyed, and
//! afterwards it goes on.

use std::path::Path;
use std::process::Command;

use crate::father::Father;
use crate::support::{Run, set_mode};

const APPLY: [&str; 6] = ["manifest", "apply", "-M", "workers", "-H", "father"];
const BOTH: [&str; 2] = ["worker-1", "worker-2"];

/// A host on which a run of two machines was killed, with entries in the journal's log.
fn killed_at(moment: u32) -> Father {
    let father = Father::quick();
    // Something that ended well is in the file itself.
    father.single();
    let single = ["manifest", "apply", "-M", "single-node", "-H", "father"];
    father.run(&single).good();
    father
        .run(&[
            "manifest",
            "destroy",
            "-M",
            "single-node",
            "-H",
            "father",
            "-y",
        ])
        .good();
    father.workers(2, "");
    let killed = father
        .command(&APPLY)
        .env("HOMESTAK_CRASH_AT", moment.to_string())
        .output()
        .map(Run::from)
        .unwrap();
    assert_eq!(killed.code, -1, "{}", killed.err);
    // What the program had asked for goes on without it.
    while !father.pve.is_quiet() {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    father
}

/// Everything a person needs: what, where, why and what next.
fn assert_says(run: &Run, father: &Father, words: &[&str]) {
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    let file = father.state().join("journal.db").display().to_string();
    let all = ["error: The journal cannot be used: ", "hint: ", &file];
    for word in all.iter().chain(words) {
        assert!(run.err.contains(word), "no {word} in: {}", run.err);
    }
}

/// Finishes what was begun, or does it anew when nothing is known of it.
fn finish(father: &Father) {
    let resumed = father.run(&["manifest", "resume"]);
    if resumed.code == 3 {
        father.run(&APPLY).good();
    } else {
        resumed.good();
    }
    assert_eq!(father.guests(), BOTH);
    let again = father.run(&APPLY);
    assert!(again.err.contains("Nothing to do."), "{}", again.err);
}

/// Runs a script in which mounting changes nothing outside; none when that is not permitted.
fn apart(father: &Father, script: &str) -> Option<Run> {
    let tried = Command::new("unshare").args(["-m", "true"]).output();
    if !tried.is_ok_and(|tried| tried.status.success()) {
        println!("skipped: mount namespaces are not permitted here");
        return None;
    }
    let program = father.command(&[]);
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-euc", script]).env_clear();
    command.envs(
        program
            .get_envs()
            .filter_map(|(key, value)| Some((key, value?))),
    );
    command
        .env("PROGRAM", program.get_program())
        .env("STATE", father.state())
        .current_dir(program.get_current_dir().unwrap());
    Some(command.output().map(Run::from).unwrap())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_state_directory_that_may_not_be_written_is_told_and_the_run_goes_on_later() {
    let father = killed_at(11);
    let before = father.pve.guests();
    for words in ["manifest resume", "manifest apply -M workers -H father"] {
        let run = if is_root() {
            let script = format!(
                "mount --bind $STATE $STATE; mount -o remount,bind,ro $STATE; exec $PROGRAM {words}"
            );
            match apart(&father, &script) {
                Some(run) => run,
                None => return,
            }
        } else {
            let words: Vec<&str> = words.split(' ').collect();
            let file = father.state().join("journal.db");
            set_mode(&file, 0o400);
            set_mode(&father.state(), 0o500);
            let run = father.run(&words);
            set_mode(&father.state(), 0o700);
            set_mode(&file, 0o600);
            run
        };
        assert_says(&run, &father, &["writable", "HOMESTAK_STATE"]);
        assert_eq!(father.pve.guests(), before, "nothing was touched");
    }
    finish(&father);
}

#[test]
fn a_journal_that_is_no_database_is_told_and_kept() {
    let father = killed_at(11);
    let before = father.pve.guests();
    let file = father.state().join("journal.db");
    for name in ["journal.db-wal", "journal.db-shm"] {
        std::fs::remove_file(father.state().join(name)).unwrap();
    }
    std::fs::write(&file, "my notes, put here by mistake\n").unwrap();
    for words in [&["manifest", "resume"][..], &["manifest", "status"], &APPLY] {
        let run = father.run(words);
        assert_says(&run, &father, &["not a database", "homestak state rebuild"]);
    }
    assert_eq!(father.pve.guests(), before, "nothing was touched");
    let kept = std::fs::read_to_string(&file).unwrap();
    assert_eq!(kept, "my notes, put here by mistake\n");
    std::fs::rename(&file, file.with_extension("kept")).unwrap();
    finish(&father);
}

fn cut(path: &Path, part: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length * part / 8).unwrap();
}

/// Puts the journal and the files beside it away.
fn put_away(father: &Father) {
    for name in ["journal.db", "journal.db-wal", "journal.db-shm"] {
        let name = father.state().join(name);
        _ = std::fs::rename(&name, name.with_extension("kept"));
    }
}

#[test]
fn a_journal_that_was_cut_off_is_told_and_kept() {
    for part in [1, 4, 7] {
        let father = Father::quick();
        father.workers(1, "");
        father.run(&APPLY).good();
        father.workers(2, "");
        let before = father.pve.guests();
        let file = father.state().join("journal.db");
        cut(&file, part);
        let left = std::fs::read(&file).unwrap();
        for words in [&["manifest", "resume"][..], &["manifest", "status"], &APPLY] {
            let run = father.run(words);
            assert_says(
                &run,
                &father,
                &["malformed", "keep them", "homestak state rebuild"],
            );
        }
        assert_eq!(father.pve.guests(), before, "nothing was touched");
        assert!(
            std::fs::read(&file).unwrap() == left,
            "it is kept as it was"
        );
        put_away(&father);
        finish(&father);
    }
}

#[test]
fn a_journal_that_was_cut_off_in_the_middle_of_a_run_doubles_nothing() {
    for part in [0, 1, 4, 7] {
        let father = killed_at(11);
        cut(&father.state().join("journal.db"), part);
        // The log may hold all that is needed.
        let run = father.run(&["manifest", "resume"]);
        if run.code == 1 {
            assert_says(&run, &father, &["keep them", "homestak state rebuild"]);
            put_away(&father);
        } else {
            run.good();
        }
        let again = father.run(&APPLY);
        if again.code == 1 {
            assert_says(&again, &father, &["keep them", "homestak state rebuild"]);
            put_away(&father);
            father.run(&APPLY).good();
        }
        assert_eq!(father.guests(), BOTH, "{part} of 8");
    }
}

#[test]
fn a_log_that_was_cut_off_ends_at_its_last_whole_entry_and_the_run_goes_on() {
    for part in 0..=8 {
        let father = killed_at(15);
        cut(&father.state().join("journal.db-wal"), part);
        let history = father.run(&["manifest", "history", "--json-output"]).json();
        let runs = history["runs"].as_array().unwrap().len();
        assert!(runs == 2 || runs == 3, "what ended is there: {history}");
        if part == 8 {
            assert_eq!(runs, 3, "what was acknowledged is there");
        }
        finish(&father);
    }
}

#[test]
fn a_full_disk_is_told_and_the_run_goes_on_when_there_is_room() {
    let mut told = 0;
    for free in [0, 60, 120, 160, 180, 200, 220, 240, 280] {
        let father = Father::quick();
        father.workers(2, "");
        std::fs::create_dir_all(father.state()).unwrap();
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
        let Some(run) = apart(&father, &script) else {
            return;
        };
        let said = format!("{free} KiB:\n{}{}", run.out, run.err);
        if run.out.contains("first 1\n") {
            told += 1;
            for words in [
                "error: The journal cannot be used: ",
                "hint: ",
                "journal.db",
            ] {
                assert!(run.err.contains(words), "{said}");
            }
            let next = if run.err.contains("record a new run") {
                "free space and repeat the command"
            } else {
                "free space and "
            };
            assert!(run.err.contains(next), "{said}");
        } else {
            assert!(run.out.contains("first 0\n"), "{said}");
        }
        let goes_on = run.out.contains("second 0\n") || run.out.contains("second 3\n");
        assert!(goes_on && !run.out.contains("third 1\n"), "{said}");
        assert!(run.err.contains("Nothing to do."), "{said}");
        assert_eq!(father.guests(), BOTH, "{said}");
    }
    println!("{told} times it was full");
    assert!(told > 2, "{told}");
}
