//! Plans: what a run would do, and why.

use std::collections::BTreeMap;

use homestak_core::{doc, plan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::change::{Change, changes};
use super::guest::{FoundGuest, GuestId, GuestKind, GuestLocation, NodeRecord, WantedGuest};
use super::words::words;

/// What a run would do. A file with it can be applied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ManifestPlan {
    /// The format of a written plan. A program that does not know it does not apply it.
    pub form: u32,
    /// What the plan is for.
    pub verb: PlanVerb,
    /// The id of the site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    /// The manifest.
    pub manifest: String,
    /// The hosts of the site that it touches, sorted.
    pub hosts: Vec<String>,
    /// What happens to the rest when a node fails.
    pub on_error: OnError,
    /// How many nodes are worked on at once.
    pub parallelism: usize,
    /// Whether a node is ready only when its SSH server answers.
    pub verify_ssh: bool,
    /// Seconds added to each wait per level of nesting.
    pub timeout_buffer: u64,
    /// Time limits that the manifest sets, in seconds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub timeouts: BTreeMap<String, u64>,
    /// The nodes, parents before their children.
    pub nodes: Vec<PlanNode>,
    /// The images that nodes are created from.
    pub images: Vec<PlanImage>,
    /// The steps, each after those that it waits for.
    pub steps: Vec<PlanStep>,
    /// Guests on the hosts that do not belong to the manifest.
    pub foreign: Vec<ForeignGuest>,
    /// What cannot be done. A plan with any refusal is not applied.
    pub refusals: Vec<Refusal>,
    /// How many seconds it will take; none when such steps were never measured.
    pub estimate: Option<f64>,
    /// Whether the estimate is from the same hosts.
    pub measured: bool,
    /// The options that the plan was made with.
    pub options: PlanOptions,
}

impl ManifestPlan {
    /// Converts a plan, with the options it was made with.
    pub fn new(plan: &plan::Plan, options: PlanOptions) -> Self {
        let step = |step: &plan::Step| PlanStep {
            id: step.id.to_string(),
            kind: step.kind.into(),
            node: step.node,
            image: step.image,
            after: (step.after.iter())
                .filter_map(|at| Some(plan.steps.get(*at)?.id.to_string()))
                .collect(),
        };
        Self {
            form: plan.format,
            verb: plan.verb.into(),
            site: plan.site.as_ref().map(ToString::to_string),
            manifest: plan.manifest.clone(),
            hosts: plan.hosts.clone(),
            on_error: plan.on_error.into(),
            parallelism: plan.parallelism,
            verify_ssh: plan.verify_ssh,
            timeout_buffer: plan.timeout_buffer.0,
            timeouts: plan.timeouts.into(),
            nodes: plan.nodes.iter().map(PlanNode::from).collect(),
            images: plan.images.iter().map(PlanImage::from).collect(),
            steps: plan.steps.iter().map(step).collect(),
            foreign: plan.foreign.iter().map(ForeignGuest::from).collect(),
            refusals: plan.refusals.iter().map(Refusal::from).collect(),
            estimate: plan.estimate,
            measured: plan.measured,
            options,
        }
    }
}

/// The options that a plan was made with, so that applying it makes the same plan again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanOptions {
    /// The manifest's file, when it is not one of the site.
    pub file: Option<String>,
    /// The manifest itself, as JSON, when it was passed as an argument.
    pub json: Option<String>,
    /// The host of nodes that name none.
    pub host: Option<String>,
    /// How nodes get their spec, instead of what the manifest says.
    pub mode: Option<ConfigMode>,
    /// Whether guests that the manifest no longer names are destroyed.
    pub prune: bool,
    /// How many levels of nodes.
    pub depth: Option<usize>,
    /// What happens to the rest when a node fails.
    pub on_error: Option<OnError>,
    /// How many nodes are worked on at once.
    pub parallelism: Option<usize>,
    /// Whether the site had no id before, so that the plan's is new.
    pub site_is_new: bool,
}

/// What is done to a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanNode {
    /// Its name.
    pub name: String,
    /// The host of the site it is on, directly or inside another node.
    pub host: String,
    /// Where its guest is.
    pub place: GuestLocation,
    /// How many nodes it is nested in.
    pub depth: usize,
    /// What is done.
    pub action: PlanAction,
    /// Why.
    pub reasons: Vec<Reason>,
    /// What it should be; none for a guest that the manifest does not name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<WantedGuest>,
    /// The guest that exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<FoundGuest>,
    /// How it is configured; none without a spec, and for a node that fetches it itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<PlanConfig>,
    /// Its new identity, for a node that gets one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reidentified: Option<Reidentified>,
    /// The name it has on record, where that is not `name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<String>,
}

impl From<&plan::NodePlan> for PlanNode {
    fn from(node: &plan::NodePlan) -> Self {
        Self {
            name: node.name.clone(),
            host: node.host.clone(),
            place: (&node.location).into(),
            depth: node.depth,
            action: node.action.into(),
            reasons: node.reasons.iter().map(Reason::from).collect(),
            wanted: node.wanted.as_ref().map(WantedGuest::from),
            found: node.found.as_ref().map(FoundGuest::from),
            config: node.config.as_ref().map(PlanConfig::from),
            reidentified: node.reidentified.as_deref().map(Reidentified::from),
            recorded: node.recorded.clone(),
        }
    }
}

/// Why something is done or refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Reason {
    /// What the reason is about, where something depends on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ReasonKind>,
    /// The reason, for a person.
    pub text: String,
    /// `path:line:column` of the document behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

impl From<&plan::Reason> for Reason {
    fn from(reason: &plan::Reason) -> Self {
        Self {
            kind: match reason.kind {
                plan::ReasonKind::Other => None,
                plan::ReasonKind::Untagged => Some(ReasonKind::Untagged),
                plan::ReasonKind::UnknownGuests => Some(ReasonKind::UnknownGuests),
            },
            text: reason.text.clone(),
            source: reason.source.clone(),
        }
    }
}

words! {
    /// What a reason is about.
    ReasonKind {
        /// The tags of the recorded guest were removed, so that it no longer belongs to the node.
        Untagged = "given-up",
        /// The guests inside the node could not be listed, and are destroyed with it.
        UnknownGuests = "unseen-inside",
    }
}

/// How a node is to be configured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanConfig {
    /// Its spec.
    pub spec: String,
    /// The digest of the resolved spec.
    pub digest: String,
    /// The port of its SSH server once the spec is applied.
    pub port: u16,
    /// How the node differs from its spec, when it could be compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<Comparison>,
    /// Why a node that runs could not be compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unseen: Option<Unobserved>,
}

impl From<&plan::ConfigPlan> for PlanConfig {
    fn from(config: &plan::ConfigPlan) -> Self {
        Self {
            spec: config.spec.clone(),
            digest: config.digest.clone(),
            port: config.port,
            found: config.found.as_ref().map(|found| Comparison {
                settled: found.settled,
                changes: changes(&found.changes),
                refusals: found.refusals.iter().map(ToString::to_string).collect(),
            }),
            unseen: config.unseen.as_ref().map(|unseen| Unobserved {
                why: unseen.why.to_string(),
                hint: unseen.hint.clone(),
            }),
        }
    }
}

/// A node compared with its spec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Whether applying the spec would change nothing.
    pub settled: bool,
    /// The differences.
    pub changes: Vec<Change>,
    /// Why the node cannot be configured as its spec says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<String>,
}

/// Why a node could not be compared with its spec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Unobserved {
    /// What happened.
    pub why: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
}

/// A guest that gets an identity of this site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Reidentified {
    /// Its new identity.
    pub uuid: String,
    /// Its record, which is kept.
    pub record: NodeRecord,
}

impl From<&plan::Reidentification> for Reidentified {
    fn from(reidentified: &plan::Reidentification) -> Self {
        Self {
            uuid: reidentified.uuid.to_string(),
            record: (&reidentified.record).into(),
        }
    }
}

/// An image that must be on a host before guests are created from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanImage {
    /// Its name.
    pub name: String,
    /// Where it must be.
    pub place: GuestLocation,
    /// The host of the site.
    pub site_host: String,
    /// The machine that must have it.
    pub host: String,
    /// The storage that must have it, where there are storages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
    /// What it is for.
    pub kind: GuestKind,
    /// Its file name in the storage.
    pub file: String,
    /// Where the host can download it.
    pub url: Option<String>,
    /// Its checksum.
    pub checksum: Option<String>,
}

impl From<&plan::RequiredImage> for PlanImage {
    fn from(image: &plan::RequiredImage) -> Self {
        Self {
            name: image.name.clone(),
            place: (&image.location).into(),
            site_host: image.site_host.clone(),
            host: image.host.clone(),
            storage: image.storage.clone(),
            kind: image.kind.into(),
            file: image.file.clone(),
            url: image.url.clone(),
            checksum: image.checksum.clone(),
        }
    }
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanStep {
    /// Its name, such as `create:father/web`; unique in its plan.
    pub id: String,
    /// What it does.
    pub kind: StepKind,
    /// Index of the node in the plan; none for an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<usize>,
    /// Index of the image in the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<usize>,
    /// The steps that must be done before, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
}

/// A guest that does not belong to the manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ForeignGuest {
    /// Where it is.
    pub place: GuestLocation,
    /// Its id.
    pub vmid: GuestId,
    /// Its name.
    pub name: String,
    /// The machine it is on.
    pub host: String,
    /// The manifest it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// The site it belongs to, when that is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    /// The node whose identity it has without being its guest: a clone or a restored backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_of: Option<String>,
}

impl From<&plan::ForeignGuest> for ForeignGuest {
    fn from(guest: &plan::ForeignGuest) -> Self {
        Self {
            place: (&guest.location).into(),
            vmid: guest.vmid.into(),
            name: guest.name.clone(),
            host: guest.host.clone(),
            manifest: guest.manifest.clone(),
            site: guest.site.as_ref().map(ToString::to_string),
            copy_of: guest.copy_of.clone(),
        }
    }
}

/// Something that cannot be done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Refusal {
    /// The node, when it is about one.
    pub node: Option<String>,
    /// Why.
    pub reason: Reason,
    /// What to do about it.
    pub hint: String,
}

impl From<&plan::Refusal> for Refusal {
    fn from(refusal: &plan::Refusal) -> Self {
        Self {
            node: refusal.node.clone(),
            reason: (&refusal.reason).into(),
            hint: refusal.hint.clone(),
        }
    }
}

words! {
    /// What a plan is for.
    PlanVerb from plan::Verb {
        /// Nodes become what the manifest says.
        Apply = "apply",
        /// The nodes of the manifest are destroyed.
        Destroy = "destroy",
        /// Guests get an identity of this site.
        Reidentify = "reidentify",
    }
}

words! {
    /// What happens to the rest when a node fails.
    OnError from doc::manifest::OnError {
        /// No further step is started.
        Stop = "stop",
        /// What the run did is reverted.
        Rollback = "rollback",
        /// Other nodes continue.
        Continue = "continue",
    }
}

words! {
    /// How nodes get their spec.
    ConfigMode from doc::manifest::Mode {
        /// The driver sends it.
        Push = "push",
        /// The node fetches it.
        Pull = "pull",
        /// The driver tells the node to fetch it.
        Hybrid = "hybrid",
    }
}

words! {
    /// What is done to a node.
    PlanAction from plan::Action {
        /// It is as it should be.
        Nothing = "nothing",
        /// It is created.
        Create = "create",
        /// It is started.
        Start = "start",
        /// It is changed in place.
        Change = "change",
        /// It is configured.
        Configure = "configure",
        /// It is destroyed and created again.
        Replace = "replace",
        /// It is destroyed.
        Destroy = "destroy",
        /// It gets an identity of this site.
        Reidentify = "reidentify",
        /// The manifest no longer names it, and it is kept.
        Keep = "leave",
    }
}

words! {
    /// What a step does.
    StepKind from plan::StepKind {
        /// Puts an image into its storage.
        Image = "image",
        /// Creates the guest, stopped.
        Create = "create",
        /// Starts it.
        Start = "start",
        /// Waits until it is reached.
        Ready = "ready",
        /// Removes its first-boot data.
        Discard = "discard",
        /// Configures it as its spec says.
        Configure = "configure",
        /// Changes CPUs and memory of a stopped guest.
        Reshape = "reshape",
        /// Grows its disk.
        Grow = "grow",
        /// Stops it.
        Stop = "stop",
        /// Destroys it.
        Destroy = "destroy",
        /// Gives it an identity of this site.
        Reidentify = "reidentify",
    }
}
