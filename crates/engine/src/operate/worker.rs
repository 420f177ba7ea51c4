//! Executes one step, from its intent to its result.
//!
//! The intent is recorded before the step acts, and the result before its event is emitted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use homestak_api::runtime::{InterruptibleClock, SharedClock, stoppable};
use homestak_core::doc::scalar::SiteId;
use homestak_core::doc::timeouts::Limit;
use homestak_core::plan::{
    Action, AppliedSpec, NodeLocation, NodePlan, NodeRecord, NodeStatus, Plan, Records, Step,
    StepKind,
};
use tokio::sync::OnceCell;

use super::interrupt::Interrupt;
use super::limits::Limits;
use super::replay::StepState;
use super::retry::with_retries;
use super::run::RunExecution;
use super::run_context::RunContext;
use super::schedule::Direction;
use super::{Operator, StepPoint, StepPointObserver};
use crate::context::{StepContext, with_context};
use crate::events::{EventKind, RunEvents};
use crate::journal::{Entry, Fence, Journal, JournalError, RunId, Scope, StepError, StepEvent};
use crate::ports::{Configurer, ErrorClass, GuestRef, PortError, SeedSource};
use crate::steps::{self, StepTask, planned, subject};

/// Executes the steps of a run in one direction. Cheap to clone.
#[derive(Clone)]
pub(super) struct Worker(Arc<WorkerInner>);

/// The recorded result of a step.
pub(super) struct StepResult {
    pub(super) state: StepState,
    pub(super) changed: bool,
}

struct WorkerInner {
    run: RunId,
    mark: String,
    direction: Direction,
    plan: Arc<Plan>,
    context: Arc<RunContext>,
    journal: Arc<dyn Journal>,
    seeds: Arc<dyn SeedSource>,
    configurer: Arc<dyn Configurer>,
    hub: Arc<RunEvents>,
    clock: SharedClock,
    limits: Limits,
    point_observer: Option<Arc<dyn StepPointObserver>>,
    /// The index of each node in the plan.
    planned: BTreeMap<Key, usize>,
    /// The records as they were before the first guest was created or destroyed.
    known: OnceCell<RecordIndex>,
    interrupt: Interrupt,
    /// The fence of the lock on each host.
    fences: Arc<BTreeMap<String, Fence>>,
}

/// Host and recorded name of a node.
type Key = (String, String);

/// Records, and which nodes run inside which.
#[derive(Default)]
struct RecordIndex {
    records: Records,
    /// The nodes that run on each node.
    inside: BTreeMap<Key, Vec<Key>>,
}

impl Worker {
    pub(super) fn new(
        operator: &Operator,
        execution: &RunExecution,
        direction: Direction,
        interrupt: Interrupt,
    ) -> Self {
        let overrides = operator.limits.timeouts;
        Self(Arc::new(WorkerInner {
            run: execution.run,
            mark: execution.mark.clone(),
            direction,
            plan: execution.plan.clone(),
            context: execution.context.clone(),
            journal: operator.journal.clone(),
            seeds: operator.seeds.clone(),
            configurer: operator.configurer.clone(),
            hub: execution.hub.clone(),
            clock: operator.clock.clone(),
            limits: Limits {
                timeouts: execution.plan.timeouts.with(&overrides),
                ..operator.limits
            },
            point_observer: operator.point_observer.clone(),
            planned: execution
                .plan
                .nodes
                .iter()
                .enumerate()
                .map(|(index, node)| ((node.host.clone(), node.record_name().to_owned()), index))
                .collect(),
            known: OnceCell::new(),
            interrupt,
            fences: execution.fences.clone(),
        }))
    }

    /// Executes or undoes a step.
    pub(super) async fn work(
        &self,
        index: usize,
        before: (StepState, Option<bool>),
    ) -> Result<StepResult, JournalError> {
        self.0.work(index, before).await
    }

    /// Records that a step panicked. It counts as failed, because it may have acted; undoing it
    /// inspects the guest.
    pub(super) async fn panicked(
        &self,
        index: usize,
        message: &str,
    ) -> Result<StepResult, JournalError> {
        let step = &self.0.plan.steps[index];
        let doing = format!("{} `{}`", step.kind.name(), subject(&self.0.plan, step));
        let error = PortError {
            hint: "this is a bug of homestak; please report it".into(),
            ..PortError::bug(&doing, &message)
        };
        self.0.record(index, &Err(error), None, 0.0).await
    }
}

impl WorkerInner {
    async fn work(
        &self,
        index: usize,
        (before, changed): (StepState, Option<bool>),
    ) -> Result<StepResult, JournalError> {
        let earlier = self.earlier(index).await?;
        self.begin(index).await?;
        let task = StepTask {
            plan: self.plan.clone(),
            step: self.plan.steps[index].clone(),
            context: self.context.clone(),
            seeds: self.seeds.clone(),
            configurer: self.configurer.clone(),
            clock: InterruptibleClock::shared(self.clock.clone()),
            hub: self.hub.clone(),
            limits: self.limits,
            before,
            mark: self.mark.clone(),
            changed,
            began: Arc::default(),
        };
        let begun = self.clock.now();
        let context = StepContext::new(&self.hub, task.subject(), self.fence(index));
        let work = with_context(context, with_retries(&task, self.direction));
        let is_monitored =
            self.direction == Direction::Forward && task.step.kind == StepKind::Configure;
        let mut interrupt = self.interrupt.clone();
        let result = tokio::select! {
            biased;
            // Cancel safety: the dropped future only monitors a node that continues on its own.
            result = stoppable(self.interrupt.flag(), work) => result,
            // Cancel safety: only waits for a flag.
            () = interrupt.requested(), if is_monitored => {
                let subject = task.subject();
                let pulls = task.node().is_ok_and(NodePlan::pulls);
                let text = self.unmonitored_text(pulls, task.began.load(Ordering::Relaxed));
                self.hub.emit(EventKind::Warning { subject, text });
                None
            }
        };
        // Before the result is recorded: if this is interrupted, the step has no result, so that it is
        // repeated and deletes what is left.
        let result = match result {
            Some(Ok(outcome)) => {
                let forgotten =
                    stoppable(self.interrupt.flag(), self.forget(index, &outcome)).await;
                forgotten.transpose()?.map(|done| done.map(|()| outcome))
            }
            other => other,
        };
        let Some(result) = result else {
            // The step was interrupted while it waited. It has an intent without a result, so that
            // `resume` inspects what it did.
            let state = match self.direction {
                Direction::Forward => StepState::Begun,
                Direction::Back => StepState::Undoing,
            };
            return Ok(StepResult {
                state,
                changed: false,
            });
        };
        let seconds = self.clock.now().duration_since(begun).as_secs_f64();
        self.point(StepPoint::AfterAct);
        let ended = self.record(index, &result, earlier, seconds).await?;
        self.point(StepPoint::AfterResult);
        Ok(ended)
    }

    /// Returns the message for a node that is no longer monitored.
    fn unmonitored_text(&self, pulls: bool, began: bool) -> String {
        if pulls {
            let text = match began {
                true => "the node continues on its own, and reports to the server",
                false => "the node has not contacted the server since this run started",
            };
            return format!("no longer monitored: {text}");
        }
        if !began {
            return "no longer monitored: the node has not reported that it started".to_owned();
        }
        let seconds = self.limits.timeouts.of(Limit::Confirm).as_secs();
        format!(
            "no longer monitored: the node continues on its own; changes that could disconnect it are \
             reverted after {seconds} s, unless `homestak manifest resume` reaches it before"
        )
    }

    /// Returns the fence of the lock on the host of a step.
    fn fence(&self, index: usize) -> Option<Fence> {
        let step = &self.plan.steps[index];
        let node = step.node.and_then(|node| self.plan.nodes.get(node));
        let image = step.image.and_then(|image| self.plan.images.get(image));
        let host = node.map(|node| &node.host);
        let host = host.or_else(|| image.map(|image| &image.site_host))?;
        self.fences.get(host).cloned()
    }

    /// Reports that a point was reached, in tests.
    fn point(&self, point: StepPoint) {
        if let Some(point_observer) = &self.point_observer {
            point_observer.reached(point);
        }
    }

    async fn append(
        &self,
        index: usize,
        happened: StepEvent,
        record: Option<NodeRecord>,
    ) -> Result<(), JournalError> {
        let entry = Entry {
            step: Some(self.plan.steps[index].id.clone()),
            happened,
            at: self.clock.now(),
            record,
        };
        self.journal.append(self.run, &entry).await
    }

    /// Returns the earlier record of the guest that a step creates, if that guest existed before. It is
    /// valid again if the step is refused.
    async fn earlier(&self, index: usize) -> Result<Option<NodeRecord>, JournalError> {
        let step = &self.plan.steps[index];
        let node = step.node.and_then(|node| self.plan.nodes.get(node));
        let created = (self.direction, step.kind) == (Direction::Forward, StepKind::Create);
        // Guests in a node that is replaced are deleted with it.
        let is_destroyed = |node: &&NodePlan| match &node.location {
            NodeLocation::Inside(parent) => {
                let parent = self.plan.node(parent);
                parent.is_some_and(|parent| parent.action == Action::Replace)
            }
            NodeLocation::Host(_) => false,
        };
        let Some(node) = node.filter(|node| created && !is_destroyed(node)) else {
            return Ok(None);
        };
        // Read once, before any record is replaced.
        let known = self.known.get_or_try_init(|| self.read_records()).await?;
        let record = known.records.of(&node.name, &node.host);
        let is_of_guest = |record: &&NodeRecord| {
            let planned = planned(node).is_some_and(|guest| guest.uuid == record.guest.uuid);
            planned && record.guest.vmid.is_some()
        };
        Ok(record.filter(is_of_guest).cloned())
    }

    /// Reads the records of the manifest on all hosts.
    async fn read_records(&self) -> Result<RecordIndex, JournalError> {
        let mut known = RecordIndex::default();
        for host in &self.plan.hosts {
            let scope = Scope {
                site: self.plan.site.clone(),
                manifest: self.plan.manifest.clone(),
                host: host.clone(),
            };
            for record in self.journal.records(&scope).await? {
                let key = (host.clone(), record.name.clone());
                if let NodeLocation::Inside(parent) = &record.location {
                    let parent = (host.clone(), parent.clone());
                    known.inside.entry(parent).or_default().push(key.clone());
                }
                known.records.insert(record);
            }
        }
        Ok(known)
    }

    /// Records the intent.
    async fn begin(&self, index: usize) -> Result<(), JournalError> {
        let step = &self.plan.steps[index];
        self.point(StepPoint::BeforeIntent);
        let happened = match self.direction {
            Direction::Forward => StepEvent::Intent,
            Direction::Back => StepEvent::UndoIntent,
        };
        let record = match (self.direction, step.kind) {
            (Direction::Forward, StepKind::Create) => self.record_of(index, NodeStatus::Creating),
            (Direction::Forward, StepKind::Destroy) => {
                self.record_of(index, NodeStatus::Destroying)
            }
            // Whether undoing a create deletes the guest is decided when it is inspected.
            _ => None,
        };
        self.append(index, happened, record).await?;
        self.point(StepPoint::AfterIntent);
        self.hub.emit(EventKind::StepStarted {
            subject: subject(&self.plan, step),
            step: step.kind,
            undo: self.direction == Direction::Back,
        });
        Ok(())
    }

    /// Records the result of a step.
    async fn record(
        &self,
        index: usize,
        result: &Result<steps::StepOutcome, PortError>,
        earlier: Option<NodeRecord>,
        seconds: f64,
    ) -> Result<StepResult, JournalError> {
        let step = &self.plan.steps[index];
        let undo = self.direction == Direction::Back;
        let node = step.node.and_then(|node| self.plan.nodes.get(node));
        let subject = subject(&self.plan, step);
        let (happened, state, event) = match result {
            Ok(outcome) => {
                if let Some(node) = node {
                    let context = &self.context;
                    context.update(&node.name, outcome.guest.as_ref(), outcome.address);
                }
                let changed = outcome.changed;
                let guest = node.and_then(|node| self.context.guest(&node.name));
                let event = EventKind::StepDone {
                    step: step.kind,
                    undo,
                    changed,
                    kept: outcome.kept,
                    seconds,
                    guest_id: guest.and_then(|guest| guest.vmid),
                    address: node.and_then(|node| self.context.address(&node.name)),
                    subject,
                };
                if undo {
                    (StepEvent::Undone { changed }, StepState::Undone, event)
                } else {
                    (StepEvent::Done { changed }, StepState::Done, event)
                }
            }
            Err(error) => {
                let error = StepError::from(error);
                let event = EventKind::StepFailed {
                    step: step.kind,
                    undo,
                    error: error.clone(),
                    seconds,
                    subject,
                };
                if undo {
                    let stuck = StepState::Stuck(error.clone());
                    (StepEvent::UndoFailed(error), stuck, event)
                } else {
                    let failed = StepState::Failed(error.clone());
                    (StepEvent::Failed(error), failed, event)
                }
            }
        };
        let outcome = result.as_ref().ok();
        let status = outcome.and_then(|outcome| self.status_after(index, outcome));
        let record = match result {
            Ok(_) => status.and_then(|status| self.record_of(index, status)),
            // The node matches its spec except for the refused changes.
            Err(error) if error.class == ErrorClass::Partly && !undo => {
                self.record_of(index, self.status_when_configured(index))
            }
            // A refused create has created nothing, so that the earlier record is still valid.
            Err(error) => earlier.filter(|_| error.class == ErrorClass::Refused),
        };
        self.append(index, happened.clone(), record).await?;
        if status == Some(NodeStatus::Destroyed) {
            for record in self.records_inside(index).await? {
                self.append(index, happened.clone(), Some(record)).await?;
            }
        }
        if outcome.is_some_and(|outcome| outcome.kept) {
            self.hub.emit(EventKind::Warning {
                subject: steps::subject(&self.plan, step),
                text: "its guest is kept: it is not tagged with this run".to_owned(),
            });
        }
        match result {
            Ok(outcome) => tracing::info!(seconds, changed = outcome.changed, "step finished"),
            Err(error) => tracing::warn!(seconds, class = ?error.class, %error, "step failed"),
        }
        self.hub.emit(event);
        Ok(StepResult {
            state,
            changed: outcome.is_some_and(|outcome| outcome.changed),
        })
    }

    /// Returns the status of a node after a step.
    fn status_after(&self, index: usize, outcome: &steps::StepOutcome) -> Option<NodeStatus> {
        let step = &self.plan.steps[index];
        let node = step.node.and_then(|node| self.plan.nodes.get(node));
        match (self.direction, step.kind) {
            (Direction::Back, StepKind::Create) if outcome.kept => None,
            (Direction::Forward, StepKind::Reidentify) => {
                let known = node.and_then(|node| node.reidentified.as_ref());
                known.map(|known| known.record.status)
            }
            (Direction::Forward, StepKind::Create) => Some(NodeStatus::Created),
            (Direction::Forward, StepKind::Ready | StepKind::Discard | StepKind::Configure) => {
                Some(self.status_when_configured(index))
            }
            (Direction::Forward, StepKind::Stop)
                if node.is_some_and(|node| node.wanted.is_some()) =>
            {
                Some(NodeStatus::Created)
            }
            (Direction::Back, StepKind::Configure) if outcome.changed => Some(NodeStatus::Ready),
            (Direction::Forward, StepKind::Destroy) | (Direction::Back, StepKind::Create) => {
                Some(NodeStatus::Destroyed)
            }
            _ => None,
        }
    }

    /// Returns the status of a node that is reachable or configured after a step. It counts as ready only
    /// after its first-boot data, which may contain secrets, is removed.
    fn status_when_configured(&self, index: usize) -> NodeStatus {
        match is_discarded(&self.plan.steps, index) {
            true => NodeStatus::Created,
            false => NodeStatus::Ready,
        }
    }

    /// Deletes stored data, such as host keys, of the guests that a step deleted.
    async fn forget(
        &self,
        index: usize,
        outcome: &steps::StepOutcome,
    ) -> Result<Result<(), PortError>, JournalError> {
        if self.status_after(index, outcome) != Some(NodeStatus::Destroyed) {
            return Ok(Ok(()));
        }
        let records_inside = self.records_inside(index).await?;
        let destroyed = self.record_of(index, NodeStatus::Destroyed);
        for record in destroyed.iter().chain(&records_inside) {
            if let Err(error) = self.seeds.forget(&record.guest.uuid).await {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }

    /// Returns the records, as destroyed, of nodes that ran on a deleted guest and were deleted with it.
    /// Nodes with steps of their own are not included.
    async fn records_inside(&self, index: usize) -> Result<Vec<NodeRecord>, JournalError> {
        let nodes = &self.plan.nodes;
        let Some(node) = self.plan.steps[index].node.and_then(|node| nodes.get(node)) else {
            return Ok(Vec::new());
        };
        let known = self.known.get_or_try_init(|| self.read_records()).await?;
        let mut records: Vec<NodeRecord> = Vec::new();
        let mut parents = vec![node.record_name()];
        while let Some(parent) = parents.pop() {
            let inside = known.inside.get(&(node.host.clone(), parent.to_owned()));
            for key in inside.into_iter().flatten() {
                let planned = self.planned.get(key).and_then(|index| nodes.get(*index));
                let has_steps = planned.is_some_and(|node| match self.direction {
                    Direction::Forward => matches!(node.action, Action::Destroy | Action::Replace),
                    Direction::Back => node.action.changes(),
                });
                let is_repeated = records.iter().any(|record| record.name == key.1);
                let record = known.records.of(&key.1, &key.0);
                if let Some(record) = record.filter(|_| !has_steps && !is_repeated) {
                    parents.push(&record.name);
                    records.push(NodeRecord {
                        status: NodeStatus::Destroyed,
                        ..record.clone()
                    });
                }
            }
        }
        Ok(records)
    }

    /// Returns the spec that is applied to a guest after a step.
    fn configured(&self, step: &Step, node: &NodePlan, guest: &GuestRef) -> Option<AppliedSpec> {
        let is_configured = match step.kind {
            StepKind::Configure => true,
            // The first-boot data of such a node is removed after the node has configured itself.
            StepKind::Discard => node.pulls(),
            _ => false,
        };
        if self.direction == Direction::Forward && is_configured {
            return node.config.as_ref().map(|config| AppliedSpec {
                spec: config.spec.clone(),
                digest: config.digest.clone(),
                port: config.port,
                mode: Some(config.mode),
            });
        }
        let found = node.found.as_ref();
        let same = found.filter(|found| found.guest.uuid == guest.uuid);
        same.and_then(|found| found.configured.clone())
    }

    /// Returns the site of a guest's record: none for a guest with an identity of the first format, until
    /// `reidentify` gives it a new one.
    fn site_of(&self, node: &NodePlan, guest: &GuestRef) -> Option<SiteId> {
        let has_first_format = node
            .found
            .as_ref()
            .is_some_and(|found| found.guest.uuid == guest.uuid && found.legacy_identity);
        self.plan.site.clone().filter(|_| !has_first_format)
    }

    /// Returns the record of a step's node with a status.
    fn record_of(&self, index: usize, status: NodeStatus) -> Option<NodeRecord> {
        let step = &self.plan.steps[index];
        let node = self.plan.nodes.get(step.node?)?;
        let found = node.found.as_ref();
        // The steps that delete a guest record the existing one: a replaced node has a new one too.
        let old = matches!(step.kind, StepKind::Stop | StepKind::Destroy);
        let guest: GuestRef = match found.filter(|_| old) {
            Some(found) => found.guest.clone(),
            None => self.context.guest(&node.name).or_else(|| planned(node))?,
        };
        if let Some(known) = &node.reidentified {
            return Some(NodeRecord {
                site: self.plan.site.clone(),
                guest,
                ..known.record.clone()
            });
        }
        let configured = self.configured(step, node, &guest);
        // A guest that was created for guests to run on it may still have some.
        let same = found.filter(|found| found.guest.uuid == guest.uuid);
        let hosted = same.and_then(|found| found.hosts_guests);
        let hosts_guests = match (node.wanted.as_ref(), hosted) {
            (_, Some(true)) => Some(true),
            (Some(wanted), Some(false) | None) => Some(wanted.hosts_guests),
            (None, hosted) => hosted,
        };
        // An existing guest that was never reached may have another source than the plan wants.
        let is_known = status == NodeStatus::Ready || same.is_none_or(|one| one.ready.is_some());
        let wanted = node.wanted.as_ref().filter(|_| is_known);
        Some(NodeRecord {
            name: node.record_name().to_owned(),
            host: node.host.clone(),
            location: node.location.clone(),
            site: self.site_of(node, &guest),
            guest,
            status,
            source: wanted.map(|wanted| wanted.source.clone()),
            address: self.context.address(&node.name),
            user: node.wanted.as_ref().map(|wanted| wanted.user.clone()),
            configured,
            hosts_guests,
        })
    }
}

/// Returns whether a later step removes the first-boot data of a step's node. The steps that start and
/// configure a node are adjacent in a plan.
fn is_discarded(steps: &[Step], index: usize) -> bool {
    let later = steps[index..].iter().skip(1);
    let mut later = later.take_while(|step| step.node == steps[index].node);
    later.any(|step| step.kind == StepKind::Discard)
}
