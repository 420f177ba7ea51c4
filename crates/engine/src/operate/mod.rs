//! Executes plans, and resumes and rolls back runs.
//!
//! Independent steps run in parallel. Intents are on disk before each act, results after it.

mod interrupt;
pub(crate) mod limits;
mod replay;
mod retry;
mod rollback;
mod run;
pub(crate) mod run_context;
mod schedule;
mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::steps::subject;
use homestak_api::runtime::SharedClock;
use homestak_core::plan::{OnError, Plan, StepKind, without_config_values};

use crate::events::{EventHub, EventKind};
use crate::journal::{Entry, Journal, JournalError, Run, RunId, RunOutcome, StepEvent};
use crate::ports::{Configurer, HostConnector, SeedSource};
use run_context::RunContext;
use schedule::Direction;
use tracing::Instrument as _;

pub use interrupt::{Interrupt, Interrupter};
pub use limits::Limits;
pub use replay::{Replay, StepState, replay};
pub use rollback::{UndoEffect, UndoItem, rollback_plan};

/// A point in the execution of a step. Tests kill the program at each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepPoint {
    /// Before the intent is written.
    BeforeIntent,
    /// The intent is written, the act not started.
    AfterIntent,
    /// The act is done, its result not written.
    AfterAct,
    /// The result is written.
    AfterResult,
}

/// Is called at each point of each step.
pub trait StepPointObserver: Send + Sync {
    /// Is called at a point.
    fn reached(&self, point: StepPoint);
}

/// Executes plans.
pub struct Operator {
    /// Connects to hosts.
    pub connector: Arc<dyn HostConnector>,
    /// Makes first-boot data.
    pub seeds: Arc<dyn SeedSource>,
    /// Applies specs inside nodes.
    pub configurer: Arc<dyn Configurer>,
    /// Stores runs.
    pub journal: Arc<dyn Journal>,
    /// Emits events.
    pub hub: Arc<EventHub>,
    /// The clock.
    pub clock: SharedClock,
    /// Limits of retries.
    pub limits: Limits,
    /// Is called at each point of each step; for tests.
    pub point_observer: Option<Arc<dyn StepPointObserver>>,
    /// Makes the random mark of a run.
    pub mark: fn() -> String,
}

impl Operator {
    /// Executes a plan. The caller has locked the plan's scopes.
    pub async fn execute(
        &self,
        verb: &str,
        plan: impl Into<Arc<Plan>>,
        interrupt: Interrupt,
    ) -> Result<(RunId, RunOutcome), JournalError> {
        let plan = plan.into();
        let mark = (self.mark)();
        let now = self.clock.now();
        let id = self
            .journal
            .begin(verb, &without_config_values(&plan), &mark, now)
            .await?;
        let mut execution = self.execution(id, mark, plan, &[]);
        let span = span(verb, &execution);
        let ending = self
            .run(verb, &mut execution, false, interrupt, false)
            .instrument(span)
            .await?;
        Ok((id, ending))
    }

    /// Continues a run that was interrupted, failed or crashed, in its direction: a run that was
    /// being rolled back is rolled back. `resolved` names nodes whose failed steps the user has
    /// resolved manually.
    pub async fn resume(
        &self,
        run: &Run,
        resolved: &[String],
        interrupt: Interrupt,
    ) -> Result<RunOutcome, JournalError> {
        let mut entries = run.entries.clone();
        let steps = &run.plan.steps;
        let replayed = replay(steps, &entries);
        for (step, state) in steps.iter().zip(&replayed.states) {
            let node = step.node.and_then(|node| run.plan.nodes.get(node));
            let named = node.is_some_and(|node| resolved.contains(&node.name));
            let open = matches!(
                state,
                StepState::Failed(_) | StepState::Stuck(_) | StepState::Begun | StepState::Undoing
            );
            // A guest that could not be stopped is not destroyed either.
            let after_stop = step.kind == StepKind::Destroy
                && step.after.iter().any(|stop| {
                    steps[*stop].kind == StepKind::Stop
                        && steps[*stop].node == step.node
                        && matches!(replayed.states[*stop], StepState::Failed(_))
                });
            let skipped = *state == StepState::Untouched && after_stop;
            if named && (open || skipped) {
                let entry = Entry {
                    step: Some(step.id.clone()),
                    happened: StepEvent::Settled,
                    at: self.clock.now(),
                    record: None,
                };
                self.journal.append(run.head.id, &entry).await?;
                entries.push(entry);
            }
        }
        let mut execution = self.execution_of(run, &entries);
        let span = span(&run.head.verb, &execution);
        self.run(
            &run.head.verb,
            &mut execution,
            replayed.rolling_back,
            interrupt,
            true,
        )
        .instrument(span)
        .await
    }

    /// Undoes everything a run did.
    pub async fn roll_back(
        &self,
        run: &Run,
        interrupt: Interrupt,
    ) -> Result<RunOutcome, JournalError> {
        let mut execution = self.execution_of(run, &run.entries);
        announce(&run.head.verb, &execution, true);
        let started = self.clock.now();
        let span = span("rollback", &execution);
        let ending = self
            .undo(&mut execution, interrupt)
            .instrument(span)
            .await?;
        self.end(&execution, ending, started).await?;
        Ok(ending)
    }

    async fn run(
        &self,
        verb: &str,
        execution: &mut run::RunExecution,
        rolling_back: bool,
        interrupt: Interrupt,
        resumed: bool,
    ) -> Result<RunOutcome, JournalError> {
        let on_error = execution.plan.on_error;
        announce(verb, execution, resumed);
        let started = self.clock.now();
        let ending = if rolling_back {
            self.undo(execution, interrupt).await?
        } else {
            let todo = execution
                .states
                .iter()
                .map(|state| !state.is_done())
                .collect();
            let pass = run::Pass {
                operator: self,
                direction: Direction::Forward,
                continue_after_failure: on_error == OnError::Continue,
            };
            let done = pass.run(execution, todo, interrupt.clone()).await?;
            match done {
                run::PassOutcome::All => RunOutcome::Done,
                run::PassOutcome::Interrupted => RunOutcome::Stopped,
                run::PassOutcome::Failed if on_error == OnError::Rollback => {
                    execution.hub.emit(EventKind::RollbackStarted);
                    self.undo(execution, interrupt).await?
                }
                run::PassOutcome::Failed | run::PassOutcome::Partly => RunOutcome::Failed,
            }
        };
        self.end(execution, ending, started).await?;
        Ok(ending)
    }

    async fn undo(
        &self,
        execution: &mut run::RunExecution,
        interrupt: Interrupt,
    ) -> Result<RunOutcome, JournalError> {
        let todo = execution.to_undo();
        let pass = run::Pass {
            operator: self,
            direction: Direction::Back,
            // Undo as much as possible, and report the rest.
            continue_after_failure: true,
        };
        Ok(match pass.run(execution, todo, interrupt).await? {
            run::PassOutcome::All => RunOutcome::RolledBack,
            run::PassOutcome::Interrupted => RunOutcome::Stopped,
            run::PassOutcome::Failed | run::PassOutcome::Partly => RunOutcome::Stuck,
        })
    }

    /// Continues after the entries of a run. Runs of the first format have no mark.
    fn execution_of(&self, run: &Run, entries: &[Entry]) -> run::RunExecution {
        let mark = run.head.mark.clone().unwrap_or_default();
        self.execution(run.head.id, mark, Arc::new(run.plan.clone()), entries)
    }

    fn execution(
        &self,
        id: RunId,
        mark: String,
        plan: Arc<Plan>,
        entries: &[Entry],
    ) -> run::RunExecution {
        let replay = replay(&plan.steps, entries);
        let mut names = BTreeMap::new();
        for node in &plan.nodes {
            for uuid in [
                node.wanted.as_ref().map(|wanted| &wanted.uuid),
                node.found.as_ref().map(|found| &found.guest.uuid),
            ] {
                names.extend(uuid.map(|uuid| (uuid.clone(), node.name.clone())));
            }
        }
        let images = plan.steps.iter().filter_map(|step| {
            let image = plan.images.get(step.image?)?;
            Some((image.name.clone(), subject(&plan, step)))
        });
        let hub = self.hub.of_run(id, names, images.collect());
        let context = RunContext::new(
            plan.clone(),
            self.connector.clone(),
            replay.records.values(),
        );
        run::RunExecution {
            run: id,
            plan,
            states: replay.states,
            was_done: replay.was_done,
            changed: replay.changed,
            mark,
            context,
            hub,
            fences: Arc::default(),
        }
    }

    async fn end(
        &self,
        execution: &run::RunExecution,
        ending: RunOutcome,
        started: jiff::Timestamp,
    ) -> Result<(), JournalError> {
        let now = self.clock.now();
        self.journal.end(execution.run, ending, now).await?;
        execution.hub.emit(EventKind::RunEnded {
            ending,
            seconds: now.duration_since(started).as_secs_f64(),
        });
        Ok(())
    }
}

/// Returns the span of a run. Errors have it at every level.
fn span(verb: &str, execution: &run::RunExecution) -> tracing::Span {
    let manifest = execution.plan.manifest.as_str();
    tracing::error_span!("run", id = %execution.run, verb, manifest)
}

/// Emits the event that a run starts or continues.
fn announce(verb: &str, execution: &run::RunExecution, resumed: bool) {
    let started = EventKind::run_started(verb, &execution.plan, resumed);
    execution.hub.emit(started);
}
