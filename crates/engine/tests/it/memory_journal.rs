//! A journal in memory, for tests of the operator. Journals themselves are tested in the store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use homestak_core::plan::{NodeRecord, NodeStatus, Plan, StepKind};
use homestak_engine::journal::{
    Entry, Fence, Journal, JournalError, Lease, LeaseHolder, Run, RunFilter, RunId, RunOutcome,
    RunSummary, Scope,
};
use jiff::Timestamp;

#[derive(Clone, Default)]
pub struct MemoryJournal {
    pub runs: Arc<Mutex<Vec<Run>>>,
    /// Nodes whose records were removed, and before which run.
    pub forgotten: Arc<Mutex<Vec<(usize, String)>>>,
    /// How many entries fit on the disk; `None` for no limit.
    pub room: Arc<Mutex<Option<usize>>>,
    /// How many entries are written until the lease is lost; `None` for never.
    pub lost_after: Arc<Mutex<Option<usize>>>,
    /// The fencing token of all leases.
    pub fence: Arc<Mutex<Option<Fence>>>,
}

struct MemoryLease;
impl Lease for MemoryLease {}

impl MemoryJournal {
    fn require_lease(&self) -> Result<(), JournalError> {
        let mut left = self.lost_after.lock().unwrap();
        let Some(entries) = left.as_mut() else {
            return Ok(());
        };
        let lost = || JournalError::Lost {
            scope: Scope::new(None, "m", "pve1"),
            holder: None,
        };
        *entries = entries.checked_sub(1).ok_or_else(lost)?;
        Ok(())
    }
}

#[async_trait]
impl Journal for MemoryJournal {
    async fn lock(&self, scopes: &[Scope]) -> Result<Box<dyn Lease>, JournalError> {
        if scopes.is_empty() {
            return Err(JournalError::no_scope());
        }
        Ok(Box::new(MemoryLease))
    }

    async fn fence(&self, _: &Scope) -> Result<Option<Fence>, JournalError> {
        Ok(self.fence.lock().unwrap().clone())
    }

    async fn holder(&self, _: &Scope) -> Result<Option<LeaseHolder>, JournalError> {
        Ok(None)
    }

    async fn unlock(&self, _: &Scope, _: i64) -> Result<(), JournalError> {
        Ok(())
    }

    async fn begin(
        &self,
        verb: &str,
        plan: &Plan,
        mark: &str,
        at: Timestamp,
    ) -> Result<RunId, JournalError> {
        let mut runs = self.runs.lock().unwrap();
        let id = RunId(i64::try_from(runs.len()).unwrap() + 1);
        runs.push(Run {
            head: RunSummary {
                id,
                mark: Some(mark.to_owned()),
                site: plan.site.clone(),
                form: plan.format,
                manifest: plan.manifest.clone(),
                hosts: plan.hosts.clone(),
                verb: verb.to_owned(),
                started: at,
                ended: None,
            },
            plan: plan.clone(),
            entries: Vec::new(),
        });
        Ok(id)
    }

    async fn append(&self, run: RunId, entry: &Entry) -> Result<(), JournalError> {
        if let Some(room) = self.room.lock().unwrap().as_mut() {
            *room = room.checked_sub(1).ok_or_else(|| JournalError::Broken {
                doing: "write to the journal".to_owned(),
                detail: "the disk is full".to_owned(),
                hint: "free space".to_owned(),
            })?;
        }
        self.require_lease()?;
        let mut runs = self.runs.lock().unwrap();
        let run = runs.iter_mut().find(|known| known.head.id == run).unwrap();
        run.entries.push(entry.clone());
        Ok(())
    }

    async fn end(&self, run: RunId, ending: RunOutcome, at: Timestamp) -> Result<(), JournalError> {
        let mut runs = self.runs.lock().unwrap();
        let run = runs.iter_mut().find(|known| known.head.id == run).unwrap();
        run.head.ended = Some((at, ending));
        Ok(())
    }

    async fn list_runs(&self, filter: &RunFilter) -> Result<Vec<RunSummary>, JournalError> {
        let runs = self.runs.lock().unwrap();
        let matches = |run: &&RunSummary| {
            let RunFilter {
                site,
                manifest,
                host,
                before,
                limit: _,
            } = filter;
            site.as_ref().is_none_or(|site| run.is_of(site))
                && manifest.as_ref().is_none_or(|name| run.manifest == *name)
                && host.as_ref().is_none_or(|host| run.hosts.contains(host))
                && before.is_none_or(|before| run.id < before)
        };
        let newest_first = runs.iter().rev().map(|run| &run.head).filter(matches);
        let limit = filter.limit.unwrap_or(usize::MAX);
        Ok(newest_first.take(limit).cloned().collect())
    }

    async fn run(&self, id: RunId) -> Result<Option<Run>, JournalError> {
        let runs = self.runs.lock().unwrap();
        Ok(runs.iter().find(|run| run.head.id == id).cloned())
    }

    async fn entries_after(
        &self,
        run: RunId,
        position: i64,
    ) -> Result<Vec<(i64, Entry)>, JournalError> {
        let run = self.run(run).await?;
        let entries = run.into_iter().flat_map(|run| run.entries);
        let later = (1..).zip(entries).filter(|(at, _)| *at > position);
        Ok(later.collect())
    }

    async fn records(&self, scope: &Scope) -> Result<Vec<NodeRecord>, JournalError> {
        let runs = self.runs.lock().unwrap();
        let mut records = BTreeMap::new();
        let forgotten = self.forgotten.lock().unwrap();
        for (at, run) in runs.iter().enumerate() {
            for record in run.entries.iter().filter_map(|entry| entry.record.as_ref()) {
                let is_forgotten =
                    |(before, name): &(usize, String)| at < *before && *name == record.name;
                if record.host == scope.host && !forgotten.iter().any(is_forgotten) {
                    records.insert(record.name.clone(), record.clone());
                }
            }
        }
        let alive = |record: &NodeRecord| record.status != NodeStatus::Destroyed;
        Ok(records.into_values().filter(alive).collect())
    }

    async fn forget(&self, _: &Scope, node: &str) -> Result<bool, JournalError> {
        let before = self.runs.lock().unwrap().len();
        self.forgotten
            .lock()
            .unwrap()
            .push((before, node.to_owned()));
        Ok(true)
    }

    async fn durations(&self) -> Result<Vec<(StepKind, f64)>, JournalError> {
        Ok(Vec::new())
    }
}
