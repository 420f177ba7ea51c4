//! The plan of `apply`: the world becomes what the manifest says.
//!
//! In: [`Inputs`]. Out: a [`Plan`], parents before their children.
//! Never: the removal of a guest that nobody asked to remove.

use std::collections::{BTreeMap, BTreeSet};

use crate::observed::{GuestId, GuestUuid, Power};
use crate::resolve::{Origin, Resolved, ResolvedNode};
use crate::units::Seconds;

use super::compare::{found, judge, reason, remembered};
use super::holder::whose;
use super::inside::{inside, why};
use super::owner::{Match, Owners};
use super::place::{Offer, offer};
use super::record::NodeRecord;
use super::remade::remade;
use super::step::Steps;
use super::strays::{
    Exact, ambiguous, bystanders, copies_of, edited, foreign, given_up, only_copies, strays,
    unseen_inside, unusable,
};
use super::types::{
    Action, FORM, Foreign, Found, ImageNeed, NodePlan, Place, Plan, Reason, ReasonKind, Refusal,
    Wanted,
};
use super::wanted::wanted;
use super::{Inputs, Look, identity};

/// Makes the plan of `apply`.
pub(super) fn plan(inputs: &Inputs<'_>) -> Plan {
    let roots = site_hosts(inputs.resolved);
    let mut maker = Maker {
        inputs,
        owners: Owners::new(inputs.site, &inputs.resolved.name, inputs.looks),
        copies: Vec::new(),
        again: BTreeSet::new(),
        offers: BTreeMap::new(),
        claimed: BTreeSet::new(),
        actions: BTreeMap::new(),
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
        match (place(node), host) {
            (Some(place), Some(host)) => maker.node(node, &place, host, deep),
            _ => maker.refusals.push(no_host(inputs, node)),
        }
    }
    maker.strays(&roots);
    maker.check_ids();
    let foreign = maker.foreign();
    let Maker {
        nodes,
        images,
        mut refusals,
        offers,
        again,
        ..
    } = maker;
    refusals.extend(bystanders(inputs, &offers, &nodes, &again));
    empty(inputs, nodes, images, foreign, refusals)
}

/// Puts a plan together.
pub(super) fn empty(
    inputs: &Inputs<'_>,
    nodes: Vec<NodePlan>,
    images: Vec<ImageNeed>,
    foreign: Vec<Foreign>,
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
        form: FORM,
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
pub(super) fn by_depth(resolved: &Resolved) -> Vec<&ResolvedNode> {
    let mut nodes: Vec<&ResolvedNode> = resolved.nodes.iter().collect();
    nodes.sort_by(|one, other| (one.depth, &one.name).cmp(&(other.depth, &other.name)));
    nodes
}

/// Returns the host of the site each node is on, directly or in another node.
pub fn site_hosts(resolved: &Resolved) -> BTreeMap<&str, &str> {
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

/// Returns where a node lives, as the looks name it.
pub(super) fn place(node: &ResolvedNode) -> Option<Place> {
    match (&node.parent, &node.host) {
        (Some(parent), _) => Some(Place::Inside(parent.to_string())),
        (None, Some(host)) => Some(Place::Host(host.value.clone())),
        (None, None) => None,
    }
}

/// Returns the identity that a new guest of a node gets. A record without a site is of a guest
/// that had an identity of the first form, which no new guest gets.
pub(super) fn identity_of(
    inputs: &Inputs<'_>,
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

fn no_host(inputs: &Inputs<'_>, node: &ResolvedNode) -> Refusal {
    Refusal {
        node: Some(node.name.to_string()),
        reason: reason(
            inputs,
            format!("nothing says which host `{}` runs on", node.name),
            Some(&Origin::Written(node.span)),
        ),
        hint: "name one with -H HOST, or write `host: NAME` on the node".to_owned(),
    }
}

struct Maker<'i, 'a> {
    inputs: &'i Inputs<'a>,
    owners: Owners<'i>,
    /// Guests that carry the identity of a node without being its guest.
    copies: Vec<Foreign>,
    /// Guests of planned nodes that go with the node they run in.
    again: BTreeSet<Exact>,
    offers: BTreeMap<Place, Offer>,
    claimed: BTreeSet<GuestUuid>,
    /// What happens to each node: children follow their parents.
    actions: BTreeMap<String, Fate>,
    nodes: Vec<NodePlan>,
    images: Vec<ImageNeed>,
    refusals: Vec<Refusal>,
}

impl<'i, 'a: 'i> Maker<'i, 'a> {
    fn node(&mut self, node: &'a ResolvedNode, place: &Place, host: &str, deep: bool) {
        let name = node.name.as_str();
        let known = self.inputs.records.of(name, host);
        let offer = self.offer(place);
        let mut uuid = identity_of(self.inputs, name, host, known);
        // The guest of a node that was moved to another parent stays where it is.
        let (record, moved) = match known {
            Some(known) if known.place != *place => (None, Some(known)),
            known => (known, None),
        };
        let parent = match place {
            Place::Inside(parent) => self.actions.get(parent).copied(),
            Place::Host(_) => None,
        };
        let mut seen = match parent.filter(|parent| parent.is_new()) {
            Some(parent) => {
                let replaced = parent.action == Action::Replace;
                let remade = remade(
                    self.inputs,
                    &self.owners,
                    node,
                    (place, host),
                    (record, replaced),
                );
                self.copies.extend(remade.copies);
                self.again.extend(remade.guest.filter(|_| !deep));
                Seen::Absent(remade.reasons)
            }
            None => self.seen(node, place, host, record),
        };
        if let Seen::There(found) = &seen {
            uuid = found.guest.uuid.clone();
        }
        // A guest that was given up keeps its MAC address and its SMBIOS uuid.
        let other = self.owners.given_up(place, record).is_some() || moved.is_some();
        if other && !matches!(seen, Seen::There(_)) {
            uuid = identity::successor(&uuid);
        }
        if let (Seen::Absent(why), Some(moved)) = (&mut seen, moved)
            && let Some(vmid) = moved.guest.vmid
        {
            why.push(said(&format!(
                "guest {vmid} in {} is recorded as its guest, and is not moved",
                moved.place
            )));
        }
        self.claimed.insert(uuid.clone());
        if deep {
            return;
        }
        let could_see = !matches!(seen, Seen::Hidden(_));
        let (action, mut reasons, found) = match seen {
            Seen::There(found) => {
                if found.power == Power::Unknown {
                    self.refuse_unknown(name, &found);
                }
                let want = self.wanted(node, place, host, &offer, uuid.clone());
                let (mut action, mut reasons) = judge(self.inputs, node, &want, &found, record);
                let restarts = parent.is_some_and(|parent| parent.restarts);
                if action == Action::Nothing && restarts {
                    action = Action::Start;
                    reasons.insert(0, said("the node it runs on is started again"));
                }
                (action, reasons, Some(found))
            }
            Seen::Absent(why) => (Action::Create, why, None),
            Seen::Hidden(why) => {
                let found = record.map(remembered);
                let action = if found.is_some() {
                    Action::Start
                } else {
                    Action::Create
                };
                (action, vec![why], found)
            }
        };
        let config = self.inputs.configs.get(name).cloned();
        let asked = config.as_ref().and_then(|config| config.found.as_ref());
        for why in asked.iter().flat_map(|asked| &asked.refusals) {
            let hint = "correct the spec or the node; nothing is changed before";
            self.refuse(Some(name), why.to_string(), None, hint);
        }
        let (action, mut reasons) = match &config {
            Some(config) if action == Action::Nothing => inside(config, reasons),
            Some(config) if config.unseen.is_some() => {
                let text = format!("what differs inside could not be seen{}", why(config));
                reasons.push(said(&text));
                (action, reasons)
            }
            _ => (action, reasons),
        };
        if action == Action::Replace {
            uuid = match record.map(|record| record.site.is_some()) {
                // Its identity is of the first form, so that the first of this one is another.
                Some(false) => identity_of(self.inputs, name, host, record),
                Some(true) | None => identity::successor(&uuid),
            };
            self.claimed.insert(uuid.clone());
            let inside = found
                .as_ref()
                .and_then(|found| unseen_inside(self.inputs, (host, name), found, true));
            reasons.extend(inside);
        }
        let want = self.wanted(node, place, host, &offer, uuid);
        if action.changes()
            && let Some((detail, hint)) = &offer.wrong
        {
            self.refuse(
                Some(name),
                detail.clone(),
                node.host.as_ref().map(|h| &h.origin),
                hint,
            );
        }
        let differs = found.as_ref().is_some_and(|found| {
            found.cores.is_some_and(|cores| cores != want.cores)
                || found.memory.is_some_and(|memory| memory != want.memory)
        });
        let restarts = match action {
            Action::Start => found
                .as_ref()
                .is_none_or(|found| found.power != Power::Running),
            Action::Change => differs,
            Action::Create | Action::Replace => true,
            Action::Nothing
            | Action::Configure
            | Action::Destroy
            | Action::Reidentify
            | Action::Leave => false,
        };
        match found.as_ref().map(|found| found.power) {
            Some(Power::Running) if action == Action::Change && restarts => reasons.push(said(
                "it is restarted: CPUs and memory change while it is stopped",
            )),
            Some(Power::Stopped) if action == Action::Change => {
                reasons.push(said("it does not run; it is started afterwards"));
            }
            Some(Power::Running | Power::Stopped | Power::Unknown) | None => {}
        }
        let fate = Fate {
            action,
            restarts,
            seen: could_see,
        };
        self.actions.insert(name.to_owned(), fate);
        let mut planned = NodePlan {
            name: name.to_owned(),
            host: host.to_owned(),
            place: place.clone(),
            depth: node.depth,
            action,
            reasons,
            wanted: Some(want),
            found,
            config,
            reidentified: None,
            recorded: None,
        };
        if planned.may_remove_inside() {
            planned.reasons.push(said(
                "accounts, packages and files of an earlier spec may be removed; which could not be seen",
            ));
        }
        self.nodes.push(planned);
    }

    fn offer(&mut self, place: &Place) -> Offer {
        let inputs = self.inputs;
        self.offers
            .entry(place.clone())
            .or_insert_with(|| offer(inputs, place))
            .clone()
    }

    fn wanted(
        &mut self,
        node: &ResolvedNode,
        place: &Place,
        host: &str,
        offer: &Offer,
        uuid: GuestUuid,
    ) -> Wanted {
        wanted(
            self.inputs,
            node,
            (place, host),
            offer,
            uuid,
            &mut self.images,
        )
    }

    /// Finds out what there is of a node.
    fn seen(
        &mut self,
        node: &ResolvedNode,
        place: &Place,
        host: &str,
        record: Option<&NodeRecord>,
    ) -> Seen {
        let name = node.name.as_str();
        let here = Some(Origin::Written(node.span));
        let new = |text: &str| {
            let why = reason(self.inputs, text.to_owned(), here.as_ref());
            Seen::Absent(vec![why])
        };
        let Some((place, look)) = self.inputs.looks.get_key_value(place) else {
            return Seen::Hidden(said(
                "the node it runs on cannot be asked now; it is kept if it is there",
            ));
        };
        if let Look::Unseen(why) = look {
            return Seen::Hidden(said(&format!("{why}; it is kept if it is there")));
        }
        let carrying = self.owners.of_node(place, (host, name), record);
        self.claimed.extend(carrying.identities());
        let guest = match carrying {
            Match::Absent => None,
            Match::Guest(guest, copies) => {
                self.copies.extend(copies_of(place, name, &copies));
                Some(guest)
            }
            Match::Copies(copies) => {
                self.copies.extend(copies_of(place, name, &copies));
                let (detail, hint) = only_copies(name, record, &copies);
                self.refuse(Some(name), detail, None, &hint);
                None
            }
            Match::Ambiguous(guests) => {
                let (detail, hint) = ambiguous(name, &guests);
                self.refuse(Some(name), detail, None, &hint);
                guests.first().copied()
            }
            Match::Edited(guest) => {
                let (detail, hint) = edited(name, self.inputs.site, guest);
                self.refuse(Some(name), detail, None, &hint);
                None
            }
        };
        let Some(guest) = guest else {
            return match self.owners.given_up(place, record) {
                Some(guest) => {
                    let text = format!("the manifest names it; {}", given_up(guest));
                    Seen::Absent(vec![Reason {
                        kind: ReasonKind::GivenUp,
                        ..reason(self.inputs, text, here.as_ref())
                    }])
                }
                None if record.is_some_and(NodeRecord::is_cut_off) => new(
                    "the manifest names it, and a run that worked on it was cut off: it may be half-created",
                ),
                None => new("the manifest names it, and it is not there"),
            };
        };
        if let Some((detail, hint)) = unusable(name, guest) {
            self.refuse(Some(name), detail, None, &hint);
        }
        match found(guest, record) {
            Some(found) => Seen::There(found),
            None => new("the manifest names it, and it is not there"),
        }
    }

    /// Nothing is planned on a guess: whether a guest runs decides what is done to it.
    fn refuse_unknown(&mut self, name: &str, found: &Found) {
        let guest = &found.guest;
        let detail = format!("whether {guest} (`{name}`) runs is unknown");
        let hint = format!("does `{}` answer? Plan again when it does", guest.host);
        self.refuse(Some(name), detail, None, &hint);
    }

    fn refuse(&mut self, node: Option<&str>, detail: String, origin: Option<&Origin>, hint: &str) {
        self.refusals.push(Refusal {
            node: node.map(str::to_owned),
            reason: reason(self.inputs, detail, origin),
            hint: hint.to_owned(),
        });
    }

    /// Adds guests of this manifest that it does not name.
    fn strays(&mut self, roots: &BTreeMap<&str, &str>) {
        let prune = self.inputs.options.prune;
        let strays = strays(
            self.inputs,
            &self.owners,
            &self.claimed,
            roots,
            &mut self.offers,
        );
        for stray in strays.nodes {
            let (action, why) = match &stray.unproven {
                Some(why) => (Action::Leave, why.clone()),
                None if prune => (Action::Destroy, stray.why.clone()),
                None => (Action::Leave, format!("{}; --prune removes it", stray.why)),
            };
            let mut node = stray.node(self.inputs, action, &why);
            // What is recorded under the name of a node is its own guest's from now on.
            let host = node.host.as_str();
            let named = |known: &String| roots.get(known.as_str()) == Some(&host);
            node.recorded = node.recorded.take().filter(|known| !named(known));
            self.nodes.push(node);
        }
        self.nodes.extend(strays.given_up);
        self.copies.extend(strays.copies);
        if prune {
            self.refusals.extend(strays.refusals);
        }
    }

    /// Refuses ids that someone else has.
    fn check_ids(&mut self) {
        let going: BTreeSet<(Place, Option<GuestId>)> = self
            .nodes
            .iter()
            .filter(|node| matches!(node.action, Action::Destroy | Action::Replace))
            .filter_map(|node| Some((node.place.clone(), node.found.as_ref()?.guest.vmid)))
            .collect();
        let mut refused = Vec::new();
        for node in &self.nodes {
            let made = matches!(node.action, Action::Create | Action::Replace);
            let vmid = node.wanted.as_ref().and_then(|wanted| wanted.vmid);
            let (true, Some(vmid)) = (made, vmid) else {
                continue;
            };
            let Some((place, _)) = self.inputs.looks.get_key_value(&node.place) else {
                continue;
            };
            let parent_is_new = match &node.place {
                Place::Inside(parent) => self.actions.get(parent).is_some_and(|fate| fate.is_new()),
                Place::Host(_) => false,
            };
            let holder = self.owners.with_vmid(place, vmid);
            // A guest without a name is being made and does not say whose it is yet: it may be
            // ours, left by a run that died. Making ours waits for it and finds out.
            if let Some(holder) = holder
                && !(holder.name.is_empty() && holder.uuid.is_none())
                && !parent_is_new
                && !going.contains(&(node.place.clone(), Some(vmid)))
            {
                let (of, hint) = whose(self.inputs, holder, (&node.host, &node.name));
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

    /// Lists guests that are not of this manifest.
    fn foreign(&mut self) -> Vec<Foreign> {
        let copies = std::mem::take(&mut self.copies);
        foreign(
            self.inputs,
            &self.offers,
            copies,
            &self.nodes,
            &self.claimed,
        )
    }
}

/// What happens to a node, as far as its children care.
#[derive(Clone, Copy)]
struct Fate {
    action: Action,
    /// Whether what runs on it is stopped meanwhile.
    restarts: bool,
    /// Whether it could be seen.
    seen: bool,
}

impl Fate {
    /// Tells whether nothing of what ran on it is left.
    fn is_new(self) -> bool {
        match self.action {
            Action::Create => self.seen,
            Action::Replace => true,
            Action::Nothing
            | Action::Start
            | Action::Change
            | Action::Configure
            | Action::Destroy
            | Action::Reidentify
            | Action::Leave => false,
        }
    }
}

/// What there is of a node.
enum Seen {
    /// It is there.
    There(Found),
    /// It is not, and why.
    Absent(Vec<Reason>),
    /// Its place cannot be seen.
    Hidden(Reason),
}

pub(super) fn said(text: &str) -> Reason {
    Reason {
        text: text.to_owned(),
        ..Reason::default()
    }
}
