//! Everything that is written, in any order and by any program, is read back.

use std::collections::BTreeMap;
use std::sync::Arc;

use homestak_core::plan::{NodeLocation, NodeRecord, NodeStatus};
use homestak_engine::journal::{Entry, Journal, RunId, RunOutcome, StepError, StepEvent};
use homestak_engine::ports::{ErrorClass, NextAction, Sent};
use jiff::Timestamp;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::sample::{at, plan, record, scope, step};
use super::{JournalFixture, run};

const NAMES: [&str; 3] = ["db", "web", "ünïcödé \"x\""];
const HOSTS: [&str; 2] = ["father", "mother"];
const MANIFESTS: [&str; 3] = ["one", "two", "one"];

#[derive(Clone, Debug)]
enum Action {
    Append(usize, Box<Entry>),
    End(usize, RunOutcome),
    Forget(usize, usize, usize),
    Reopen,
}

fn happened() -> impl Strategy<Value = StepEvent> {
    let step_error =
        (".{0,20}", prop::collection::vec(".{0,9}", 0..3)).prop_map(|(message, log)| StepError {
            class: ErrorClass::Unreachable { sent: Sent::Maybe },
            hint: message.clone(),
            message,
            log,
            next: NextAction::NewPlan,
        });
    prop_oneof![
        Just(StepEvent::Intent),
        any::<bool>().prop_map(|changed| StepEvent::Done { changed }),
        step_error.clone().prop_map(StepEvent::Failed),
        Just(StepEvent::UndoIntent),
        any::<bool>().prop_map(|changed| StepEvent::Undone { changed }),
        step_error.prop_map(StepEvent::UndoFailed),
        Just(StepEvent::Settled),
    ]
}

fn records() -> impl Strategy<Value = NodeRecord> {
    let status = prop::sample::select(vec![
        NodeStatus::Creating,
        NodeStatus::Created,
        NodeStatus::Ready,
        NodeStatus::Destroying,
        NodeStatus::Destroyed,
    ]);
    let names = (
        prop::sample::select(&NAMES[..]),
        prop::sample::select(&HOSTS[..]),
    );
    (
        names,
        status,
        any::<Option<u32>>(),
        any::<bool>(),
        any::<Option<std::net::IpAddr>>(),
    )
        .prop_map(|((name, host), status, vmid, inside, address)| {
            let mut record = record(name, status);
            record.host = host.into();
            // 0 stands for none in journals of the first format.
            record.guest.vmid = vmid.filter(|id| *id != 0).map(Into::into);
            record.address = address;
            if inside {
                record.location = NodeLocation::Inside("pve".into());
                record.source = None;
            }
            record
        })
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let times = (-1_000_000_000_i64..4_000_000_000, 0..1_000_000_000);
    let entry = (0..9_usize, happened(), times, prop::option::of(records())).prop_map(
        |(number, happened, (second, nanosecond), record)| Entry {
            // Also an entry without a step.
            step: (number > 0).then(|| step(number)).flatten(),
            happened,
            at: Timestamp::new(second, nanosecond).unwrap(),
            record,
        },
    );
    let ending = prop::sample::select(vec![
        RunOutcome::Done,
        RunOutcome::Failed,
        RunOutcome::Superseded,
    ]);
    let act = prop_oneof![
        12 => (0..3_usize, entry).prop_map(|(run, entry)| Action::Append(run, Box::new(entry))),
        1 => (0..3_usize, ending).prop_map(|(run, ending)| Action::End(run, ending)),
        1 => (0..3_usize, 0..2_usize, 0..3_usize).prop_map(|(m, h, n)| Action::Forget(m, h, n)),
        1 => Just(Action::Reopen),
    ];
    prop::collection::vec(act, 0..40)
}

/// The expected content.
#[derive(Default)]
struct Model {
    entries: BTreeMap<RunId, Vec<Entry>>,
    ended: BTreeMap<RunId, RunOutcome>,
    nodes: BTreeMap<(String, String, String), NodeRecord>,
}

impl Model {
    fn append(&mut self, manifest: &str, id: RunId, entry: &Entry) {
        self.entries.entry(id).or_default().push(entry.clone());
        self.ended.remove(&id);
        if let Some(record) = &entry.record {
            let key = (
                manifest.to_owned(),
                record.host.clone(),
                record.name.clone(),
            );
            match record.status {
                NodeStatus::Destroyed => self.nodes.remove(&key),
                _ => self.nodes.insert(key, record.clone()),
            };
        }
    }

    async fn compare(&self, journal: &dyn Journal, ids: &[RunId]) {
        for id in ids {
            let run = journal.run(*id).await.unwrap().unwrap();
            let written = self.entries.get(id).cloned().unwrap_or_default();
            assert_eq!(run.entries, written);
            let ending = run.head.ended.map(|(_, ending)| ending);
            assert_eq!(ending, self.ended.get(id).copied());
        }
        for (manifest, host) in [
            ("one", "father"),
            ("one", "mother"),
            ("two", "father"),
            ("two", "mother"),
        ] {
            let expected: Vec<&NodeRecord> = self
                .nodes
                .iter()
                .filter(|((m, h, _), _)| m == manifest && h == host)
                .map(|(_, record)| record)
                .collect();
            let found = journal.records(&scope(manifest, host)).await.unwrap();
            assert_eq!(found.iter().collect::<Vec<_>>(), expected);
        }
    }
}

async fn apply_actions(fixture: &impl JournalFixture, actions: &[Action]) {
    let mut journals: [Arc<dyn Journal>; 2] = [fixture.open(), fixture.open()];
    let mut model = Model::default();
    let mut ids = Vec::new();
    // The fixture has data of earlier cases: their nodes are forgotten first.
    for manifest in MANIFESTS {
        ids.push(
            journals[0]
                .begin("apply", &plan(manifest, 2), "run", at(0))
                .await
                .unwrap(),
        );
        for (host, name) in HOSTS.iter().flat_map(|host| NAMES.map(|name| (host, name))) {
            journals[0]
                .forget(&scope(manifest, host), name)
                .await
                .unwrap();
        }
    }
    for (turn, act) in actions.iter().enumerate() {
        // Two programs alternate, also on the same run.
        let journal = &mut journals[turn / 3 % 2];
        match act {
            Action::Append(run, entry) => {
                journal.append(ids[*run], entry).await.unwrap();
                model.append(MANIFESTS[*run], ids[*run], entry);
            }
            Action::End(run, ending) => {
                journal.end(ids[*run], *ending, at(7)).await.unwrap();
                model.ended.insert(ids[*run], *ending);
            }
            Action::Forget(manifest, host, name) => {
                let (manifest, host, name) = (MANIFESTS[*manifest], HOSTS[*host], NAMES[*name]);
                let removed = journal.forget(&scope(manifest, host), name).await.unwrap();
                let key = (manifest.into(), host.into(), name.into());
                assert_eq!(removed, model.nodes.remove(&key).is_some());
            }
            Action::Reopen => *journal = fixture.open(),
        }
    }
    for journal in &journals {
        model.compare(&**journal, &ids).await;
    }
}

pub(crate) fn all_entries_are_read_back_in_order(fixture: &impl JournalFixture) {
    let config = Config {
        failure_persistence: None,
        // Each case waits for the disk about forty times.
        ..Config::with_cases(Config::default().cases / 8)
    };
    TestRunner::new(config)
        .run(&actions(), |actions| {
            run(apply_actions(fixture, &actions));
            Ok(())
        })
        .unwrap();
}
