//! Resumes an unfinished run, with the plan it was started with.

use homestak_core::plan::update_image_sources;
use homestak_engine::operate::Interrupt;

use crate::driver::Driver;
use crate::error::DriverError;
use crate::runs::{Lease, Run, RunOutcome, RunReport, RunSelector, take};

/// A locked run, to be resumed.
pub struct Resume<'d> {
    /// The run.
    pub run: Run,
    driver: &'d Driver,
    settled: &'d [String],
    _lease: Box<dyn Lease>,
}

impl<'d> Resume<'d> {
    /// Locks the selected unfinished run. `settled` names nodes whose failed steps the user has
    /// resolved.
    pub async fn open(
        driver: &'d Driver,
        which: &RunSelector,
        settled: &'d [String],
    ) -> Result<Self, DriverError> {
        let head = driver.runs(which)?.unfinished().await?;
        let (lease, mut run) = take(&head, driver.journal()).await?;
        let session = &driver.session;
        for image in update_image_sources(&mut run.plan, &session.catalog) {
            session.notices.notice(&format!(
                "`images/{image}.yaml` was changed after the run started; its current source and \
                 checksum are used."
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

    /// Returns its report so far.
    pub fn report(&self) -> RunReport {
        let mut report = RunReport::of_run(&self.run);
        report.mark_interrupted();
        report
    }

    /// Resumes it.
    pub async fn carry_out(&self, interrupt: Interrupt) -> Result<RunOutcome, DriverError> {
        let operator = &self.driver.operator;
        Ok(operator.resume(&self.run, self.settled, interrupt).await?)
    }
}
