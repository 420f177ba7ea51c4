//! Turns entries of the journal into the events of their run, as far as the journal has them: steps,
//! but neither what they wait for nor warnings.

use homestak_core::plan::Plan;
use jiff::Timestamp;

use crate::events::{Event, EventKind, Subject};
use crate::journal::{Entry, RunId, StepEvent};
use crate::steps::subject;

/// The events of a recorded run. Takes its entries in order.
#[derive(Debug)]
pub struct RecordedEvents {
    run: RunId,
    /// When each step was last started.
    begun: Vec<Option<Timestamp>>,
    rolling_back: bool,
}

impl RecordedEvents {
    /// Starts before the first entry of a run.
    pub fn new(run: RunId, plan: &Plan) -> Self {
        Self {
            run,
            begun: vec![None; plan.steps.len()],
            rolling_back: false,
        }
    }

    /// Returns the event of the next entry; `None` for one that is not about a step.
    pub fn next(&mut self, plan: &Plan, entry: &Entry) -> Option<Event> {
        let at = plan.steps.position(entry.step.as_ref()?)?;
        let step = &plan.steps[at];
        let name: Subject = subject(plan, step);
        let took = self.begun[at].map_or(0.0, |begun| {
            entry.at.duration_since(begun).as_secs_f64().max(0.0)
        });
        let record = entry.record.as_ref();
        let node = step.node.and_then(|node| plan.nodes.get(node));
        // Nodes deleted with this one are recorded beside it.
        if let (Some(record), Some(node)) = (record, node)
            && record.name != node.record_name()
        {
            return None;
        }
        let done = |undo, changed| EventKind::StepDone {
            subject: name.clone(),
            step: step.kind,
            undo,
            changed,
            kept: entry.is_kept(step.kind),
            seconds: took,
            guest_id: record.and_then(|record| record.guest.vmid),
            address: record.and_then(|record| record.address),
        };
        let kind = match &entry.happened {
            StepEvent::Intent | StepEvent::UndoIntent => {
                let undo = entry.happened == StepEvent::UndoIntent;
                self.begun[at] = Some(entry.at);
                self.rolling_back |= undo;
                EventKind::StepStarted {
                    subject: name,
                    step: step.kind,
                    undo,
                }
            }
            StepEvent::Done { changed } => done(false, *changed),
            StepEvent::Undone { changed } => done(true, *changed),
            StepEvent::Failed(error) | StepEvent::UndoFailed(error) => EventKind::StepFailed {
                subject: name,
                step: step.kind,
                undo: matches!(entry.happened, StepEvent::UndoFailed(_)),
                error: error.clone(),
                seconds: took,
            },
            StepEvent::Settled => {
                self.begun[at] = None;
                done(self.rolling_back, false)
            }
        };
        Some(Event {
            at: entry.at,
            run: Some(self.run),
            kind,
        })
    }
}
