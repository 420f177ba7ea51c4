//! Previews what rolling back a run undoes and what it cannot undo.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use homestak_core::observed::PowerState;
use homestak_core::plan::{Action, NodePlan, Step, StepKind, UNKNOWN_GUESTS};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::Operator;
use super::replay::{Replay, StepState, replay};
use crate::journal::Run;
use crate::ports::{ErrorClass, GuestRef, ObservedGuest, PortError};
use crate::steps::configure::earlier;
use crate::steps::create::{Removal, removal};
use crate::steps::inside::{ExpectedRemovals, InsideCheck, check_inside};
use crate::steps::power::{was_started, was_there};
use crate::steps::{Task, subject};

/// How many guests are inspected at once.
const AT_ONCE: usize = 16;

/// The inspected guests of creates to be undone, by step.
type InspectedGuests = BTreeMap<usize, Result<Removal, PortError>>;

/// What a rollback does with the effect of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndoEffect {
    /// It is undone.
    Undone,
    /// It stays, which is harmless.
    Stays,
    /// It cannot be undone.
    Lost,
}

impl UndoEffect {
    /// Returns the word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Undone => "undo",
            Self::Stays => "stays",
            Self::Lost => "lost",
        }
    }
}

/// The effect of a step, and what a rollback does with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndoItem {
    /// The node, or the image with its host.
    pub subject: String,
    /// The effect of the rollback.
    pub effect: UndoEffect,
    /// The same as text.
    pub text: String,
}

/// Returns what rolling back a run undoes and what it cannot undo, last steps first, by the journal
/// alone. What was undone before is left out.
pub fn rollback_plan(run: &Run) -> Vec<UndoItem> {
    items(run, &InspectedGuests::new())
}

impl Operator {
    /// Returns the same after inspecting each guest that may be deleted: its mark decides.
    pub async fn rollback_plan(&self, run: &Run) -> Vec<UndoItem> {
        let execution = self.execution_of(run, &run.entries);
        let slots = Arc::new(Semaphore::new(AT_ONCE));
        let mut asked = JoinSet::new();
        for (at, step) in execution.plan.steps.iter().enumerate() {
            if step.kind != StepKind::Create || !execution.states[at].needs_undo() {
                continue;
            }
            let task = Task {
                plan: execution.plan.clone(),
                step: step.clone(),
                context: execution.context.clone(),
                seeds: self.seeds.clone(),
                configurer: self.configurer.clone(),
                clock: self.clock.clone(),
                hub: execution.hub.clone(),
                limits: self.limits,
                before: execution.states[at].clone(),
                mark: execution.mark.clone(),
                changed: execution.changed[at],
                began: Arc::default(),
            };
            let slots = slots.clone();
            // Cancel safety: changes nothing.
            asked.spawn(async move {
                let _slot = slots.acquire().await;
                let seen = removal(&task).await;
                (at, (task, seen))
            });
        }
        let mut tasks = BTreeMap::new();
        while let Some(answer) = asked.join_next().await {
            // A task that panicked leaves its guest uninspected.
            tasks.extend(answer);
        }
        let mut seen = InspectedGuests::new();
        // The create of a node comes after that of its parent. A guest that stays keeps its parent.
        for (at, (task, removal)) in tasks.into_iter().rev() {
            let removal = match removal {
                Ok(Removal::Created { there, .. }) => inside(&task, there, &seen).await,
                other => other,
            };
            seen.insert(at, removal);
        }
        items(run, &seen)
    }
}

/// Inspects a guest that is to be deleted, once it is known which guests in it are.
async fn inside(
    task: &Task,
    there: ObservedGuest,
    seen: &InspectedGuests,
) -> Result<Removal, PortError> {
    let goes = |guest: &ObservedGuest| {
        seen.values().any(|other| match other {
            Ok(Removal::Created { there, .. }) => {
                (there.vmid, &there.uuid, &there.host) == (guest.vmid, &guest.uuid, &guest.host)
            }
            Ok(Removal::Gone | Removal::Kept(_)) | Err(_) => false,
        })
    };
    let Some(uuid) = there.uuid.clone() else {
        return Ok(Removal::Kept(there));
    };
    let guest = GuestRef {
        uuid,
        kind: there.kind,
        vmid: Some(there.vmid),
        host: there.host.clone(),
    };
    match check_inside(task, &guest, there.power, ExpectedRemovals::Later(&goes)).await {
        Ok(inside) => Ok(Removal::Created {
            unseen: inside == InsideCheck::Unseen,
            there,
        }),
        Err(error) => Err(PortError {
            class: ErrorClass::Refused,
            ..error
        }),
    }
}

fn items(run: &Run, seen: &InspectedGuests) -> Vec<UndoItem> {
    let steps = &run.plan.steps;
    let kept = run
        .step_entries()
        .filter(|(at, entry)| entry.is_kept(steps[*at].kind));
    let state = RollbackState {
        replay: replay(steps, &run.entries),
        kept: kept.map(|(at, _)| at).collect(),
        steps,
        seen,
    };
    let mut items = Vec::new();
    for (at, step) in steps.iter().enumerate().rev() {
        let node = step.node.and_then(|node| run.plan.nodes.get(node));
        let said = match node {
            Some(node) => state.of_node(node, step, at),
            None => (state.replay.changed[at] == Some(true)).then(|| {
                let text = "the image stays in its storage, where others may use it";
                (UndoEffect::Stays, text.to_owned())
            }),
        };
        let kept = node.and_then(|node| added_accounts(node, step, at, &state.replay));
        let kept = kept.map(|text| (UndoEffect::Lost, text));
        items.extend(said.into_iter().chain(kept).map(|(effect, text)| UndoItem {
            subject: subject(&run.plan, step).to_string(),
            effect,
            text,
        }));
    }
    items
}

/// Returns which accounts stay, closed, on a node whose configuration is reverted.
fn added_accounts(node: &NodePlan, step: &Step, at: usize, replay: &Replay) -> Option<String> {
    if step.kind != StepKind::Configure || replay.states[at] == StepState::Untouched {
        return None;
    }
    let changed = replay.changed[at];
    earlier(node, changed)?;
    let added = match changed {
        Some(_) => "that it added",
        None => "that it may have added",
    };
    let Some(found) = &node.config.as_ref()?.found else {
        return Some(format!(
            "accounts {added}, if any, stay closed, with their home directories"
        ));
    };
    let accounts = found.changes.iter().filter(|one| one.field == "account");
    let names: Vec<&str> = accounts
        .filter_map(|one| one.resource.strip_prefix("user:"))
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "accounts {added} stay closed, with their home directories: {}",
            names.join(", ")
        )
    })
}

/// The state of a run.
struct RollbackState<'a> {
    replay: Replay,
    /// Creates that were undone while the guest was kept.
    kept: BTreeSet<usize>,
    steps: &'a [Step],
    seen: &'a InspectedGuests,
}

/// Returns the reason why a guest stays.
fn unmarked(guest: &str) -> String {
    format!("{guest} does not carry the mark of this run")
}

fn name(guest: &ObservedGuest) -> String {
    format!("guest {} on {}", guest.vmid, guest.host)
}

impl RollbackState<'_> {
    /// Returns whether the guest of a create stays when it is undone.
    fn keeps(&self, at: usize) -> bool {
        self.kept.contains(&at) || matches!(self.seen.get(&at), Some(Ok(Removal::Kept(_))))
    }

    fn of_create(&self, node: &NodePlan, at: usize, guest: &str) -> Option<(UndoEffect, String)> {
        use UndoEffect::{Lost, Stays, Undone};
        if self.kept.contains(&at) {
            return Some((Stays, unmarked(guest)));
        }
        if !self.replay.states[at].needs_undo() {
            return None;
        }
        Some(match self.seen.get(&at) {
            Some(Ok(Removal::Created { there, unseen })) => {
                let mut text = format!("destroy {}, with its disk", name(there));
                if *unseen {
                    text += &format!("; {UNKNOWN_GUESTS}");
                }
                (Undone, text)
            }
            Some(Ok(Removal::Kept(there))) => (Stays, unmarked(&name(there))),
            Some(Ok(Removal::Gone)) => (
                Undone,
                "its guest is not there; remove what was stored for it".to_owned(),
            ),
            Some(Err(error)) if error.class == ErrorClass::Refused => {
                (Lost, error.detail.to_string())
            }
            Some(Err(error)) => (
                Undone,
                format!("destroy its guest, if this run created it, which is unknown ({error})"),
            ),
            None if self.replay.was_done[at] && node.action != Action::Start => {
                (Undone, format!("destroy {guest}, with its disk"))
            }
            None => (
                Undone,
                "destroy what there is of its guest, if this run created it".to_owned(),
            ),
        })
    }

    fn of_node(&self, node: &NodePlan, step: &Step, at: usize) -> Option<(UndoEffect, String)> {
        use UndoEffect::{Lost, Stays, Undone};
        let Self { replay, steps, .. } = self;
        let open = replay.states[at].needs_undo();
        let changed = replay.changed[at];
        let found = node.found.as_ref();
        let guest = replay.records.of(node.record_name(), &node.host);
        let guest = guest.map_or_else(|| "its guest".to_owned(), |record| record.guest.to_string());
        // Other steps of a guest that is deleted are of no interest.
        let goes = |kind: StepKind| {
            let mut all = steps.iter().enumerate();
            all.any(|(other, one)| {
                let touched = replay.states[other] != StepState::Untouched;
                one.kind == kind && one.node == step.node && touched && !self.keeps(other)
            })
        };
        match step.kind {
            StepKind::Image | StepKind::Ready | StepKind::Discard => None,
            StepKind::Create => self.of_create(node, at, &guest),
            StepKind::Start if !open || goes(StepKind::Create) => None,
            StepKind::Start => {
                let ran = found.is_some_and(|found| found.power == PowerState::Running);
                // A guest that is kept although it is new may have been started by others.
                let started = !ran && was_there(node) && was_started(node, changed);
                started.then(|| (Undone, format!("stop {guest}, which did not run before")))
            }
            StepKind::Configure if goes(StepKind::Create) || changed == Some(false) => None,
            StepKind::Configure => match earlier(node, changed) {
                Some(before) if open => Some((
                    Undone,
                    format!(
                        "configure it as before, by its own record of the spec `{}`",
                        before.spec
                    ),
                )),
                Some(_) => None,
                None if changed.is_none() && !open => None,
                None if found.is_some_and(|found| found.configured.is_some()) => Some((
                    Lost,
                    "differences that were corrected stay corrected".to_owned(),
                )),
                None => Some((
                    Lost,
                    "its configuration stays: nothing records what it was before".to_owned(),
                )),
            },
            StepKind::Reshape if !open => None,
            StepKind::Reshape => {
                let was = found.and_then(|found| Some((found.cores?, found.memory?)));
                Some(match was {
                    Some((cores, memory)) => (
                        Undone,
                        format!("give it {cores} CPUs and {memory} again, with a restart"),
                    ),
                    None => (Lost, "its CPUs and memory before are not known".to_owned()),
                })
            }
            StepKind::Grow => (changed == Some(true)).then(|| {
                let text = "its disk stays as large as it is: disks are never made smaller";
                (Lost, text.to_owned())
            }),
            StepKind::Stop if !open || goes(StepKind::Destroy) || goes(StepKind::Reshape) => None,
            StepKind::Stop => {
                let ran = found.is_some_and(|found| found.power == PowerState::Running);
                ran.then(|| (Undone, format!("start {guest} again")))
            }
            StepKind::Destroy => {
                let gone = found.map_or_else(|| guest.clone(), |found| found.guest.to_string());
                let text = match (replay.was_done[at], open) {
                    (true, _) => {
                        format!("{gone} was destroyed with its disk and cannot be restored")
                    }
                    (false, true) => format!("{gone} may have been destroyed with its disk"),
                    (false, false) => return None,
                };
                Some((Lost, text))
            }
            StepKind::Reidentify => {
                open.then(|| (Stays, "it keeps the identity of this site".to_owned()))
            }
        }
    }
}
