//! The way back from steps: what must be kept before they are done, and what is done then.
//!
//! In: steps, what the node is like before them. Out: [`WayBack`].
//! Never: packages: they stay, and are ours to remove later.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::decide::single_restarts;
use super::facts::{Facts, NetworkFact};
use super::state::State;
use super::step::Step;

/// The databases of users and groups, and what `useradd` writes beside them.
pub const ACCOUNTS: &[&str] = &[
    "/etc/passwd",
    "/etc/shadow",
    "/etc/group",
    "/etc/gshadow",
    "/etc/subuid",
    "/etc/subgid",
];

/// How a node becomes what it was before some steps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayBack {
    /// What is at these paths, or that nothing is there, is kept and put back.
    pub paths: BTreeSet<String>,
    /// Home directories that the steps make; they go with everything in them.
    pub homes: BTreeSet<String>,
    /// What is done once all paths are as they were.
    pub steps: BTreeSet<Step>,
    /// The network as it was, when the steps touch it.
    pub network: Option<NetworkFact>,
}

impl WayBack {
    /// Finds the way back from steps that begin on a node like this.
    pub fn of(steps: &[Step], facts: &Facts) -> Self {
        let mut back = Self::default();
        for step in steps {
            back.from(step, facts);
        }
        single_restarts(&mut back.steps);
        back
    }

    /// Returns what a node remembers once it has gone back: what it did before the run, and which
    /// packages are there because of it. What the run only wanted is not ours.
    pub fn remembered(before: &State, now: &State) -> State {
        let mut state = before.clone();
        state.in_packages = now.in_packages;
        state.managed.packages.clone_from(&now.managed.packages);
        state
    }

    fn from(&mut self, step: &Step, facts: &Facts) {
        let unit_of = |unit: &String| facts.units.get(unit).cloned().unwrap_or_default();
        match step {
            Step::Packages { .. } => {}
            Step::CreateUser { name, .. } => {
                self.accounts();
                let home = format!("/home/{name}"); // tidy: where `useradd` of every Debian puts it
                self.paths.insert(home.clone());
                self.homes.insert(home);
            }
            Step::OpenUser { .. } | Step::LeaveGroup { .. } | Step::CloseUser { .. } => {
                self.accounts();
            }
            Step::Directory { path, .. }
            | Step::Write { path, .. }
            | Step::Link { path, .. }
            | Step::Delete { path } => {
                self.paths.insert(path.clone());
            }
            Step::Hostname { .. } => {
                let name = facts.hostname.clone();
                self.steps.insert(Step::Hostname { name });
            }
            Step::Sysctl { key, .. } => {
                if let Some(value) = facts.sysctl.get(key) {
                    let (key, value) = (key.clone(), value.clone());
                    self.steps.insert(Step::Sysctl { key, value });
                }
            }
            Step::Network { .. } => {
                self.network = Some(facts.network.clone());
                self.steps.insert(step.clone());
            }
            Step::ReadUnits | Step::Reload { .. } | Step::Restart { .. } => {
                self.steps.insert(step.clone());
            }
            Step::Stop { unit } => {
                let unit = unit.clone();
                self.steps.insert(Step::Start { unit });
            }
            Step::Start { unit } => {
                let unit = unit.clone();
                self.steps.insert(Step::Stop { unit });
            }
            Step::Disable { unit } => {
                let (unit, masked) = (unit.clone(), false);
                self.steps.insert(Step::Enable { unit, masked });
            }
            // A unit that is masked is a link to nothing.
            Step::Enable { unit, masked: true } => {
                self.paths.insert(format!("/etc/systemd/system/{unit}"));
                self.steps.insert(Step::ReadUnits);
            }
            Step::Enable { unit, .. } => {
                if unit_of(unit).file_state == "disabled" {
                    let unit = unit.clone();
                    self.steps.insert(Step::Disable { unit });
                }
            }
        }
    }

    fn accounts(&mut self) {
        self.paths
            .extend(ACCOUNTS.iter().map(|path| (*path).to_owned()));
    }
}
