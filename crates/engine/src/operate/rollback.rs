//! What rolling a run back does, and what it cannot undo, before anything is done.

use homestak_core::observed::Power;
use homestak_core::plan::{Action, NodePlan, Step, StepKind, steps};

use super::replay::{Replay, StepState, replay};
use crate::journal::Run;
use crate::steps::configure::earlier;
use crate::steps::subject;

/// What becomes of something that a run did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndoEffect {
    /// It is undone.
    Undone,
    /// It stays on purpose, and harms nobody.
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

/// One thing that a run did, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndoItem {
    /// The node, or the image with its place.
    pub subject: String,
    /// What becomes of it.
    pub effect: UndoEffect,
    /// The same, for a person.
    pub text: String,
}

/// Returns what rolling a run back does, last steps first, and what it cannot undo. What was undone
/// before is left out; what cannot be undone never is.
pub fn rollback_plan(run: &Run) -> Vec<UndoItem> {
    let steps = steps(&run.plan);
    let replay = replay(steps.len(), &run.entries);
    let mut items = Vec::new();
    for (at, step) in steps.iter().enumerate().rev() {
        let node = step.node.and_then(|node| run.plan.nodes.get(node));
        let said = match node {
            Some(node) => of_node(node, step, at, &replay, &steps),
            None => (replay.changed[at] == Some(true)).then(|| {
                let text = "the image stays in its storage, where others may use it";
                (UndoEffect::Stays, text.to_owned())
            }),
        };
        let kept = node.and_then(|node| added_accounts(node, step, at, &replay));
        let kept = kept.map(|text| (UndoEffect::Lost, text));
        items.extend(said.into_iter().chain(kept).map(|(effect, text)| UndoItem {
            subject: subject(&run.plan, step),
            effect,
            text,
        }));
    }
    items
}

/// Says which accounts stay on a node that becomes again what its spec before said: they are closed,
/// and what is theirs is not removed.
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

fn of_node(
    node: &NodePlan,
    step: &Step,
    at: usize,
    replay: &Replay,
    steps: &[Step],
) -> Option<(UndoEffect, String)> {
    use UndoEffect::{Lost, Stays, Undone};
    let open = replay.states[at].needs_undo();
    let changed = replay.changed[at];
    let found = node.found.as_ref();
    let guest = replay.records.get(&node.name);
    let guest = guest.map_or_else(|| "its guest".to_owned(), |record| record.guest.to_string());
    // What happened to a guest that goes, or that is gone, is of no interest.
    let goes = |kind: StepKind| {
        let mut all = steps.iter().enumerate();
        all.any(|(other, one)| {
            let touched = replay.states[other] != StepState::Untouched;
            one.kind == kind && one.node == step.node && touched
        })
    };
    match step.kind {
        StepKind::Image | StepKind::Ready | StepKind::Discard => None,
        StepKind::Create if !open => None,
        StepKind::Create if replay.was_done[at] && node.action != Action::Start => {
            Some((Undone, format!("destroy {guest}, with its disk")))
        }
        StepKind::Create => Some((
            Undone,
            "destroy what there is of its guest, if this run created it".to_owned(),
        )),
        StepKind::Start if !open || goes(StepKind::Create) => None,
        StepKind::Start => {
            let ran = found.is_some_and(|found| found.power == Power::Running);
            (!ran).then(|| (Undone, format!("stop {guest}, which did not run before")))
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
                    format!("give it {cores} CPUs and {memory} MiB again, with a restart"),
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
            let ran = found.is_some_and(|found| found.power == Power::Running);
            ran.then(|| (Undone, format!("start {guest} again")))
        }
        StepKind::Destroy => {
            let gone = found.map_or_else(|| guest.clone(), |found| found.guest.to_string());
            let text = match (replay.was_done[at], open) {
                (true, _) => format!("{gone} was destroyed with its disk and cannot be restored"),
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
