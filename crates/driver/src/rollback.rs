//! Rolls back a run, as far as its steps can be undone.

use homestak_engine::operate::Interrupt;

use crate::driver::Driver;
use crate::error::DriverError;
use crate::runs::{
    Lease, Run, RunOutcome, RunReport, RunSelector, UndoEffect, UndoItem, rollback_plan, take,
};

/// What is left to undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndoState {
    /// There is something to undo, or hosts have to be observed to find out.
    Due,
    /// It was rolled back already.
    Already,
    /// Nothing can be undone.
    Nothing,
}

/// A locked run, to be rolled back.
pub struct Rollback<'d> {
    /// The run.
    pub run: Run,
    /// The effects of the rollback.
    pub items: Vec<UndoItem>,
    /// What is left to undo.
    pub undo: UndoState,
    driver: &'d Driver,
    _lease: Box<dyn Lease>,
}

impl<'d> Rollback<'d> {
    /// Locks the selected run. Fails when nothing of it can be undone.
    pub async fn open(driver: &'d Driver, which: &RunSelector) -> Result<Self, DriverError> {
        let head = driver.runs(which)?.last().await?;
        let (lease, run) = take(&head, driver.journal()).await?;
        let ended = run.head.ended.map(|(_, ending)| ending);
        driver.session.limit(&run.plan.timeouts);
        let items = match ended {
            Some(RunOutcome::RolledBack) => rollback_plan(&run),
            _ => driver.operator.rollback_plan(&run).await,
        };
        let of = |effect: UndoEffect| items.iter().filter(move |item| item.effect == effect);
        let undo = match ended {
            Some(RunOutcome::RolledBack) => UndoState::Already,
            Some(RunOutcome::Done) if of(UndoEffect::Undone).next().is_none() => {
                let refused = DriverError::refused(format!(
                    "Nothing of run {} ({} `{}`) can be undone.",
                    run.head.id, run.head.verb, run.head.manifest
                ));
                let lost = of(UndoEffect::Lost);
                let refused = lost.fold(refused, |refused, item| {
                    refused.hint(format!("`{}`: {}", item.subject, item.text))
                });
                if !refused.hints.is_empty() {
                    return Err(refused);
                }
                UndoState::Nothing
            }
            _ => UndoState::Due,
        };
        Ok(Self {
            run,
            items,
            undo,
            driver,
            _lease: lease,
        })
    }

    /// Returns its report so far, without its errors, which do not concern the rollback.
    pub fn report(&self) -> RunReport {
        let mut report = RunReport::of_run(&self.run);
        report.mark_interrupted();
        report.clear_errors();
        report
    }

    /// Rolls it back.
    pub async fn carry_out(&self, interrupt: Interrupt) -> Result<RunOutcome, DriverError> {
        let operator = &self.driver.operator;
        Ok(operator.roll_back(&self.run, interrupt).await?)
    }
}
