//! The types of a plan. A plan can be written to a file and read back, so it contains no secrets:
//! keys and tokens are referenced by name and looked up when they are used.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::guest::{DesiredGuest, ExistingGuest, ForeignGuest, RequiredImage};
use super::record::NodeRecord;
use super::step::Steps;
use crate::converge::Change;
use crate::doc::manifest::{Mode, OnError};
use crate::doc::scalar::SiteId;
use crate::doc::timeouts::Timeouts;
use crate::foreign::ForeignText;
use crate::observed::GuestUuid;
use crate::units::Seconds;

/// The format version of a written plan. A program refuses to execute other versions.
pub const PLAN_FORMAT: u32 = 3;

/// The operation that a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// Create, change and configure the nodes of the manifest.
    Apply,
    /// Delete the nodes of the manifest.
    Destroy,
    /// Give guests that were created before sites had an id an identity of this site.
    Reidentify,
}

impl Verb {
    /// Returns the name used in plans and output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Apply => "apply",
            Self::Destroy => "destroy",
            Self::Reidentify => "reidentify",
        }
    }
}

/// Where a node runs.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum NodeLocation {
    /// On a host of the site.
    Host(String),
    /// Inside a node of the manifest.
    Inside(String),
}

impl std::fmt::Display for NodeLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host(name) => f.write_str(name),
            Self::Inside(name) => write!(f, "node {name}"),
        }
    }
}

/// A plan. Every decision is made here; executing it only follows the steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// The format version.
    #[serde(rename = "form")]
    pub format: u32,
    /// The operation.
    pub verb: Verb,
    /// The site that owns the guests; absent in plans of format 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub site: Option<SiteId>,
    /// The manifest.
    pub manifest: String,
    /// Hosts of the site that it changes, sorted.
    pub hosts: Vec<String>,
    /// What to do with the other nodes when one fails.
    pub on_error: OnError,
    /// How many nodes to process at once.
    pub parallelism: usize,
    /// Whether a node counts as ready only when SSH answers.
    pub verify_ssh: bool,
    /// Seconds added to each wait per level of nesting.
    pub timeout_buffer: Seconds,
    /// Timeouts that the manifest sets.
    #[serde(default, skip_serializing_if = "Timeouts::is_empty")]
    pub timeouts: Timeouts,
    /// The planned nodes, parents before their children.
    pub nodes: Vec<NodePlan>,
    /// Images that nodes are created from.
    pub images: Vec<RequiredImage>,
    /// The steps. Plans of earlier formats were written without them.
    #[serde(default)]
    pub steps: Steps,
    /// Existing guests that do not belong to this manifest.
    pub foreign: Vec<ForeignGuest>,
    /// What cannot be done. A plan with refusals is not executed.
    pub refusals: Vec<Refusal>,
    /// The estimated duration in seconds; null when steps of a kind were never measured.
    pub estimate: Option<f64>,
    /// Whether the whole estimate was measured on the same hosts.
    #[serde(default)]
    pub measured: bool,
}

impl Plan {
    /// Returns a node by name.
    pub fn node(&self, name: &str) -> Option<&NodePlan> {
        self.nodes.iter().find(|node| node.name == name)
    }

    /// Returns the number of steps of each node.
    pub fn steps_per_node(&self) -> Vec<usize> {
        let mut n_steps = vec![0; self.nodes.len()];
        for node in self.steps.iter().filter_map(|step| step.node) {
            if let Some(n_steps) = n_steps.get_mut(node) {
                *n_steps += 1;
            }
        }
        n_steps
    }

    /// Returns whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.nodes.iter().all(|node| !node.action.changes())
    }

    /// Returns whether executing it deletes guests.
    pub fn removes(&self) -> bool {
        let removal = |action| matches!(action, Action::Replace | Action::Destroy);
        self.nodes.iter().any(|node| removal(node.action))
    }

    /// Returns whether executing it removes accounts, packages or files inside nodes, or may do so
    /// in a node that could not be inspected.
    pub fn removes_inside(&self) -> bool {
        let nodes = self.nodes.iter().filter(|node| node.action.changes());
        let configs = nodes.clone().filter_map(|node| node.config.as_ref());
        let mut changes = configs
            .filter_map(|config| config.found.as_ref())
            .flat_map(|found| &found.changes);
        changes.any(Change::is_removal) || nodes.clone().any(NodePlan::may_remove_inside)
    }

    /// Returns whether two plans do the same work. Estimates, reasons and foreign guests are ignored.
    pub fn same_work(&self, other: &Self) -> bool {
        let work = |plan: &Self| Self {
            estimate: None,
            measured: false,
            foreign: Vec::new(),
            nodes: plan.nodes.iter().map(NodePlan::without_reasons).collect(),
            refusals: plan.refusals.iter().map(Refusal::without_reason).collect(),
            ..plan.clone()
        };
        work(self) == work(other)
    }
}

/// Clones the plan.
impl From<&Plan> for Arc<Plan> {
    fn from(plan: &Plan) -> Self {
        Self::new(plan.clone())
    }
}

/// What the plan does to a node.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// No change.
    Nothing,
    /// Create it.
    Create,
    /// Complete its creation if necessary and start it.
    Start,
    /// Change its CPUs, memory or disk.
    Change,
    /// Apply its spec: it is running and differs from it.
    Configure,
    /// Delete and recreate it.
    Replace,
    /// Delete it.
    Destroy,
    /// Give it an identity of this site and change nothing else.
    Reidentify,
    /// Keep it, although the manifest no longer lists it.
    #[serde(rename = "leave")]
    Keep,
}

impl Action {
    /// Returns the name used in plans and output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Create => "create",
            Self::Start => "start",
            Self::Change => "change",
            Self::Configure => "configure",
            Self::Replace => "replace",
            Self::Destroy => "destroy",
            Self::Reidentify => "reidentify",
            Self::Keep => "leave",
        }
    }

    /// Returns whether it changes anything.
    pub fn changes(self) -> bool {
        !matches!(self, Self::Nothing | Self::Keep)
    }
}

/// The kind of a reason, where code depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReasonKind {
    /// Any other reason.
    #[default]
    Other,
    /// The tags of the recorded guest were removed, so that it no longer belongs to the node.
    #[serde(rename = "given-up")]
    Untagged,
    /// The guests inside the node could not be listed and are destroyed with it.
    #[serde(rename = "unseen-inside")]
    UnknownGuests,
}

impl ReasonKind {
    fn is_other(&self) -> bool {
        *self == Self::Other
    }
}

/// Why something is planned or refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reason {
    /// Its kind.
    #[serde(default, skip_serializing_if = "ReasonKind::is_other")]
    pub kind: ReasonKind,
    /// The text for the operator.
    pub text: String,
    /// `path:line:column` of the document behind it, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

impl Reason {
    /// Makes a reason that no document is behind.
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            ..Self::default()
        }
    }
}

/// The plan of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodePlan {
    /// Its name.
    pub name: String,
    /// The host of the site it is on, directly or in another node.
    pub host: String,
    /// Where it runs.
    #[serde(rename = "place")]
    pub location: NodeLocation,
    /// Its nesting depth: 0 on a host of the site.
    pub depth: usize,
    /// The action.
    pub action: Action,
    /// The reasons.
    pub reasons: Vec<Reason>,
    /// The desired guest; absent for a node that the manifest does not list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<DesiredGuest>,
    /// The existing guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<ExistingGuest>,
    /// Its configuration; `None` for a node without a spec, or whose spec is not applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<ConfigPlan>,
    /// Whether it has a spec that is not applied because its host is simulated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// The new identity and the record, for a node that is reidentified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reidentified: Option<Box<Reidentification>>,
    /// Its name in the journal, where that is not `name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<String>,
}

impl NodePlan {
    /// Makes the plan of a node without a desired or existing guest.
    pub(super) fn new(
        name: &str,
        (host, location): (&str, &NodeLocation),
        depth: usize,
        action: Action,
        reasons: Vec<Reason>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            host: host.to_owned(),
            location: location.clone(),
            depth,
            action,
            reasons,
            wanted: None,
            found: None,
            config: None,
            simulated: false,
            reidentified: None,
            recorded: None,
        }
    }

    /// Returns its name in the journal.
    pub fn record_name(&self) -> &str {
        self.recorded.as_ref().unwrap_or(&self.name)
    }

    /// Returns whether the tags of its recorded guest were removed.
    pub fn is_untagged(&self) -> bool {
        let mut reasons = self.reasons.iter();
        reasons.any(|why| why.kind == ReasonKind::Untagged)
    }

    /// Returns whether it fetches its spec and applies it itself, without SSH.
    pub fn pulls(&self) -> bool {
        let config = self.config.as_ref();
        config.is_some_and(|config| config.mode == Mode::Pull)
    }

    /// Returns the mode in which its present guest was last configured, if that is recorded.
    pub fn mode_before(&self) -> Option<Mode> {
        let is_new = matches!(self.action, Action::Create | Action::Replace);
        let found = self.found.as_ref().filter(|_| !is_new);
        found?.configured.as_ref()?.mode
    }

    /// Returns whether its present guest was last configured in another mode.
    pub fn changes_mode(&self) -> bool {
        let config = self.config.as_ref();
        let before = self.mode_before();
        config.is_some_and(|config| before.is_some_and(|before| before != config.mode))
    }

    /// Returns whether configuring it may remove what an earlier spec added, although that could not
    /// be listed. A node that was never reached has nothing from an earlier spec.
    pub fn may_remove_inside(&self) -> bool {
        let stays = match self.action {
            Action::Start | Action::Change | Action::Configure => true,
            Action::Nothing
            | Action::Create
            | Action::Replace
            | Action::Destroy
            | Action::Reidentify
            | Action::Keep => false,
        };
        let (Some(config), Some(there)) = (&self.config, &self.found) else {
            return false;
        };
        let differs = match &there.configured {
            Some(before) => before.digest != config.digest,
            None => there.ready != Some(false),
        };
        stays && differs && !config.is_listed()
    }

    /// Returns a copy without reasons.
    #[must_use]
    pub fn without_reasons(&self) -> Self {
        let config = self.config.clone();
        Self {
            reasons: Vec::new(),
            config: config.map(|config| ConfigPlan {
                unseen: None,
                ..config
            }),
            ..self.clone()
        }
    }
}

/// A guest that is given an identity of this site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Reidentification {
    /// Its new identity.
    pub uuid: GuestUuid,
    /// Its record, which is otherwise kept.
    pub record: NodeRecord,
}

/// The planned configuration of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigPlan {
    /// Its spec.
    pub spec: String,
    /// Digest of the resolved spec, which itself may contain secrets.
    pub digest: String,
    /// The SSH port once the spec is applied.
    pub port: u16,
    /// Who applies it: the driver or the node itself.
    #[serde(default = "push", skip_serializing_if = "is_push")]
    pub mode: Mode,
    /// How the node differs from its spec, if it could be inspected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<SpecComparison>,
    /// Why a running node could not be inspected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unseen: Option<InspectionFailure>,
}

/// Why a running node could not be inspected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InspectionFailure {
    /// The cause.
    pub why: ForeignText,
    /// What the operator can do; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
}

/// The mode of plans that were written without one.
fn push() -> Mode {
    Mode::Push
}

fn is_push(mode: &Mode) -> bool {
    *mode == Mode::Push
}

impl ConfigPlan {
    /// Returns whether the differences of the node are known one by one. A node that configures
    /// itself reports only whether it complies with its spec.
    pub fn is_listed(&self) -> bool {
        let is_own = self.mode == Mode::Pull && !self.is_settled();
        self.found.is_some() && !is_own
    }

    /// Returns whether the node was inspected and complies with its spec.
    pub fn is_settled(&self) -> bool {
        self.found.as_ref().is_some_and(|found| found.settled)
    }
}

/// How a node differs from its spec.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SpecComparison {
    /// Whether applying the spec would change nothing.
    pub settled: bool,
    /// The differences. Values that not everyone on the node may read are left out.
    pub changes: Vec<Change>,
    /// Why the spec cannot be applied to the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<ForeignText>,
}

/// Something that the plan cannot do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refusal {
    /// The node, if it concerns one.
    pub node: Option<String>,
    /// The reason.
    pub reason: Reason,
    /// What the operator can do.
    pub hint: String,
}

impl Refusal {
    /// Returns a copy without reason and hint.
    #[must_use]
    pub fn without_reason(&self) -> Self {
        Self::of(self.node.as_deref(), <(String, String)>::default())
    }

    /// Makes a refusal that no document is behind.
    pub(super) fn of(node: Option<&str>, (detail, hint): (String, String)) -> Self {
        Self {
            node: node.map(str::to_owned),
            reason: Reason::new(detail),
            hint,
        }
    }
}
