//! Continues a run that was not brought to an end.
//!
//! Never: a run that someone else holds; a plan other than the recorded one.

use homestak_core::plan::update_image_sources;
use homestak_engine::operate::Interrupt;

use crate::driver::Driver;
use crate::error::DriverError;
use crate::runs::{Chronicle, Ending, Lease, Run, Which, take};

/// A run that is held, to be continued.
pub struct Resume<'d> {
    /// The run.
    pub run: Run,
    driver: &'d Driver,
    settled: &'d [String],
    _lease: Box<dyn Lease>,
}

impl<'d> Resume<'d> {
    /// Takes the one unfinished run that is meant. `settled` names nodes whose failed steps a person
    /// has settled.
    pub async fn open(
        driver: &'d Driver,
        which: &Which,
        settled: &'d [String],
    ) -> Result<Self, DriverError> {
        let head = driver.runs(which)?.unfinished().await?;
        let (lease, mut run) = take(&head, driver.journal()).await?;
        let session = &driver.session;
        for image in update_image_sources(&mut run.plan, &session.catalog) {
            session.notices.notice(&format!(
                "`images/{image}.yaml` was changed since: its source and checksum count now."
            ));
        }
        if let Some(unknown) = settled.iter().find(|name| run.plan.node(name).is_none()) {
            let known = run.plan.nodes.iter().map(|node| node.name.as_str());
            return Err(DriverError::unknown("node", unknown, known));
        }
        session.limit(&run.plan.timeouts);
        Ok(Self {
            run,
            driver,
            settled,
            _lease: lease,
        })
    }

    /// Returns how far it is.
    pub fn chronicle(&self) -> Chronicle {
        let mut chronicle = Chronicle::of_run(&self.run);
        chronicle.died();
        chronicle
    }

    /// Continues it.
    pub async fn carry_out(&self, interrupt: Interrupt) -> Result<Ending, DriverError> {
        let operator = &self.driver.operator;
        Ok(operator.resume(&self.run, self.settled, interrupt).await?)
    }
}
