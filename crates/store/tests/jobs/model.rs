//! Random changes of jobs, compared with a simple model after each.

use std::collections::{BTreeMap, BTreeSet};

use homestak_api::v1::node_job::{JobKind, JobState};
use homestak_store::registry::{
    AddOutcome, CancelOutcome, JobEntry, REPORT_PATIENCE, Registry, TRIGGER_TIME_LIMIT,
    TakeOutcome, WriteOutcome,
};
use proptest::prelude::*;

use crate::{Fixture, MANY, NODES, end, job, outcome, output};

#[derive(Clone, Debug)]
enum Action {
    Add(usize, usize, i64),
    Trigger(usize, i64),
    Take(usize, usize),
    Cancel(usize),
    CancelAll(usize),
    /// Sends text from some bytes before what was sent.
    Output(usize, usize, usize, String),
    End(usize, usize, JobState),
    Advance(i64),
    Prune(usize, usize),
    Reopen,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let (node, id) = (0..NODES.len(), 0_usize..8);
    let states = [JobState::Succeeded, JobState::Failed, JobState::Refused];
    let state = proptest::sample::select(states.to_vec());
    let action = prop_oneof![
        4 => (id.clone(), node.clone(), -5_i64..60).prop_map(|(i, n, t)| Action::Add(i, n, t)),
        1 => (node.clone(), 1_i64..60).prop_map(|(n, t)| Action::Trigger(n, t)),
        4 => (id.clone(), node.clone()).prop_map(|(i, n)| Action::Take(i, n)),
        1 => id.clone().prop_map(Action::Cancel),
        1 => node.clone().prop_map(Action::CancelAll),
        3 => (id.clone(), node.clone(), 0_usize..4, "[a-zé]{0,6}")
            .prop_map(|(i, n, back, text)| Action::Output(i, n, back, text)),
        2 => (id, node.clone(), state).prop_map(|(i, n, s)| Action::End(i, n, s)),
        2 => (1_i64..80).prop_map(Action::Advance),
        1 => (node, 1_usize..4).prop_map(|(n, keep)| Action::Prune(n, keep)),
        1 => Just(Action::Reopen),
    ];
    proptest::collection::vec(action, 1..60)
}

/// A job as it should be.
#[derive(Clone)]
struct Expected {
    uuid: &'static str,
    entry: JobEntry,
    sent: String,
}

/// What the registry should have: jobs in the order of their addition.
#[derive(Default)]
struct Model {
    now: i64,
    jobs: Vec<Expected>,
    /// Ids that were deleted, until they expire.
    deleted: BTreeMap<String, i64>,
}

impl Model {
    fn of(&mut self, id: &str) -> Option<&mut Expected> {
        self.jobs.iter_mut().find(|job| job.entry.id == id)
    }

    fn state(&self, job: &Expected) -> JobState {
        let entry = &job.entry;
        if let Some(outcome) = &entry.outcome {
            return outcome.state;
        }
        if entry.cancelled.is_some() {
            return match entry.taken {
                Some(_) => JobState::Lost,
                None => JobState::Cancelled,
            };
        }
        if let Some(taken) = entry.taken {
            let silent = entry.reported.unwrap_or(0).max(taken + entry.time_limit);
            return match self.now > silent + REPORT_PATIENCE {
                true => JobState::Lost,
                false => JobState::Taken,
            };
        }
        match self.now < entry.expires {
            true => JobState::Queued,
            false => JobState::Expired,
        }
    }

    fn is(&self, id: &str, uuid: &str, state: JobState) -> bool {
        let mut jobs = self.jobs.iter();
        jobs.any(|job| job.entry.id == id && job.uuid == uuid && self.state(job) == state)
    }

    fn apply(&mut self, registry: &Registry, action: &Action) {
        let now = self.now;
        match action {
            Action::Add(nth, at, lifetime) => {
                let (id, uuid) = (format!("{nth:032}"), NODES[*at]);
                let entry = job(&id, uuid, (now, now + lifetime));
                let found = registry.add_job(&entry, now, MANY).unwrap();
                let is_deleted = self.deleted.contains_key(&id);
                match self.of(&id) {
                    Some(known) if known.uuid == uuid => {
                        assert!(matches!(found, AddOutcome::Known(_)));
                    }
                    Some(_) => assert_eq!(found, AddOutcome::Used),
                    None if is_deleted => assert_eq!(found, AddOutcome::Used),
                    None if *lifetime <= 0 => assert_eq!(found, AddOutcome::Expired),
                    None => {
                        assert_eq!(found, AddOutcome::Added(entry.clone()));
                        self.push(uuid, entry);
                    }
                }
            }
            Action::Trigger(at, lifetime) => {
                let uuid = NODES[*at];
                let expires = now + lifetime;
                let found = registry.add_trigger_job(uuid, "git", now, expires);
                let found = found.unwrap();
                let is_queued = self.jobs.iter().any(|job| {
                    let is_trigger = job.uuid == uuid && job.entry.statement.is_none();
                    is_trigger && self.state(job) == JobState::Queued
                });
                assert_eq!(found.is_none(), is_queued);
                if let Some(entry) = found {
                    assert_eq!(entry.id.len(), 32);
                    assert_eq!(entry.kind, JobKind::Converge);
                    assert_eq!(entry.time_limit, TRIGGER_TIME_LIMIT);
                    self.push(uuid, entry);
                }
            }
            Action::Take(nth, at) => {
                let (id, uuid) = (format!("{nth:032}"), NODES[*at]);
                let can = self.is(&id, uuid, JobState::Queued);
                let found = registry.take_job(&id, uuid, now).unwrap();
                assert_eq!(matches!(found, TakeOutcome::Taken(_)), can, "{found:?}");
                if can {
                    self.of(&id).unwrap().entry.taken = Some(now);
                }
            }
            Action::Cancel(nth) => {
                let id = format!("{nth:032}");
                let can = NODES
                    .iter()
                    .any(|uuid| self.is(&id, uuid, JobState::Queued));
                let was = NODES
                    .iter()
                    .any(|uuid| self.is(&id, uuid, JobState::Cancelled));
                let found = registry.cancel_job(&id, now).unwrap();
                assert_eq!(matches!(found, CancelOutcome::Cancelled(_)), can || was);
                if can {
                    self.of(&id).unwrap().entry.cancelled = Some(now);
                }
            }
            Action::CancelAll(at) => {
                let of_node = |job: &&usize| {
                    let job = &self.jobs[**job];
                    job.uuid == NODES[*at] && self.state(job) == JobState::Queued
                };
                let all: Vec<usize> = (0..self.jobs.len()).collect();
                let all: Vec<usize> = all.iter().filter(of_node).copied().collect();
                let cancelled = registry.cancel_jobs_of(NODES[*at], now);
                assert_eq!(cancelled.unwrap(), all.len());
                for nth in all {
                    self.jobs[nth].entry.cancelled = Some(now);
                }
                for job in &mut self.jobs {
                    let entry = &mut job.entry;
                    let is_open = entry.outcome.is_none() && entry.cancelled.is_none();
                    if job.uuid == NODES[*at] && entry.taken.is_some() && is_open {
                        entry.cancelled = Some(now);
                    }
                }
            }
            Action::Output(nth, at, back, text) => {
                let (id, uuid) = (format!("{nth:032}"), NODES[*at]);
                let can = self.is(&id, uuid, JobState::Taken) || self.is(&id, uuid, JobState::Lost);
                let sent = self.of(&id).map(|job| job.sent.clone()).unwrap_or_default();
                let from = (0..=sent.len().saturating_sub(*back))
                    .rev()
                    .find(|at| sent.is_char_boundary(*at));
                let from = from.unwrap_or(0);
                // What was sent before is the same when it is sent again.
                let text = format!("{}{text}", &sent[from..]);
                let found = registry.report_job(&id, uuid, now, &output(from, &text));
                assert_eq!(found.unwrap() == WriteOutcome::Recorded, can);
                if can {
                    let job = self.of(&id).unwrap();
                    job.sent = format!("{}{text}", &sent[..from]);
                    (job.entry.reported, job.entry.cancelled) = (Some(now), None);
                }
            }
            Action::End(nth, at, state) => {
                let (id, uuid) = (format!("{nth:032}"), NODES[*at]);
                let can = self.is(&id, uuid, JobState::Taken) || self.is(&id, uuid, JobState::Lost);
                let found = registry
                    .report_job(&id, uuid, now, &end(0, *state))
                    .unwrap();
                let was = self.of(&id).filter(|job| job.uuid == uuid);
                let was = was.and_then(|job| job.entry.outcome.clone());
                match was {
                    Some(was) if was.state == *state => assert_eq!(found, WriteOutcome::Repeated),
                    Some(_) => assert_eq!(found, WriteOutcome::AfterEnd),
                    None => assert_eq!(found == WriteOutcome::Ended, can, "{found:?}"),
                }
                if can {
                    let entry = &mut self.of(&id).unwrap().entry;
                    entry.outcome = Some(outcome(*state));
                    (entry.ended, entry.reported) = (Some(now), Some(now));
                    entry.cancelled = None;
                }
            }
            Action::Advance(seconds) => self.now += seconds,
            Action::Prune(at, keep) => {
                registry
                    .prune_jobs(NODES[*at], now, u32::try_from(*keep).unwrap())
                    .unwrap();
                let of_node = (0..self.jobs.len()).rev();
                let of_node = of_node.filter(|nth| self.jobs[*nth].uuid == NODES[*at]);
                let old: BTreeSet<usize> = of_node.skip(*keep).collect();
                let (mut kept, mut deleted) = (Vec::new(), 0);
                for (nth, job) in self.jobs.iter().enumerate() {
                    let state = self.state(job);
                    match old.contains(&nth) && state.is_ended() {
                        true => {
                            deleted += 1;
                            if job.entry.expires > now {
                                let id = job.entry.id.clone();
                                self.deleted.insert(id, job.entry.expires);
                            }
                        }
                        false => kept.push(job.clone()),
                    }
                }
                if deleted > 0 {
                    self.deleted.retain(|_, expires| *expires > now);
                }
                self.jobs = kept;
            }
            Action::Reopen => {}
        }
    }

    fn push(&mut self, uuid: &'static str, entry: JobEntry) {
        self.jobs.push(Expected {
            uuid,
            entry,
            sent: String::new(),
        });
    }

    fn compare(&self, registry: &Registry) {
        for uuid in NODES {
            let of_node = || self.jobs.iter().filter(|job| job.uuid == uuid);
            let queued = of_node().filter(|job| self.state(job) == JobState::Queued);
            let queued: Vec<JobEntry> = queued.map(|job| job.entry.clone()).collect();
            assert_eq!(registry.queued_jobs(uuid, self.now, MANY).unwrap(), queued);
            let found = registry.jobs(Some(uuid), MANY).unwrap();
            let found: Vec<String> = found.into_iter().map(|job| job.id).collect();
            let expected: Vec<String> = of_node().rev().map(|job| job.entry.id.clone()).collect();
            assert_eq!(found, expected);
        }
        for job in &self.jobs {
            let (entry, output) = registry.job(&job.entry.id, 0).unwrap().unwrap();
            assert_eq!(entry, job.entry);
            assert_eq!(entry.state(self.now), self.state(job));
            assert_eq!(output.text, job.sent);
            assert_eq!(output.next, job.sent.len() as u64);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn jobs_match_a_simple_model_after_every_action(actions in actions()) {
        let mut fixture = Fixture::new();
        let mut model = Model::default();
        for action in &actions {
            if let Action::Reopen = action {
                let old = std::mem::replace(
                    &mut fixture.registry,
                    Registry::open(&fixture.path).unwrap(),
                );
                drop(old);
            }
            model.apply(&fixture.registry, action);
            model.compare(&fixture.registry);
        }
    }
}
