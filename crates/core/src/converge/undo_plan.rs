//! How steps are undone: what is saved before they run, and what runs afterwards. Packages stay
//! installed, and stay managed.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::decide::dedup_restarts;
use super::facts::{Facts, NetworkFact};
use super::state::State;
use super::step::ConvergeStep;

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
    pub steps: BTreeSet<ConvergeStep>,
    /// The network before the steps, if they change it.
    pub network: Option<NetworkFact>,
}

impl UndoPlan {
    /// Plans how to undo steps, given the facts before them.
    pub fn new(steps: &[ConvergeStep], facts: &Facts) -> Self {
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

    fn add(&mut self, step: &ConvergeStep, facts: &Facts) {
        let unit_of = |unit: &String| facts.units.get(unit).cloned().unwrap_or_default();
        match step {
            ConvergeStep::Packages { .. } => {}
            ConvergeStep::CreateUser { name, .. } => {
                self.accounts();
                let home = format!("/home/{name}"); // tidy: where `useradd` of every Debian puts it
                self.paths.insert(home.clone());
                self.homes.insert(home);
            }
            ConvergeStep::EnableLogin { .. }
            | ConvergeStep::RemoveFromGroup { .. }
            | ConvergeStep::DisableLogin { .. } => {
                self.accounts();
            }
            ConvergeStep::Directory { path, .. }
            | ConvergeStep::Write { path, .. }
            | ConvergeStep::Link { path, .. }
            | ConvergeStep::Delete { path } => {
                self.paths.insert(path.clone());
            }
            ConvergeStep::Hostname { .. } => {
                let name = facts.hostname.clone();
                self.steps.insert(ConvergeStep::Hostname { name });
            }
            ConvergeStep::Sysctl { key, .. } => {
                if let Some(value) = facts.sysctl.get(key) {
                    let (key, value) = (key.clone(), value.clone());
                    self.steps.insert(ConvergeStep::Sysctl { key, value });
                }
            }
            ConvergeStep::Network { .. } => {
                self.network = Some(facts.network.clone());
                self.steps.insert(step.clone());
            }
            ConvergeStep::DaemonReload
            | ConvergeStep::Reload { .. }
            | ConvergeStep::Restart { .. } => {
                self.steps.insert(step.clone());
            }
            ConvergeStep::Stop { unit } => {
                let unit = unit.clone();
                self.steps.insert(ConvergeStep::Start { unit });
            }
            ConvergeStep::Start { unit } => {
                let unit = unit.clone();
                self.steps.insert(ConvergeStep::Stop { unit });
            }
            ConvergeStep::Disable { unit } => {
                let (unit, masked) = (unit.clone(), false);
                self.steps.insert(ConvergeStep::Enable { unit, masked });
            }
            // A masked unit is a link to `/dev/null`.
            ConvergeStep::Enable { unit, masked: true } => {
                self.paths.insert(format!("/etc/systemd/system/{unit}"));
                self.steps.insert(ConvergeStep::DaemonReload);
            }
            ConvergeStep::Enable { unit, .. } => {
                if unit_of(unit).file_state == "disabled" {
                    let unit = unit.clone();
                    self.steps.insert(ConvergeStep::Disable { unit });
                }
            }
        }
    }

    fn accounts(&mut self) {
        self.paths
            .extend(ACCOUNTS.iter().map(|path| (*path).to_owned()));
    }
}
