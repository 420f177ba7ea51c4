//! One step from its intent to its result.
//!
//! In: the number of a step. Out: how far it is, written down before anyone is told.
//! Never: an act whose intent is not on disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use homestak_api::runtime::{LeavableClock, SharedClock, stoppable};
use homestak_core::doc::scalar::SiteId;
use homestak_core::doc::timeouts::Limit;
use homestak_core::plan::{
    Action, AppliedSpec, NodeLocation, NodePlan, NodeRecord, NodeStatus, Plan, Records, Step,
    StepKind,
};
use tokio::sync::OnceCell;

use super::board::Board;
use super::interrupt::Interrupt;
use super::limits::Limits;
use super::persist::persist;
use super::replay::StepState;
use super::run::Stage;
use super::schedule::Way;
use super::{Moment, Operator, Watcher};
use crate::context::{Context, within};
use crate::events::{RunHub, What};
use crate::journal::{Entry, Fence, Happened, Journal, JournalError, RunId, Scope, Trouble};
use crate::ports::{Class, Configurer, GuestRef, PortError, Seeds};
use crate::steps::{self, Task, planned, subject};

/// Does steps of one run in one direction. Cheap to clone.
#[derive(Clone)]
pub(super) struct Worker(Arc<Shared>);

/// What came of a step, as it was written down.
pub(super) struct Ended {
    pub(super) state: StepState,
    pub(super) changed: bool,
}

struct Shared {
    run: RunId,
    mark: String,
    way: Way,
    plan: Arc<Plan>,
    board: Arc<Board>,
    journal: Arc<dyn Journal>,
    seeds: Arc<dyn Seeds>,
    configurer: Arc<dyn Configurer>,
    hub: Arc<RunHub>,
    clock: SharedClock,
    limits: Limits,
    watcher: Option<Arc<dyn Watcher>>,
    /// Nodes of the plan.
    planned: BTreeMap<Key, usize>,
    /// What was recorded before the first guest was created or removed.
    known: OnceCell<Known>,
    interrupt: Interrupt,
    /// The numbers under which hosts are held.
    fences: Arc<BTreeMap<String, Fence>>,
}

/// A node by its host and the name under which it is recorded.
type Key = (String, String);

/// What is recorded.
#[derive(Default)]
struct Known {
    records: Records,
    /// What is recorded in each node.
    inside: BTreeMap<Key, Vec<Key>>,
}

impl Worker {
    pub(super) fn new(operator: &Operator, stage: &Stage, way: Way, interrupt: Interrupt) -> Self {
        let set = operator.limits.timeouts;
        Self(Arc::new(Shared {
            run: stage.run,
            mark: stage.mark.clone(),
            way,
            plan: stage.plan.clone(),
            board: stage.board.clone(),
            journal: operator.journal.clone(),
            seeds: operator.seeds.clone(),
            configurer: operator.configurer.clone(),
            hub: stage.hub.clone(),
            clock: operator.clock.clone(),
            limits: Limits {
                timeouts: stage.plan.timeouts.with(&set),
                ..operator.limits
            },
            watcher: operator.watcher.clone(),
            planned: stage
                .plan
                .nodes
                .iter()
                .enumerate()
                .map(|(at, node)| ((node.host.clone(), node.record_name().to_owned()), at))
                .collect(),
            known: OnceCell::new(),
            interrupt,
            fences: stage.fences.clone(),
        }))
    }

    /// Does a step, or undoes it.
    pub(super) async fn work(
        &self,
        at: usize,
        before: (StepState, Option<bool>),
    ) -> Result<Ended, JournalError> {
        self.0.work(at, before).await
    }

    /// Records that a step ended in a panic. What it did is not known, so it counts as failed:
    /// undoing it looks at what is there.
    pub(super) async fn panicked(&self, at: usize, what: &str) -> Result<Ended, JournalError> {
        let step = &self.0.plan.steps[at];
        let doing = format!("{} `{}`", step.kind.word(), subject(&self.0.plan, step));
        let error = PortError {
            hint: "this is a bug of homestak; please report it".into(),
            ..PortError::bug(&doing, &what)
        };
        self.0.record(at, &Err(error), None, 0.0).await
    }
}

impl Shared {
    async fn work(
        &self,
        at: usize,
        (before, changed): (StepState, Option<bool>),
    ) -> Result<Ended, JournalError> {
        let earlier = self.earlier(at).await?;
        self.begin(at).await?;
        let task = Task {
            plan: self.plan.clone(),
            step: self.plan.steps[at].clone(),
            board: self.board.clone(),
            seeds: self.seeds.clone(),
            configurer: self.configurer.clone(),
            clock: LeavableClock::shared(self.clock.clone()),
            hub: self.hub.clone(),
            limits: self.limits,
            before,
            mark: self.mark.clone(),
            changed,
            began: Arc::default(),
        };
        let begun = self.clock.now();
        let context = Context::new(&self.hub, task.subject(), self.fence(at));
        let work = within(context, persist(&task, self.way));
        let only_follows = self.way == Way::Forward && task.step.kind == StepKind::Configure;
        let mut interrupt = self.interrupt.clone();
        let result = tokio::select! {
            biased;
            // Cancel safety: what is dropped here only followed a node that goes on by itself.
            result = stoppable(self.interrupt.wish(), work) => result,
            // Cancel safety: only a flag is waited for.
            () = interrupt.asked(), if only_follows => {
                let subject = task.subject();
                let text = self.left(task.began.load(Ordering::Relaxed));
                self.hub.tell(What::Warning { subject, text });
                None
            }
        };
        // Before the result is written: a step without one is done again, and forgets again.
        let result = match result {
            Some(Ok(came)) => {
                let forgotten = stoppable(self.interrupt.wish(), self.forget(at, &came)).await;
                forgotten.transpose()?.map(|done| done.map(|()| came))
            }
            other => other,
        };
        let Some(result) = result else {
            // Left in a wait: its intent is all that is written, so whoever resumes looks first.
            let state = match self.way {
                Way::Forward => StepState::Begun,
                Way::Back => StepState::Undoing,
            };
            return Ok(Ended {
                state,
                changed: false,
            });
        };
        let seconds = self.clock.now().duration_since(begun).as_secs_f64();
        self.moment(Moment::AfterAct);
        let ended = self.record(at, &result, earlier, seconds).await?;
        self.moment(Moment::AfterResult);
        Ok(ended)
    }

    /// Says what is known of a node that is not followed any longer.
    fn left(&self, began: bool) -> String {
        if !began {
            return "no longer followed: the node has not reported that it began".to_owned();
        }
        let seconds = self.limits.timeouts.of(Limit::Confirm).as_secs();
        format!(
            "no longer followed: the node continues by itself; changes that could cut it off are \
             reverted after {seconds} s, unless `homestak manifest resume` reaches it before"
        )
    }

    /// Returns the number under which the host of a step is held.
    fn fence(&self, at: usize) -> Option<Fence> {
        let step = &self.plan.steps[at];
        let node = step.node.and_then(|node| self.plan.nodes.get(node));
        let image = step.image.and_then(|image| self.plan.images.get(image));
        let host = node.map(|node| &node.host);
        let host = host.or_else(|| image.map(|image| &image.site_host))?;
        self.fences.get(host).cloned()
    }

    fn moment(&self, moment: Moment) {
        if let Some(watcher) = &self.watcher {
            watcher.reached(moment);
        }
    }

    async fn append(
        &self,
        at: usize,
        happened: Happened,
        record: Option<NodeRecord>,
    ) -> Result<(), JournalError> {
        let entry = Entry {
            step: Some(self.plan.steps[at].id.clone()),
            happened,
            at: self.clock.now(),
            record,
        };
        self.journal.append(self.run, &entry).await
    }

    /// Returns what was known of the guest that a step creates, if that was ever seen.
    async fn earlier(&self, at: usize) -> Result<Option<NodeRecord>, JournalError> {
        let step = &self.plan.steps[at];
        let node = step.node.and_then(|node| self.plan.nodes.get(node));
        let created = (self.way, step.kind) == (Way::Forward, StepKind::Create);
        // What ran in a node that is replaced is gone with it.
        let gone = |node: &&NodePlan| match &node.location {
            NodeLocation::Inside(parent) => {
                let parent = self.plan.node(parent);
                parent.is_some_and(|parent| parent.action == Action::Replace)
            }
            NodeLocation::Host(_) => false,
        };
        let Some(node) = node.filter(|node| created && !gone(node)) else {
            return Ok(None);
        };
        // Read once, before any record is replaced.
        let known = self.known.get_or_try_init(|| self.read()).await?;
        let record = known.records.of(&node.name, &node.host);
        let same = |record: &&NodeRecord| {
            let planned = planned(node).is_some_and(|guest| guest.uuid == record.guest.uuid);
            planned && record.guest.vmid.is_some()
        };
        Ok(record.filter(same).cloned())
    }

    async fn read(&self) -> Result<Known, JournalError> {
        let mut known = Known::default();
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

    /// Writes the intent down.
    async fn begin(&self, at: usize) -> Result<(), JournalError> {
        let step = &self.plan.steps[at];
        self.moment(Moment::BeforeIntent);
        let happened = match self.way {
            Way::Forward => Happened::Intent,
            Way::Back => Happened::UndoIntent,
        };
        let record = match (self.way, step.kind) {
            (Way::Forward, StepKind::Create) => self.record_of(at, NodeStatus::Creating),
            (Way::Forward, StepKind::Destroy) => self.record_of(at, NodeStatus::Destroying),
            // Whether undoing a create removes the guest is found out by looking at it.
            _ => None,
        };
        self.append(at, happened, record).await?;
        self.moment(Moment::AfterIntent);
        self.hub.tell(What::StepStarted {
            subject: subject(&self.plan, step),
            step: step.kind,
            undo: self.way == Way::Back,
        });
        Ok(())
    }

    /// Writes down what came of a step.
    async fn record(
        &self,
        at: usize,
        result: &Result<steps::Came, PortError>,
        earlier: Option<NodeRecord>,
        seconds: f64,
    ) -> Result<Ended, JournalError> {
        let step = &self.plan.steps[at];
        let undo = self.way == Way::Back;
        let node = step.node.and_then(|node| self.plan.nodes.get(node));
        let subject = subject(&self.plan, step);
        let (happened, state, what) = match result {
            Ok(came) => {
                if let Some(node) = node {
                    let board = &self.board;
                    board.learn(&node.name, came.guest.as_ref(), came.address);
                }
                let changed = came.changed;
                let guest = node.and_then(|node| self.board.guest(&node.name));
                let what = What::StepDone {
                    step: step.kind,
                    undo,
                    changed,
                    kept: came.kept,
                    seconds,
                    guest_id: guest.and_then(|guest| guest.vmid),
                    address: node.and_then(|node| self.board.address(&node.name)),
                    subject,
                };
                if undo {
                    (Happened::Undone { changed }, StepState::Undone, what)
                } else {
                    (Happened::Done { changed }, StepState::Done, what)
                }
            }
            Err(error) => {
                let trouble = Trouble::from(error);
                let what = What::StepFailed {
                    step: step.kind,
                    undo,
                    trouble: trouble.clone(),
                    seconds,
                    subject,
                };
                if undo {
                    let stuck = StepState::Stuck(trouble.clone());
                    (Happened::UndoFailed(trouble), stuck, what)
                } else {
                    let failed = StepState::Failed(trouble.clone());
                    (Happened::Failed(trouble), failed, what)
                }
            }
        };
        let came = result.as_ref().ok();
        let status = came.and_then(|came| self.status_after(at, came));
        let record = match result {
            Ok(_) => status.and_then(|status| self.record_of(at, status)),
            // It is what its spec says but for what was refused.
            Err(error) if error.class == Class::Partly && !undo => {
                self.record_of(at, NodeStatus::Ready)
            }
            // Nothing was created, so what was known before is still true.
            Err(error) => earlier.filter(|_| error.class == Class::Refused),
        };
        self.append(at, happened.clone(), record).await?;
        if status == Some(NodeStatus::Destroyed) {
            for record in self.buried(at).await? {
                self.append(at, happened.clone(), Some(record)).await?;
            }
        }
        if came.is_some_and(|came| came.kept) {
            self.hub.tell(What::Warning {
                subject: steps::subject(&self.plan, step),
                text: "its guest stays: it does not carry the mark of this run".to_owned(),
            });
        }
        match result {
            Ok(came) => tracing::info!(seconds, changed = came.changed, "step finished"),
            Err(error) => tracing::warn!(seconds, class = ?error.class, %error, "step failed"),
        }
        self.hub.tell(what);
        Ok(Ended {
            state,
            changed: came.is_some_and(|came| came.changed),
        })
    }

    /// Returns how far a node is once a step of it is done.
    fn status_after(&self, at: usize, came: &steps::Came) -> Option<NodeStatus> {
        let step = &self.plan.steps[at];
        let node = step.node.and_then(|node| self.plan.nodes.get(node));
        match (self.way, step.kind) {
            (Way::Back, StepKind::Create) if came.kept => None,
            (Way::Forward, StepKind::Reidentify) => {
                let known = node.and_then(|node| node.reidentified.as_ref());
                known.map(|known| known.record.status)
            }
            (Way::Forward, StepKind::Create) => Some(NodeStatus::Created),
            // It is ready when its first-boot data is gone too: that may hold secrets.
            (Way::Forward, StepKind::Ready) if is_discarded(&self.plan.steps, at) => {
                Some(NodeStatus::Created)
            }
            (Way::Forward, StepKind::Ready | StepKind::Discard | StepKind::Configure) => {
                Some(NodeStatus::Ready)
            }
            (Way::Forward, StepKind::Stop) if node.is_some_and(|node| node.wanted.is_some()) => {
                Some(NodeStatus::Created)
            }
            (Way::Back, StepKind::Configure) if came.changed => Some(NodeStatus::Ready),
            (Way::Forward, StepKind::Destroy) | (Way::Back, StepKind::Create) => {
                Some(NodeStatus::Destroyed)
            }
            _ => None,
        }
    }

    /// Forgets what was kept for the guests that a step removed.
    async fn forget(
        &self,
        at: usize,
        came: &steps::Came,
    ) -> Result<Result<(), PortError>, JournalError> {
        if self.status_after(at, came) != Some(NodeStatus::Destroyed) {
            return Ok(Ok(()));
        }
        let buried = self.buried(at).await?;
        let gone = self.record_of(at, NodeStatus::Destroyed);
        for record in gone.iter().chain(&buried) {
            if let Err(error) = self.seeds.forget(&record.guest.uuid).await {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }

    /// What is recorded in a guest that was removed is gone with it, as far as the plan has no steps
    /// for it.
    async fn buried(&self, at: usize) -> Result<Vec<NodeRecord>, JournalError> {
        let nodes = &self.plan.nodes;
        let Some(node) = self.plan.steps[at].node.and_then(|node| nodes.get(node)) else {
            return Ok(Vec::new());
        };
        let known = self.known.get_or_try_init(|| self.read()).await?;
        let mut records: Vec<NodeRecord> = Vec::new();
        let mut open = vec![node.record_name()];
        while let Some(parent) = open.pop() {
            let inside = known.inside.get(&(node.host.clone(), parent.to_owned()));
            for key in inside.into_iter().flatten() {
                let planned = self.planned.get(key).and_then(|at| nodes.get(*at));
                let settled = planned.is_some_and(|node| match self.way {
                    Way::Forward => matches!(node.action, Action::Destroy | Action::Replace),
                    Way::Back => node.action.changes(),
                });
                let again = records.iter().any(|record| record.name == key.1);
                let record = known.records.of(&key.1, &key.0);
                if let Some(record) = record.filter(|_| !settled && !again) {
                    open.push(&record.name);
                    records.push(NodeRecord {
                        status: NodeStatus::Destroyed,
                        ..record.clone()
                    });
                }
            }
        }
        Ok(records)
    }

    /// Returns what a node was last made inside, as far as it is the same guest.
    fn configured(&self, step: &Step, node: &NodePlan, guest: &GuestRef) -> Option<AppliedSpec> {
        if self.way == Way::Forward && step.kind == StepKind::Configure {
            return node.config.as_ref().map(|config| AppliedSpec {
                spec: config.spec.clone(),
                digest: config.digest.clone(),
                port: config.port,
            });
        }
        let found = node.found.as_ref();
        let same = found.filter(|found| found.guest.uuid == guest.uuid);
        same.and_then(|found| found.configured.clone())
    }

    /// Returns the site that a record names: none while the guest has an identity of the first
    /// form, which only `reidentify` ends.
    fn site_of(&self, node: &NodePlan, guest: &GuestRef) -> Option<SiteId> {
        let first_form = node
            .found
            .as_ref()
            .is_some_and(|found| found.guest.uuid == guest.uuid && found.legacy_identity);
        self.plan.site.clone().filter(|_| !first_form)
    }

    /// Returns what is known of a step's node.
    fn record_of(&self, at: usize, status: NodeStatus) -> Option<NodeRecord> {
        let step = &self.plan.steps[at];
        let node = self.plan.nodes.get(step.node?)?;
        let found = node.found.as_ref();
        // Of a node that is replaced, the old guest is meant until it is gone.
        let old = matches!(step.kind, StepKind::Stop | StepKind::Destroy);
        let guest: GuestRef = match found.filter(|_| old) {
            Some(found) => found.guest.clone(),
            None => self.board.guest(&node.name).or_else(|| planned(node))?,
        };
        if let Some(known) = &node.reidentified {
            return Some(NodeRecord {
                site: self.plan.site.clone(),
                guest,
                ..known.record.clone()
            });
        }
        let configured = self.configured(step, node, &guest);
        // What was created for guests to run on it may still have some, whatever is wanted now.
        let same = found.filter(|found| found.guest.uuid == guest.uuid);
        let hosted = same.and_then(|found| found.hosts_guests);
        let hosts_guests = match (node.wanted.as_ref(), hosted) {
            (_, Some(true)) => Some(true),
            (Some(wanted), Some(false) | None) => Some(wanted.hosts_guests),
            (None, hosted) => hosted,
        };
        // Until a guest that was found is reached, nothing more is known of it.
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
            address: self.board.address(&node.name),
            user: node.wanted.as_ref().map(|wanted| wanted.user.clone()),
            configured,
            hosts_guests,
        })
    }
}

/// Tells whether a node's first-boot data is taken away after the step at which it is reached.
fn is_discarded(steps: &[Step], ready: usize) -> bool {
    let next = steps.get(ready + 1);
    next.is_some_and(|next| next.kind == StepKind::Discard && next.node == steps[ready].node)
}
