//! Undoes what a run did, as far as that can be undone.
//!
//! Never: a run that someone else holds; a claim that something is undone that cannot be.

use homestak_engine::operate::Interrupt;

use crate::driver::Driver;
use crate::error::DriverError;
use crate::runs::{
    Chronicle, Ending, Lease, Run, UndoEffect, UndoItem, Which, rollback_plan, take,
};

/// What is left to undo of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undo {
    /// Something, or what is there has to be looked at.
    Due,
    /// It was undone already.
    Already,
    /// It left nothing that could be undone.
    Nothing,
}

/// A run that is held, to be undone.
pub struct Rollback<'d> {
    /// The run.
    pub run: Run,
    /// What undoing it does.
    pub items: Vec<UndoItem>,
    /// What is left to undo.
    pub undo: Undo,
    driver: &'d Driver,
    _lease: Box<dyn Lease>,
}

impl<'d> Rollback<'d> {
    /// Takes the run that is meant. Refused when nothing of it can be undone.
    pub async fn open(driver: &'d Driver, which: &Which) -> Result<Self, DriverError> {
        let head = driver.runs(which)?.last().await?;
        let (lease, run) = take(&head, driver.journal()).await?;
        let ended = run.head.ended.map(|(_, ending)| ending);
        driver.session.limit(&run.plan.timeouts);
        let items = match ended {
            Some(Ending::RolledBack) => rollback_plan(&run),
            _ => driver.operator.rollback_plan(&run).await,
        };
        let of = |effect: UndoEffect| items.iter().filter(move |item| item.effect == effect);
        let undo = match ended {
            Some(Ending::RolledBack) => Undo::Already,
            Some(Ending::Done) if of(UndoEffect::Undone).next().is_none() => {
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
                Undo::Nothing
            }
            _ => Undo::Due,
        };
        Ok(Self {
            run,
            items,
            undo,
            driver,
            _lease: lease,
        })
    }

    /// Returns how far the run came, without its errors: why it failed then says nothing about how
    /// undoing it goes now.
    pub fn chronicle(&self) -> Chronicle {
        let mut chronicle = Chronicle::of_run(&self.run);
        chronicle.died();
        chronicle.clear_errors();
        chronicle
    }

    /// Undoes it.
    pub async fn carry_out(&self, interrupt: Interrupt) -> Result<Ending, DriverError> {
        let operator = &self.driver.operator;
        Ok(operator.roll_back(&self.run, interrupt).await?)
    }
}
