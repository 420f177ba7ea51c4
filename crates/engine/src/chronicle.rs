//! From events, or from the journal, to what happened to each node.
//!
//! In: a plan, then events as they come; or a run that is written down. Out: [`Row`]s.
//! Never: the terminal; tables, JSON and reports are all made from these rows.

use std::collections::BTreeMap;
use std::net::IpAddr;

use homestak_core::plan::{Action, NodeLocation, Plan, StepKind, Verb};
use jiff::Timestamp;

use crate::events::{Event, Subject, What};
use crate::journal::{Ending, Happened, Run, RunId, Trouble};
use crate::ports::GuestId;
use crate::steps::subject;

/// How a node is doing in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Nothing was begun.
    Pending,
    /// Something is being done.
    Running,
    /// It was begun, and the run died before it was done.
    Interrupted,
    /// Everything was done.
    Completed,
    /// A step failed.
    Failed,
    /// It is gone.
    Destroyed,
    /// It was not there, and nothing was done.
    Absent,
    /// What was done was undone, and its guest stays: this run did not create it.
    Kept,
    /// A person took its removal as settled; whether it is there is not known.
    Settled,
    /// It could not be undone.
    Stuck,
}

impl Status {
    /// Returns the word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Interrupted => "interrupted",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Destroyed => "destroyed",
            Self::Absent => "absent",
            Self::Kept => "kept",
            Self::Settled => "settled",
            Self::Stuck => "stuck",
        }
    }
}

/// What is being done right now.
#[derive(Clone, Debug, PartialEq)]
pub struct Current {
    /// The step.
    pub step: StepKind,
    /// Whether it is being undone.
    pub undo: bool,
    /// Since when.
    pub since: Timestamp,
    /// What it waits for, when it said so.
    pub waits_for: Option<String>,
}

/// What happened to one node, or to one image.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The node, or the image with its place.
    pub name: String,
    /// The node it runs on.
    pub parent: Option<String>,
    /// The host of the site it is on; empty for an image.
    pub host: String,
    /// What is done to it.
    pub action: Action,
    /// How many steps that takes.
    pub n_steps: usize,
    /// How many of them are done.
    pub n_done: usize,
    /// How it is doing.
    pub status: Status,
    /// Whether anything was changed.
    pub changed: bool,
    /// The guest's id.
    pub guest_id: Option<GuestId>,
    /// The guest's address.
    pub address: Option<IpAddr>,
    /// Seconds per step, in the order they ended; undoing counts under the step that was undone.
    pub phases: Vec<(StepKind, f64)>,
    /// What is being done right now.
    pub now: Option<Current>,
    /// What went wrong.
    pub error: Option<Trouble>,
}

impl Row {
    /// Returns how long all steps took together, in seconds.
    pub fn seconds(&self) -> f64 {
        self.phases.iter().map(|(_, seconds)| seconds).sum()
    }
}

/// What happened in a run.
#[derive(Clone, Debug, Default)]
pub struct Chronicle {
    /// The run.
    pub run: Option<RunId>,
    /// The nodes, parents before their children.
    pub nodes: Vec<Row>,
    /// Images that were brought.
    pub images: Vec<Row>,
    /// Whether steps are being undone.
    pub unwinding: bool,
    /// How it ended, and after how many seconds.
    pub ended: Option<(Ending, f64)>,
    removes: bool,
    /// Rows of nodes that go with another, and that one.
    buried: Vec<(usize, String)>,
    /// Where each node's row is: there may be ten thousand, and each is heard of many times.
    index: BTreeMap<String, usize>,
}

impl Chronicle {
    /// Begins with a plan that nothing was done of.
    pub fn new(plan: &Plan) -> Self {
        let removes = plan.verb == Verb::Destroy;
        let row = |(node, n_steps): (&homestak_core::plan::NodePlan, usize)| {
            let found = node.found.as_ref();
            // Of a guest that is replaced, neither id nor address says anything.
            let kept = found.filter(|_| node.action != Action::Replace);
            Row {
                name: node.name.clone(),
                parent: match &node.location {
                    NodeLocation::Inside(parent) => Some(parent.clone()),
                    NodeLocation::Host(_) => None,
                },
                host: node.host.clone(),
                action: node.action,
                n_steps,
                n_done: 0,
                status: match node.action {
                    Action::Nothing if removes && found.is_none() => Status::Absent,
                    Action::Nothing if removes => Status::Destroyed,
                    Action::Nothing | Action::Leave => Status::Completed,
                    _ => Status::Pending,
                },
                changed: false,
                guest_id: kept.and_then(|found| found.guest.vmid),
                address: kept.and_then(|found| found.address),
                phases: Vec::new(),
                now: None,
                error: None,
            }
        };
        let names = plan.nodes.iter().enumerate();
        let mut chronicle = Self {
            index: names.map(|(at, node)| (node.name.clone(), at)).collect(),
            nodes: plan
                .nodes
                .iter()
                .zip(plan.steps_per_node())
                .map(row)
                .collect(),
            removes,
            ..Self::default()
        };
        chronicle.bury();
        chronicle
    }

    /// Finds nodes without steps of their own in a node that is removed: they are gone when it is.
    fn bury(&mut self) {
        for at in 0..self.nodes.len() {
            if self.nodes[at].action != Action::Nothing || !self.removes {
                continue;
            }
            let above = |row: &&Row| {
                let parent = self.index.get(row.parent.as_ref()?)?;
                self.nodes.get(*parent)
            };
            let mut above = std::iter::successors(self.nodes.get(at), above).take(self.nodes.len());
            let gone = above.find(|row| row.action == Action::Destroy);
            let Some(gone) = gone.map(|row| row.name.clone()) else {
                continue;
            };
            if self.nodes[at].status == Status::Destroyed {
                self.nodes[at].status = Status::Pending;
                self.buried.push((at, gone));
            }
        }
    }

    /// Tells the same from what is written down about a run.
    pub fn of_run(run: &Run) -> Self {
        let mut chronicle = Self::new(&run.plan);
        chronicle.run = Some(run.head.id);
        let steps = &run.plan.steps;
        let mut begun: Vec<Option<Timestamp>> = vec![None; steps.len()];
        for (at, entry) in run.of_steps() {
            let step = &steps[at];
            let name = subject(&run.plan, step);
            let took = begun[at].map_or(0.0, |begun| {
                entry.at.duration_since(begun).as_secs_f64().max(0.0)
            });
            let record = entry.record.as_ref();
            let node = step.node.and_then(|node| run.plan.nodes.get(node));
            // What was in a node that is gone is recorded beside it, and is none of its own.
            if let (Some(record), Some(node)) = (record, node)
                && record.name != node.record_name()
            {
                continue;
            }
            let done = |undo, changed| What::StepDone {
                subject: name.clone(),
                step: step.kind,
                undo,
                changed,
                kept: entry.is_kept(step.kind),
                seconds: took,
                guest_id: record.and_then(|record| record.guest.vmid),
                address: record.and_then(|record| record.address),
            };
            let what = match &entry.happened {
                Happened::Intent | Happened::UndoIntent => {
                    begun[at] = Some(entry.at);
                    What::StepStarted {
                        subject: name.clone(),
                        step: step.kind,
                        undo: entry.happened == Happened::UndoIntent,
                    }
                }
                Happened::Done { changed } => done(false, *changed),
                Happened::Undone { changed } => done(true, *changed),
                Happened::Failed(trouble) | Happened::UndoFailed(trouble) => What::StepFailed {
                    subject: name.clone(),
                    step: step.kind,
                    undo: matches!(entry.happened, Happened::UndoFailed(_)),
                    trouble: trouble.clone(),
                    seconds: took,
                },
                Happened::Settled => {
                    begun[at] = None;
                    done(chronicle.unwinding, false)
                }
            };
            chronicle.hear(&Event {
                at: entry.at,
                run: run.head.id,
                what,
            });
            let removal = match step.kind {
                StepKind::Create => chronicle.unwinding,
                kind => kind == StepKind::Destroy,
            };
            if entry.happened == Happened::Settled && removal {
                chronicle.row(&name).status = Status::Settled;
            }
        }
        if let Some((at, ending)) = run.head.ended {
            let seconds = at.duration_since(run.head.started).as_secs_f64();
            chronicle.hear(&Event {
                at,
                run: run.head.id,
                what: What::RunEnded { ending, seconds },
            });
        }
        chronicle
    }

    /// Says that nobody carries the run out any more: what was being done may be done or not.
    pub fn died(&mut self) {
        for row in self.nodes.iter_mut().chain(&mut self.images) {
            row.now = None;
            if row.status == Status::Running {
                row.status = Status::Interrupted;
            }
        }
    }

    /// Forgets what went wrong: what is done next has errors of its own.
    pub fn clear_errors(&mut self) {
        for row in self.nodes.iter_mut().chain(&mut self.images) {
            row.error = None;
        }
    }

    /// Hears an event.
    pub fn hear(&mut self, event: &Event) {
        self.run = Some(event.run);
        match &event.what {
            What::RunStarted { .. } => self.ended = None,
            What::StepStarted {
                subject,
                step,
                undo,
            } => {
                self.unwinding |= *undo;
                let row = self.row(subject);
                row.status = Status::Running;
                if !undo {
                    row.error = None;
                }
                row.now = Some(Current {
                    step: *step,
                    undo: *undo,
                    since: event.at,
                    waits_for: None,
                });
            }
            What::Waiting { subject, what } | What::Doing { subject, what } => {
                if let Some(now) = &mut self.row(subject).now {
                    now.waits_for = Some(what.clone());
                }
            }
            What::Warning { .. } => {}
            What::StepDone {
                subject,
                step,
                undo,
                changed,
                kept,
                seconds,
                guest_id,
                address,
            } => {
                let removes = self.removes;
                let row = self.row(subject);
                row.now = None;
                row.phases.push((*step, *seconds));
                row.changed |= changed;
                row.guest_id = guest_id.or(row.guest_id);
                row.address = address.or(row.address);
                row.done(*step, (*undo, *changed, *kept), removes);
                if *step == StepKind::Destroy && !*undo {
                    let gone = subject.to_string();
                    for (at, _) in self.buried.iter().filter(|(_, name)| *name == gone) {
                        self.nodes[*at].status = Status::Destroyed;
                    }
                }
            }
            What::StepFailed {
                subject,
                step,
                undo,
                trouble,
                seconds,
            } => {
                let row = self.row(subject);
                row.now = None;
                row.phases.push((*step, *seconds));
                row.status = if *undo { Status::Stuck } else { Status::Failed };
                row.error = Some(trouble.clone());
            }
            What::RollbackStarted => self.unwinding = true,
            What::RunEnded { ending, seconds } => {
                self.ended = Some((*ending, *seconds));
                self.died();
            }
        }
    }

    fn row(&mut self, subject: &Subject) -> &mut Row {
        let name = subject.to_string();
        if let Some(at) = self.index.get(&name) {
            return &mut self.nodes[*at];
        }
        let at = self.images.iter().position(|row| row.name == name);
        let at = at.unwrap_or_else(|| {
            self.images.push(Row {
                name,
                parent: None,
                host: String::new(),
                action: Action::Create,
                n_steps: 1,
                n_done: 0,
                status: Status::Pending,
                changed: false,
                guest_id: None,
                address: None,
                phases: Vec::new(),
                now: None,
                error: None,
            });
            self.images.len() - 1
        });
        &mut self.images[at]
    }

    /// Returns every row in which something went wrong.
    pub fn troubles(&self) -> impl Iterator<Item = (&Row, &Trouble)> {
        let rows = self.images.iter().chain(&self.nodes);
        rows.filter_map(|row| Some((row, row.error.as_ref()?)))
    }
}

impl Row {
    fn done(&mut self, step: StepKind, (undo, changed, kept): (bool, bool, bool), removes: bool) {
        if undo {
            if self.status != Status::Stuck {
                self.status = match step {
                    StepKind::Create if kept => Status::Kept,
                    // Without a change it never came to be.
                    StepKind::Create if changed => Status::Destroyed,
                    // The last of a node's steps that is undone says what is left of it.
                    StepKind::Create => Status::Absent,
                    _ => Status::Pending,
                };
            }
            if step == StepKind::Create && changed {
                self.address = None;
            }
            return;
        }
        self.n_done = (self.n_done + 1).min(self.n_steps);
        if self.n_done < self.n_steps {
            self.status = Status::Running;
        } else if removes || self.action == Action::Destroy {
            self.status = Status::Destroyed;
            self.address = None;
        } else {
            self.status = Status::Completed;
        }
    }
}

#[cfg(test)]
mod tests;
