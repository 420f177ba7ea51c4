//! The decision: which fields differ, which steps run, and what is refused. If the spec as a whole
//! is refused, there are no steps.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::change::{Change, Danger, Handling};
use super::decision_builder::DecisionBuilder;
use super::facts::Facts;
use super::policy::Policy;
use super::resource::Resource;
use super::state::{Managed, State};
use super::step::ConvergeStep;
use super::{access, keys, platform, sshd, system};

/// Supported Debian releases.
const RELEASES: &[&str] = &["11", "12", "13"];

/// The differences of a node, and what is done about them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// Differences, by id.
    pub changes: Vec<Change>,
    /// Steps, in order.
    pub steps: Vec<ConvergeStep>,
    /// Why the spec is refused as a whole.
    pub refusals: Vec<String>,
    /// Fields that are refused while the others are applied: the reason, by id of the change.
    pub refused: BTreeMap<String, String>,
    /// The state to store after the last step.
    #[serde(skip)]
    pub next: State,
    /// What to store as managed before the first step, so that it can be removed even if the run is
    /// interrupted.
    #[serde(skip)]
    pub intent: Managed,
}

impl Decision {
    /// Returns whether the node matches its spec, apart from fields that are only reported.
    pub fn is_converged(&self) -> bool {
        self.refused.is_empty() && self.is_done()
    }

    /// Returns whether nothing is left to apply: fields that are only reported or refused may
    /// differ.
    pub fn is_done(&self) -> bool {
        self.changes
            .iter()
            .all(|change| change.handling == Handling::Report)
    }

    /// Returns how the changes could lock the operator out.
    pub fn dangers(&self) -> BTreeSet<Danger> {
        let done = |change: &&Change| change.handling == Handling::Enforce;
        let changes = self.changes.iter().filter(done);
        changes.filter_map(|change| change.danger).collect()
    }

    /// Returns whether the changes could prevent a user from logging in and using sudo. Changes to
    /// other users' accounts cannot, and must not need confirmation: such a user could prevent it.
    /// An empty name means any user.
    pub fn could_lock_out(&self, user: &str) -> bool {
        let concerns = |change: &Change| match (change.danger, change.resource.split_once(':')) {
            (Some(Danger::Users), Some(("user" | "keys", name))) => user.is_empty() || name == user,
            (danger, _) => danger.is_some(),
        };
        let done = |change: &&Change| change.handling == Handling::Enforce;
        self.changes.iter().filter(done).any(concerns)
    }
}

/// Compares a node with its desired resources.
pub fn decide(desired: &[Resource], facts: &Facts, last: &State) -> Decision {
    let policy = Policy::from_resources(desired);
    let mut builder = DecisionBuilder::new(facts, last, &policy);
    check_platform(&mut builder);
    check_conflicts(desired, &mut builder);
    for resource in desired {
        compare(resource, &mut builder);
    }
    platform::check_files(desired, &mut builder);
    access::remove_unlisted_users(desired, &mut builder);
    platform::remove_unlisted(desired, &mut builder);
    builder.plan_files();
    add_pending(&mut builder);
    add_package_step(&mut builder);
    dedup_restarts(&mut builder.steps);
    let intent = last.managed.with(&builder.managed);
    builder.changes.sort();
    builder.changes.dedup();
    let refusals: Vec<String> = builder.refusals.into_iter().collect();
    let steps = if refusals.is_empty() {
        builder.steps.into_iter().collect()
    } else {
        Vec::new()
    };
    Decision {
        changes: builder.changes,
        steps,
        refusals,
        refused: builder.refused,
        next: State {
            fields: builder.fields,
            managed: builder.managed,
            pending: BTreeSet::new(),
            in_packages: false,
        },
        intent,
    }
}

fn compare(resource: &Resource, builder: &mut DecisionBuilder<'_>) {
    let id = resource.id();
    match resource {
        Resource::Package { name, version } => {
            platform::package(&id, name, version.as_deref(), builder);
        }
        Resource::Hostname { name } => system::hostname(&id, name, builder),
        Resource::Hosts { address, names } => system::hosts(&id, address, names, builder),
        Resource::Timezone { zone } => system::timezone(&id, zone, builder),
        Resource::Network {
            address,
            gateway,
            dns,
            domain,
        } => {
            let desired = system::DesiredNetwork {
                address,
                gateway: gateway.as_deref(),
                dns,
                domain: domain.as_deref(),
            };
            system::network(&id, &desired, builder);
        }
        Resource::User { name } => access::user(&id, name, builder),
        Resource::Keys {
            user,
            keys: desired,
            foreign,
        } => keys::keys(&id, user, desired, *foreign, builder),
        Resource::Sudo { user, rule } => access::sudo(&id, user, *rule, builder),
        Resource::SudoGroups { allowed } => access::sudo_groups(&id, *allowed, builder),
        Resource::Sshd { settings } => sshd::sshd(&id, settings, builder),
        Resource::Fail2ban { enabled, port } => platform::fail2ban(&id, *enabled, *port, builder),
        Resource::Service { unit, enabled } => platform::service(&id, unit, *enabled, builder),
        Resource::File { .. } => platform::file(&id, resource, builder),
        Resource::Sysctl { settings } => platform::sysctl(&id, settings, builder),
        Resource::SubscriptionNotice { removed } => system::notice(&id, *removed, builder),
        Resource::Drift { .. } => {}
        Resource::Data { value, .. } => {
            builder
                .fields
                .insert(format!("{id}/value"), value.to_string());
        }
    }
}

fn check_platform(builder: &mut DecisionBuilder<'_>) {
    let system = &builder.facts.system;
    if system.id != "debian" || !RELEASES.contains(&system.version.as_str()) {
        builder.refuse(format!(
            "unsupported operating system `{} {}`; supported: Debian {}",
            system.id,
            system.version,
            RELEASES.join(", ")
        ));
    }
    if !system.systemd {
        builder.refuse("this machine was not booted with systemd");
    }
    // If an earlier run was interrupted during its own transaction, it is completed below.
    if !builder.facts.dpkg_errors.is_empty() && !builder.last.in_packages {
        let first = builder.facts.dpkg_errors.lines().next().unwrap_or_default();
        builder.refuse(format!(
            "packages are in a bad state ({first}); run `dpkg --configure -a` and `apt-get -f install` first"
        ));
    }
}

/// Refuses resources that contradict each other.
fn check_conflicts(desired: &[Resource], builder: &mut DecisionBuilder<'_>) {
    let banning = desired
        .iter()
        .any(|resource| matches!(resource, Resource::Fail2ban { enabled: true, .. }));
    for resource in desired {
        if let Resource::Service { unit, enabled } = resource
            && unit == platform::FAIL2BAN
            && *enabled != banning
        {
            builder.refuse("the spec's services and its posture disagree about fail2ban");
        }
        if let Resource::Service {
            unit,
            enabled: false,
        } = resource
            && matches!(unit.as_str(), "ssh.service" | "dbus.service")
        {
            builder.refuse(format!("disabling {unit} would make the node unreachable"));
        }
    }
}

/// Adds steps that an interrupted run did not complete.
fn add_pending(builder: &mut DecisionBuilder<'_>) {
    for step in &builder.last.pending {
        if !builder.steps.contains(step) {
            builder.report(
                "unfinished",
                &step.description(),
                "done",
                "not done",
                None,
                Handling::Enforce,
            );
            builder.steps.insert(step.clone());
        }
    }
    if builder.last.in_packages && !builder.facts.dpkg_errors.is_empty() {
        builder.report(
            "unfinished",
            "packages",
            "configured",
            "half configured",
            None,
            Handling::Enforce,
        );
        builder.steps.insert(ConvergeStep::Packages {
            install: Vec::new(),
            remove: Vec::new(),
        });
    }
}

fn add_package_step(builder: &mut DecisionBuilder<'_>) {
    if builder.install.is_empty() && builder.remove.is_empty() {
        return;
    }
    builder
        .steps
        .retain(|step| !matches!(step, ConvergeStep::Packages { .. }));
    let install = std::mem::take(&mut builder.install).into_iter().collect();
    let remove = std::mem::take(&mut builder.remove).into_iter().collect();
    builder
        .steps
        .insert(ConvergeStep::Packages { install, remove });
}

/// Removes restarts of units that are started or stopped, and reloads of units that are restarted.
pub(super) fn dedup_restarts(steps: &mut BTreeSet<ConvergeStep>) {
    let mut switched = BTreeSet::new();
    let mut restarted = BTreeSet::new();
    for step in steps.iter() {
        if let ConvergeStep::Start { unit } | ConvergeStep::Stop { unit } = step {
            switched.insert(unit.clone());
        }
        if let ConvergeStep::Restart { unit } = step {
            restarted.insert(unit.clone());
        }
    }
    steps.retain(|step| {
        if let ConvergeStep::Restart { unit } = step {
            return !switched.contains(unit);
        }
        if let ConvergeStep::Reload { unit } = step {
            return !switched.contains(unit) && !restarted.contains(unit);
        }
        true
    });
}
