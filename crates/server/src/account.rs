//! What each node last reported, in memory: a list of all nodes needs no disk access.
//!
//! Everything here is as reported by the nodes. Texts are truncated to limit the size of the list.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use homestak_api::v1::report::{Report, ReportState};
use homestak_store::registry::{Registry, RegistryError};

/// The longest error that is kept, in characters.
const LONGEST_ERROR: usize = 500;
/// The longest version of an agent that is kept, in characters.
const LONGEST_VERSION: usize = 64;

/// What a node last reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    /// The number of its last report.
    number: i64,
    /// When it last sent a request; not kept when the server stops, except for that of a report.
    pub(crate) contact: Option<i64>,
    /// When it last reported.
    pub(crate) reported: Option<i64>,
    /// How far it was then.
    pub(crate) result: Option<ReportState>,
    /// The generation that it last named.
    pub(crate) generation: Option<u64>,
    /// How many differences it had at the end of its last pass.
    pub(crate) drift: Option<u64>,
    /// Why its last pass failed.
    pub(crate) error: Option<String>,
    /// The version of its agent.
    pub(crate) agent: Option<String>,
}

/// The last reports of all nodes.
#[derive(Default)]
pub(crate) struct Accounts(RwLock<HashMap<String, Account>>);

impl Accounts {
    /// Reads all reports that are kept, one after the other. Those from before an enrolment do not count:
    /// a former guest with the same UUID may have sent them.
    pub(crate) fn open(registry: &Registry) -> Result<Self, RegistryError> {
        let accounts = Self::default();
        let nodes = registry.nodes()?.into_iter();
        let enrolled: HashMap<String, Option<i64>> =
            nodes.map(|node| (node.uuid, node.enrolled)).collect();
        registry.each_report(|entry| {
            let enrolled = enrolled.get(&entry.uuid).copied().flatten();
            if enrolled.is_some_and(|at| entry.received >= at)
                && let Ok(report) = serde_json::from_str(&entry.body)
            {
                accounts.add(&entry.uuid, entry.id, entry.received, &report);
            }
        })?;
        Ok(accounts)
    }

    /// Returns the account of a node.
    pub(crate) fn of(&self, uuid: &str) -> Account {
        let accounts = self.0.read().unwrap_or_else(PoisonError::into_inner);
        accounts.get(uuid).cloned().unwrap_or_default()
    }

    /// Remembers a report. Of reports that are recorded at the same time, the one with the higher number
    /// counts.
    pub(crate) fn add(&self, uuid: &str, number: i64, at: i64, report: &Report) {
        self.change(uuid, |account| {
            account.contact = account.contact.max(Some(at));
            if number > account.number {
                account.number = number;
                account.read(at, report);
            }
        });
    }

    /// Forgets the reports of a node that is to enrol again: it may be another guest.
    pub(crate) fn forget(&self, uuid: &str) {
        let mut accounts = self.0.write().unwrap_or_else(PoisonError::into_inner);
        accounts.remove(uuid);
    }

    /// Remembers that a node sent a request.
    pub(crate) fn contact(&self, uuid: &str, at: i64) {
        self.change(uuid, |account| {
            account.contact = account.contact.max(Some(at));
        });
    }

    fn change(&self, uuid: &str, change: impl FnOnce(&mut Account)) {
        let mut accounts = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match accounts.get_mut(uuid) {
            Some(account) => change(account),
            None => change(accounts.entry(uuid.to_owned()).or_default()),
        }
    }
}

impl Account {
    fn read(&mut self, at: i64, report: &Report) {
        self.reported = Some(at);
        self.result = Some(report.state);
        self.generation = report.generation.or(self.generation);
        self.agent = Some(cut(&report.agent, LONGEST_VERSION));
        match report.state {
            // What the last complete pass found still holds as far as is known.
            ReportState::Fetching | ReportState::Converging => {}
            ReportState::Converged | ReportState::Failed => {
                self.drift = Some(report.drift.len() as u64);
                let error = report.error.as_deref();
                self.error = error.map(|error| cut(error, LONGEST_ERROR));
            }
        }
    }
}

fn cut(text: &str, longest: usize) -> String {
    text.chars().take(longest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(state: ReportState) -> Report {
        Report {
            run: "1".to_owned(),
            state,
            generation: None,
            step: None,
            changed: None,
            error: None,
            permanent: false,
            drift: Vec::new(),
            agent: "0.1.0".to_owned(),
        }
    }

    #[test]
    fn the_report_with_the_highest_number_counts_and_a_new_pass_keeps_what_the_last_one_found() {
        let accounts = Accounts::default();
        assert_eq!(accounts.of("a"), Account::default());
        let failed = Report {
            generation: Some(7),
            error: Some("e".repeat(1000)),
            drift: vec!["motd".to_owned(); 3],
            ..report(ReportState::Failed)
        };
        accounts.add("a", 5, 50, &failed);
        accounts.add("a", 4, 60, &report(ReportState::Converged));
        let account = accounts.of("a");
        assert_eq!(account.result, Some(ReportState::Failed));
        assert_eq!((account.reported, account.contact), (Some(50), Some(60)));
        assert_eq!(account.drift, Some(3));
        assert_eq!(account.error.map(|error| error.len()), Some(500));

        accounts.add("a", 6, 70, &report(ReportState::Fetching));
        let account = accounts.of("a");
        assert_eq!(account.result, Some(ReportState::Fetching));
        assert_eq!((account.generation, account.drift), (Some(7), Some(3)));
        assert!(account.error.is_some());

        accounts.add("a", 7, 80, &report(ReportState::Converged));
        let account = accounts.of("a");
        assert_eq!((account.drift, account.error), (Some(0), None));
        accounts.contact("a", 75);
        assert_eq!(accounts.of("a").contact, Some(80));
    }
}
