//! What a node that fetches its spec last reported, read from the server or from its file while none
//! runs. It is the node's own account.

use std::time::Duration;

use homestak_api::v1::report::{ReceivedReport, ReportState};
use homestak_core::doc::manifest::Mode;
use homestak_core::observed::GuestUuid;
use jiff::{SignedDuration, Timestamp};

use super::ServerLease;
use super::follow::{INTERVAL, last_end};
use crate::error::DriverError;

/// After how many intervals without contact a node counts as silent: one may be missed.
const SILENT_INTERVALS: u32 = 3;

/// What a node last reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAccount {
    /// How far it was in its last report; `None` if it has not reported.
    pub state: Option<ReportState>,
    /// The generation of the spec that it last named.
    pub generation: Option<u64>,
    /// The generation that is published.
    pub published: Option<u64>,
    /// How many differences it had when it last converged or failed.
    pub drift: Option<u64>,
    /// Why it failed, if it did then.
    pub error: Option<String>,
    /// When the server last received something from it, as far as that is known.
    pub contact: Option<Timestamp>,
    /// Whether it should have contacted the server meanwhile, and has not.
    pub silent: bool,
}

impl NodeAccount {
    /// Returns whether it has an older spec than the published one; `None` when that is not known.
    pub fn is_behind(&self) -> Option<bool> {
        Some(self.generation? < self.published?)
    }

    fn new(reports: &[ReceivedReport], published: Option<u64>, contact: Option<i64>) -> Self {
        let last = reports.last();
        let end = last_end(reports);
        let named = reports.iter().rev().find_map(|one| one.report.generation);
        let contact = contact.max(last.map(|last| last.received));
        Self {
            state: last.map(|last| last.report.state),
            generation: named,
            published,
            drift: end.map(|end| end.report.drift.len() as u64),
            error: end.and_then(|end| end.report.error.clone()),
            contact: contact.and_then(|at| Timestamp::from_second(at).ok()),
            silent: false,
        }
    }

    /// Marks a node as silent whose last contact is too long ago.
    fn at(mut self, now: Timestamp, interval: Duration) -> Self {
        let limit = SignedDuration::try_from(interval * SILENT_INTERVALS);
        let limit = limit.unwrap_or(SignedDuration::MAX);
        self.silent = self
            .contact
            .is_some_and(|contact| now.duration_since(contact) > limit);
        self
    }
}

impl ServerLease {
    /// Returns what a node last reported; `None` for one that fetches no spec. Nothing is started.
    pub(crate) async fn account(
        &self,
        guest: &GuestUuid,
    ) -> Result<Option<NodeAccount>, DriverError> {
        let Some(published) = self.published_spec(guest).await? else {
            return Ok(None);
        };
        let keys = self.site().await?.publisher.keys.public_keys();
        let statement = published.verify(&keys).ok();
        let reports = self.reports(guest.as_str()).await?;
        let contact = match self.running().await? {
            Some(client) => client.node(guest.as_str()).await.ok(),
            None => None,
        };
        let contact = contact.and_then(|node| node.last_contact);
        let generation = statement.map(|statement| statement.generation);
        let account = NodeAccount::new(&reports, generation, contact);
        Ok(Some(match published.mode {
            Some(Mode::Pull) => {
                account.at(self.settings.time.now(), self.interval_of(&published.spec))
            }
            // Its driver starts it, so that it owes no report.
            Some(Mode::Push | Mode::Hybrid) | None => account,
        }))
    }

    /// Returns how often nodes with a spec fetch it.
    pub(super) fn interval_of(&self, spec: &str) -> Duration {
        let spec = self.session.catalog.specs.get(spec);
        let run = spec.and_then(|spec| spec.value.as_ref()?.run.as_ref());
        let interval = run.and_then(|run| run.interval.as_ref());
        interval.map_or(INTERVAL, |interval| {
            Duration::from_secs(interval.value.seconds())
        })
    }
}

#[cfg(test)]
mod tests {
    use homestak_api::v1::report::Report;

    use super::*;

    fn report(state: ReportState, generation: Option<u64>, received: i64) -> ReceivedReport {
        ReceivedReport {
            id: received,
            received,
            report: Report {
                run: "r".to_owned(),
                state,
                generation,
                step: None,
                changed: None,
                error: None,
                permanent: false,
                drift: vec!["sysctl".to_owned()],
                agent: "0.1.0".to_owned(),
            },
        }
    }

    #[test]
    fn what_is_not_reported_stays_unknown() {
        let none = NodeAccount::new(&[], Some(7), None);
        assert_eq!(
            (none.state, none.is_behind(), none.drift),
            (None, None, None)
        );
        assert!(!none.at(Timestamp::MAX, Duration::from_secs(1)).silent);
        let fetching = [report(ReportState::Fetching, None, 5)];
        let fetching = NodeAccount::new(&fetching, Some(7), None);
        assert_eq!(fetching.state, Some(ReportState::Fetching));
        assert_eq!((fetching.is_behind(), fetching.drift), (None, None));
    }

    #[test]
    fn a_node_with_an_older_spec_is_behind_and_one_without_contact_is_silent() {
        let reports = [
            report(ReportState::Converged, Some(6), 10),
            report(ReportState::Fetching, None, 20),
        ];
        let account = NodeAccount::new(&reports, Some(7), Some(15));
        assert_eq!(account.is_behind(), Some(true));
        assert_eq!(account.drift, Some(1));
        assert_eq!(account.contact, Timestamp::from_second(20).ok());
        let at = |seconds: i64| {
            let now = Timestamp::from_second(seconds).expect("a time");
            account.clone().at(now, Duration::from_secs(10)).silent
        };
        assert!(!at(50));
        assert!(at(51));
        let current = NodeAccount::new(&reports, Some(6), None);
        assert_eq!(current.is_behind(), Some(false));
    }
}
