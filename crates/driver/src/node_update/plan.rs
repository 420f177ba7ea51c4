//! Plans a staged update: asks each node what it would update. Nothing changes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use homestak_api::v1::node_job::{
    JobKind, JobOptions, JobOutcome, JobResult, JobState, UpdateScope,
};
use homestak_api::v1::node_update::{NodeUpdate, NodeUpdateEntry, NodeUpdateState};
use homestak_core::doc::spec::Updates;
use homestak_core::plan::NodeStatus;
use homestak_core::resolve::{ResolvedManifest, ResolvedNode};
use homestak_engine::journal::{Lease, Scope};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::batch::batches;
use crate::error::{DriverError, ErrorKind, count};
use crate::job::Job;
use crate::node_job::{JobObserver, JobRequest, JobRunner};
use crate::nodes::{self, RecordedNode};
use crate::runs::RunSelector;

/// How many nodes are asked at the same time.
const ASKED: usize = 16;
/// The message of a node whose packages are half installed.
const UNFINISHED: &str =
    "an earlier installation of packages is not complete; the update completes it";
/// How long a node may take to report what it would update, in seconds: it fetches package lists.
const PLAN_TIME: u64 = 600;

/// What is updated, and how.
#[derive(Clone, Debug, Default)]
pub struct UpdateRequest {
    /// Names of nodes; all nodes of the manifest if there are none.
    pub nodes: Vec<String>,
    /// Which packages, instead of those of the specs.
    pub scope: Option<UpdateScope>,
    /// Whether nodes are updated outside their windows.
    pub force: bool,
    /// Whether restarts that are needed are left out.
    pub no_reboot: bool,
    /// How many nodes are updated at the same time, instead of the number of the manifest.
    pub at_once: Option<u32>,
}

/// A node of a staged update.
pub(super) struct UpdateNode {
    /// Its record; `None` if it does not exist.
    pub(super) recorded: Option<RecordedNode>,
    pub(super) depth: usize,
    pub(super) entry: NodeUpdateEntry,
}

/// A staged update that was planned.
pub struct StagedUpdate {
    pub(super) runner: JobRunner,
    pub(super) request: UpdateRequest,
    pub(super) nodes: Vec<UpdateNode>,
    pub(super) batches: Vec<Vec<usize>>,
    pub(super) stopped: Option<String>,
    manifest: String,
    at_once: u32,
}

/// A lock on the nodes of a staged update, until it is dropped.
pub struct UpdateLock {
    scopes: BTreeSet<Scope>,
    /// None if there is nothing to lock.
    _lease: Option<Box<dyn Lease>>,
}

impl UpdateLock {
    /// Locks the manifest where its nodes are recorded: it may name no host itself.
    pub async fn take(job: &Job, request: &UpdateRequest) -> Result<Self, DriverError> {
        let recorded = recorded(job).await?;
        let meant = recorded.iter().filter(|node| request.names(node.name()));
        let meant: Vec<&RecordedNode> = meant.collect();
        let (lease, scopes) = job.lock_with(&meant).await?;
        Ok(Self {
            scopes,
            _lease: lease,
        })
    }

    /// Fails when a node is not locked, because it was created after the lock was taken.
    fn require(&self, job: &Job, node: &RecordedNode) -> Result<(), DriverError> {
        if self.scopes.contains(&job.scope_of(node)?) {
            return Ok(());
        }
        let (name, host) = (node.name(), &node.scope.host);
        let message = format!("`{name}` was created on `{host}` meanwhile; nothing was changed.");
        Err(DriverError::refused(message).hint("repeat the command"))
    }
}

impl UpdateRequest {
    /// Returns whether a node is to be updated.
    fn names(&self, name: &str) -> bool {
        self.nodes.is_empty() || self.nodes.iter().any(|one| one == name)
    }
}

/// Returns the recorded nodes of the manifest, on its host if one was chosen.
async fn recorded(job: &Job) -> Result<Vec<RecordedNode>, DriverError> {
    let which = RunSelector {
        manifest: Some(job.resolved.name.clone()),
        host: job.choice.host.clone(),
    };
    let (journal, session) = (job.driver.journal(), &job.driver.session);
    Ok(nodes::all(journal.as_ref(), session, &which).await?.list)
}

/// The progress of asking nodes what they would update.
#[derive(Clone, Copy, Debug)]
pub enum Asking<'n> {
    /// The nodes are asked.
    Begun,
    /// The node of this name has answered.
    Answered(&'n str),
}

impl StagedUpdate {
    /// Plans an update of the nodes of a manifest. Reports the progress of asking the nodes, unless all
    /// are left out. Without a lock it cannot be executed safely: a node may be replaced meanwhile.
    pub async fn plan(
        job: &Job,
        request: UpdateRequest,
        lock: Option<&UpdateLock>,
        observe: &JobObserver,
        asking: &(dyn Fn(Asking<'_>) + Sync),
    ) -> Result<Self, DriverError> {
        let resolved = &job.resolved;
        let known = || resolved.nodes.iter().map(|node| node.name.as_str());
        if let Some(name) = request
            .nodes
            .iter()
            .find(|name| !known().any(|one| one == *name))
        {
            return Err(DriverError::unknown("node", name, known()));
        }
        // What was read before the lock was taken may have changed.
        let recorded = recorded(job).await?;
        let is_meant = |node: &&ResolvedNode| request.names(node.name.as_str());
        let runner = JobRunner::new(&job.driver);
        let mut nodes = Vec::new();
        for node in resolved.nodes.iter().filter(is_meant) {
            let record = record_of(&recorded, resolved, node)?;
            if let (Some(lock), Some(record)) = (lock, record) {
                lock.require(job, record)?;
            }
            nodes.push(entry_of(job, &runner, &request, node, record).await?);
        }
        if nodes
            .iter()
            .any(|node| node.entry.state == NodeUpdateState::Planned)
        {
            asking(Asking::Begun);
        }
        // As for an update: a node that was destroyed meanwhile never reports the end of its job.
        let patient = runner.clone().with_silence(runner.boot_limit() * 2);
        ask(&patient, &request, &mut nodes, (observe, asking)).await;
        let at_once = request.at_once.unwrap_or_else(|| at_once(resolved));
        let depths = nodes.iter().enumerate();
        let planned = depths.filter(|(_, node)| node.entry.state == NodeUpdateState::Planned);
        let depths: Vec<(usize, usize)> = planned.map(|(nth, node)| (nth, node.depth)).collect();
        let batches = batches(&depths, at_once as usize);
        for (number, batch) in (1_u32..).zip(&batches) {
            for nth in batch {
                nodes[*nth].entry.batch = Some(number);
            }
        }
        Ok(Self {
            runner,
            request,
            nodes,
            batches,
            stopped: None,
            manifest: resolved.name.clone(),
            at_once,
        })
    }
}

impl StagedUpdate {
    /// Returns the output of an update whose plan is not known.
    pub fn unplanned(job: &Job, request: &UpdateRequest, dry_run: bool) -> NodeUpdate {
        let of_manifest = || at_once(&job.resolved);
        NodeUpdate {
            manifest: job.resolved.name.clone(),
            dry_run,
            at_once: request.at_once.unwrap_or_else(of_manifest),
            stopped: None,
            nodes: Vec::new(),
        }
    }

    /// Returns the plan, or what was done so far.
    pub fn output(&self, dry_run: bool) -> NodeUpdate {
        let mut nodes: Vec<&UpdateNode> = self.nodes.iter().collect();
        nodes.sort_by_key(|node| node.entry.batch.unwrap_or(u32::MAX));
        NodeUpdate {
            manifest: self.manifest.clone(),
            dry_run,
            at_once: self.at_once,
            stopped: self.stopped.clone(),
            nodes: nodes.into_iter().map(|node| node.entry.clone()).collect(),
        }
    }

    /// Returns whether no node is to be updated.
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Fails when a node could not be asked: nothing is updated without knowing all.
    pub fn require_complete(&self) -> Result<(), DriverError> {
        let is_unknown = |node: &&UpdateNode| match node.entry.state {
            NodeUpdateState::Failed | NodeUpdateState::Refused | NodeUpdateState::Unknown => true,
            NodeUpdateState::Planned
            | NodeUpdateState::UpToDate
            | NodeUpdateState::Skipped
            | NodeUpdateState::Updated
            | NodeUpdateState::Unhealthy
            | NodeUpdateState::NotStarted => false,
        };
        let unknown: Vec<&UpdateNode> = self.nodes.iter().filter(is_unknown).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let is_refused = unknown
            .iter()
            .all(|node| node.entry.state == NodeUpdateState::Refused);
        let text = count(unknown.len(), "node");
        let message = format!("{text} could not be asked what to update; nothing was changed.");
        let error = match is_refused {
            true => DriverError::refused(message),
            false => DriverError::failed(message),
        };
        Err(error.hint("correct the nodes, or name only the others"))
    }
}

/// Returns how many nodes a manifest has updated at the same time.
fn at_once(resolved: &ResolvedManifest) -> u32 {
    u32::try_from(resolved.settings.at_once.value).unwrap_or(1)
}

/// Returns the record of a node, if it has one.
fn record_of<'r>(
    recorded: &'r [RecordedNode],
    resolved: &ResolvedManifest,
    node: &ResolvedNode,
) -> Result<Option<&'r RecordedNode>, DriverError> {
    let name = node.name.as_str();
    let exists =
        |one: &&RecordedNode| one.name() == name && one.record.status != NodeStatus::Destroyed;
    let found: Vec<&RecordedNode> = recorded.iter().filter(exists).collect();
    match found.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        several => {
            let message = format!(
                "`{name}` of `{}` is on several hosts; choose one with -H.",
                resolved.name
            );
            let hosts = several.iter().map(|one| one.options());
            Err(hosts.fold(DriverError::usage(message), DriverError::hint))
        }
    }
}

/// Makes the entry of a node: planned, unless there is a reason to leave it out.
async fn entry_of(
    job: &Job,
    runner: &JobRunner,
    request: &UpdateRequest,
    node: &ResolvedNode,
    record: Option<&RecordedNode>,
) -> Result<UpdateNode, DriverError> {
    let catalog = &job.driver.session.catalog;
    let spec = node.spec.as_ref().map(|spec| spec.value.as_str());
    let written = spec.and_then(|spec| catalog.specs.get(spec)?.value.as_ref()?.run.as_ref());
    let updates = written.and_then(|run| Some(run.updates.as_ref()?.value));
    let of_spec = match updates {
        Some(Updates::Security) => UpdateScope::Security,
        Some(Updates::All) => UpdateScope::All,
        Some(Updates::None) | None => UpdateScope::None,
    };
    let window = written.and_then(|run| Some(run.window.as_ref()?.value.texts()));
    let scope = request.scope.unwrap_or(of_spec);
    let why = match (record, spec) {
        (None, _) => Some("it does not exist".to_owned()),
        (Some(record), _) if record.record.status != NodeStatus::Ready => {
            Some("it is not completely created".to_owned())
        }
        (Some(record), _) if record.traits.is_simulated => Some("it is simulated".to_owned()),
        (Some(_), None) => Some("it has no spec, and so no agent".to_owned()),
        (Some(_), Some(spec)) if scope == UpdateScope::None => Some(match request.scope {
            Some(_) => "`--updates none`".to_owned(),
            None => format!("`run.updates` of the spec `{spec}` is none"),
        }),
        (Some(_), Some(_)) => None,
    };
    let route = match (record, &why) {
        (Some(record), None) => Some(runner.route(record).await?),
        (Some(_) | None, _) => None,
    };
    Ok(UpdateNode {
        recorded: record.cloned(),
        depth: node.depth,
        entry: NodeUpdateEntry {
            node: node.name.to_string(),
            host: record.map_or_else(String::new, |record| record.scope.host.clone()),
            state: match why {
                Some(_) => NodeUpdateState::Skipped,
                None => NodeUpdateState::Planned,
            },
            message: why,
            batch: None,
            mode: record.map(|record| {
                let configured = record.record.configured.as_ref();
                configured
                    .and_then(|one| one.mode)
                    .unwrap_or(node.mode.value)
            }),
            route,
            scope,
            window: window.unwrap_or_default(),
            packages: Vec::new(),
            reboot_needed: None,
            rebooted: None,
            job: None,
        },
    })
}

/// Makes the job that updates nodes. One that does not take it within `boot_limit` is not there: the
/// others of its batch do not wait for it longer.
pub(super) fn update_job(
    request: &UpdateRequest,
    dry_run: bool,
    boot_limit: Duration,
) -> JobRequest {
    let defaults = JobRequest::new(JobKind::Update);
    JobRequest {
        options: JobOptions {
            force: request.force,
            dry_run,
            no_reboot: request.no_reboot,
            scope: request.scope,
        },
        time_limit: match dry_run {
            true => PLAN_TIME,
            false => defaults.time_limit,
        },
        expires: boot_limit.as_secs().max(1),
        ..defaults
    }
}

/// Asks the nodes what they would update, several at a time.
async fn ask(
    runner: &JobRunner,
    request: &UpdateRequest,
    nodes: &mut [UpdateNode],
    (observe, asking): (&JobObserver, &(dyn Fn(Asking<'_>) + Sync)),
) {
    let permits = Arc::new(Semaphore::new(ASKED));
    let mut asked = JoinSet::new();
    for (nth, node) in nodes.iter().enumerate() {
        let Some(recorded) = node.recorded.clone() else {
            continue;
        };
        if node.entry.state != NodeUpdateState::Planned {
            continue;
        }
        let job = update_job(request, true, runner.boot_limit());
        let (runner, observe, permits) = (runner.clone(), observe.clone(), permits.clone());
        // Cancel safety: a simulated update changes nothing.
        asked.spawn(async move {
            let _permit = permits.acquire_owned().await;
            (nth, runner.run(&recorded, &job, &observe).await)
        });
    }
    while let Some(done) = asked.join_next().await {
        // A task that panicked is logged, and the program fails at its end.
        let Ok((nth, result)) = done else { continue };
        let entry = &mut nodes[nth].entry;
        if result.is_ok() {
            asking(Asking::Answered(&entry.node));
        }
        match result {
            Ok(done) => {
                let outcome = done
                    .job
                    .outcome
                    .unwrap_or_else(|| no_outcome(done.job.state));
                entry.state = state_of(outcome.state);
                entry.packages = outcome.result.packages;
                entry.reboot_needed = outcome.result.reboot_needed;
                let restarts = entry.reboot_needed == Some(true) && !request.no_reboot;
                let unfinished = outcome.result.unfinished == Some(true);
                if entry.state == NodeUpdateState::Updated {
                    let is_current = entry.packages.is_empty() && !restarts && !unfinished;
                    entry.state = match is_current {
                        true => NodeUpdateState::UpToDate,
                        false => NodeUpdateState::Planned,
                    };
                }
                let unfinished = unfinished.then(|| UNFINISHED.to_owned());
                entry.message = outcome.message.or(unfinished);
            }
            Err(error) => {
                entry.state = match error.kind {
                    ErrorKind::Refused => NodeUpdateState::Refused,
                    ErrorKind::Failed | ErrorKind::Usage | ErrorKind::Stopped => {
                        NodeUpdateState::Failed
                    }
                };
                entry.message = Some(error.message);
            }
        }
    }
}

/// Returns the outcome for a node whose job ended in a state.
pub(super) fn state_of(state: JobState) -> NodeUpdateState {
    match state {
        JobState::Succeeded => NodeUpdateState::Updated,
        JobState::Refused => NodeUpdateState::Refused,
        JobState::Failed | JobState::Cancelled | JobState::Expired => NodeUpdateState::Failed,
        JobState::Queued | JobState::Taken | JobState::Lost => NodeUpdateState::Unknown,
    }
}

/// Makes the outcome of a job that its node did not report.
pub(super) fn no_outcome(state: JobState) -> JobOutcome {
    let message = match state {
        JobState::Expired => "the node did not take the job in time",
        JobState::Cancelled => "the job was cancelled",
        JobState::Lost => "the node took the job and did not report its end",
        JobState::Queued
        | JobState::Taken
        | JobState::Succeeded
        | JobState::Failed
        | JobState::Refused => "the node did not report how it ended",
    };
    JobOutcome {
        state,
        message: Some(message.to_owned()),
        result: JobResult::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_does_not_take_its_update_holds_the_batch_no_longer_than_a_restart_takes() {
        let request = UpdateRequest::default();
        for dry_run in [true, false] {
            let job = update_job(&request, dry_run, Duration::from_secs(90));
            assert_eq!(job.expires, 90);
            let none = update_job(&request, dry_run, Duration::ZERO);
            assert_eq!(none.expires, 1);
        }
    }
}
