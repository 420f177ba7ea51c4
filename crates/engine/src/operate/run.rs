//! One pass over the steps of a run, forward or back, with a limited number of workers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use homestak_core::plan::{Plan, Step, StepKind};
use tokio::task::JoinSet;
use tracing::Instrument as _;

use super::Operator;
use super::interrupt::Interrupt;
use super::replay::StepState;
use super::run_context::RunContext;
use super::schedule::{Direction, Schedule};
use super::worker::{StepResult, Worker};
use crate::events::RunEvents;
use crate::journal::{Fence, Journal, JournalError, RunId, Scope};
use crate::steps::subject;

/// A run that is being executed.
pub(super) struct RunExecution {
    pub(super) run: RunId,
    pub(super) plan: Arc<Plan>,
    pub(super) states: Vec<StepState>,
    /// Which steps have completed, even if they were undone later.
    pub(super) was_done: Vec<bool>,
    /// Whether each step changed anything; `None` when it never completed.
    pub(super) changed: Vec<Option<bool>>,
    /// The run's mark, which is stored on guests it creates.
    pub(super) mark: String,
    pub(super) context: Arc<RunContext>,
    pub(super) hub: Arc<RunEvents>,
    /// The numbers under which hosts are held.
    pub(super) fences: Arc<BTreeMap<String, Fence>>,
}

/// The outcome of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PassOutcome {
    /// All steps completed.
    All,
    /// At least one step failed.
    Failed,
    /// A stop was requested before all steps were executed.
    Interrupted,
    /// All steps completed, some except for parts that were refused.
    Partly,
}

impl RunExecution {
    /// Returns which steps are to be undone. A guest that was destroyed is not started again, and
    /// its host may have been deleted too.
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

/// One pass over steps.
pub(super) struct Pass<'o> {
    pub(super) operator: &'o Operator,
    pub(super) direction: Direction,
    pub(super) continue_after_failure: bool,
}

impl Pass<'_> {
    pub(super) async fn run(
        &self,
        execution: &mut RunExecution,
        todo: Vec<bool>,
        mut interrupt: Interrupt,
    ) -> Result<PassOutcome, JournalError> {
        let mut left = todo.iter().filter(|todo| **todo).count();
        let plan = execution.plan.clone();
        let steps = &plan.steps;
        let mut schedule = Schedule::new(steps, todo, self.direction);
        execution.fences = fences(&plan, self.operator.journal.as_ref()).await?;
        let worker = Worker::new(self.operator, execution, self.direction, interrupt.clone());
        let mut running: JoinSet<(usize, Result<StepResult, JournalError>)> = JoinSet::new();
        // The step of each task, for tasks that panic.
        let mut tasks: BTreeMap<tokio::task::Id, usize> = BTreeMap::new();
        let mut busy = 0;
        let (mut failed, mut partly) = (false, false);
        let mut broken = None;
        loop {
            let may_start = broken.is_none()
                && !interrupt.is_requested()
                && (!failed || self.continue_after_failure);
            if may_start {
                let all_busy = busy >= plan.parallelism;
                if let Some(at) = schedule.next(steps, all_busy) {
                    busy += usize::from(is_work(&steps[at]));
                    let before = (execution.states[at].clone(), execution.changed[at]);
                    let worker = worker.clone();
                    // Cancel safety: the intent of a dropped act is written, so that it is probed
                    // when the run is resumed.
                    let task =
                        running.spawn(
                            async move { (at, worker.work(at, before).await) }
                                .instrument(step_span(&plan, &steps[at], self.direction)),
                        );
                    tasks.insert(task.id(), at);
                    continue;
                }
            }
            let ended = if may_start {
                tokio::select! {
                    // Cancel safety: a finished step stays in the set.
                    ended = running.join_next_with_id() => ended,
                    // Cancel safety: only waits for a flag.
                    () = interrupt.requested() => continue,
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
                    // A step that panicked may have acted: it counts as failed.
                    let Some(at) = tasks.remove(&error.id()).filter(|_| !error.is_cancelled())
                    else {
                        continue;
                    };
                    let span = step_span(&plan, &steps[at], self.direction);
                    let text = error.to_string();
                    (at, worker.panicked(at, &text).instrument(span).await)
                }
            };
            busy -= usize::from(is_work(&steps[at]));
            match result {
                Ok(ended) => {
                    execution.states[at] = ended.state.clone();
                    match ended.state {
                        StepState::Done => {
                            execution.was_done[at] = true;
                            let before = execution.changed[at].unwrap_or(false);
                            execution.changed[at] = Some(before || ended.changed);
                            left -= 1;
                            schedule.done(at);
                        }
                        StepState::Undone => {
                            left -= 1;
                            schedule.done(at);
                        }
                        // Its wait ended because a stop was requested.
                        StepState::Begun | StepState::Undoing => {}
                        StepState::Failed(error) if error.is_partial() => {
                            partly = true;
                            left -= 1;
                            schedule.done(at);
                        }
                        _ => failed = true,
                    }
                }
                // Nothing was done, or the intent is written.
                Err(error) => {
                    if matches!(error, JournalError::Lost { .. }) {
                        // Another process works on it now.
                        running.abort_all();
                    }
                    broken = broken.or(Some(error));
                }
            }
        }
        match broken {
            Some(error) => Err(error),
            None if failed => Ok(PassOutcome::Failed),
            None if left > 0 => Ok(PassOutcome::Interrupted),
            None if partly => Ok(PassOutcome::Partly),
            None => Ok(PassOutcome::All),
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
fn step_span(plan: &Plan, step: &Step, direction: Direction) -> tracing::Span {
    let (node, kind) = (subject(plan, step), step.kind.name());
    tracing::error_span!("step", %node, kind, undo = direction == Direction::Back)
}

/// Waiting for readiness takes no worker.
fn is_work(step: &Step) -> bool {
    step.kind != StepKind::Ready
}
