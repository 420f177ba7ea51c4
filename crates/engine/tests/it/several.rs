//! Several runs at once in one process, and runs whose lease is taken away.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use homestak_api::trust::{Fingerprint, Trust};
use homestak_core::plan::{OnError, Plan, PlanOptions, Verb};
use homestak_engine::events::{Event, Hub, Subject, What};
use homestak_engine::journal::{Ending, Fence, Happened, Journal, JournalError, RunId, Scope};
use homestak_engine::operate::{Interrupt, Operator};
use homestak_engine::ports::{Places, PortError, Provider};
use homestak_providers::pve::{ApiToken, Credential, Endpoint, Pve, PveSettings};
use homestak_sim::World;
use homestak_store::Sqlite;

use crate::dice::Dice;
use crate::lab::{Ear, Lab, TOKEN};

/// One client for everyone, heard by a hub that no run has.
struct OneClient(World, Arc<Pve>);

impl OneClient {
    async fn open(lab: &Lab) -> (Arc<dyn Places>, Arc<Ear>) {
        let address = "127.0.0.1:0".parse().unwrap();
        let handle = homestak_sim::serve(lab.world.clone(), address).await;
        let handle = handle.unwrap();
        let endpoint = Endpoint {
            url: handle.url(),
            trust: Trust::Pinned(Fingerprint::parse(&handle.fingerprint).unwrap()),
        };
        let token = Credential::Token(ApiToken::parse(TOKEN).unwrap());
        let pve = Pve::new(PveSettings::new(endpoint, token), lab.clock.clone()).unwrap();
        let nobody = Arc::new(Ear::default());
        let hub = Hub::new(nobody.clone(), lab.clock.clone());
        let pve = Arc::new(pve.listening(hub));
        (Arc::new(Self(lab.world.clone(), pve)), nobody)
    }
}

#[async_trait]
impl Places for OneClient {
    async fn host(&self, _: &str) -> Result<Arc<dyn Provider>, PortError> {
        Ok(self.1.clone())
    }

    async fn inside(&self, _: &str, _: &str, _: IpAddr) -> Result<Arc<dyn Provider>, PortError> {
        Err(PortError::bug("open a node", &"nothing is nested here"))
    }

    fn door(&self, name: &str) -> String {
        name.to_owned()
    }

    async fn answers(&self, _: &str, address: IpAddr, _: &[u16]) -> Result<bool, PortError> {
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

fn scope(lab: &Lab, plan: &Plan) -> Scope {
    Scope::new(Some(&lab.site), &plan.manifest, "pve1")
}

fn subject(event: &Event) -> Option<&Subject> {
    match &event.what {
        What::StepStarted { subject, .. }
        | What::Waiting { subject, .. }
        | What::Doing { subject, .. }
        | What::Warning { subject, .. }
        | What::StepDone { subject, .. }
        | What::StepFailed { subject, .. } => Some(subject),
        What::RunStarted { .. } | What::RollbackStarted | What::RunEnded { .. } => None,
    }
}

/// Returns the events of a run, all of which are about its own nodes.
fn events_of(ear: &Ear, run: RunId, name: &str) -> Vec<Event> {
    let all = ear.0.lock().unwrap();
    let own: Vec<Event> = all
        .iter()
        .filter(|event| event.run == run)
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

/// Holds a plan and carries it out in a task of its own.
fn start(
    lab: &Lab,
    operator: &Arc<Operator>,
    plan: Plan,
) -> tokio::task::JoinHandle<(RunId, Ending)> {
    let (operator, scope) = (operator.clone(), scope(lab, &plan));
    tokio::spawn(async move {
        let _lease = operator.journal.hold(&[scope]).await.unwrap();
        let (_ask, interrupt) = Interrupt::new();
        let ended = operator.carry_out("apply", &plan, interrupt).await;
        ended.unwrap()
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_runs_at_once_each_has_its_events_and_one_that_is_killed_leaves_the_other() {
    let mut dice = Dice(0x5eed);
    for _ in 0..6 {
        let mut lab = Lab::new();
        let (places, nobody) = OneClient::open(&lab).await;
        lab.places = places;
        lab.manifest = "web";
        let web = lab.plan(&manifest("web", 7000)).await;
        let mut other = lab.driver_of(lab.site.clone());
        other.manifest = "mail";
        let mail = other.plan(&manifest("mail", 7100)).await;
        let dir = tempfile::tempdir().unwrap();
        let journal: Arc<dyn Journal> = Arc::new(Sqlite::open(dir.path()).unwrap());
        let operator = Arc::new(Operator {
            journal: journal.clone(),
            ..lab.operator()
        });
        let killed = start(&lab, &operator, web.clone());
        let lives = start(&lab, &operator, mail);
        let moment = 1 + usize::try_from(dice.roll(25)).unwrap();
        let n_of_web = || {
            let events = lab.ear.0.lock().unwrap();
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
        assert_eq!(ending, Ending::Done);
        let first = match killed.await {
            Ok((first, _)) => first,
            Err(_) => RunId(if run.0 == 1 { 2 } else { 1 }),
        };
        let own = events_of(&lab.ear, run, "mail");
        assert!(matches!(&own[0].what, What::RunStarted { manifest, .. } if manifest == "mail"));
        let last = &own[own.len() - 1].what;
        assert!(matches!(last, What::RunEnded { ending, .. } if *ending == Ending::Done));
        // What the client says while it works is told by the run that it works for.
        let waits = |event: &&Event| matches!(&event.what, What::Waiting { what, .. } if what.contains("task"));
        assert!(own.iter().any(|event| waits(&event)));
        events_of(&lab.ear, first, "web");
        assert!(
            nobody
                .0
                .lock()
                .unwrap()
                .iter()
                .all(|event| event.run == RunId(0))
        );
        // The other can be taken up at once, and comes to the same end.
        let _lease = journal.hold(&[scope(&lab, &web)]).await.unwrap();
        if let Some(begun) = journal
            .run(first)
            .await
            .unwrap()
            .filter(|run| run.head.ended.is_none())
        {
            let (_ask, interrupt) = Interrupt::new();
            let ending = operator.resume(&begun, &[], interrupt).await.unwrap();
            assert_eq!(ending, Ending::Done);
        }
        let running = lab.guests().into_iter().filter(|(_, running)| *running);
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
        let mut lab = Lab::new();
        lab.options.on_error = Some(OnError::Rollback);
        let plan = lab.plan(&manifest("web", 7000)).await;
        *lab.journal.lost_after.lock().unwrap() = Some(entries);
        let (_ask, interrupt) = Interrupt::new();
        let ended = lab.operator().carry_out("apply", &plan, interrupt).await;
        assert!(matches!(ended, Err(JournalError::Lost { .. })), "{ended:?}");
        let run = lab.last_run();
        assert_eq!((run.entries.len(), run.head.ended), (entries, None));
        let undone = |happened: &Happened| matches!(happened, Happened::UndoIntent);
        assert!(!run.entries.iter().any(|entry| undone(&entry.happened)));
        let events = lab.ear.0.lock().unwrap();
        assert!(
            !events
                .iter()
                .any(|event| event.what == What::RollbackStarted)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_with_an_older_number_changes_nothing_on_the_simulator() {
    let lab = Lab::new();
    let held = |number: i64| {
        *lab.journal.fence.lock().unwrap() = Some(Fence {
            scope: "a scope".replace(' ', "-"),
            number,
        });
    };
    let text = manifest("web", 7000);
    held(5);
    assert_eq!(lab.apply(&text).await, Ending::Done);
    let before = lab.guests();
    held(4);
    let plan = lab.plan_with(&text, &PlanOptions::new(Verb::Destroy)).await;
    assert_eq!(lab.carry_out(&plan).await, Ending::Failed);
    let run = lab.last_run();
    let said = run.entries.iter().find_map(|entry| match &entry.happened {
        Happened::Failed(trouble) => Some(trouble.message.clone()),
        _ => None,
    });
    assert!(
        said.unwrap()
            .contains("its number is 4, and 5 was used since")
    );
    assert_eq!(lab.guests(), before);
    // A restart of the simulator forgets no number.
    let saved = String::from_utf8(lab.world.save()).unwrap();
    assert!(saved.contains("\"fences\":{\"a-scope\":5}"));
    held(6);
    assert_eq!(lab.destroy(&text).await, Ending::Done);
    assert_eq!(lab.guests(), []);
}
