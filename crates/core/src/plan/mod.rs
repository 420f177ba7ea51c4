//! Turns a resolved manifest, the observed state of its hosts and the recorded state of its nodes
//! into a [`Plan`] with its steps. Pure: the same input gives the same plan.

mod apply;
mod compare;
mod config;
mod configure;
mod desired;
mod destroy;
mod durations;
mod guest;
mod guest_index;
mod host_profile;
pub mod identity;
mod orphans;
mod rebuild;
mod record;
mod recreated;
mod reidentify;
mod step;
mod types;
mod unsupported;
mod vmid_holder;

use std::collections::BTreeMap;

pub use apply::site_hosts;
pub use config::{spec_digest, spec_json, ssh_port, without_config_values};
pub use configure::configure_only;
pub use durations::StepDurations;
pub use guest::{DesiredGuest, ExistingGuest, ForeignGuest, GuestPlan, Nic, RequiredImage};
pub use guest_index::known_vmids;
pub use orphans::{UNKNOWN_GUESTS, lost_guests_message, remaining_guests, removes_guest};
pub use rebuild::{RebuiltRecords, rebuild_plan, rebuild_records, unknown_manifest};
pub use record::{AppliedSpec, NodeRecord, NodeStatus, OtherRecords, Records};
pub use step::{Step, StepId, StepKind, Steps, steps};
pub use types::{
    Action, ConfigPlan, InspectionFailure, NodeLocation, NodePlan, PLAN_FORMAT, Plan, Reason,
    ReasonKind, Refusal, Reidentification, SpecComparison, Verb,
};

pub use crate::doc::manifest::OnError;
pub use desired::{DEFAULT_USER, update_image_sources};
pub use unsupported::unsupported;

use crate::catalog::Catalog;
use crate::doc::scalar::SiteId;
use crate::host_kind::HostTraits;
use crate::observed::Inventory;
use crate::resolve::ResolvedManifest;

/// The observed state of a location.
#[derive(Clone, Debug, PartialEq)]
pub enum Observation {
    /// Everything that is there.
    Available(Inventory),
    /// Nothing, and why: it is stopped or does not answer. Unknown is not empty.
    Unavailable(String),
}

/// Options of a plan, from the command line.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanOptions {
    /// The operation to plan.
    pub verb: Verb,
    /// Delete guests of this manifest that it no longer lists.
    pub prune: bool,
    /// How many levels of nesting to plan; all of them if `None`.
    pub depth: Option<usize>,
    /// What to do with the other nodes when one fails; overrides the manifest.
    pub on_error: Option<OnError>,
    /// How many nodes to process at once; overrides the manifest.
    pub parallelism: Option<usize>,
}

impl PlanOptions {
    /// Returns the default options for an operation.
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

/// The inputs of a plan.
pub struct PlanInputs<'a> {
    /// The site that owns the guests.
    pub site: &'a SiteId,
    /// The documents.
    pub catalog: &'a Catalog,
    /// The manifest.
    pub resolved: &'a ResolvedManifest,
    /// The observed state. Contains each root's host, and each hypervisor node that answered.
    pub observations: &'a BTreeMap<NodeLocation, Observation>,
    /// The recorded nodes of this manifest.
    pub records: &'a Records,
    /// Records of other manifests and hosts.
    pub other_records: &'a OtherRecords,
    /// Configuration of nodes by name, with the differences found. Nodes without an entry are not
    /// configured.
    pub configs: &'a BTreeMap<String, ConfigPlan>,
    /// The options.
    pub options: &'a PlanOptions,
    /// Measured durations of steps.
    pub step_durations: &'a StepDurations,
}

impl PlanInputs<'_> {
    /// Returns the traits of the site host behind a location.
    fn traits_of(&self, location: &NodeLocation) -> HostTraits {
        let name = match location {
            NodeLocation::Host(host) => return self.catalog.traits_of(host),
            NodeLocation::Inside(name) => name,
        };
        if let Some(location) = self.resolved.node(name).and_then(apply::location) {
            return self.traits_of(&location);
        }
        // The manifest no longer lists it.
        let mut records = self.records.values();
        let record = records.find(|record| record.name == *name);
        record.map_or(HostTraits::PROXMOX_VE, |record| {
            self.catalog.traits_of(&record.host)
        })
    }
}

/// Makes the plan.
pub fn plan(inputs: &PlanInputs<'_>) -> Plan {
    let mut plan = match inputs.options.verb {
        Verb::Apply => apply::plan(inputs),
        Verb::Destroy => destroy::plan(inputs),
        Verb::Reidentify => reidentify::plan(inputs),
    };
    plan.steps = steps(&plan);
    let estimate = durations::estimate(&plan, inputs.step_durations);
    plan.estimate = estimate.map(|(seconds, _)| seconds);
    plan.measured = estimate.is_some_and(|(_, measured)| measured);
    plan
}
