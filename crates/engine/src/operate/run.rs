//! Goes through steps: begins what may be begun, writes down, hears what came of it.
//!
//! In: a [`Stage`] and which steps are to do. Out: whether all were done.
//! Never: more workers than allowed; a new step after a failure, unless asked to go on.

use std::sync::Arc;

use homestak_core::plan::{Action, NodeRecord, NodeStatus, Place, Plan, Step, StepKind};
use tokio::task::JoinSet;

use super::board::Board;
use super::interrupt::Interrupt;
use super::replay::StepState;
use super::schedule::{Schedule, Way};
use super::{Moment, Operator};
use crate::events::What;
use crate::journal::{Entry, Happened, JournalError, RunId, Trouble};
use crate::ports::{Class, GuestRef, PortError};
use crate::steps::{self, Task, planned, subject};

/// A run while it is carried out.
pub(super) struct Stage {
    pub(super) run: RunId,
    pub(super) plan: Arc<Plan>,
    pub(super) steps: Vec<Step>,
    pub(super) states: Vec<StepState>,
    pub(super) board: Arc<Board>,
}

/// What came of going through the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// All were done.
    All,
    /// At least one failed.
    Failed,
    /// A person asked to stop, and some are still to do.
    Interrupted,
}

/// How steps are gone through.
pub(super) struct Work<'o> {
    pub(super) operator: &'o Operator,
    pub(super) way: Way,
    pub(super) go_on_after_failure: bool,
}

/// A step on its way.
struct Ended {
    at: usize,
    result: Result<steps::Came, PortError>,
    seconds: f64,
}

impl Work<'_> {
    pub(super) async fn run(
        &self,
        stage: &mut Stage,
        todo: Vec<bool>,
        mut interrupt: Interrupt,
    ) -> Result<Came, JournalError> {
        let mut left = todo.iter().filter(|todo| **todo).count();
        let mut schedule = Schedule::new(&stage.steps, todo, self.way);
        let mut running: JoinSet<Ended> = JoinSet::new();
        let mut busy = 0;
        let mut failed = false;
        let mut broken = None;
        loop {
            let go_on =
                broken.is_none() && !interrupt.is_asked() && (!failed || self.go_on_after_failure);
            if go_on {
                let all_busy = busy >= stage.plan.parallelism;
                if let Some(at) = schedule.next(&stage.steps, all_busy) {
                    match self.begin(stage, at).await {
                        Ok(task) => {
                            busy += usize::from(is_work(&stage.steps[at]));
                            let (way, clock) = (self.way, self.operator.clock.clone());
                            // Cancel safety: a dropped act is one whose result is not known;
                            // its intent is written, so that it is looked at again.
                            running.spawn(async move {
                                let begun = clock.now();
                                let result = persist(&task, way).await;
                                let took = clock.now().duration_since(begun);
                                Ended {
                                    at,
                                    result,
                                    seconds: took.as_secs_f64(),
                                }
                            });
                        }
                        Err(error) => broken = Some(error),
                    }
                    continue;
                }
            }
            let ended = if go_on {
                tokio::select! {
                    // Cancel safety: a step that is not taken out stays in the set.
                    ended = running.join_next() => ended,
                    // Cancel safety: only a flag is waited for.
                    () = interrupt.asked() => continue,
                }
            } else {
                running.join_next().await
            };
            let Some(ended) = ended else {
                break;
            };
            let ended = match ended {
                Ok(ended) => ended,
                Err(error) => {
                    // A step that panicked is one whose result is not known.
                    tracing::error!(%error, "a step ended without a result");
                    failed = true;
                    continue;
                }
            };
            busy -= usize::from(is_work(&stage.steps[ended.at]));
            self.moment(Moment::AfterAct);
            let at = ended.at;
            match self.record(stage, ended).await {
                Ok(true) => {
                    left -= 1;
                    schedule.done(at);
                }
                Ok(false) => failed = true,
                // What was done is not written down; the intent is, so nothing is lost.
                Err(error) => broken = broken.or(Some(error)),
            }
            self.moment(Moment::AfterResult);
        }
        match broken {
            Some(error) => Err(error),
            None if failed => Ok(Came::Failed),
            None if left > 0 => Ok(Came::Interrupted),
            None => Ok(Came::All),
        }
    }

    fn moment(&self, moment: Moment) {
        if let Some(watcher) = &self.operator.watcher {
            watcher.reached(moment);
        }
    }

    /// Writes the intent down and makes the step ready to go.
    async fn begin(&self, stage: &mut Stage, at: usize) -> Result<Task, JournalError> {
        let operator = self.operator;
        let step = &stage.steps[at];
        // Begun in an earlier life: it may be done, so it is looked at first.
        let look_first = stage.states[at] != StepState::Untouched;
        self.moment(Moment::BeforeIntent);
        let (happened, state) = match self.way {
            Way::Forward => (Happened::Intent, StepState::Begun),
            Way::Back => (Happened::UndoIntent, StepState::Undoing),
        };
        let record = match (self.way, step.kind) {
            (Way::Forward, StepKind::Create) => self.record_of(stage, at, NodeStatus::Creating),
            (Way::Forward, StepKind::Destroy) | (Way::Back, StepKind::Create) => {
                self.record_of(stage, at, NodeStatus::Destroying)
            }
            _ => None,
        };
        let entry = Entry {
            step: at,
            happened,
            at: operator.clock.now(),
            record,
        };
        operator.journal.append(stage.run, &entry).await?;
        stage.states[at] = state;
        self.moment(Moment::AfterIntent);
        operator.hub.tell(What::StepStarted {
            subject: subject(&stage.plan, step),
            step: step.kind,
            undo: self.way == Way::Back,
        });
        Ok(Task {
            plan: stage.plan.clone(),
            step: step.clone(),
            board: stage.board.clone(),
            seeds: operator.seeds.clone(),
            clock: operator.clock.clone(),
            hub: operator.hub.clone(),
            limits: operator.limits,
            look_first,
        })
    }

    /// Writes down what came of a step; returns whether it worked.
    async fn record(&self, stage: &mut Stage, ended: Ended) -> Result<bool, JournalError> {
        let operator = self.operator;
        let Ended {
            at,
            result,
            seconds,
        } = ended;
        let step = &stage.steps[at];
        let undo = self.way == Way::Back;
        let node = step.node.and_then(|node| stage.plan.nodes.get(node));
        let subject = subject(&stage.plan, step);
        let (happened, state, what) = match &result {
            Ok(came) => {
                if let Some(node) = node {
                    stage
                        .board
                        .learn(&node.name, came.guest.as_ref(), came.address);
                }
                let changed = came.changed;
                let guest = node.and_then(|node| stage.board.guest(&node.name));
                let what = What::StepDone {
                    step: step.kind,
                    undo,
                    changed,
                    seconds,
                    vmid: guest.map(|guest| guest.vmid).filter(|vmid| *vmid != 0),
                    address: node.and_then(|node| stage.board.address(&node.name)),
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
        let status = match (self.way, step.kind, &result) {
            (_, _, Err(_)) => None,
            (Way::Forward, StepKind::Create, _) => Some(NodeStatus::Made),
            // It is ready when its first-boot data is gone too: that may hold secrets.
            (Way::Forward, StepKind::Ready, _) if is_discarded(&stage.steps, at) => {
                Some(NodeStatus::Made)
            }
            (Way::Forward, StepKind::Ready | StepKind::Discard, _) => Some(NodeStatus::Ready),
            (Way::Forward, StepKind::Stop, _) if node.is_some_and(|n| n.wanted.is_some()) => {
                Some(NodeStatus::Made)
            }
            (Way::Forward, StepKind::Destroy, _) | (Way::Back, StepKind::Create, _) => {
                Some(NodeStatus::Destroyed)
            }
            _ => None,
        };
        let record = status.and_then(|status| self.record_of(stage, at, status));
        let entry = Entry {
            step: at,
            happened,
            at: operator.clock.now(),
            record,
        };
        operator.journal.append(stage.run, &entry).await?;
        if status == Some(NodeStatus::Destroyed) {
            self.bury(stage, at, &entry).await?;
        }
        stage.states[at] = state;
        operator.hub.tell(what);
        Ok(result.is_ok())
    }

    /// What could not be seen in a node is gone with it.
    async fn bury(&self, stage: &Stage, at: usize, entry: &Entry) -> Result<(), JournalError> {
        let nodes = &stage.plan.nodes;
        let Some(node) = stage.steps[at].node.and_then(|node| nodes.get(node)) else {
            return Ok(());
        };
        if !stage.board.hosts_others(&node.name) {
            return Ok(());
        }
        let mut buried = vec![&node.name];
        // Parents come before their children.
        for inner in nodes {
            let Place::Inside(parent) = &inner.place else {
                continue;
            };
            if !buried.contains(&parent) || inner.action != Action::Nothing {
                continue;
            }
            buried.push(&inner.name);
            let Some(found) = &inner.found else {
                continue;
            };
            let record = NodeRecord {
                name: inner.name.clone(),
                host: inner.host.clone(),
                place: inner.place.clone(),
                guest: found.guest.clone(),
                status: NodeStatus::Destroyed,
                source: None,
                address: None,
            };
            let entry = Entry {
                record: Some(record),
                ..entry.clone()
            };
            self.operator.journal.append(stage.run, &entry).await?;
        }
        Ok(())
    }

    /// Returns what is known of a step's node.
    fn record_of(&self, stage: &Stage, at: usize, status: NodeStatus) -> Option<NodeRecord> {
        let step = &stage.steps[at];
        let node = stage.plan.nodes.get(step.node?)?;
        let found = node.found.as_ref();
        // Of a node that is replaced, the old guest is meant until it is gone.
        let old = matches!(step.kind, StepKind::Stop | StepKind::Destroy);
        let guest: GuestRef = match found.filter(|_| old) {
            Some(found) => found.guest.clone(),
            None => {
                let known = stage.board.guest(&node.name);
                known.unwrap_or_else(|| planned(node))
            }
        };
        Some(NodeRecord {
            name: node.name.clone(),
            host: node.host.clone(),
            place: node.place.clone(),
            guest,
            status,
            source: node.wanted.as_ref().map(|wanted| wanted.source.clone()),
            address: stage.board.address(&node.name),
        })
    }
}

/// Tells whether a node's first-boot data is taken away after the step at which it is reached.
fn is_discarded(steps: &[Step], ready: usize) -> bool {
    let next = steps.get(ready + 1);
    next.is_some_and(|next| next.kind == StepKind::Discard && next.node == steps[ready].node)
}

/// Waiting until a node is reached takes no worker.
fn is_work(step: &Step) -> bool {
    step.kind != StepKind::Ready
}

/// Does or undoes a step, again when the other side is busy or away: every step looks first.
async fn persist(task: &Task, way: Way) -> Result<steps::Came, PortError> {
    let mut pause = task.limits.pause;
    let mut tried = 0;
    loop {
        let result = match way {
            Way::Forward => forward(task, tried > 0).await,
            Way::Back => task.undo().await,
        };
        tried += 1;
        let error = match result {
            Ok(came) => return Ok(came),
            Err(error) => error,
        };
        let later = match error.class {
            Class::Busy | Class::Unreachable { .. } | Class::Broken => true,
            Class::Refused | Class::Missing | Class::Bug => false,
        };
        // Waiting until it is reached has a patience of its own.
        if !later || tried >= task.limits.tries || task.step.kind == StepKind::Ready {
            return Err(error);
        }
        task.hub.tell(What::Waiting {
            subject: task.subject(),
            what: format!("another try ({error})"),
        });
        task.clock.sleep(pause).await;
        pause *= 2;
    }
}

async fn forward(task: &Task, again: bool) -> Result<steps::Came, PortError> {
    if (again || task.look_first)
        && let Some(came) = task.probe().await?
    {
        return Ok(came);
    }
    task.act().await
}
