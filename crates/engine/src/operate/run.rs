//! Goes through steps: begins what may be begun, hears what came of it.
//!
//! In: a [`Stage`] and which steps are to do. Out: whether all were done.
//! Never: more workers than allowed; a new step after a failure, unless asked to go on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use homestak_core::plan::{Plan, Step, StepKind};
use tokio::task::JoinSet;
use tracing::Instrument as _;

use super::Operator;
use super::board::Board;
use super::interrupt::Interrupt;
use super::replay::StepState;
use super::schedule::{Schedule, Way};
use super::worker::{Ended, Worker};
use crate::events::RunHub;
use crate::journal::{Fence, Journal, JournalError, RunId, Scope};
use crate::steps::subject;

/// A run while it is carried out.
pub(super) struct Stage {
    pub(super) run: RunId,
    pub(super) plan: Arc<Plan>,
    pub(super) states: Vec<StepState>,
    /// Which steps were done at some time, whatever became of them later.
    pub(super) was_done: Vec<bool>,
    /// Whether each step changed anything; `None` when it was never done.
    pub(super) changed: Vec<Option<bool>>,
    /// The run's mark, which guests that it creates carry.
    pub(super) mark: String,
    pub(super) board: Arc<Board>,
    pub(super) hub: Arc<RunHub>,
    /// The numbers under which hosts are held.
    pub(super) fences: Arc<BTreeMap<String, Fence>>,
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
    /// All were done, some but for parts that were refused.
    Partly,
}

impl Stage {
    /// Returns the steps that have something to undo. A guest that was removed is not started
    /// again, and the place where it was may be gone too, so nobody looks.
    pub(super) fn to_undo(&self) -> Vec<bool> {
        let done = self.plan.steps.iter().zip(&self.was_done);
        let removed: BTreeSet<usize> = done
            .filter(|(step, was_done)| **was_done && step.kind == StepKind::Destroy)
            .filter_map(|(step, _)| step.node)
            .collect();
        let is_removed = |node: Option<usize>| node.is_some_and(|node| removed.contains(&node));
        let states = self.states.iter().zip(self.plan.steps.iter());
        let needs_undo = |(state, step): (&StepState, &Step)| {
            state.needs_undo() && !(step.kind == StepKind::Stop && is_removed(step.node))
        };
        states.map(needs_undo).collect()
    }
}

/// How steps are gone through.
pub(super) struct Work<'o> {
    pub(super) operator: &'o Operator,
    pub(super) way: Way,
    pub(super) go_on_after_failure: bool,
}

impl Work<'_> {
    pub(super) async fn run(
        &self,
        stage: &mut Stage,
        todo: Vec<bool>,
        mut interrupt: Interrupt,
    ) -> Result<Came, JournalError> {
        let mut left = todo.iter().filter(|todo| **todo).count();
        let plan = stage.plan.clone();
        let steps = &plan.steps;
        let mut schedule = Schedule::new(steps, todo, self.way);
        stage.fences = fences(&plan, self.operator.journal.as_ref()).await?;
        let worker = Worker::new(self.operator, stage, self.way, interrupt.clone());
        let mut running: JoinSet<(usize, Result<Ended, JournalError>)> = JoinSet::new();
        // Which step each task is about: one that panics cannot say so itself.
        let mut tasks: BTreeMap<tokio::task::Id, usize> = BTreeMap::new();
        let mut busy = 0;
        let (mut failed, mut partly) = (false, false);
        let mut broken = None;
        loop {
            let go_on =
                broken.is_none() && !interrupt.is_asked() && (!failed || self.go_on_after_failure);
            if go_on {
                let all_busy = busy >= plan.parallelism;
                if let Some(at) = schedule.next(steps, all_busy) {
                    busy += usize::from(is_work(&steps[at]));
                    let before = (stage.states[at].clone(), stage.changed[at]);
                    let worker = worker.clone();
                    // Cancel safety: a dropped act is one whose result is not known; its intent
                    // is written, so that it is looked at again.
                    let task = running.spawn(
                        async move { (at, worker.work(at, before).await) }
                            .instrument(step_span(&plan, &steps[at], self.way)),
                    );
                    tasks.insert(task.id(), at);
                    continue;
                }
            }
            let ended = if go_on {
                tokio::select! {
                    // Cancel safety: a step that is not taken out stays in the set.
                    ended = running.join_next_with_id() => ended,
                    // Cancel safety: only a flag is waited for.
                    () = interrupt.asked() => continue,
                }
            } else {
                running.join_next_with_id().await
            };
            let Some(ended) = ended else {
                break;
            };
            let (at, result) = match ended {
                Ok((id, ended)) => {
                    tasks.remove(&id);
                    ended
                }
                Err(error) => {
                    // A step that panicked may have acted: it failed, and is undone like any other.
                    let Some(at) = tasks.remove(&error.id()).filter(|_| !error.is_cancelled())
                    else {
                        continue;
                    };
                    let span = step_span(&plan, &steps[at], self.way);
                    let text = error.to_string();
                    (at, worker.panicked(at, &text).instrument(span).await)
                }
            };
            busy -= usize::from(is_work(&steps[at]));
            match result {
                Ok(ended) => {
                    stage.states[at] = ended.state.clone();
                    match ended.state {
                        StepState::Done => {
                            stage.was_done[at] = true;
                            let before = stage.changed[at].unwrap_or(false);
                            stage.changed[at] = Some(before || ended.changed);
                            left -= 1;
                            schedule.done(at);
                        }
                        StepState::Undone => {
                            left -= 1;
                            schedule.done(at);
                        }
                        // Left in a wait, because a person asked to stop.
                        StepState::Begun | StepState::Undoing => {}
                        StepState::Failed(trouble) if trouble.is_partial() => {
                            partly = true;
                            left -= 1;
                            schedule.done(at);
                        }
                        _ => failed = true,
                    }
                }
                // Either nothing was done, or its intent is written: nothing is lost.
                Err(error) => {
                    if matches!(error, JournalError::Lost { .. }) {
                        // Someone else works on it: what is under way ends where it is.
                        running.abort_all();
                    }
                    broken = broken.or(Some(error));
                }
            }
        }
        match broken {
            Some(error) => Err(error),
            None if failed => Ok(Came::Failed),
            None if left > 0 => Ok(Came::Interrupted),
            None if partly => Ok(Came::Partly),
            None => Ok(Came::All),
        }
    }
}

/// Returns the numbers under which the hosts of a plan are held.
async fn fences(
    plan: &Plan,
    journal: &dyn Journal,
) -> Result<Arc<BTreeMap<String, Fence>>, JournalError> {
    let mut fences = BTreeMap::new();
    for host in &plan.hosts {
        let scope = Scope::new(plan.site.as_ref(), &plan.manifest, host);
        let fence = journal.fence(&scope).await?;
        fences.extend(fence.map(|fence| (host.clone(), fence)));
    }
    Ok(Arc::new(fences))
}

/// Returns the span of a step. Errors have it at every level.
fn step_span(plan: &Plan, step: &Step, way: Way) -> tracing::Span {
    let (node, kind) = (subject(plan, step), step.kind.word());
    tracing::error_span!("step", %node, kind, undo = way == Way::Back)
}

/// Waiting until a node is reached takes no worker.
fn is_work(step: &Step) -> bool {
    step.kind != StepKind::Ready
}
