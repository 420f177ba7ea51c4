//! Jobs of a server that may be compromised, or whose answers are lost.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use homestak_api::job_statement::{JobStatement, MAX_LIFETIME, MAX_TIME_LIMIT};
use homestak_api::log::{self, LogSettings};
use homestak_api::signature::{Purpose, SiteKey};
use homestak_api::v1::node_job::{
    JobKind, JobOffer, JobOffers, JobOptions, JobOutcome, JobReport, JobResult, JobState,
};
use homestak_core::doc::spec::Trigger;
use homestak_core::observed::GuestUuid;
use homestak_test_support::server::{Response, Server};

use super::sample::{WEB, at};
use super::site::TestSite;
use super::{Puller, Registration};
use crate::clock;
use crate::node_job::{
    Executor, JobOrigin, JobRecord, NodeJob, Output, PendingReboot, Phase, Records, TimePoint,
    succeeded,
};
use crate::pull::jobs::{Jobs, Polled};
use crate::pull::session::Session;
use crate::spec::RunSettings;

/// What the server answers, and what it received.
#[derive(Default)]
struct Script {
    offers: Vec<JobOffer>,
    /// Answers to `take`, in order; 200 after that.
    takes: Vec<Response>,
    /// Answers to reports, in order; 200 after that.
    answers: Vec<Response>,
    n_taken: usize,
    reports: Vec<(String, JobReport)>,
    /// Whether it has no jobs.
    is_old: bool,
}

impl Script {
    fn answer(&mut self, head: &str, body: &str) -> Response {
        let path = head.split_whitespace().nth(1).unwrap_or_default();
        let next = |answers: &mut Vec<Response>| match answers.is_empty() {
            true => Response::Reply(200, "{}".to_owned()),
            false => answers.remove(0),
        };
        if self.is_old {
            return Response::Reply(404, String::new());
        }
        if path.starts_with("/v1/offers?wait=") {
            let jobs = self.offers.clone();
            let text = serde_json::to_string(&JobOffers { jobs }).expect("JSON");
            return Response::Reply(200, text);
        }
        if path.ends_with("/take") {
            self.n_taken += 1;
            return next(&mut self.takes);
        }
        let id = path.strip_prefix("/v1/jobs/").expect("a job");
        let id = id.strip_suffix("/report").expect("a report");
        let report = serde_json::from_str(body).expect("a report");
        self.reports.push((id.to_owned(), report));
        next(&mut self.answers)
    }

    /// Returns the output and the outcome of a job.
    fn received(&self, id: &str) -> (String, Option<JobOutcome>) {
        let reports = self.reports.iter().filter(|(one, _)| one == id);
        let mut output = String::new();
        let mut outcome = None;
        for (_, report) in reports {
            if report.offset == output.len() as u64 {
                output.push_str(&report.output);
            }
            outcome = report.outcome.clone().or(outcome);
        }
        (output, outcome)
    }
}

/// Records what it executes.
#[derive(Default)]
struct FakeExecutor {
    executed: Vec<NodeJob>,
    n_lines: usize,
}

impl Executor for FakeExecutor {
    fn execute(&mut self, job: &NodeJob, records: &Records, output: Output<'_>) -> JobOutcome {
        let record = records.find(&job.id).expect("read").expect("recorded");
        assert_eq!(record.phase, Phase::Begun);
        self.executed.push(job.clone());
        for n in 0..self.n_lines {
            output(&format!("line {n}"));
        }
        succeeded(JobResult {
            changed: Some(true),
            ..JobResult::default()
        })
    }
}

/// An enrolled machine, and the server that it asks for jobs.
struct Case {
    site: TestSite,
    web: Puller,
    script: Arc<Mutex<Script>>,
    server: Server,
    executor: FakeExecutor,
    run: RunSettings,
}

impl Case {
    fn new() -> Self {
        let site = TestSite::start();
        let mut web = Puller::new(&site);
        web.pass().expect("applied");
        fs_err::create_dir(web.store.state.join("node-jobs")).expect("created");
        let script = Arc::new(Mutex::new(Script::default()));
        let answers = script.clone();
        let server = Server::answering_bodies(0, move |head, body| {
            answers.lock().expect("free").answer(head, body)
        });
        web.change(|registration: &mut Registration| {
            registration.contact.servers = vec![server.url()];
            registration.contact.fingerprints = vec![server.fingerprint.clone()];
            let enrolment = registration.renumbering.as_mut().expect("it enrolled");
            enrolment.issued = clock::now().as_second() - 3_000;
        });
        Self {
            site,
            web,
            script,
            server,
            executor: FakeExecutor {
                n_lines: 2,
                ..FakeExecutor::default()
            },
            run: RunSettings::default(),
        }
    }

    fn records(&self) -> Records {
        Records::new(self.web.store.state.join("node-jobs"))
    }

    fn script<T>(&self, change: impl FnOnce(&mut Script) -> T) -> T {
        change(&mut self.script.lock().expect("free"))
    }

    fn offer(&self, offers: Vec<JobOffer>) {
        self.script(|script| script.offers = offers);
    }

    /// Asks the server, as after a restart of the agent.
    fn poll(&mut self) -> Polled {
        let records = self.records();
        let session = Session::open(&self.web.store).expect("enrolled");
        let mut jobs = Jobs::new(records, &mut self.executor);
        jobs.poll(&session, &self.run, Duration::ZERO)
    }

    fn signed(&self, change: impl FnOnce(&mut JobStatement)) -> JobOffer {
        signed(&self.site.key, Purpose::Job, change)
    }

    /// Has the last job of a trigger begun a minute earlier.
    fn pass_a_minute(&self) {
        let records = self.records();
        let mut limits = records.limits().expect("read");
        limits.trigger = limits.trigger.map(|last| TimePoint {
            time: last.time - 60,
            ..last
        });
        records.put_limits(&limits).expect("written");
    }

    fn phase(&self, id: &str) -> Phase {
        let record = self.records().find(id).expect("read");
        record.expect("recorded").phase
    }
}

fn id(n: u64) -> String {
    format!("{n:032x}")
}

fn signed(key: &SiteKey, purpose: Purpose, change: impl FnOnce(&mut JobStatement)) -> JobOffer {
    let now = clock::now().as_second();
    let mut statement = JobStatement {
        site: "site".to_owned(),
        node: "web".to_owned(),
        uuid: GuestUuid::new(WEB).expect("a UUID"),
        id: id(1),
        kind: JobKind::Check,
        options: JobOptions::default(),
        issued: now,
        expires: now + 3_600,
        time_limit: 60,
        operator: "op".to_owned(),
    };
    change(&mut statement);
    JobOffer {
        id: statement.id.clone(),
        statement: Some(key.sign(purpose, &statement).expect("signed")),
        trigger: None,
    }
}

fn triggered(n: u64) -> JobOffer {
    JobOffer {
        id: id(n),
        statement: None,
        trigger: Some("webhook deploy".to_owned()),
    }
}

#[test]
fn a_signed_job_is_executed_once_and_its_output_and_outcome_are_reported() {
    let mut case = Case::new();
    assert_eq!(case.poll(), Polled::Nothing);
    case.offer(vec![case.signed(|job| job.options.force = true)]);
    assert_eq!(case.poll(), Polled::Executed(JobKind::Check));
    assert!(case.executor.executed[0].options.force);
    assert_eq!(case.executor.executed[0].time_limit, 60);
    let (output, outcome) = case.script(|script| script.received(&id(1)));
    assert_eq!(output, "line 0\nline 1\n");
    assert_eq!(outcome.expect("reported").result.changed, Some(true));
    let n_reports = case.script(|script| script.reports.len());
    // Offered again, also after its record was deleted.
    assert_eq!(case.poll(), Polled::Ignored);
    let record = case
        .web
        .store
        .state
        .join(format!("node-jobs/{}.json", id(1)));
    fs_err::remove_file(record).expect("removed");
    assert_eq!(case.poll(), Polled::Ignored);
    assert_eq!(case.executor.executed.len(), 1);
    let counts = case.script(|script| (script.n_taken, script.reports.len()));
    assert_eq!(counts, (1, n_reports));
}

#[test]
fn a_job_passes_through_a_real_server_and_back() {
    let site = TestSite::start();
    let mut web = Puller::new(&site);
    web.pass().expect("applied");
    let directory = web.store.state.join("node-jobs");
    fs_err::create_dir(&directory).expect("created");
    let mut executor = FakeExecutor {
        n_lines: 3,
        ..FakeExecutor::default()
    };
    let session = Session::open(&web.store).expect("enrolled");
    let mut jobs = Jobs::new(Records::new(directory), &mut executor);
    let run = RunSettings::default();
    assert_eq!(jobs.poll(&session, &run, Duration::ZERO), Polled::Nothing);
    // By the clock of the server, which is ahead.
    let now = at(0).as_second();
    for n in [1, 2] {
        let offer = signed(&site.key, Purpose::Job, |job| {
            (job.id, job.issued, job.expires) = (id(n), now, now + 3_600);
        });
        let body = serde_json::json!({ "statement": offer.statement });
        let status = site.post(&format!("/v1/nodes/{WEB}/jobs"), &body);
        assert_eq!(status["state"], "queued");
    }
    site.ask("POST", &format!("/v1/jobs/{}/cancel", id(1)));
    let polled = jobs.poll(&session, &run, Duration::from_secs(5));
    assert_eq!(polled, Polled::Executed(JobKind::Check));
    assert_eq!(jobs.poll(&session, &run, Duration::ZERO), Polled::Nothing);
    let detail = site.ask("GET", &format!("/v1/jobs/{}", id(2)));
    assert_eq!(detail["state"], "succeeded", "{detail}");
    assert_eq!(detail["output"], "line 0\nline 1\nline 2\n");
    assert_eq!(detail["outcome"]["result"]["changed"], true);
    let executed: Vec<&str> = executor.executed.iter().map(|job| &*job.id).collect();
    assert_eq!(executed, [id(2)]);
}

#[test]
fn a_job_that_the_site_did_not_sign_for_this_machine_is_neither_taken_nor_executed() {
    let mut case = Case::new();
    let stranger = SiteKey::generate().expect("a key");
    let good = case.signed(|_| ());
    let altered = |offer: &JobOffer| {
        let mut bytes = offer.statement.clone().expect("signed").into_bytes();
        bytes[30] = if bytes[30] == b'A' { b'B' } else { b'A' };
        String::from_utf8(bytes).ok()
    };
    let other = GuestUuid::new("22222222-2222-4222-8222-222222222222").expect("a UUID");
    let offers = vec![
        JobOffer {
            statement: altered(&good),
            ..good.clone()
        },
        JobOffer {
            statement: Some(String::new()),
            ..good.clone()
        },
        JobOffer {
            statement: Some("A".repeat(70_000)),
            ..good.clone()
        },
        JobOffer {
            id: id(2),
            ..good.clone()
        },
        JobOffer {
            id: "../../../../v1/renew?".to_owned(),
            ..good.clone()
        },
        case.signed(|job| job.id = "../x".to_owned()),
        signed(&stranger, Purpose::Job, |_| ()),
        signed(&case.site.key, Purpose::Spec, |_| ()),
        case.signed(|job| job.site = "other".to_owned()),
        case.signed(|job| job.node = "db".to_owned()),
        case.signed(|job| job.uuid = other),
        case.signed(|job| job.expires = job.issued + MAX_LIFETIME + 1),
        case.signed(|job| job.expires = job.issued - 1),
        case.signed(|job| (job.issued, job.expires) = (i64::MIN, i64::MAX)),
        case.signed(|job| (job.issued, job.expires) = (job.issued - 600, job.issued - 1)),
        // That of a former guest with the same UUID.
        case.signed(|job| job.issued -= 3_060),
        case.signed(|job| job.time_limit = 0),
        case.signed(|job| job.time_limit = MAX_TIME_LIMIT + 1),
        triggered(3),
    ];
    for trigger in [Trigger::Manual, Trigger::Schedule] {
        case.run.trigger = trigger;
        for offer in &offers {
            case.offer(vec![offer.clone()]);
            assert_eq!(case.poll(), Polled::Ignored, "{offer:?}");
        }
    }
    assert_eq!(case.script(|script| script.n_taken), 0);
    assert!(case.executor.executed.is_empty());
    // They do not prevent others.
    case.offer([offers, vec![case.signed(|job| job.id = id(9))]].concat());
    assert_eq!(case.poll(), Polled::Executed(JobKind::Check));
    assert_eq!(case.executor.executed[0].id, id(9));
}

#[test]
fn a_trigger_applies_the_spec_at_most_once_a_minute() {
    for trigger in [Trigger::Webhook, Trigger::Git] {
        let mut case = Case::new();
        case.run.trigger = trigger;
        case.offer(vec![triggered(1)]);
        assert_eq!(case.poll(), Polled::Executed(JobKind::Converge));
        assert_eq!(case.executor.executed[0].options, JobOptions::default());
        case.offer(vec![triggered(2)]);
        for _ in 0..3 {
            assert_eq!(case.poll(), Polled::Ignored);
        }
        assert_eq!(case.executor.executed.len(), 1);
        // A minute later.
        case.pass_a_minute();
        assert_eq!(case.poll(), Polled::Executed(JobKind::Converge));
        // A signed job need not wait.
        case.offer(vec![case.signed(|job| job.id = id(7))]);
        assert_eq!(case.poll(), Polled::Executed(JobKind::Check));
    }
}

#[test]
fn jobs_of_triggers_that_were_recorded_one_a_minute_are_not_executed_all_at_once() {
    let mut case = Case::new();
    case.run.trigger = Trigger::Webhook;
    let refused = || Response::Reply(409, String::new());
    for n in 1..=3 {
        // The answer to taking each is lost, and its outcome is refused, so that it may be taken again.
        case.offer(vec![triggered(n)]);
        case.script(|script| {
            script.takes = vec![Response::Disconnect];
            script.answers = vec![refused(), refused(), refused()];
        });
        assert_eq!(case.poll(), Polled::Failed);
        case.pass_a_minute();
    }
    case.script(|script| script.answers = (0..100).map(|_| refused()).collect());
    case.offer((1..=3).map(triggered).collect());
    for n_executed in 1..=3 {
        assert_eq!(case.poll(), Polled::Executed(JobKind::Converge));
        for _ in 0..3 {
            assert_eq!(case.poll(), Polled::Ignored);
        }
        assert_eq!(case.executor.executed.len(), n_executed);
        case.pass_a_minute();
    }
    assert_eq!(case.poll(), Polled::Ignored);
}

#[test]
fn a_job_that_theserver_gave_to_someone_else_or_cancelled_is_not_executed() {
    let mut case = Case::new();
    case.offer(vec![case.signed(|_| ())]);
    case.script(|script| script.takes = vec![Response::Reply(409, String::new())]);
    assert_eq!(case.poll(), Polled::Ignored);
    assert_eq!(case.poll(), Polled::Ignored);
    assert!(case.executor.executed.is_empty());
    let counts = case.script(|script| (script.n_taken, script.reports.len()));
    assert_eq!(counts, (1, 0));
}

#[test]
fn without_an_answer_to_taking_it_a_job_is_executed_only_if_it_is_offered_again() {
    // The request was lost.
    let mut case = Case::new();
    case.offer(vec![case.signed(|_| ())]);
    case.script(|script| {
        script.takes = vec![Response::Disconnect];
        script.answers = vec![Response::Reply(409, String::new())];
    });
    assert_eq!(case.poll(), Polled::Failed);
    assert_eq!(case.phase(&id(1)), Phase::Taken);
    assert_eq!(case.poll(), Polled::Executed(JobKind::Check));
    assert_eq!(case.poll(), Polled::Ignored);
    assert_eq!(case.executor.executed.len(), 1);
    let (_, outcome) = case.script(|script| script.received(&id(1)));
    assert_eq!(outcome.expect("reported").state, JobState::Succeeded);

    // The answer was lost.
    let mut case = Case::new();
    case.offer(vec![case.signed(|_| ())]);
    case.script(|script| script.takes = vec![Response::Disconnect]);
    assert_eq!(case.poll(), Polled::Failed);
    case.offer(Vec::new());
    assert_eq!(case.poll(), Polled::Nothing);
    assert_eq!(case.phase(&id(1)), Phase::Ended);
    let (_, outcome) = case.script(|script| script.received(&id(1)));
    let message = outcome
        .and_then(|outcome| outcome.message)
        .expect("a message");
    assert!(message.contains("nothing was executed"), "{message}");
    case.offer(vec![case.signed(|_| ())]);
    assert_eq!(case.poll(), Polled::Ignored);
    assert!(case.executor.executed.is_empty());
}

#[test]
fn a_job_whose_agent_was_killed_has_failed_and_is_not_executed_again() {
    let mut case = Case::new();
    let records = case.records();
    let begin = |n| {
        let record = records.add(&id(n), JobKind::Update, JobOrigin::Server);
        let record = JobRecord {
            phase: Phase::Begun,
            ..record.expect("added")
        };
        records.put(&record).expect("stored");
        record
    };
    begin(1);
    // A restart that took place, and one that is still expected.
    for (n, boot) in [(2, "another".to_owned()), (3, clock::boot())] {
        let reboot = PendingReboot {
            boot,
            since: TimePoint::now(),
            outcome: succeeded(JobResult::default()),
        };
        let record = begin(n);
        records
            .put(&JobRecord {
                reboot: Some(reboot),
                ..record
            })
            .expect("stored");
    }
    case.offer(vec![case.signed(|_| ())]);
    assert_eq!(case.poll(), Polled::Ignored);
    let state = |case: &Case, n| {
        let (_, outcome) = case.script(|script| script.received(&id(n)));
        outcome.map(|outcome| (outcome.state, outcome.message))
    };
    let (failed, message) = state(&case, 1).expect("reported");
    assert_eq!(failed, JobState::Failed);
    assert!(message.expect("a message").starts_with("interrupted"));
    assert_eq!(state(&case, 2), Some((JobState::Succeeded, None)));
    assert_eq!(state(&case, 3), None);
    assert!(case.executor.executed.is_empty());
    assert_eq!(case.script(|script| script.n_taken), 0);
}

#[test]
fn an_outcome_is_sent_until_theserver_has_received_or_refused_it() {
    let mut case = Case::new();
    case.executor.n_lines = 0;
    case.offer(vec![case.signed(|_| ())]);
    let unavailable = || Response::Reply(503, String::new());
    case.script(|script| script.answers = vec![Response::Disconnect, unavailable(), unavailable()]);
    assert_eq!(case.poll(), Polled::Executed(JobKind::Check));
    case.offer(Vec::new());
    let due = |case: &Case| {
        let record = case.records().find(&id(1)).expect("read");
        record.expect("recorded").is_due
    };
    for is_due in [true, true, false, false] {
        assert_eq!(case.poll(), Polled::Nothing);
        assert_eq!(due(&case), is_due);
    }
    assert_eq!(case.script(|script| script.reports.len()), 4);

    for status in [404, 409] {
        let mut case = Case::new();
        case.executor.n_lines = 0;
        case.offer(vec![case.signed(|_| ())]);
        case.script(|script| script.answers = vec![Response::Reply(status, String::new())]);
        assert_eq!(case.poll(), Polled::Executed(JobKind::Check));
        assert!(!due(&case));
        case.offer(Vec::new());
        assert_eq!(case.poll(), Polled::Nothing);
        assert_eq!(case.script(|script| script.reports.len()), 1);
    }
}

#[test]
fn the_output_of_a_job_is_bounded() {
    let mut case = Case::new();
    case.executor.n_lines = 100_000;
    case.offer(vec![case.signed(|_| ())]);
    assert_eq!(case.poll(), Polled::Executed(JobKind::Check));
    let (output, outcome) = case.script(|script| script.received(&id(1)));
    assert!(output.starts_with("line 0\nline 1\n"));
    assert!(output.len() <= 256 << 10, "{}", output.len());
    assert!(output.ends_with("more output was left out]\n"));
    assert!(outcome.is_some());
}

#[test]
fn a_server_without_jobs_is_asked_once_per_pause() {
    let mut case = Case::new();
    case.script(|script| script.is_old = true);
    assert_eq!(case.poll(), Polled::Unsupported);
    let n_requests = case.server.requests().len();
    let session = Session::open(&case.web.store).expect("enrolled");
    let records = case.records();
    let mut jobs = Jobs::new(records, &mut case.executor);
    let pause = Duration::from_millis(1_100);
    jobs.pause(Some(&session), &case.run, pause, &|| false);
    assert_eq!(case.server.requests().len(), n_requests + 1);
    // A replaced program ends the pause at once.
    let hour = Duration::from_secs(3_600);
    jobs.pause(Some(&session), &case.run, hour, &|| true);
    assert_eq!(case.server.requests().len(), n_requests + 1);
}

#[test]
fn jobs_that_are_not_accepted_do_not_make_the_machine_ask_all_the_time() {
    let mut case = Case::new();
    case.offer(vec![triggered(1)]);
    let session = Session::open(&case.web.store).expect("enrolled");
    let records = case.records();
    let mut jobs = Jobs::new(records, &mut case.executor);
    let pause = Duration::from_millis(1_100);
    jobs.pause(Some(&session), &case.run, pause, &|| false);
    assert_eq!(case.server.requests().len(), 1);
}

#[test]
fn a_server_that_invents_jobs_without_end_does_not_fill_the_log() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("log");
    let settings = LogSettings {
        verbose: 0,
        file: Some(file.clone()),
        journal_stream: None,
    };
    log::start(&settings).expect("started");
    let mut case = Case::new();
    let (script, records, good) = (case.script.clone(), case.records(), case.signed(|_| ()));
    let session = Session::open(&case.web.store).expect("enrolled");
    let mut jobs = Jobs::new(records, &mut case.executor);
    let mut poll = |offers: Vec<JobOffer>| {
        script.lock().expect("free").offers = offers;
        jobs.poll(&session, &case.run, Duration::ZERO)
    };
    for n in 0..20 {
        let malformed = |m| JobOffer {
            id: format!("{n} {m} {}", "ä".repeat(300)),
            ..triggered(0)
        };
        let malformed = (0..200).map(malformed);
        let offers = malformed.chain((0..200).map(|m| triggered(1_000 * n + m)));
        assert_eq!(poll(offers.collect()), Polled::Ignored);
    }
    assert_eq!(poll(vec![good]), Polled::Executed(JobKind::Check));
    let text = fs_err::read_to_string(&file).expect("read");
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("refused"))
        .collect();
    assert_eq!(lines.len(), 101, "{text}");
    assert!(
        lines.iter().all(|line| line.chars().count() < 300),
        "{text}"
    );
}
