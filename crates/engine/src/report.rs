//! What happened to each node in a run, from events or from the journal. Tables, JSON and reports
//! are made from it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use homestak_core::plan::{Action, NodeLocation, NodePlan, Plan, StepKind, Verb};
use jiff::Timestamp;

use crate::events::{Event, EventKind, Subject};
use crate::journal::{Run, RunId, RunOutcome, StepError, StepEvent};
use crate::ports::GuestId;
use crate::recorded_events::RecordedEvents;
use crate::steps::subject;

/// The status of a node in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowStatus {
    /// Not started.
    Pending,
    /// In progress.
    Running,
    /// Started, but not completed when the run ended.
    Interrupted,
    /// Completed.
    Completed,
    /// A step failed.
    Failed,
    /// Destroyed.
    Destroyed,
    /// It did not exist, and nothing was done.
    Absent,
    /// Undone, but its guest was kept because this run did not create it.
    Kept,
    /// The user marked its removal as resolved; whether it exists is not known.
    Settled,
    /// Undoing it failed.
    Stuck,
}

impl RowStatus {
    /// Returns the name used in tables and JSON.
    pub fn name(self) -> &'static str {
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

/// The outcome of the configuration of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigState {
    /// It matches its spec.
    Configured,
    /// Its host is simulated, so that nothing was configured.
    Simulated,
}

impl ConfigState {
    /// Returns the state of a node when its plan was made; `None` without a spec, and while it is not
    /// applied.
    pub fn planned(node: &NodePlan) -> Option<Self> {
        match &node.config {
            _ if node.simulated => Some(Self::Simulated),
            Some(config) if config.is_settled() => Some(Self::Configured),
            Some(_) | None => None,
        }
    }
}

/// The step in progress.
#[derive(Clone, Debug, PartialEq)]
pub struct CurrentStep {
    /// The step.
    pub step: StepKind,
    /// Whether it is being undone.
    pub undo: bool,
    /// When it started.
    pub since: Timestamp,
    /// What it waits for, if reported.
    pub waits_for: Option<String>,
}

/// What happened to a node or an image.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportRow {
    /// The node, or the image with its host.
    pub name: String,
    /// The node it runs on.
    pub parent: Option<String>,
    /// The host of the site it is on; empty for an image.
    pub host: String,
    /// What is done to it.
    pub action: Action,
    /// How many steps that takes.
    pub n_steps: usize,
    /// How many of them are completed.
    pub n_done: usize,
    /// Its status.
    pub status: RowStatus,
    /// Whether anything was changed.
    pub changed: bool,
    /// The outcome of its configuration; `None` without a spec, and while it is not applied.
    pub config: Option<ConfigState>,
    /// The guest's id.
    pub guest_id: Option<GuestId>,
    /// The guest's address.
    pub address: Option<IpAddr>,
    /// Seconds per step, in order of completion; undoing counts under the step that is undone.
    pub phases: Vec<(StepKind, f64)>,
    /// What is being done right now.
    pub now: Option<CurrentStep>,
    /// The error.
    pub error: Option<StepError>,
}

impl ReportRow {
    /// Returns the total duration of all steps, in seconds.
    pub fn seconds(&self) -> f64 {
        self.phases.iter().map(|(_, seconds)| seconds).sum()
    }
}

/// The report of a run.
#[derive(Clone, Debug, Default)]
pub struct RunReport {
    /// The run.
    pub run: Option<RunId>,
    /// The nodes, parents before their children.
    pub nodes: Vec<ReportRow>,
    /// Images.
    pub images: Vec<ReportRow>,
    /// Whether it is being rolled back.
    pub rolling_back: bool,
    /// How it ended, and its duration in seconds.
    pub ended: Option<(RunOutcome, f64)>,
    removes: bool,
    /// Rows of nodes that are deleted with another node, and its name.
    destroyed_with: Vec<(usize, String)>,
    /// Index of the rows by name: there may be ten thousand nodes, with many events each.
    index: BTreeMap<String, usize>,
}

impl RunReport {
    /// Starts with a plan.
    pub fn new(plan: &Plan) -> Self {
        let removes = plan.verb == Verb::Destroy;
        let row = |(node, n_steps): (&NodePlan, usize)| {
            let found = node.found.as_ref();
            // Id and address of a guest that is replaced are of no interest.
            let kept = found.filter(|_| node.action != Action::Replace);
            ReportRow {
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
                    Action::Nothing if removes && found.is_none() => RowStatus::Absent,
                    Action::Nothing if removes => RowStatus::Destroyed,
                    Action::Nothing | Action::Keep => RowStatus::Completed,
                    _ => RowStatus::Pending,
                },
                changed: false,
                config: ConfigState::planned(node),
                guest_id: kept.and_then(|found| found.guest.vmid),
                address: kept.and_then(|found| found.address),
                phases: Vec::new(),
                now: None,
                error: None,
            }
        };
        let names = plan.nodes.iter().enumerate();
        let mut report = Self {
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
        report.find_destroyed_with_parent();
        report
    }

    /// Finds nodes without steps inside a node that is destroyed: they are deleted with it.
    fn find_destroyed_with_parent(&mut self) {
        for at in 0..self.nodes.len() {
            if self.nodes[at].action != Action::Nothing || !self.removes {
                continue;
            }
            let above = |row: &&ReportRow| {
                let parent = self.index.get(row.parent.as_ref()?)?;
                self.nodes.get(*parent)
            };
            let mut above = std::iter::successors(self.nodes.get(at), above).take(self.nodes.len());
            let destroyed = above.find(|row| row.action == Action::Destroy);
            let Some(destroyed) = destroyed.map(|row| row.name.clone()) else {
                continue;
            };
            if self.nodes[at].status == RowStatus::Destroyed {
                self.nodes[at].status = RowStatus::Pending;
                self.destroyed_with.push((at, destroyed));
            }
        }
    }

    /// Makes the report of a recorded run.
    pub fn of_run(run: &Run) -> Self {
        let mut report = Self::new(&run.plan);
        report.run = Some(run.head.id);
        let mut events = RecordedEvents::new(run.head.id, &run.plan);
        for (at, entry) in run.step_entries() {
            let Some(event) = events.next(&run.plan, entry) else {
                continue;
            };
            report.apply(&event);
            let step = &run.plan.steps[at];
            let removal = match step.kind {
                StepKind::Create => report.rolling_back,
                kind => kind == StepKind::Destroy,
            };
            if entry.happened == StepEvent::Settled && removal {
                report.row(&subject(&run.plan, step)).status = RowStatus::Settled;
            }
        }
        if let Some((at, ending)) = run.head.ended {
            let seconds = at.duration_since(run.head.started).as_secs_f64();
            report.apply(&Event {
                at,
                run: Some(run.head.id),
                kind: EventKind::RunEnded { ending, seconds },
            });
        }
        report
    }

    /// Marks steps in progress as interrupted: the run is no longer executed.
    pub fn mark_interrupted(&mut self) {
        for row in self.nodes.iter_mut().chain(&mut self.images) {
            row.now = None;
            if row.status == RowStatus::Running {
                row.status = RowStatus::Interrupted;
            }
        }
    }

    /// Clears the errors.
    pub fn clear_errors(&mut self) {
        for row in self.nodes.iter_mut().chain(&mut self.images) {
            row.error = None;
        }
    }

    /// Applies an event.
    pub fn apply(&mut self, event: &Event) {
        self.run = event.run.or(self.run);
        match &event.kind {
            EventKind::RunStarted { .. } => self.ended = None,
            EventKind::StepStarted {
                subject,
                step,
                undo,
            } => {
                self.rolling_back |= *undo;
                let row = self.row(subject);
                row.status = RowStatus::Running;
                if !undo {
                    row.error = None;
                }
                row.now = Some(CurrentStep {
                    step: *step,
                    undo: *undo,
                    since: event.at,
                    waits_for: None,
                });
            }
            EventKind::Waiting { subject, what } | EventKind::Doing { subject, what } => {
                if let Some(now) = &mut self.row(subject).now {
                    now.waits_for = Some(what.clone());
                }
            }
            EventKind::Warning { .. } => {}
            EventKind::StepDone {
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
                    let destroyed = subject.to_string();
                    for (at, _) in self
                        .destroyed_with
                        .iter()
                        .filter(|(_, name)| *name == destroyed)
                    {
                        self.nodes[*at].status = RowStatus::Destroyed;
                    }
                }
            }
            EventKind::StepFailed {
                subject,
                step,
                undo,
                error,
                seconds,
            } => {
                let row = self.row(subject);
                row.now = None;
                row.phases.push((*step, *seconds));
                row.status = if *undo {
                    RowStatus::Stuck
                } else {
                    RowStatus::Failed
                };
                row.error = Some(error.clone());
            }
            EventKind::RollbackStarted => self.rolling_back = true,
            EventKind::RunEnded { ending, seconds } => {
                self.ended = Some((*ending, *seconds));
                self.mark_interrupted();
            }
        }
    }

    fn row(&mut self, subject: &Subject) -> &mut ReportRow {
        let name = subject.to_string();
        if let Some(at) = self.index.get(&name) {
            return &mut self.nodes[*at];
        }
        let at = self.images.iter().position(|row| row.name == name);
        let at = at.unwrap_or_else(|| {
            self.images.push(ReportRow {
                name,
                parent: None,
                host: String::new(),
                action: Action::Create,
                n_steps: 1,
                n_done: 0,
                status: RowStatus::Pending,
                changed: false,
                config: None,
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

    /// Returns every row with an error.
    pub fn errors(&self) -> impl Iterator<Item = (&ReportRow, &StepError)> {
        let rows = self.images.iter().chain(&self.nodes);
        rows.filter_map(|row| Some((row, row.error.as_ref()?)))
    }
}

impl ReportRow {
    fn done(&mut self, step: StepKind, (undo, changed, kept): (bool, bool, bool), removes: bool) {
        if undo {
            if self.status != RowStatus::Stuck {
                self.status = match step {
                    StepKind::Create if kept => RowStatus::Kept,
                    // Without a change, it never existed.
                    StepKind::Create if changed => RowStatus::Destroyed,
                    // The step of a node that is undone last decides.
                    StepKind::Create => RowStatus::Absent,
                    _ => RowStatus::Pending,
                };
            }
            if step == StepKind::Create && changed {
                self.address = None;
            }
            return;
        }
        if step == StepKind::Configure {
            self.config = Some(ConfigState::Configured);
        }
        self.n_done = (self.n_done + 1).min(self.n_steps);
        if self.n_done < self.n_steps {
            self.status = RowStatus::Running;
        } else if removes || self.action == Action::Destroy {
            self.status = RowStatus::Destroyed;
            self.address = None;
        } else {
            self.status = RowStatus::Completed;
        }
    }
}

#[cfg(test)]
mod tests;
