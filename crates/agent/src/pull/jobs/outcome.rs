//! Sends outcomes until a server has received or refused them, also after a restart.

use std::time::Duration;

use homestak_api::v1::node_job::{JobOutcome, JobReport};

use super::super::client::Client;
use super::{FIRST_PAUSE, Jobs};
use crate::error::FetchError;
use crate::node_job::{JobRecord, Phase, TimePoint, failed, settled};
use crate::{clock, random};

/// The longest pause before an outcome is sent again.
const MAX_PAUSE: Duration = Duration::from_secs(300);

impl Jobs<'_> {
    /// Sends the outcomes of jobs that have ended. Interrupted jobs are reported as failed.
    pub(super) fn report_ended(&mut self, client: &Client) {
        self.next_report = None;
        let due = self.records.all().into_iter();
        for record in due.filter(|record| record.is_due) {
            if let Err(error) = self.report(client, &record) {
                tracing::warn!(id = record.id, "the outcome is not sent: {error}");
                let pause = self.reports.next(FIRST_PAUSE, MAX_PAUSE);
                self.next_report = clock::instant().checked_add(random::around(pause));
                return;
            }
        }
        self.reports.reset();
    }

    /// Sends the outcome of a job.
    fn report(&mut self, client: &Client, record: &JobRecord) -> Result<(), FetchError> {
        let outcome = match record.phase {
            Phase::Taken => Some(failed(
                "interrupted before it began: the answer of the server was lost; nothing was executed",
            )),
            Phase::Begun | Phase::Ended => settled(record, &clock::boot(), TimePoint::now()),
        };
        // No outcome yet: the machine is being restarted.
        let Some(outcome) = outcome else {
            return Ok(());
        };
        let answer = self.send(client, record, &outcome);
        let received = match &answer {
            Ok(()) => true,
            Err(error) if is_final(error) => false,
            Err(_) => return answer,
        };
        self.unsent.remove(&record.id);
        let phase = match (record.phase, received) {
            // The server does not know that the job was taken, and still offers it.
            (Phase::Taken, false) => Phase::Taken,
            (Phase::Taken | Phase::Begun | Phase::Ended, _) => Phase::Ended,
        };
        if let (Phase::Begun | Phase::Ended, Err(error)) = (record.phase, &answer) {
            tracing::warn!(id = record.id, "the server rejected the outcome: {error}");
        }
        let stored = self.records.put(&JobRecord {
            phase,
            outcome: (phase == Phase::Ended).then_some(outcome),
            reboot: None,
            is_due: false,
            ..record.clone()
        });
        if let Err(error) = stored {
            tracing::error!("{}", error.message());
        }
        Ok(())
    }

    fn send(
        &mut self,
        client: &Client,
        record: &JobRecord,
        outcome: &JobOutcome,
    ) -> Result<(), FetchError> {
        let mut offset = record.n_sent;
        if let Some(output) = self.unsent.get_mut(&record.id) {
            output.send(client, &record.id)?;
            offset = output.offset;
        }
        let report = JobReport {
            offset,
            output: String::new(),
            outcome: Some(outcome.clone()),
        };
        client.job_report(&record.id, &report)
    }
}

/// Returns whether the server refused a report, and would refuse it again.
fn is_final(error: &FetchError) -> bool {
    matches!(
        error,
        FetchError::Refused {
            status: 400 | 404 | 409 | 413 | 422,
            ..
        }
    )
}
