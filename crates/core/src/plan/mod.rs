//! From what should be and what is to what is done.
//!
//! In: a resolved manifest, what was seen, what is remembered. Out: a [`Plan`] with its steps.
//! Never: waiting or asking; a plan is a pure function of what it is given.

mod apply;
mod compare;
mod destroy;
mod estimate;
mod holder;
pub mod identity;
mod inside;
mod owner;
mod place;
mod rebuild;
mod record;
mod reidentify;
mod remade;
mod step;
mod strays;
mod types;
mod unsupported;
mod wanted;

use std::collections::BTreeMap;

pub use apply::site_hosts;
pub use estimate::Paces;
pub use inside::{digest, port, spec_text, without_values};
pub use owner::ids;
pub use rebuild::{Rebuilt, rebuild, rebuilt_plan, unknown_manifest};
pub use record::{Configured, Elsewhere, NodeRecord, NodeStatus, Records};
pub use step::{Step, StepId, StepKind, Steps, steps};
pub use strays::{UNSEEN_INSIDE, is_removed, left_inside, lost_with_it};
pub use types::{
    Action, Comparison, ConfigPlan, FORM, Foreign, Found, GuestPlan, ImageNeed, Nic, NodePlan,
    Place, Plan, Reason, ReasonKind, Refusal, Reidentified, Unseen, Verb, Wanted,
};

pub use crate::doc::manifest::OnError;
pub use unsupported::unsupported;
pub use wanted::{USER, correct_sources};

use crate::catalog::Catalog;
use crate::doc::scalar::SiteId;
use crate::kind::Traits;
use crate::observed::Observed;
use crate::resolve::Resolved;

/// What was seen at a place.
#[derive(Clone, Debug, PartialEq)]
pub enum Look {
    /// Everything that is there.
    Seen(Observed),
    /// Nothing, and why: it does not run, or does not answer. Unknown is not empty.
    Unseen(String),
}

/// What the person asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// What the plan is for.
    pub verb: Verb,
    /// Remove guests of ours that the manifest does not name any more.
    pub prune: bool,
    /// How many levels are made; all when left out.
    pub depth: Option<usize>,
    /// What happens to the rest when a node fails, instead of what the manifest says.
    pub on_error: Option<OnError>,
    /// How many nodes are worked on at once, instead of what the manifest says.
    pub parallelism: Option<usize>,
}

impl Options {
    /// Returns the usual options for a verb.
    pub fn new(verb: Verb) -> Self {
        Self {
            verb,
            prune: false,
            depth: None,
            on_error: None,
            parallelism: None,
        }
    }
}

/// What a plan is made from.
pub struct Inputs<'a> {
    /// The site whose guests are ours.
    pub site: &'a SiteId,
    /// The documents.
    pub catalog: &'a Catalog,
    /// The manifest.
    pub resolved: &'a Resolved,
    /// What was seen. Each root's host is in it; a node that hosts is when it could be asked.
    pub looks: &'a BTreeMap<Place, Look>,
    /// What is remembered of nodes.
    pub records: &'a Records,
    /// What is recorded for other manifests and hosts.
    pub elsewhere: &'a Elsewhere,
    /// What nodes become inside, by name, and what of that was seen. Nodes that are left out are not
    /// configured.
    pub configs: &'a BTreeMap<String, ConfigPlan>,
    /// What the person asks for.
    pub options: &'a Options,
    /// How long steps take.
    pub paces: &'a Paces,
}

impl Inputs<'_> {
    /// Returns what the host is like that a place is on, directly or in other nodes.
    fn traits_of(&self, place: &Place) -> Traits {
        let name = match place {
            Place::Host(host) => return self.catalog.traits_of(host),
            Place::Inside(name) => name,
        };
        if let Some(place) = self.resolved.node(name).and_then(apply::place) {
            return self.traits_of(&place);
        }
        // The manifest does not name it any more.
        let mut records = self.records.values();
        let record = records.find(|record| record.name == *name);
        record.map_or(Traits::PROXMOX_VE, |record| {
            self.catalog.traits_of(&record.host)
        })
    }
}

/// Makes the plan.
pub fn plan(inputs: &Inputs<'_>) -> Plan {
    let mut plan = match inputs.options.verb {
        Verb::Apply => apply::plan(inputs),
        Verb::Destroy => destroy::plan(inputs),
        Verb::Reidentify => reidentify::plan(inputs),
    };
    plan.steps = steps(&plan);
    let estimate = estimate::estimate(&plan, inputs.paces);
    plan.estimate = estimate.map(|(seconds, _)| seconds);
    plan.measured = estimate.is_some_and(|(_, measured)| measured);
    plan
}
