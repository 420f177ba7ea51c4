//! Several runs at once in one process, and runs that lose their lease.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use homestak_api::trust::{Fingerprint, Trust};
use homestak_core::plan::{OnError, Plan, PlanOptions, Verb};
use homestak_engine::events::{Event, EventHub, EventKind, Subject};
use homestak_engine::journal::{Fence, Journal, JournalError, RunId, RunOutcome, Scope, StepEvent};
use homestak_engine::operate::{Interrupt, Operator};
use homestak_engine::ports::{HostConnector, PortError, Provider};
use homestak_providers::pve::{ApiToken, Credential, Endpoint, Pve, PveSettings};
use homestak_sim::World;
use homestak_store::Sqlite;
use homestak_test_support::random::Random;

use crate::env::{EventLog, TOKEN, TestEnv};

/// One client for all runs. Its event hub belongs to none of them.
struct OneClient(World, Arc<Pve>);

impl OneClient {
    async fn open(env: &TestEnv) -> (Arc<dyn HostConnector>, Arc<EventLog>) {
        let address = "127.0.0.1:0".parse().unwrap();
        let handle = homestak_sim::serve(env.world.clone(), address).await;
        let handle = handle.unwrap();
        let endpoint = Endpoint {
            url: handle.url(),
            trust: Trust::Pinned(Fingerprint::parse(&handle.fingerprint).unwrap()),
        };
        let token = Credential::Token(ApiToken::parse(TOKEN).unwrap());
        let pve = Pve::new(PveSettings::new(endpoint, token), env.clock.clone()).unwrap();
        let client_events = Arc::new(EventLog::default());
        let hub = EventHub::new(client_events.clone(), env.clock.clone());
        let pve = Arc::new(pve.listening(hub));
        (Arc::new(Self(env.world.clone(), pve)), client_events)
    }
}

#[async_trait]
impl HostConnector for OneClient {
    async fn host(&self, _: &str) -> Result<Arc<dyn Provider>, PortError> {
        Ok(self.1.clone())
    }

    async fn inside(&self, _: &str, _: &str, _: IpAddr) -> Result<Arc<dyn Provider>, PortError> {
        Err(PortError::bug("open a node", &"nothing is nested here"))
    }

    fn endpoint(&self, name: &str) -> String {
        name.to_owned()
    }

    async fn ssh_answers(&self, _: &str, address: IpAddr, _: &[u16]) -> Result<bool, PortError> {
        Ok(self.0.ssh_answers(&address.to_string()))
    }
}

fn manifest(name: &str, vmid: u32) -> String {
    let node = |at: u32| {
        let id = vmid + at;
        format!("  - {{name: {name}-{at}, preset: vm-small, image: debian-12, vmid: {id}}}\n")
    };
    format!("nodes:\n{}", (0..3).map(node).collect::<String>())
}

fn scope(env: &TestEnv, plan: &Plan) -> Scope {
    Scope::new(Some(&env.site), &plan.manifest, "pve1")
}

fn subject(event: &Event) -> Option<&Subject> {
    match &event.kind {
        EventKind::StepStarted { subject, .. }
        | EventKind::Waiting { subject, .. }
        | EventKind::Doing { subject, .. }
        | EventKind::Warning { subject, .. }
        | EventKind::StepDone { subject, .. }
        | EventKind::StepFailed { subject, .. } => Some(subject),
        EventKind::RunStarted { .. } | EventKind::RollbackStarted | EventKind::RunEnded { .. } => {
            None
        }
    }
}

/// Returns the events of a run, all of which are about its own nodes.
fn events_of(events: &EventLog, run: RunId, name: &str) -> Vec<Event> {
    let all = events.0.lock().unwrap();
    let own: Vec<Event> = all
        .iter()
        .filter(|event| event.run == Some(run))
        .cloned()
        .collect();
    for subject in own.iter().filter_map(subject) {
        let is_own = match subject {
            Subject::Node(node) => node.starts_with(name),
            Subject::Image { .. } => true,
            Subject::Run => false,
        };
        assert!(is_own, "`{subject}` in the run of {name}");
    }
    own
}

/// Locks the scope of a plan and executes it in a separate task.
fn start(
    env: &TestEnv,
    operator: &Arc<Operator>,
    plan: Plan,
) -> tokio::task::JoinHandle<(RunId, RunOutcome)> {
    let (operator, scope) = (operator.clone(), scope(env, &plan));
    tokio::spawn(async move {
        let _lease = operator.journal.lock(&[scope]).await.unwrap();
        let (_ask, interrupt) = Interrupt::new();
        let ended = operator.execute("apply", &plan, interrupt).await;
        ended.unwrap()
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_runs_have_their_own_events_and_do_not_affect_each_other() {
    let mut random = Random(0x5eed);
    for round in 0..6 {
        let mut env = TestEnv::new();
        // Otherwise a task may end before the client of a busy machine asks for its state.
        let has_slow_disks = round == 0;
        if has_slow_disks {
            env.world.set_copy_speed(10_000_000);
        }
        let (connector, client_events) = OneClient::open(&env).await;
        env.connector = connector;
        env.manifest = "web";
        let web = env.plan(&manifest("web", 7000)).await;
        let mut other = env.driver_of(env.site.clone());
        other.manifest = "mail";
        let mail = other.plan(&manifest("mail", 7100)).await;
        let dir = tempfile::tempdir().unwrap();
        let journal: Arc<dyn Journal> = Arc::new(Sqlite::open(dir.path()).unwrap());
        let operator = Arc::new(Operator {
            journal: journal.clone(),
            ..env.operator()
        });
        let killed = start(&env, &operator, web.clone());
        let lives = start(&env, &operator, mail);
        let moment = 1 + usize::try_from(random.below(25)).unwrap();
        let n_of_web = || {
            let events = env.events.0.lock().unwrap();
            let about = events.iter().filter_map(subject);
            about
                .filter(|subject| subject.to_string().starts_with("web"))
                .count()
        };
        while n_of_web() < moment && !killed.is_finished() {
            tokio::time::sleep(std::time::Duration::from_micros(200)).await;
        }
        killed.abort();
        let (run, ending) = lives.await.unwrap();
        assert_eq!(ending, RunOutcome::Done);
        let first = match killed.await {
            Ok((first, _)) => first,
            Err(_) => RunId(if run.0 == 1 { 2 } else { 1 }),
        };
        let own = events_of(&env.events, run, "mail");
        assert!(
            matches!(&own[0].kind, EventKind::RunStarted { manifest, .. } if manifest == "mail")
        );
        let last = &own[own.len() - 1].kind;
        assert!(matches!(last, EventKind::RunEnded { ending, .. } if *ending == RunOutcome::Done));
        // Events of the client are emitted by the run it works for.
        let waits = |event: &&Event| matches!(&event.kind, EventKind::Waiting { what, .. } if what.contains("task"));
        assert!(!has_slow_disks || own.iter().any(|event| waits(&event)));
        events_of(&env.events, first, "web");
        assert!(
            client_events
                .0
                .lock()
                .unwrap()
                .iter()
                .all(|event| event.run.is_none())
        );
        // The other one can be resumed immediately, with the same result.
        let _lease = journal.lock(&[scope(&env, &web)]).await.unwrap();
        if let Some(begun) = journal
            .run(first)
            .await
            .unwrap()
            .filter(|run| run.head.ended.is_none())
        {
            let (_ask, interrupt) = Interrupt::new();
            let ending = operator.resume(&begun, &[], interrupt).await.unwrap();
            assert_eq!(ending, RunOutcome::Done);
        }
        let running = env.guests().into_iter().filter(|(_, running)| *running);
        let names: BTreeSet<String> = running.map(|(name, _)| name).collect();
        let mut expected = BTreeSet::new();
        for name in ["web", "mail"] {
            expected.extend((0..3).map(|at| format!("{name}-{at}")));
        }
        assert_eq!(names, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_lost_its_lease_stops_and_undoes_nothing() {
    for entries in [0, 1, 2, 5, 9] {
        let mut env = TestEnv::new();
        env.options.on_error = Some(OnError::Rollback);
        let plan = env.plan(&manifest("web", 7000)).await;
        *env.journal.lost_after.lock().unwrap() = Some(entries);
        let (_ask, interrupt) = Interrupt::new();
        let ended = env.operator().execute("apply", &plan, interrupt).await;
        assert!(matches!(ended, Err(JournalError::Lost { .. })), "{ended:?}");
        let run = env.last_run();
        assert_eq!((run.entries.len(), run.head.ended), (entries, None));
        let undone = |happened: &StepEvent| matches!(happened, StepEvent::UndoIntent);
        assert!(!run.entries.iter().any(|entry| undone(&entry.happened)));
        let events = env.events.0.lock().unwrap();
        assert!(
            !events
                .iter()
                .any(|event| event.kind == EventKind::RollbackStarted)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_with_an_older_fencing_token_changes_nothing() {
    let env = TestEnv::new();
    let held = |number: i64| {
        *env.journal.fence.lock().unwrap() = Some(Fence {
            scope: "a scope".replace(' ', "-"),
            number,
        });
    };
    let text = manifest("web", 7000);
    held(5);
    assert_eq!(env.apply(&text).await, RunOutcome::Done);
    let before = env.guests();
    held(4);
    let plan = env.plan_with(&text, &PlanOptions::new(Verb::Destroy)).await;
    assert_eq!(env.execute(&plan).await, RunOutcome::Failed);
    let run = env.last_run();
    let message = run.entries.iter().find_map(|entry| match &entry.happened {
        StepEvent::Failed(error) => Some(error.message.clone()),
        _ => None,
    });
    assert!(
        message
            .unwrap()
            .contains("its fencing number is 4, but 5 was used since")
    );
    assert_eq!(env.guests(), before);
    // The simulator keeps the number over a restart.
    let saved = String::from_utf8(env.world.save()).unwrap();
    assert!(saved.contains("\"fences\":{\"a-scope\":5}"));
    held(6);
    assert_eq!(env.destroy(&text).await, RunOutcome::Done);
    assert_eq!(env.guests(), []);
}
