//! How steps are undone: what is saved before they run, and what runs afterwards. Packages stay
//! installed, and stay managed.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::decide::dedup_restarts;
use super::facts::{Facts, NetworkFact};
use super::state::State;
use super::step::Step;

/// The databases of users and groups, and other files that `useradd` writes.
pub const ACCOUNTS: &[&str] = &[
    "/etc/passwd",
    "/etc/shadow",
    "/etc/group",
    "/etc/gshadow",
    "/etc/subuid",
    "/etc/subgid",
];

/// How to restore the state of a node before some steps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndoPlan {
    /// Paths that are saved and restored, or deleted if they did not exist.
    pub paths: BTreeSet<String>,
    /// Home directories that the steps create; they are deleted with their content.
    pub homes: BTreeSet<String>,
    /// Steps that run once all paths are restored.
    pub steps: BTreeSet<Step>,
    /// The network before the steps, if they change it.
    pub network: Option<NetworkFact>,
}

impl UndoPlan {
    /// Plans how to undo steps, given the facts before them.
    pub fn new(steps: &[Step], facts: &Facts) -> Self {
        let mut plan = Self::default();
        for step in steps {
            plan.add(step, facts);
        }
        dedup_restarts(&mut plan.steps);
        plan
    }

    /// Returns the state to store once the steps are undone: that before the run, with the packages
    /// the run installed.
    pub fn reverted_state(before: &State, now: &State) -> State {
        let mut state = before.clone();
        state.in_packages = now.in_packages;
        state.managed.packages.clone_from(&now.managed.packages);
        state
    }

    fn add(&mut self, step: &Step, facts: &Facts) {
        let unit_of = |unit: &String| facts.units.get(unit).cloned().unwrap_or_default();
        match step {
            Step::Packages { .. } => {}
            Step::CreateUser { name, .. } => {
                self.accounts();
                let home = format!("/home/{name}"); // tidy: where `useradd` of every Debian puts it
                self.paths.insert(home.clone());
                self.homes.insert(home);
            }
            Step::EnableLogin { .. } | Step::RemoveFromGroup { .. } | Step::DisableLogin { .. } => {
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
            Step::DaemonReload | Step::Reload { .. } | Step::Restart { .. } => {
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
            // A masked unit is a link to `/dev/null`.
            Step::Enable { unit, masked: true } => {
                self.paths.insert(format!("/etc/systemd/system/{unit}"));
                self.steps.insert(Step::DaemonReload);
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
