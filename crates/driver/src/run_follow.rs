//! Follows a run that another process executes: reads the journal until the run ends, and passes on
//! the events of its steps. Changes nothing.

use std::sync::Arc;
use std::time::Duration;

use homestak_api::runtime::SharedClock;
use homestak_engine::events::{Event, EventKind, Observer};
use homestak_engine::journal::{
    HolderState, Journal, Run, RunFilter, RunId, RunOutcome, RunSummary,
};
use homestak_engine::recorded_events::RecordedEvents;

use crate::error::DriverError;

/// How often the journal is read: soon enough for a person who watches, and a read of nothing new
/// takes less than a millisecond.
const BETWEEN: Duration = Duration::from_millis(250);

/// A run that is followed.
pub struct RunFollower<'a> {
    journal: &'a Arc<dyn Journal>,
    clock: SharedClock,
    run: &'a Run,
    events: RecordedEvents,
    /// Of the last entry that was passed on.
    position: i64,
}

impl<'a> RunFollower<'a> {
    /// Follows a run from its first step.
    pub fn new(journal: &'a Arc<dyn Journal>, clock: SharedClock, run: &'a Run) -> Self {
        Self {
            journal,
            clock,
            run,
            events: RecordedEvents::new(run.head.id, &run.plan),
            position: 0,
        }
    }

    /// Passes on every event of the run until it ends. Returns how it ended; `None` if it did not
    /// end, and no process executes it any more.
    pub async fn follow(
        mut self,
        observer: &dyn Observer,
    ) -> Result<Option<RunOutcome>, DriverError> {
        let head = &self.run.head;
        observer.on_event(&Event {
            at: head.started,
            run: Some(head.id),
            kind: EventKind::run_started(&head.verb, &self.run.plan, false),
        });
        loop {
            // In this order: the end of a run is written before its lock is released.
            let is_executed = self.is_executed().await?;
            let head = self.head().await?;
            self.pass_on_new(observer).await?;
            if let Some((at, ending)) = head.ended {
                let seconds = at.duration_since(head.started).as_secs_f64();
                observer.on_event(&Event {
                    at,
                    run: Some(head.id),
                    kind: EventKind::RunEnded { ending, seconds },
                });
                return Ok(Some(ending));
            }
            if !is_executed {
                return Ok(None);
            }
            // Cancel safety: nothing is held while it waits.
            self.clock.sleep(BETWEEN).await;
        }
    }

    async fn pass_on_new(&mut self, observer: &dyn Observer) -> Result<(), DriverError> {
        let new = self.journal.entries_after(self.run.head.id, self.position);
        for (position, entry) in new.await? {
            self.position = position;
            if let Some(event) = self.events.next(&self.run.plan, &entry) {
                observer.on_event(&event);
            }
        }
        Ok(())
    }

    /// Returns whether a process executes the run.
    async fn is_executed(&self) -> Result<bool, DriverError> {
        for scope in self.run.head.scopes() {
            let holder = self.journal.holder(&scope).await?;
            if holder.is_some_and(|holder| holder.life != HolderState::Dead) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads the summary of the run.
    async fn head(&self) -> Result<RunSummary, DriverError> {
        let RunId(number) = self.run.head.id;
        let only = RunFilter {
            before: Some(RunId(number + 1)),
            limit: Some(1),
            ..RunFilter::default()
        };
        let found = self.journal.list_runs(&only).await?.pop();
        let found = found.filter(|head| head.id == self.run.head.id);
        found.ok_or_else(|| DriverError::failed(format!("There is no run {number}.")))
    }
}
