//! Carries out plans: in parallel where the graph allows, written down before and after each act.
//!
//! In: a [`Plan`], or a [`Run`] that did not end well. Out: how it ended.
//! Never: a choice; an act whose intent is not on disk; a failed undo in silence.

pub(crate) mod board;
mod interrupt;
pub(crate) mod limits;
mod persist;
mod replay;
mod rollback;
mod run;
mod schedule;
mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::steps::subject;
use homestak_api::runtime::SharedClock;
use homestak_core::plan::{OnError, Plan, StepKind, without_config_values};

use crate::events::{Cast, Hub, What};
use crate::journal::{Ending, Entry, Happened, Journal, JournalError, Run, RunId};
use crate::ports::{Configurer, Places, Seeds};
use board::Board;
use schedule::Way;
use tracing::Instrument as _;

pub use interrupt::{Interrupt, Interrupter};
pub use limits::Limits;
pub use replay::{Replay, StepState, replay};
pub use rollback::{UndoEffect, UndoItem, rollback_plan};

/// A moment in the life of a step. Tests kill the program at each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Before the intent is written.
    BeforeIntent,
    /// The intent is written, the act not begun.
    AfterIntent,
    /// The act is done, nothing is written.
    AfterAct,
    /// The result is written.
    AfterResult,
}

/// Someone who is told when each moment comes.
pub trait Watcher: Send + Sync {
    /// Hears of a moment.
    fn reached(&self, moment: Moment);
}

/// Carries out plans.
pub struct Operator {
    /// Where places are found.
    pub places: Arc<dyn Places>,
    /// Where first-boot data comes from.
    pub seeds: Arc<dyn Seeds>,
    /// Who makes nodes what their specs say.
    pub configurer: Arc<dyn Configurer>,
    /// Where everything is written down.
    pub journal: Arc<dyn Journal>,
    /// Where events are told.
    pub hub: Arc<Hub>,
    /// What time it is.
    pub clock: SharedClock,
    /// How often something is tried.
    pub limits: Limits,
    /// Who is told of each moment, if anyone.
    pub watcher: Option<Arc<dyn Watcher>>,
    /// Makes the random mark of a run.
    pub mark: fn() -> String,
}

impl Operator {
    /// Carries out a plan. The caller holds the plan's scopes.
    pub async fn carry_out(
        &self,
        verb: &str,
        plan: impl Into<Arc<Plan>>,
        interrupt: Interrupt,
    ) -> Result<(RunId, Ending), JournalError> {
        let plan = plan.into();
        let mark = (self.mark)();
        let now = self.clock.now();
        let id = self
            .journal
            .begin(verb, &without_config_values(&plan), &mark, now)
            .await?;
        let mut stage = self.stage(id, mark, plan, &[]);
        let span = span(verb, &stage);
        let ending = self
            .go_on(verb, &mut stage, false, interrupt, false)
            .instrument(span)
            .await?;
        Ok((id, ending))
    }

    /// Goes on with a run that was interrupted, failed or died: forward, or back when it was
    /// being undone. `settled` names nodes whose failed steps a person has settled by hand.
    pub async fn resume(
        &self,
        run: &Run,
        settled: &[String],
        interrupt: Interrupt,
    ) -> Result<Ending, JournalError> {
        let mut entries = run.entries.clone();
        let steps = &run.plan.steps;
        let so_far = replay(steps, &entries);
        for (step, state) in steps.iter().zip(&so_far.states) {
            let node = step.node.and_then(|node| run.plan.nodes.get(node));
            let named = node.is_some_and(|node| settled.contains(&node.name));
            let open = matches!(
                state,
                StepState::Failed(_) | StepState::Stuck(_) | StepState::Begun | StepState::Undoing
            );
            // One that may not be stopped stays, so that it is not removed either.
            let after_stop = step.kind == StepKind::Destroy
                && step.after.iter().any(|stop| {
                    steps[*stop].kind == StepKind::Stop
                        && steps[*stop].node == step.node
                        && matches!(so_far.states[*stop], StepState::Failed(_))
                });
            let skipped = *state == StepState::Untouched && after_stop;
            if named && (open || skipped) {
                let entry = Entry {
                    step: Some(step.id.clone()),
                    happened: Happened::Settled,
                    at: self.clock.now(),
                    record: None,
                };
                self.journal.append(run.head.id, &entry).await?;
                entries.push(entry);
            }
        }
        let mut stage = self.stage_of(run, &entries);
        let span = span(&run.head.verb, &stage);
        self.go_on(
            &run.head.verb,
            &mut stage,
            so_far.unwinding,
            interrupt,
            true,
        )
        .instrument(span)
        .await
    }

    /// Undoes everything a run did.
    pub async fn roll_back(&self, run: &Run, interrupt: Interrupt) -> Result<Ending, JournalError> {
        let mut stage = self.stage_of(run, &run.entries);
        announce(&run.head.verb, &stage, true);
        let begun = self.clock.now();
        let span = span("rollback", &stage);
        let ending = self.unwind(&mut stage, interrupt).instrument(span).await?;
        self.end(&stage, ending, begun).await?;
        Ok(ending)
    }

    async fn go_on(
        &self,
        verb: &str,
        stage: &mut run::Stage,
        unwinding: bool,
        interrupt: Interrupt,
        resumed: bool,
    ) -> Result<Ending, JournalError> {
        let on_error = stage.plan.on_error;
        announce(verb, stage, resumed);
        let begun = self.clock.now();
        let ending = if unwinding {
            self.unwind(stage, interrupt).await?
        } else {
            let todo = stage.states.iter().map(|state| !state.is_done()).collect();
            let work = run::Work {
                operator: self,
                way: Way::Forward,
                go_on_after_failure: on_error == OnError::Continue,
            };
            let done = work.run(stage, todo, interrupt.clone()).await?;
            match done {
                run::Came::All => Ending::Done,
                run::Came::Interrupted => Ending::Stopped,
                run::Came::Failed if on_error == OnError::Rollback => {
                    stage.hub.tell(What::RollbackStarted);
                    self.unwind(stage, interrupt).await?
                }
                run::Came::Failed | run::Came::Partly => Ending::Failed,
            }
        };
        self.end(stage, ending, begun).await?;
        Ok(ending)
    }

    async fn unwind(
        &self,
        stage: &mut run::Stage,
        interrupt: Interrupt,
    ) -> Result<Ending, JournalError> {
        let todo = stage.to_undo();
        let work = run::Work {
            operator: self,
            way: Way::Back,
            // What can be undone is undone; the rest is named.
            go_on_after_failure: true,
        };
        Ok(match work.run(stage, todo, interrupt).await? {
            run::Came::All => Ending::RolledBack,
            run::Came::Interrupted => Ending::Stopped,
            run::Came::Failed | run::Came::Partly => Ending::Stuck,
        })
    }

    /// Takes up a run where its entries end. One of the first form has no mark, and so proves nothing.
    fn stage_of(&self, run: &Run, entries: &[Entry]) -> run::Stage {
        let mark = run.head.mark.clone().unwrap_or_default();
        self.stage(run.head.id, mark, Arc::new(run.plan.clone()), entries)
    }

    fn stage(&self, id: RunId, mark: String, plan: Arc<Plan>, entries: &[Entry]) -> run::Stage {
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
        let board = Board::new(plan.clone(), self.places.clone(), replay.records.values());
        run::Stage {
            run: id,
            plan,
            states: replay.states,
            was_done: replay.was_done,
            changed: replay.changed,
            mark,
            board,
            hub,
            fences: Arc::default(),
        }
    }

    async fn end(
        &self,
        stage: &run::Stage,
        ending: Ending,
        begun: jiff::Timestamp,
    ) -> Result<(), JournalError> {
        let now = self.clock.now();
        self.journal.end(stage.run, ending, now).await?;
        stage.hub.tell(What::RunEnded {
            ending,
            seconds: now.duration_since(begun).as_secs_f64(),
        });
        Ok(())
    }
}

/// Returns the span of a run. Errors have it at every level.
fn span(verb: &str, stage: &run::Stage) -> tracing::Span {
    let manifest = stage.plan.manifest.as_str();
    tracing::error_span!("run", id = %stage.run, verb, manifest)
}

/// Tells that a run begins, or goes on.
fn announce(verb: &str, stage: &run::Stage, resumed: bool) {
    let cast = stage.plan.nodes.iter().zip(stage.plan.steps_per_node());
    let nodes = cast
        .map(|(node, steps)| Cast {
            name: node.name.clone(),
            parent: match &node.location {
                homestak_core::plan::NodeLocation::Inside(parent) => Some(parent.clone()),
                homestak_core::plan::NodeLocation::Host(_) => None,
            },
            host: node.host.clone(),
            action: node.action,
            steps,
        })
        .collect();
    stage.hub.tell(What::RunStarted {
        verb: verb.to_owned(),
        manifest: stage.plan.manifest.clone(),
        resumed,
        nodes,
    });
}
