//! The decision: what differs, what is done, what is refused.
//!
//! In: resources, facts, what is remembered. Out: a [`Decision`], the same bytes every time.
//! Never: steps when anything is refused: a node is not half converged on purpose.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::change::{Change, Danger, Handling};
use super::facts::Facts;
use super::ledger::Ledger;
use super::policy::Policy;
use super::resource::Resource;
use super::state::{Managed, State};
use super::step::Step;
use super::{access, keys, platform, sshd, system};

/// Debian releases that nodes may have.
const RELEASES: &[&str] = &["11", "12", "13"];

/// What differs on a node, and what is done about it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// Differences, by id.
    pub changes: Vec<Change>,
    /// What is done, in order.
    pub steps: Vec<Step>,
    /// Why nothing is done.
    pub refusals: Vec<String>,
    /// What is not done while everything else is: why, by the id of a change.
    pub refused: BTreeMap<String, String>,
    /// What is remembered once all is done.
    #[serde(skip)]
    pub next: State,
    /// What is remembered before the first step: whatever happens, it can be taken away.
    #[serde(skip)]
    pub intent: Managed,
}

impl Decision {
    /// Tells whether the node is as it should be, but for what is only named.
    pub fn is_settled(&self) -> bool {
        self.refused.is_empty() && self.is_done()
    }

    /// Tells whether nothing is left to do: what is only named, or refused, may differ.
    pub fn is_done(&self) -> bool {
        self.changes
            .iter()
            .all(|change| change.handling == Handling::Report)
    }

    /// Returns how what is done could cut the node off, if at all.
    pub fn dangers(&self) -> BTreeSet<Danger> {
        let done = |change: &&Change| change.handling == Handling::Enforce;
        let changes = self.changes.iter().filter(done);
        changes.filter_map(|change| change.danger).collect()
    }

    /// Tells whether what is done could keep a user from logging in and becoming root. What becomes
    /// of other users cannot, and need not be confirmed: one of them could prevent that. Without a
    /// name, every user counts.
    pub fn could_cut_off(&self, user: &str) -> bool {
        let concerns = |change: &Change| match (change.danger, change.resource.split_once(':')) {
            (Some(Danger::Users), Some(("user" | "keys", name))) => user.is_empty() || name == user,
            (danger, _) => danger.is_some(),
        };
        let done = |change: &&Change| change.handling == Handling::Enforce;
        self.changes.iter().filter(done).any(concerns)
    }
}

/// Decides about a node.
pub fn decide(wanted: &[Resource], facts: &Facts, last: &State) -> Decision {
    let policy = Policy::among(wanted);
    let mut ledger = Ledger::new(facts, last, &policy);
    supported(&mut ledger);
    contradictions(wanted, &mut ledger);
    for resource in wanted {
        one(resource, &mut ledger);
    }
    platform::files(wanted, &mut ledger);
    access::take_away(wanted, &mut ledger);
    platform::take_away(wanted, &mut ledger);
    ledger.settle();
    pending(&mut ledger);
    packages(&mut ledger);
    single_restarts(&mut ledger.steps);
    let intent = last.managed.with(&ledger.managed);
    ledger.changes.sort();
    ledger.changes.dedup();
    let refusals: Vec<String> = ledger.refusals.into_iter().collect();
    let steps = if refusals.is_empty() {
        ledger.steps.into_iter().collect()
    } else {
        Vec::new()
    };
    Decision {
        changes: ledger.changes,
        steps,
        refusals,
        refused: ledger.refused,
        next: State {
            fields: ledger.fields,
            managed: ledger.managed,
            pending: BTreeSet::new(),
            in_packages: false,
        },
        intent,
    }
}

fn one(resource: &Resource, ledger: &mut Ledger<'_>) {
    let id = resource.id();
    match resource {
        Resource::Package { name, version } => {
            platform::package(&id, name, version.as_deref(), ledger);
        }
        Resource::Hostname { name } => system::hostname(&id, name, ledger),
        Resource::Hosts { address, names } => system::hosts(&id, address, names, ledger),
        Resource::Timezone { zone } => system::timezone(&id, zone, ledger),
        Resource::Network {
            address,
            gateway,
            dns,
            domain,
        } => {
            let wanted = system::WantedNetwork {
                address,
                gateway: gateway.as_deref(),
                dns,
                domain: domain.as_deref(),
            };
            system::network(&id, &wanted, ledger);
        }
        Resource::User { name } => access::user(&id, name, ledger),
        Resource::Keys {
            user,
            keys: wanted,
            foreign,
        } => keys::keys(&id, user, wanted, *foreign, ledger),
        Resource::Sudo { user, rule } => access::sudo(&id, user, *rule, ledger),
        Resource::SudoGroups { allowed } => access::sudo_groups(&id, *allowed, ledger),
        Resource::Sshd { settings } => sshd::sshd(&id, settings, ledger),
        Resource::Fail2ban { enabled, port } => platform::fail2ban(&id, *enabled, *port, ledger),
        Resource::Service { unit, enabled } => platform::service(&id, unit, *enabled, ledger),
        Resource::File { .. } => platform::file(&id, resource, ledger),
        Resource::Sysctl { settings } => platform::sysctl(&id, settings, ledger),
        Resource::SubscriptionNotice { removed } => system::notice(&id, *removed, ledger),
        Resource::Drift { .. } => {}
        Resource::Data { value, .. } => {
            ledger
                .fields
                .insert(format!("{id}/value"), value.to_string());
        }
    }
}

fn supported(ledger: &mut Ledger<'_>) {
    let system = &ledger.facts.system;
    if system.id != "debian" || !RELEASES.contains(&system.version.as_str()) {
        ledger.refuse(format!(
            "this is `{} {}`; nodes are Debian {}",
            system.id,
            system.version,
            RELEASES.join(", ")
        ));
    }
    if !system.systemd {
        ledger.refuse("systemd does not run this machine");
    }
    // After a run of ours that was cut off in its transaction, putting it right is ours as well.
    if !ledger.facts.dpkg_faults.is_empty() && !ledger.last.in_packages {
        let first = ledger.facts.dpkg_faults.lines().next().unwrap_or_default();
        ledger.refuse(format!(
            "packages are in a bad state ({first}); run `dpkg --configure -a` and `apt-get -f install` first"
        ));
    }
}

/// Finds resources that cannot both be had.
fn contradictions(wanted: &[Resource], ledger: &mut Ledger<'_>) {
    let banning = wanted
        .iter()
        .any(|resource| matches!(resource, Resource::Fail2ban { enabled: true, .. }));
    for resource in wanted {
        if let Resource::Service { unit, enabled } = resource
            && unit == platform::FAIL2BAN
            && *enabled != banning
        {
            ledger.refuse("the spec's services and its posture disagree about fail2ban");
        }
        if let Resource::Service {
            unit,
            enabled: false,
        } = resource
            && matches!(unit.as_str(), "ssh.service" | "dbus.service")
        {
            ledger.refuse(format!(
                "without {unit} the node would not be reached again"
            ));
        }
    }
}

/// What an earlier run left undone after it had written the files.
fn pending(ledger: &mut Ledger<'_>) {
    for step in &ledger.last.pending {
        if !ledger.steps.contains(step) {
            ledger.note(
                "unfinished",
                &step.words(),
                "done",
                "not done",
                None,
                Handling::Enforce,
            );
            ledger.steps.insert(step.clone());
        }
    }
    if ledger.last.in_packages && !ledger.facts.dpkg_faults.is_empty() {
        ledger.note(
            "unfinished",
            "packages",
            "configured",
            "half configured",
            None,
            Handling::Enforce,
        );
        ledger.steps.insert(Step::Packages {
            install: Vec::new(),
            remove: Vec::new(),
        });
    }
}

fn packages(ledger: &mut Ledger<'_>) {
    if ledger.install.is_empty() && ledger.remove.is_empty() {
        return;
    }
    ledger
        .steps
        .retain(|step| !matches!(step, Step::Packages { .. }));
    let install = std::mem::take(&mut ledger.install).into_iter().collect();
    let remove = std::mem::take(&mut ledger.remove).into_iter().collect();
    ledger.steps.insert(Step::Packages { install, remove });
}

/// A unit that is started or stopped need not be restarted as well, and one that is restarted need
/// not be reloaded.
pub(super) fn single_restarts(steps: &mut BTreeSet<Step>) {
    let mut moved = BTreeSet::new();
    let mut restarted = BTreeSet::new();
    for step in steps.iter() {
        if let Step::Start { unit } | Step::Stop { unit } = step {
            moved.insert(unit.clone());
        }
        if let Step::Restart { unit } = step {
            restarted.insert(unit.clone());
        }
    }
    steps.retain(|step| {
        if let Step::Restart { unit } = step {
            return !moved.contains(unit);
        }
        if let Step::Reload { unit } = step {
            return !moved.contains(unit) && !restarted.contains(unit);
        }
        true
    });
}
