//! Previews what rolling back a run undoes and what it cannot undo.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use homestak_core::converge::{Change, ChangeCause, Handling};
use homestak_core::observed::PowerState;
use homestak_core::plan::{Action, NodePlan, Step, StepKind, UNKNOWN_GUESTS};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::Operator;
use super::replay::{Replay, StepState, replay};
use crate::journal::Run;
use crate::ports::{ErrorClass, GuestRef, ObservedGuest, PortError};
use crate::steps::configure::config_to_restore;
use crate::steps::create::{Removal, removal};
use crate::steps::inside::{ExpectedRemovals, InsideCheck, check_inside};
use crate::steps::power::{was_started, was_there};
use crate::steps::{StepTask, subject};

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
            let task = StepTask {
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
    task: &StepTask,
    there: ObservedGuest,
    seen: &InspectedGuests,
) -> Result<Removal, PortError> {
    let is_removed = |guest: &ObservedGuest| {
        seen.values().any(|other| match other {
            Ok(Removal::Created { there, .. }) => {
                (there.vmid, &there.uuid, &there.host) == (guest.vmid, &guest.uuid, &guest.host)
            }
            Ok(Removal::Missing | Removal::Kept(_)) | Err(_) => false,
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
    match check_inside(
        task,
        &guest,
        there.power,
        ExpectedRemovals::Later(&is_removed),
    )
    .await
    {
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
        let effects = match node {
            Some(node) => state.of_node(node, step, at),
            None => (state.replay.changed[at] == Some(true)).then(|| {
                let text = "the image stays in its storage, where others may use it";
                (UndoEffect::Stays, text.to_owned())
            }),
        };
        let kept = node.map(|node| {
            let (step, replay) = ((step, at), &state.replay);
            [
                added_accounts(node, step, replay),
                corrected_drift(node, step, replay),
            ]
        });
        let kept = kept.into_iter().flatten().flatten();
        let kept = kept.map(|text| (UndoEffect::Lost, text));
        items.extend(
            effects
                .into_iter()
                .chain(kept)
                .map(|(effect, text)| UndoItem {
                    subject: subject(&run.plan, step).to_string(),
                    effect,
                    text,
                }),
        );
    }
    items
}

/// Returns whether a step changed the configuration of a node that rolling back restores; `None` if
/// it restores none.
fn restored_config(
    node: &NodePlan,
    (step, at): (&Step, usize),
    replay: &Replay,
) -> Option<Option<bool>> {
    if step.kind != StepKind::Configure || replay.states[at] == StepState::Untouched {
        return None;
    }
    let changed = replay.changed[at];
    config_to_restore(node, changed).map(|_| changed)
}

/// Returns which differences stay corrected on a node whose configuration is reverted: those that the
/// spec did not cause.
fn corrected_drift(node: &NodePlan, step: (&Step, usize), replay: &Replay) -> Option<String> {
    let changed = restored_config(node, step, replay)?;
    let changes = &node.config.as_ref()?.found.as_ref()?.changes;
    let is_drift =
        |one: &&Change| one.cause == ChangeCause::Node && one.handling == Handling::Enforce;
    let ids: Vec<&str> = changes
        .iter()
        .filter(is_drift)
        .map(|one| one.id.as_str())
        .collect();
    let were = match changed {
        Some(_) => "were corrected",
        None => "may have been corrected",
    };
    (!ids.is_empty()).then(|| format!("differences that {were} stay corrected: {}", ids.join(", ")))
}

/// Returns which accounts stay, disabled, on a node whose configuration is reverted.
fn added_accounts(node: &NodePlan, step: (&Step, usize), replay: &Replay) -> Option<String> {
    let changed = restored_config(node, step, replay)?;
    let added = match changed {
        Some(_) => "that it added",
        None => "that it may have added",
    };
    let Some(found) = &node.config.as_ref()?.found else {
        return Some(format!(
            "accounts {added}, if any, stay disabled, with their home directories"
        ));
    };
    // The previous spec has an account that was only missing on the node.
    let is_added = |one: &&Change| one.field == "account" && one.cause != ChangeCause::Node;
    let accounts = found.changes.iter().filter(is_added);
    let names: Vec<&str> = accounts
        .filter_map(|one| one.resource.strip_prefix("user:"))
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "accounts {added} stay disabled, with their home directories: {}",
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
    format!("{guest} is kept: it is not tagged with this run")
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
            Some(Ok(Removal::Missing)) => (
                Undone,
                "its guest does not exist; delete what is stored for it".to_owned(),
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
                "destroy its guest, if it exists and this run created it".to_owned(),
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
        // Other steps of a guest that is deleted are omitted.
        let removes = |kind: StepKind| {
            let mut all = steps.iter().enumerate();
            all.any(|(other, one)| {
                let touched = replay.states[other] != StepState::Untouched;
                one.kind == kind && one.node == step.node && touched && !self.keeps(other)
            })
        };
        match step.kind {
            StepKind::Image | StepKind::Ready | StepKind::Discard => None,
            StepKind::Create => self.of_create(node, at, &guest),
            StepKind::Start if !open || removes(StepKind::Create) => None,
            StepKind::Start => {
                let ran = found.is_some_and(|found| found.power == PowerState::Running);
                // A guest that is kept although it is new may have been started by others.
                let started = !ran && was_there(node) && was_started(node, changed);
                started.then(|| (Undone, format!("stop {guest}, which was stopped before")))
            }
            StepKind::Configure if removes(StepKind::Create) || changed == Some(false) => None,
            StepKind::Configure => match config_to_restore(node, changed) {
                Some(before) if open => Some((
                    Undone,
                    format!(
                        "restore its previous configuration, from its own record of the spec `{}`",
                        before.spec
                    ),
                )),
                Some(_) => None,
                None if changed.is_none() && !open => None,
                None if node.changes_mode() => Some((
                    Lost,
                    "its configuration and its mode stay: restore the earlier spec and mode in the \
                     site, and apply them"
                        .to_owned(),
                )),
                None if node.pulls() => Some((
                    Lost,
                    "its configuration stays: it applies the spec that is published; restore the \
                     earlier one in the site, and apply it"
                        .to_owned(),
                )),
                None if found.is_some_and(|found| found.configured.is_some()) => Some((
                    Lost,
                    "differences that were corrected stay corrected".to_owned(),
                )),
                None => Some((
                    Lost,
                    "its configuration stays: the previous one is not recorded".to_owned(),
                )),
            },
            StepKind::Reshape if !open => None,
            StepKind::Reshape => {
                let was = found.and_then(|found| Some((found.cores?, found.memory?)));
                Some(match was {
                    Some((cores, memory)) => (
                        Undone,
                        format!("restore {cores} CPUs and {memory}, with a restart"),
                    ),
                    None => (
                        Lost,
                        "its previous CPUs and memory are not known".to_owned(),
                    ),
                })
            }
            StepKind::Grow => (changed == Some(true)).then(|| {
                let text = "its disk keeps its new size: disks are never shrunk";
                (Lost, text.to_owned())
            }),
            StepKind::Stop if !open || removes(StepKind::Destroy) || removes(StepKind::Reshape) => {
                None
            }
            StepKind::Stop => {
                let ran = found.is_some_and(|found| found.power == PowerState::Running);
                ran.then(|| (Undone, format!("start {guest} again")))
            }
            StepKind::Destroy => {
                let guest = found.map_or_else(|| guest.clone(), |found| found.guest.to_string());
                let text = match (replay.was_done[at], open) {
                    (true, _) => {
                        format!("{guest} was destroyed with its disk and cannot be restored")
                    }
                    (false, true) => format!("{guest} may have been destroyed with its disk"),
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
