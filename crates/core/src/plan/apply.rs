//! The plan of `apply`: creates, changes and configures the nodes of a manifest. Guests are deleted
//! only with `--prune`, or to replace them.

use std::collections::{BTreeMap, BTreeSet};

use crate::observed::{GuestId, GuestUuid, PowerState};
use crate::resolve::{Origin, ResolvedManifest, ResolvedNode};
use crate::units::Seconds;

use super::compare::{compare, existing, from_record, reason};
use super::config::{config_action, inspection_failure, mode_change};
use super::desired::desired_guest;
use super::destroy::host_hint;
use super::guest::{DesiredGuest, ExistingGuest, ForeignGuest, RequiredImage};
use super::guest_index::{GuestIndex, GuestMatch};
use super::host_profile::{HostProfile, profile};
use super::orphans::{
    GuestKey, ambiguous, copies_of, edited, foreign, only_copies, orphans, refuse_lost_guests,
    unknown_guests, untagged, unusable,
};
use super::record::NodeRecord;
use super::recreated::recreated;
use super::step::Steps;
use super::types::{
    Action, NodeLocation, NodePlan, PLAN_FORMAT, Plan, Reason, ReasonKind, Refusal,
};
use super::vmid_holder::describe_holder;
use super::{Observation, PlanInputs, identity};

/// Makes the plan of `apply`.
pub(super) fn plan(inputs: &PlanInputs<'_>) -> Plan {
    let roots = site_hosts(inputs.resolved);
    let mut planner = ApplyPlanner {
        inputs,
        guest_index: GuestIndex::new(inputs.site, &inputs.resolved.name, inputs.observations),
        copies: Vec::new(),
        recreated: BTreeSet::new(),
        profiles: BTreeMap::new(),
        claimed: BTreeSet::new(),
        changes: BTreeMap::new(),
        nodes: Vec::with_capacity(inputs.resolved.nodes.len()),
        images: Vec::new(),
        refusals: Vec::new(),
    };
    for node in by_depth(inputs.resolved) {
        let deep = inputs
            .options
            .depth
            .is_some_and(|depth| node.depth >= depth);
        let host = roots.get(node.name.as_str());
        match (location(node), host) {
            (Some(location), Some(host)) => planner.node(node, &location, host, deep),
            _ => planner.refusals.push(no_host(inputs, node)),
        }
    }
    planner.orphans(&roots);
    planner.check_vmids();
    let foreign = planner.foreign();
    let ApplyPlanner {
        nodes,
        images,
        mut refusals,
        profiles,
        recreated,
        ..
    } = planner;
    refusals.extend(refuse_lost_guests(inputs, &profiles, &nodes, &recreated));
    new_plan(inputs, nodes, images, foreign, refusals)
}

/// Makes a plan without steps.
pub(super) fn new_plan(
    inputs: &PlanInputs<'_>,
    nodes: Vec<NodePlan>,
    images: Vec<RequiredImage>,
    foreign: Vec<ForeignGuest>,
    refusals: Vec<Refusal>,
) -> Plan {
    let settings = &inputs.resolved.settings;
    let parallelism = usize::try_from(settings.parallelism.value).unwrap_or(1);
    let mut hosts: Vec<String> = site_hosts(inputs.resolved)
        .into_values()
        .map(str::to_owned)
        .collect();
    hosts.sort_unstable();
    hosts.dedup();
    Plan {
        format: PLAN_FORMAT,
        verb: inputs.options.verb,
        site: Some(inputs.site.clone()),
        manifest: inputs.resolved.name.clone(),
        hosts,
        on_error: inputs.options.on_error.unwrap_or(settings.on_error.value),
        parallelism: inputs.options.parallelism.unwrap_or(parallelism).max(1),
        verify_ssh: settings.verify_ssh.value,
        timeout_buffer: Seconds(u64::try_from(settings.timeout_buffer.value).unwrap_or(0)),
        timeouts: settings.limits(),
        nodes,
        images,
        steps: Steps::default(),
        foreign,
        refusals,
        estimate: None,
        measured: false,
    }
}

/// Returns the nodes, parents before their children.
pub(super) fn by_depth(resolved: &ResolvedManifest) -> Vec<&ResolvedNode> {
    let mut nodes: Vec<&ResolvedNode> = resolved.nodes.iter().collect();
    nodes.sort_by(|one, other| (one.depth, &one.name).cmp(&(other.depth, &other.name)));
    nodes
}

/// Returns the host of the site that each node is on, directly or nested.
pub fn site_hosts(resolved: &ResolvedManifest) -> BTreeMap<&str, &str> {
    let mut hosts: BTreeMap<&str, &str> = BTreeMap::new();
    for node in by_depth(resolved) {
        let host = match (&node.parent, &node.host) {
            (Some(parent), _) => hosts.get(parent.as_str()).copied(),
            (None, Some(host)) => Some(host.value.as_str()),
            (None, None) => None,
        };
        if let Some(host) = host {
            hosts.insert(node.name.as_str(), host);
        }
    }
    hosts
}

/// Returns where a node runs.
pub(super) fn location(node: &ResolvedNode) -> Option<NodeLocation> {
    match (&node.parent, &node.host) {
        (Some(parent), _) => Some(NodeLocation::Inside(parent.to_string())),
        (None, Some(host)) => Some(NodeLocation::Host(host.value.clone())),
        (None, None) => None,
    }
}

/// Returns the identity of a new guest of a node. A record without a site belongs to a guest with a
/// legacy identity, which is not reused.
pub(super) fn identity_of(
    inputs: &PlanInputs<'_>,
    node: &str,
    host: &str,
    record: Option<&NodeRecord>,
) -> GuestUuid {
    let recorded = record.filter(|record| record.site.is_some());
    recorded.map_or_else(
        || identity::uuid(inputs.site, &inputs.resolved.name, host, node),
        |record| record.guest.uuid.clone(),
    )
}

pub(super) fn no_host(inputs: &PlanInputs<'_>, node: &ResolvedNode) -> Refusal {
    Refusal {
        node: Some(node.name.to_string()),
        reason: reason(
            inputs,
            format!("no host is set for `{}`", node.name),
            Some(&Origin::Written(node.span)),
        ),
        hint: host_hint(inputs),
    }
}

struct ApplyPlanner<'i, 'a> {
    inputs: &'i PlanInputs<'a>,
    guest_index: GuestIndex<'i>,
    /// Copies: guests that carry the identity of a node without being its guest.
    copies: Vec<ForeignGuest>,
    /// Guests that are destroyed with their parent and recreated.
    recreated: BTreeSet<GuestKey>,
    profiles: BTreeMap<NodeLocation, HostProfile>,
    claimed: BTreeSet<GuestUuid>,
    /// The planned change of each node; those of children depend on it.
    changes: BTreeMap<String, PlannedChange>,
    nodes: Vec<NodePlan>,
    images: Vec<RequiredImage>,
    refusals: Vec<Refusal>,
}

impl<'i, 'a: 'i> ApplyPlanner<'i, 'a> {
    fn node(&mut self, node: &'a ResolvedNode, location: &NodeLocation, host: &str, deep: bool) {
        let name = node.name.as_str();
        let known = self.inputs.records.of(name, host);
        let profile = self.profile(location);
        let mut uuid = identity_of(self.inputs, name, host, known);
        // The guest of a node that was moved to another parent stays where it is.
        let (record, moved) = match known {
            Some(known) if known.location != *location => (None, Some(known)),
            known => (known, None),
        };
        let parent = match location {
            NodeLocation::Inside(parent) => self.changes.get(parent).copied(),
            NodeLocation::Host(_) => None,
        };
        let mut presence = match parent.filter(|parent| parent.is_new()) {
            Some(parent) => {
                let replaced = parent.action == Action::Replace;
                let recreated = recreated(
                    self.inputs,
                    &self.guest_index,
                    node,
                    (location, host),
                    (record, replaced),
                );
                self.copies.extend(recreated.copies);
                self.recreated.extend(recreated.guest.filter(|_| !deep));
                GuestPresence::Absent(recreated.reasons)
            }
            None => self.presence(node, location, host, record),
        };
        if let GuestPresence::Present(found) = &presence {
            uuid = found.guest.uuid.clone();
        }
        // A guest that lost its tags keeps its MAC address and SMBIOS UUID.
        let other = self.guest_index.untagged(location, record).is_some() || moved.is_some();
        if other && !matches!(presence, GuestPresence::Present(_)) {
            uuid = identity::successor(&uuid);
        }
        if let (GuestPresence::Absent(why), Some(moved)) = (&mut presence, moved)
            && let Some(vmid) = moved.guest.vmid
        {
            why.push(Reason::new(format!(
                "its recorded guest {vmid} in {} is not moved",
                moved.location
            )));
        }
        self.claimed.insert(uuid.clone());
        if deep {
            return;
        }
        let observed = !matches!(presence, GuestPresence::Unknown(_));
        let (action, mut reasons, found) = match presence {
            GuestPresence::Present(found) => {
                if found.power == PowerState::Unknown {
                    self.refuse_unknown(name, &found);
                }
                let wanted = self.wanted(node, location, host, &profile, uuid.clone());
                let (mut action, mut reasons) = compare(self.inputs, node, &wanted, &found, record);
                let restarts = parent.is_some_and(|parent| parent.restarts);
                if action == Action::Nothing && restarts {
                    action = Action::Start;
                    reasons.insert(0, Reason::new("its parent node is restarted"));
                }
                (action, reasons, Some(found))
            }
            GuestPresence::Absent(why) => (Action::Create, why, None),
            GuestPresence::Unknown(why) => {
                let found = record.map(from_record);
                let action = if found.is_some() {
                    Action::Start
                } else {
                    Action::Create
                };
                (action, vec![why], found)
            }
        };
        let config = self.inputs.configs.get(name).cloned();
        let inspected = config.as_ref().and_then(|config| config.found.as_ref());
        for why in inspected.iter().flat_map(|inspected| &inspected.refusals) {
            let hint = "fix the spec or the node; nothing is changed until then";
            self.refuse(Some(name), why.to_string(), None, hint);
        }
        let mode = found
            .as_ref()
            .and_then(|found| found.configured.as_ref()?.mode);
        let (action, mut reasons) = match &config {
            Some(config) if action == Action::Nothing => config_action(config, mode, reasons),
            Some(config) => {
                if config.unseen.is_some() {
                    let text = format!(
                        "it could not be compared with its spec{}",
                        inspection_failure(config)
                    );
                    reasons.push(Reason::new(text));
                }
                if action != Action::Replace {
                    reasons.extend(mode_change(config, mode));
                }
                (action, reasons)
            }
            None => (action, reasons),
        };
        if action == Action::Replace {
            uuid = match record.map(|record| record.site.is_some()) {
                // Its identity is a legacy one, so the first identity of this site differs from it.
                Some(false) => identity_of(self.inputs, name, host, record),
                Some(true) | None => identity::successor(&uuid),
            };
            self.claimed.insert(uuid.clone());
            let inside = found
                .as_ref()
                .and_then(|found| unknown_guests(self.inputs, (host, name), found, true));
            reasons.extend(inside);
        }
        let wanted = self.wanted(node, location, host, &profile, uuid);
        if action.changes()
            && let Some((detail, hint)) = &profile.problem
        {
            self.refuse(
                Some(name),
                detail.clone(),
                node.host.as_ref().map(|h| &h.origin),
                hint,
            );
        }
        let differs = found.as_ref().is_some_and(|found| {
            found.cores.is_some_and(|cores| cores != wanted.cores)
                || found.memory.is_some_and(|memory| memory != wanted.memory)
        });
        let restarts = match action {
            Action::Start => found
                .as_ref()
                .is_none_or(|found| found.power != PowerState::Running),
            Action::Change => differs,
            Action::Create | Action::Replace => true,
            Action::Nothing
            | Action::Configure
            | Action::Destroy
            | Action::Reidentify
            | Action::Keep => false,
        };
        match found.as_ref().map(|found| found.power) {
            Some(PowerState::Running) if action == Action::Change && restarts => {
                reasons.push(Reason::new("it is restarted to change CPUs and memory"));
            }
            Some(PowerState::Stopped) if action == Action::Change => {
                reasons.push(Reason::new("it is stopped now; it is started afterwards"));
            }
            Some(PowerState::Running | PowerState::Stopped | PowerState::Unknown) | None => {}
        }
        let change = PlannedChange {
            action,
            restarts,
            observed,
        };
        self.changes.insert(name.to_owned(), change);
        let mut planned = NodePlan {
            wanted: Some(wanted),
            found,
            config,
            ..NodePlan::new(name, (host, location), node.depth, action, reasons)
        };
        if planned.may_remove_inside() {
            planned.reasons.push(Reason::new(
                "accounts, packages and files of an earlier spec may be removed; they could not be listed",
            ));
        }
        self.nodes.push(planned);
    }

    fn profile(&mut self, location: &NodeLocation) -> HostProfile {
        let inputs = self.inputs;
        self.profiles
            .entry(location.clone())
            .or_insert_with(|| profile(inputs, location))
            .clone()
    }

    fn wanted(
        &mut self,
        node: &ResolvedNode,
        location: &NodeLocation,
        host: &str,
        profile: &HostProfile,
        uuid: GuestUuid,
    ) -> DesiredGuest {
        desired_guest(
            self.inputs,
            node,
            (location, host),
            profile,
            uuid,
            &mut self.images,
        )
    }

    /// Determines whether the guest of a node exists.
    fn presence(
        &mut self,
        node: &ResolvedNode,
        location: &NodeLocation,
        host: &str,
        record: Option<&NodeRecord>,
    ) -> GuestPresence {
        let name = node.name.as_str();
        let here = Some(Origin::Written(node.span));
        let new = |text: &str| {
            let why = reason(self.inputs, text.to_owned(), here.as_ref());
            GuestPresence::Absent(vec![why])
        };
        let Some((location, observation)) = self.inputs.observations.get_key_value(location) else {
            return GuestPresence::Unknown(Reason::new(
                "its parent node does not answer; an existing guest is kept",
            ));
        };
        if let Observation::Unavailable(why) = observation {
            return GuestPresence::Unknown(Reason::new(format!(
                "{why}; an existing guest is kept"
            )));
        }
        let matched = self.guest_index.of_node(location, (host, name), record);
        self.claimed.extend(matched.identities());
        let guest = match matched {
            GuestMatch::Absent => None,
            GuestMatch::Guest(guest, copies) => {
                self.copies.extend(copies_of(location, name, &copies));
                Some(guest)
            }
            GuestMatch::Copies(copies) => {
                self.copies.extend(copies_of(location, name, &copies));
                let (detail, hint) = only_copies(name, record, &copies);
                self.refuse(Some(name), detail, None, &hint);
                None
            }
            GuestMatch::Ambiguous(guests) => {
                let (detail, hint) = ambiguous(name, &guests);
                self.refuse(Some(name), detail, None, &hint);
                guests.first().copied()
            }
            GuestMatch::Edited(guest) => {
                let (detail, hint) = edited(name, self.inputs.site, guest);
                self.refuse(Some(name), detail, None, &hint);
                None
            }
        };
        let Some(guest) = guest else {
            return match self.guest_index.untagged(location, record) {
                Some(guest) => {
                    let text = format!("it is in the manifest; {}", untagged(guest));
                    GuestPresence::Absent(vec![Reason {
                        kind: ReasonKind::Untagged,
                        ..reason(self.inputs, text, here.as_ref())
                    }])
                }
                None if record.is_some_and(NodeRecord::is_interrupted) => new(
                    "it is in the manifest, and an interrupted run may have left it partially created",
                ),
                None => new("it is in the manifest and does not exist"),
            };
        };
        if let Some((detail, hint)) = unusable(name, guest) {
            self.refuse(Some(name), detail, None, &hint);
        }
        match existing(guest, record) {
            Some(found) => GuestPresence::Present(found),
            None => new("it is in the manifest and does not exist"),
        }
    }

    /// The action depends on whether the guest is running, so an unknown state is refused.
    fn refuse_unknown(&mut self, name: &str, found: &ExistingGuest) {
        let guest = &found.guest;
        let detail = format!("the power state of {guest} (`{name}`) is unknown");
        let hint = format!("check that `{}` answers, and plan again", guest.host);
        self.refuse(Some(name), detail, None, &hint);
    }

    fn refuse(&mut self, node: Option<&str>, detail: String, origin: Option<&Origin>, hint: &str) {
        self.refusals.push(Refusal {
            node: node.map(str::to_owned),
            reason: reason(self.inputs, detail, origin),
            hint: hint.to_owned(),
        });
    }

    /// Adds guests of this manifest that it does not list.
    fn orphans(&mut self, roots: &BTreeMap<&str, &str>) {
        let prune = self.inputs.options.prune;
        let orphans = orphans(
            self.inputs,
            &self.guest_index,
            &self.claimed,
            roots,
            &mut self.profiles,
        );
        for orphan in orphans.nodes {
            let (action, why) = match &orphan.unproven {
                Some(why) => (Action::Keep, why.clone()),
                None if prune => (Action::Destroy, orphan.why.clone()),
                None => (Action::Keep, format!("{}; --prune deletes it", orphan.why)),
            };
            let mut node = orphan.node(self.inputs, action, &why);
            // The record under the name of a listed node belongs to its new guest from now on.
            let host = node.host.as_str();
            let named = |known: &String| roots.get(known.as_str()) == Some(&host);
            node.recorded = node.recorded.take().filter(|known| !named(known));
            self.nodes.push(node);
        }
        self.nodes.extend(orphans.untagged);
        self.copies.extend(orphans.copies);
        if prune {
            self.refusals.extend(orphans.refusals);
        }
    }

    /// Refuses ids that another guest has.
    fn check_vmids(&mut self) {
        let deleted: BTreeSet<(NodeLocation, Option<GuestId>)> = self
            .nodes
            .iter()
            .filter(|node| matches!(node.action, Action::Destroy | Action::Replace))
            .filter_map(|node| Some((node.location.clone(), node.found.as_ref()?.guest.vmid)))
            .collect();
        let mut refused = Vec::new();
        for node in &self.nodes {
            let creates = matches!(node.action, Action::Create | Action::Replace);
            let vmid = node.wanted.as_ref().and_then(|wanted| wanted.vmid);
            let (true, Some(vmid)) = (creates, vmid) else {
                continue;
            };
            let Some((location, _)) = self.inputs.observations.get_key_value(&node.location) else {
                continue;
            };
            let parent_is_new = match &node.location {
                NodeLocation::Inside(parent) => self
                    .changes
                    .get(parent)
                    .is_some_and(|change| change.is_new()),
                NodeLocation::Host(_) => false,
            };
            let holder = self.guest_index.with_vmid(location, vmid);
            // A guest without a name is being created and carries no identity yet: it may be that
            // of the node, from an interrupted run. The create step waits for it and checks.
            if let Some(holder) = holder
                && !(holder.name.is_empty() && holder.uuid.is_none())
                && !parent_is_new
                && !deleted.contains(&(node.location.clone(), Some(vmid)))
            {
                let (of, hint) = describe_holder(self.inputs, holder, (&node.host, &node.name));
                refused.push((node.name.clone(), vmid, of, hint));
            }
        }
        for (node, vmid, holder, hint) in refused {
            let origin = self.inputs.resolved.node(&node);
            let origin = origin.and_then(|node| Some(node.vmid.as_ref()?.origin.clone()));
            let detail = format!("vmid {vmid} belongs to another guest, {holder}");
            self.refuse(Some(&node), detail, origin.as_ref(), &hint);
        }
    }

    /// Lists guests that do not belong to this manifest.
    fn foreign(&mut self) -> Vec<ForeignGuest> {
        let copies = std::mem::take(&mut self.copies);
        foreign(
            self.inputs,
            &self.profiles,
            copies,
            &self.nodes,
            &self.claimed,
        )
    }
}

/// What the plan does to a node, as far as it affects its children.
#[derive(Clone, Copy)]
struct PlannedChange {
    action: Action,
    /// Whether it is stopped in between, and the guests on it with it.
    restarts: bool,
    /// Whether its location could be observed.
    observed: bool,
}

impl PlannedChange {
    /// Returns whether its guest is a new one, without the children it had.
    fn is_new(self) -> bool {
        match self.action {
            Action::Create => self.observed,
            Action::Replace => true,
            Action::Nothing
            | Action::Start
            | Action::Change
            | Action::Configure
            | Action::Destroy
            | Action::Reidentify
            | Action::Keep => false,
        }
    }
}

/// Whether the guest of a node exists.
enum GuestPresence {
    /// It exists.
    Present(ExistingGuest),
    /// It does not exist; the reasons to create it.
    Absent(Vec<Reason>),
    /// Its location cannot be observed.
    Unknown(Reason),
}
