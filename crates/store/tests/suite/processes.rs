//! Several processes on one journal, and its state after one is killed.

use std::io::{BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::process::{Child, ChildStdout};

use homestak_core::plan::{NodeStatus, StepId};
use homestak_engine::journal::{Journal, JournalError, RunId, StepEvent};

use super::sample::{at, done, entry, entry_with_record, plan, record, scope, step};
use super::{JournalFixture, run};

#[expect(
    clippy::print_stdout,
    reason = "the process that started it reads this"
)]
fn acknowledge(step: usize) {
    println!("ok {step}");
}

/// Runs the role of a started process: `append RUN COUNT`, `hold MANIFEST` or `act RUN`. Each printed
/// line that begins with `ok` reports a completed write.
pub(crate) fn run_role(fixture: &impl JournalFixture, role: &str) {
    let words: Vec<&str> = role.split(' ').collect();
    let number = |at: usize| words[at].parse::<i64>().unwrap();
    run(async {
        let journal = fixture.open();
        match words[0] {
            "append" => {
                let id = RunId(number(1));
                for step in 0..usize::try_from(number(2)).unwrap() {
                    let known = entry_with_record(step, done(), record("web", NodeStatus::Created));
                    journal.append(id, &known).await.unwrap();
                    acknowledge(step);
                }
            }
            "hold" => {
                let _lease = journal.lock(&[scope(words[1], "father")]).await.unwrap();
                acknowledge(0);
                // Until the other side exits or kills it.
                std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            }
            "act" => {
                let _lease = journal.lock(&[scope("m", "father")]).await.unwrap();
                for step in 0.. {
                    let intent = entry(step, StepEvent::Intent);
                    match journal.append(RunId(number(1)), &intent).await {
                        Ok(()) => acknowledge(step),
                        Err(JournalError::Lost { .. }) => return,
                        Err(error) => panic!("{error}"),
                    }
                    // Until the other side requests another.
                    std::io::stdin().read_line(&mut String::new()).unwrap();
                }
            }
            role => panic!("no such role: {role}"),
        }
    });
}

/// A child process and its output.
struct ChildProcess {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl ChildProcess {
    fn start(fixture: &impl JournalFixture, role: &str) -> Self {
        let mut child = fixture.start(role);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Waits for the next `count` completed writes, or all until it exits, and returns their number.
    fn acknowledged(&mut self, count: usize) -> usize {
        let lines = self.lines.by_ref().map(Result::unwrap);
        // The test harness prints too, such as the test name before the first line.
        let oks = lines.filter(|line| line.split(' ').any(|word| word == "ok"));
        oks.filter(|line| !line.starts_with("test result"))
            .take(count)
            .count()
    }

    fn send(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

async fn begin(journal: &dyn Journal) -> RunId {
    journal
        .begin("apply", &plan("m", 1), "run", at(0))
        .await
        .unwrap()
}

async fn steps(journal: &dyn Journal, id: RunId) -> Vec<Option<StepId>> {
    let run = journal.run(id).await.unwrap().unwrap();
    run.entries.into_iter().map(|entry| entry.step).collect()
}

pub(crate) fn two_processes_write_at_once(fixture: &impl JournalFixture) {
    run(async {
        let journal = fixture.open();
        let ids = [begin(&*journal).await, begin(&*journal).await];
        let mut others = ids.map(|id| ChildProcess::start(fixture, &format!("append {id} 60")));
        for other in &mut others {
            assert_eq!(other.acknowledged(60), 60);
        }
        for id in ids {
            assert_eq!(
                steps(&*journal, id).await,
                (0..60).map(step).collect::<Vec<_>>()
            );
        }
    });
}

pub(crate) fn acknowledged_entries_survive_a_kill(fixture: &impl JournalFixture) {
    run(async {
        for early in [1, 10, 40] {
            let id = begin(&*fixture.open()).await;
            // More than it can write before it is killed; no other process has the journal open.
            let mut other = ChildProcess::start(fixture, &format!("append {id} 1000000"));
            let before = other.acknowledged(early);
            other.kill();
            let acknowledged = before + other.acknowledged(usize::MAX);
            assert!(acknowledged >= early);
            let journal = fixture.open();
            let found = steps(&*journal, id).await;
            assert_eq!(found, (0..found.len()).map(step).collect::<Vec<_>>());
            assert!(
                found.len() >= acknowledged,
                "{} of {acknowledged}",
                found.len()
            );
            // At most one more, whose result was not read yet.
            assert!(found.len() <= acknowledged + 1);
            assert_eq!(
                journal.records(&scope("m", "father")).await.unwrap().len(),
                1
            );
            journal
                .append(
                    id,
                    &entry_with_record(7, done(), record("web", NodeStatus::Ready)),
                )
                .await
                .unwrap();
        }
    });
}

pub(crate) fn a_killed_holder_loses_its_lease(fixture: &impl JournalFixture) {
    run(async {
        let journal = fixture.open();
        let web = [scope("web", "father")];
        let mut other = ChildProcess::start(fixture, "hold web");
        assert_eq!(other.acknowledged(1), 1);
        assert!(journal.lock(&web).await.is_err());
        other.kill();
        // Its end of the pipe is closed, but it was not reaped yet.
        assert_eq!(other.acknowledged(1), 0);
        let mut lease = journal.lock(&web).await;
        for _ in 0..1000 {
            // The pipe may close shortly before the kernel reports the exit.
            if lease.is_ok() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            lease = journal.lock(&web).await;
        }
        assert!(lease.is_ok());
        assert!(journal.lock(&web).await.is_err());
    });
}

pub(crate) fn a_living_holder_keeps_its_lease(fixture: &impl JournalFixture) {
    run(async {
        let journal = fixture.open();
        let mut other = ChildProcess::start(fixture, "hold web");
        assert_eq!(other.acknowledged(1), 1);
        let result = journal
            .lock(&[scope("mail", "father"), scope("web", "father")])
            .await;
        let Err(JournalError::Held {
            scope: held,
            holder,
            ..
        }) = result
        else {
            panic!("it was taken from a living process");
        };
        assert_eq!(held, scope("web", "father"));
        let pid = other.child.id();
        assert!(
            holder.starts_with(&format!("process {pid} on ")),
            "{holder}"
        );
        // It does not block other scopes.
        journal.lock(&[scope("mail", "father")]).await.unwrap();
        begin(&*journal).await;
        // The scope is also released after a normal exit.
        drop(other.child.stdin.take());
        assert!(other.child.wait().unwrap().success());
        journal.lock(&[scope("web", "father")]).await.unwrap();
    });
}

pub(crate) fn a_holder_that_was_stopped_has_lost_its_lease(fixture: &impl JournalFixture) {
    run(async {
        let journal = fixture.open();
        let m = scope("m", "father");
        let id = begin(&*journal).await;
        let mut other = ChildProcess::start(fixture, &format!("act {id}"));
        let mut more = other.child.stdin.take().unwrap();
        assert_eq!(other.acknowledged(1), 1);
        more.write_all(b"\n").unwrap();
        assert_eq!(other.acknowledged(1), 1);
        other.send(rustix::process::Signal::STOP);
        fixture.move_away(&m);
        let found = journal.holder(&m).await.unwrap().unwrap();
        journal.unlock(&m, found.number).await.unwrap();
        let _lease = journal.lock(std::slice::from_ref(&m)).await.unwrap();
        other.send(rustix::process::Signal::CONT);
        more.write_all(b"\n\n").unwrap();
        assert!(other.child.wait().unwrap().success());
        assert_eq!(steps(&*journal, id).await, [step(0), step(1)]);
    });
}
