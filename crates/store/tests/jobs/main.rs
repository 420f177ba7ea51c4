//! Jobs in the registry: against a model, from several threads, and after a process was killed.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests start real processes, and a panic is how they fail"
)]

mod model;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Barrier;

use homestak_api::v1::node_job::{JobKind, JobOutcome, JobReport, JobResult, JobState};
use homestak_store::registry::{
    AddOutcome, CancelOutcome, JobEntry, MAX_OUTPUT, NodeEntry, Registry, TakeOutcome, WriteOutcome,
};

pub(crate) const NODES: [&str; 2] = ["a", "b"];
/// More than any test queues, unless it is about the limit.
pub(crate) const MANY: u32 = 1000;
/// Passes a started process its directory.
const PLACE: &str = "HOMESTAK_TEST_PLACE";

fn node(uuid: &str) -> NodeEntry {
    NodeEntry {
        uuid: uuid.to_owned(),
        name: format!("node-{uuid}"),
        manifest: "lab".to_owned(),
        host: "local".to_owned(),
        certificate: None,
        public_key: None,
        replaced: None,
        replaced_until: None,
        renewed_late: false,
        enrolled: Some(1),
        revoked: None,
        address: None,
        agent: None,
        last_contact: None,
    }
}

pub(crate) fn job(id: &str, uuid: &str, (issued, expires): (i64, i64)) -> JobEntry {
    JobEntry {
        id: id.to_owned(),
        uuid: uuid.to_owned(),
        node: format!("node-{uuid}"),
        kind: JobKind::Check,
        origin: "op".to_owned(),
        statement: Some(format!("signed {id}")),
        issued,
        expires,
        time_limit: 60,
        taken: None,
        cancelled: None,
        ended: None,
        reported: None,
        outcome: None,
    }
}

pub(crate) fn outcome(state: JobState) -> JobOutcome {
    JobOutcome {
        state,
        message: Some("message".to_owned()),
        result: JobResult {
            changed: Some(true),
            differences: vec!["motd".to_owned()],
            ..JobResult::default()
        },
    }
}

pub(crate) fn output(offset: usize, text: &str) -> JobReport {
    JobReport {
        offset: offset as u64,
        output: text.to_owned(),
        outcome: None,
    }
}

pub(crate) fn end(offset: usize, state: JobState) -> JobReport {
    JobReport {
        outcome: Some(outcome(state)),
        ..output(offset, "")
    }
}

pub(crate) struct Fixture {
    pub(crate) path: PathBuf,
    pub(crate) registry: Registry,
    _own: tempfile::TempDir,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let own = tempfile::tempdir().unwrap();
        let path = own.path().join("server.db");
        let registry = Registry::open(&path).unwrap();
        for uuid in NODES {
            registry.put_node(&node(uuid)).unwrap();
        }
        Self {
            path,
            registry,
            _own: own,
        }
    }

    fn add(&self, id: &str, uuid: &str) {
        let added = self.registry.add_job(&job(id, uuid, (0, 100)), 0, MANY);
        assert!(matches!(added.unwrap(), AddOutcome::Added(_)));
    }

    fn taken(&self, id: &str) {
        self.add(id, "a");
        let taken = self.registry.take_job(id, "a", 1).unwrap();
        assert!(matches!(taken, TakeOutcome::Taken(_)), "{taken:?}");
    }

    fn text(&self, id: &str) -> String {
        self.registry.job(id, 0).unwrap().unwrap().1.text
    }

    fn report(&self, id: &str, report: &JobReport) -> WriteOutcome {
        self.registry.report_job(id, "a", 2, report).unwrap()
    }
}

/// Runs the same on several threads at the same time.
fn at_once<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let barrier = Barrier::new(count);
    std::thread::scope(|scope| {
        let (barrier, work) = (&barrier, &work);
        let threads: Vec<_> = (0..count)
            .map(|nth| {
                scope.spawn(move || {
                    barrier.wait();
                    work(nth)
                })
            })
            .collect();
        let results = threads.into_iter().map(|thread| thread.join().unwrap());
        results.collect()
    })
}

#[test]
fn of_eight_threads_that_take_a_job_exactly_one_gets_it() {
    let fixture = Fixture::new();
    for round in 0..20 {
        let id = format!("{round:032}");
        fixture.add(&id, "a");
        let taken = at_once(8, |_| fixture.registry.take_job(&id, "a", 1).unwrap());
        let n_taken = taken
            .iter()
            .filter(|one| matches!(one, TakeOutcome::Taken(_)));
        assert_eq!(n_taken.count(), 1);
        let n_late = taken
            .iter()
            .filter(|one| **one == TakeOutcome::NotQueued(JobState::Taken));
        assert_eq!(n_late.count(), 7);
    }
}

#[test]
fn of_two_connections_that_take_a_job_exactly_one_gets_it() {
    let fixture = Fixture::new();
    let other = Registry::open(&fixture.path).unwrap();
    for round in 0..20 {
        let id = format!("{round:032}");
        fixture.add(&id, "a");
        let registries = [&fixture.registry, &other];
        let taken = at_once(2, |nth| registries[nth].take_job(&id, "a", 1));
        let n_taken = taken
            .iter()
            .filter(|one| matches!(one, Ok(TakeOutcome::Taken(_))));
        assert_eq!(n_taken.count(), 1);
    }
}

#[test]
fn a_job_cannot_be_both_taken_and_cancelled() {
    let fixture = Fixture::new();
    for round in 0..40 {
        let id = format!("{round:032}");
        fixture.add(&id, "a");
        let won = at_once(4, |nth| match nth % 2 {
            0 => {
                let taken = fixture.registry.take_job(&id, "a", 1).unwrap();
                matches!(taken, TakeOutcome::Taken(_)).then_some(JobState::Taken)
            }
            _ => {
                let cancelled = fixture.registry.cancel_job(&id, 1).unwrap();
                matches!(cancelled, CancelOutcome::Cancelled(_)).then_some(JobState::Cancelled)
            }
        });
        let won: Vec<JobState> = won.into_iter().flatten().collect();
        // A cancellation can be repeated.
        let (entry, _) = fixture.registry.job(&id, 0).unwrap().unwrap();
        let state = entry.state(1);
        assert!(won.iter().all(|one| *one == state), "{won:?} {state:?}");
        assert!(!won.is_empty());
        if state == JobState::Taken {
            assert_eq!(won.len(), 1);
        }
    }
}

#[test]
fn of_triggers_at_the_same_time_one_job_is_queued() {
    let fixture = Fixture::new();
    let add = |_| fixture.registry.add_trigger_job("a", "webhook", 1, 50);
    let added = at_once(8, |nth| add(nth).unwrap().is_some());
    assert_eq!(added.iter().filter(|is_added| **is_added).count(), 1);
    let queued = fixture.registry.queued_jobs("a", 1, MANY).unwrap();
    assert_eq!(queued.len(), 1);
    fixture.registry.take_job(&queued[0].id, "a", 2).unwrap();
    assert!(add(0).unwrap().is_some(), "the other one runs");
    let unknown = fixture.registry.add_trigger_job("missing", "git", 1, 50);
    assert_eq!(unknown.unwrap(), None);
    let mut revoked = node("b");
    revoked.revoked = Some((1, "stolen".to_owned()));
    fixture.registry.put_node(&revoked).unwrap();
    let refused = fixture.registry.add_trigger_job("b", "git", 1, 50);
    assert_eq!(refused.unwrap(), None);
}

#[test]
fn at_most_so_many_jobs_of_a_node_are_queued() {
    let fixture = Fixture::new();
    let add = |nth: usize, uuid: &str| {
        let entry = job(&format!("{nth:032}"), uuid, (0, 100));
        fixture.registry.add_job(&entry, 0, 3).unwrap()
    };
    for nth in 0..3 {
        assert!(matches!(add(nth, "a"), AddOutcome::Added(_)));
    }
    assert_eq!(add(3, "a"), AddOutcome::Full);
    assert!(matches!(add(2, "a"), AddOutcome::Known(_)), "not a new one");
    assert!(matches!(add(4, "b"), AddOutcome::Added(_)), "another node");
    fixture
        .registry
        .take_job(&format!("{:032}", 0), "a", 1)
        .unwrap();
    assert!(matches!(add(3, "a"), AddOutcome::Added(_)));
    assert_eq!(fixture.registry.jobs(None, 2).unwrap().len(), 2);
    assert_eq!(fixture.registry.jobs(None, MANY).unwrap().len(), 5);
}

#[test]
fn output_is_bounded_cut_at_a_character_and_read_from_any_byte() {
    let fixture = Fixture::new();
    fixture.taken("x");
    let part = "é".repeat(30_000);
    let mut sent = 0;
    for _ in 0..6 {
        assert_eq!(
            fixture.report("x", &output(sent, &part)),
            WriteOutcome::Recorded
        );
        sent += part.len();
    }
    let (_, kept) = fixture.registry.job("x", 0).unwrap().unwrap();
    assert!(kept.truncated);
    assert_eq!(kept.text.len(), MAX_OUTPUT);
    assert_eq!(kept.next, MAX_OUTPUT as u64);
    assert!(kept.text.chars().all(|letter| letter == 'é'));
    // What comes after a gap in what is kept is not appended to it.
    assert_eq!(
        fixture.report("x", &output(sent, "x")),
        WriteOutcome::Recorded
    );
    assert_eq!(fixture.text("x").len(), MAX_OUTPUT);
    for (after, length) in [
        (0, MAX_OUTPUT),
        (1, MAX_OUTPUT - 2),
        (60_000, MAX_OUTPUT - 60_000),
        (60_001, MAX_OUTPUT - 60_002),
        (MAX_OUTPUT - 2, 2),
        (MAX_OUTPUT, 0),
        (usize::MAX, 0),
    ] {
        let (_, found) = fixture.registry.job("x", after as u64).unwrap().unwrap();
        assert_eq!(
            (found.text.len(), found.next),
            (length, MAX_OUTPUT as u64),
            "{after}"
        );
    }
    assert_eq!(
        fixture.report("x", &end(sent, JobState::Failed)),
        WriteOutcome::Ended
    );
}

#[test]
fn repeated_overlapping_and_missing_output_is_recorded_as_it_was_sent() {
    let fixture = Fixture::new();
    fixture.taken("x");
    for (offset, text, whole) in [
        (0, "one ", "one "),
        (0, "one ", "one "),
        (4, "two ", "one two "),
        // The answer was lost, and there is more now.
        (4, "two three ", "one two three "),
        (2, "e two", "one two three "),
        (100, "after a gap ", "one two three after a gap "),
        (100, "after a gap ", "one two three after a gap "),
        (0, "", "one two three after a gap "),
        (1 << 40, "far", "one two three after a gap far"),
        (0, "one ", "one two three after a gap far"),
        // NUL and others are kept as they are; whoever prints them escapes them.
        (
            (1 << 40) + 3,
            "\0\u{1b}[2J",
            "one two three after a gap far\0\u{1b}[2J",
        ),
    ] {
        assert_eq!(
            fixture.report("x", &output(offset, text)),
            WriteOutcome::Recorded
        );
        assert_eq!(fixture.text("x"), whole, "{offset} {text}");
    }
    let many = 3000;
    fixture.taken("y");
    for nth in 0..many {
        fixture.report("y", &output(nth * 10, "123456789\n"));
    }
    assert_eq!(fixture.text("y").len(), many * 10);
    assert_eq!(fixture.text("y").lines().count(), many);
}

#[test]
fn after_an_outcome_nothing_changes_and_a_lost_job_can_still_end() {
    let fixture = Fixture::new();
    fixture.taken("x");
    let with_output = JobReport {
        output: "done\n".to_owned(),
        ..end(0, JobState::Failed)
    };
    assert_eq!(fixture.report("x", &with_output), WriteOutcome::Ended);
    assert_eq!(fixture.report("x", &with_output), WriteOutcome::Repeated);
    for report in [
        end(0, JobState::Succeeded),
        output(5, "more"),
        JobReport {
            outcome: Some(JobOutcome {
                message: None,
                ..outcome(JobState::Failed)
            }),
            ..output(0, "")
        },
    ] {
        assert_eq!(fixture.report("x", &report), WriteOutcome::AfterEnd);
    }
    let (entry, kept) = fixture.registry.job("x", 0).unwrap().unwrap();
    assert_eq!(entry.outcome, Some(outcome(JobState::Failed)));
    assert_eq!((&*kept.text, entry.ended), ("done\n", Some(2)));
    // In lists it is without its result.
    let listed = &fixture.registry.jobs(Some("a"), 1).unwrap()[0];
    let listed = listed.outcome.as_ref().unwrap();
    assert_eq!(
        (listed.state, &listed.result),
        (JobState::Failed, &JobResult::default())
    );

    fixture.taken("y");
    let state = || {
        let (entry, _) = fixture.registry.job("y", 0).unwrap().unwrap();
        (entry.state(181), entry.state(182))
    };
    // Taken at 1, with 60 seconds.
    assert_eq!(state(), (JobState::Taken, JobState::Lost));
    let more = |at| {
        let report = output(0, "late");
        fixture.registry.report_job("y", "a", at, &report).unwrap()
    };
    assert_eq!(more(500), WriteOutcome::Recorded);
    assert_eq!(state(), (JobState::Taken, JobState::Taken));
    assert_eq!(
        fixture.report("y", &end(4, JobState::Succeeded)),
        WriteOutcome::Ended
    );
    assert_eq!(state(), (JobState::Succeeded, JobState::Succeeded));
}

#[test]
fn what_a_node_took_before_it_was_revoked_is_lost_at_once_until_a_report_arrives() {
    let fixture = Fixture::new();
    fixture.taken("x");
    fixture.taken("y");
    fixture.report("y", &end(0, JobState::Succeeded));
    fixture.add("z", "a");
    assert_eq!(fixture.registry.cancel_jobs_of("a", 2).unwrap(), 1);
    let state = |id: &str| {
        let (entry, _) = fixture.registry.job(id, 0).unwrap().unwrap();
        entry.state(3)
    };
    assert_eq!(state("x"), JobState::Lost);
    assert_eq!(state("y"), JobState::Succeeded);
    assert_eq!(state("z"), JobState::Cancelled);
    assert_eq!(
        fixture.registry.cancel_job("x", 3).unwrap(),
        CancelOutcome::NotQueued(JobState::Lost)
    );
    assert_eq!(
        fixture.report("x", &output(0, "late")),
        WriteOutcome::Recorded
    );
    assert_eq!(state("x"), JobState::Taken);
    fixture.registry.cancel_jobs_of("a", 2).unwrap();
    assert_eq!(
        fixture.report("x", &end(4, JobState::Failed)),
        WriteOutcome::Ended
    );
    assert_eq!(state("x"), JobState::Failed);
}

#[test]
fn the_output_of_a_deleted_job_is_deleted_with_it_and_its_id_stays_used() {
    let fixture = Fixture::new();
    for id in ["x", "y", "z"] {
        fixture.taken(id);
        fixture.report(id, &output(0, "text"));
    }
    fixture.report("x", &end(4, JobState::Succeeded));
    assert_eq!(fixture.registry.prune_jobs("a", 3, 1).unwrap(), 1);
    assert!(fixture.registry.job("x", 0).unwrap().is_none());
    let again = || fixture.registry.add_job(&job("x", "a", (0, 100)), 3, MANY);
    assert_eq!(again().unwrap(), AddOutcome::Used);
    let file = rusqlite::Connection::open(&fixture.path).unwrap();
    let parts = file.query_row("SELECT count(*) FROM job_output", (), |row| row.get(0));
    assert_eq!(parts, Ok(2));
}

/// Adds jobs, takes them and reports about them, until it is killed. Each printed number is that of a
/// job of which everything is recorded.
#[test]
fn a_started_process_works_on_jobs() {
    let Some(path) = std::env::var_os(PLACE) else {
        return;
    };
    let registry = Registry::open(Path::new(&path)).unwrap();
    for nth in 0.. {
        let id = format!("{nth:032}");
        registry
            .add_job(&job(&id, "a", (0, 100)), 0, u32::MAX)
            .unwrap();
        let taken = registry.take_job(&id, "a", 1).unwrap();
        assert!(matches!(taken, TakeOutcome::Taken(_)));
        registry
            .report_job(&id, "a", 2, &output(0, "text"))
            .unwrap();
        println!("ok {nth}");
    }
}

#[test]
fn what_was_recorded_before_a_process_was_killed_is_there_and_taken_once() {
    let fixture = Fixture::new();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_started_process_works_on_jobs", "--nocapture"])
        .env(PLACE, &fixture.path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut done = 0;
    for line in lines.map_while(Result::ok) {
        // The test harness prints too.
        if line.split(' ').any(|word| word == "ok") && !line.starts_with("test result") {
            done += 1;
            if done == 20 {
                child.kill().unwrap();
            }
        }
    }
    child.wait().unwrap();
    assert!(done >= 20);
    let registry = Registry::open(&fixture.path).unwrap();
    for nth in 0..done {
        let id = format!("{nth:032}");
        let (entry, kept) = registry.job(&id, 0).unwrap().unwrap();
        assert_eq!((entry.state(3), &*kept.text), (JobState::Taken, "text"));
        let again = registry.take_job(&id, "a", 3).unwrap();
        assert_eq!(again, TakeOutcome::NotQueued(JobState::Taken));
    }
    // At most one more, of which the last steps may be missing.
    assert!(registry.jobs(None, u32::MAX).unwrap().len() <= done + 1);
}
