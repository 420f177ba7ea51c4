//! What a plan is made of. It can be written to a file and read back.
//!
//! In: values. Out: values; nothing here decides.
//! Never: the value of a secret; keys and tokens are named, and looked up when they are used.

use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::record::{Configured, NodeRecord};
use super::step::Steps;
use crate::converge::Change;
use crate::doc::manifest::OnError;
use crate::doc::scalar::SiteId;
use crate::doc::timeouts::Timeouts;
use crate::foreign::ForeignText;
use crate::observed::{GuestId, GuestKind, GuestRef, GuestUuid, Power};
use crate::units::{Gib, Mib, Seconds};

/// The form of a written plan. A program that does not know the form does not carry it out.
pub const FORM: u32 = 3;

/// What a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// The world becomes what the manifest says.
    Apply,
    /// What the manifest made is removed.
    Destroy,
    /// Guests that were created before sites had an id get an identity of this site.
    Reidentify,
}

impl Verb {
    /// Returns the word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Apply => "apply",
            Self::Destroy => "destroy",
            Self::Reidentify => "reidentify",
        }
    }
}

/// Where guests live.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// On a host of the site.
    Host(String),
    /// In a node of the manifest.
    Inside(String),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host(name) => f.write_str(name),
            Self::Inside(name) => write!(f, "node {name}"),
        }
    }
}

/// A plan: every choice is made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The form, [`FORM`].
    pub form: u32,
    /// What it is for.
    pub verb: Verb,
    /// The site whose guests it is about; `None` in plans of the first form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<SiteId>,
    /// The manifest.
    pub manifest: String,
    /// Hosts of the site it touches, sorted.
    pub hosts: Vec<String>,
    /// What happens to the rest when a node fails.
    pub on_error: OnError,
    /// How many nodes are worked on at once.
    pub parallelism: usize,
    /// Whether a node is ready only when its SSH answers.
    pub verify_ssh: bool,
    /// Seconds added to each wait per level of nesting.
    pub timeout_buffer: Seconds,
    /// Time limits that the manifest sets.
    #[serde(default, skip_serializing_if = "Timeouts::is_empty")]
    pub timeouts: Timeouts,
    /// What each node is like, parents before their children.
    pub nodes: Vec<NodePlan>,
    /// Images that nodes are made from.
    pub images: Vec<ImageNeed>,
    /// What is done, in the smallest parts. Plans of earlier forms were written without.
    #[serde(default)]
    pub steps: Steps,
    /// Guests that are there and not ours.
    pub foreign: Vec<Foreign>,
    /// What cannot be done; a plan with any is not carried out.
    pub refusals: Vec<Refusal>,
    /// How long it will take, in seconds; `None` when steps like these were never measured.
    pub estimate: Option<f64>,
    /// Whether all of that was measured on the same hosts.
    #[serde(default)]
    pub measured: bool,
}

impl Plan {
    /// Returns the node of that name.
    pub fn node(&self, name: &str) -> Option<&NodePlan> {
        self.nodes.iter().find(|node| node.name == name)
    }

    /// Returns how many steps each node takes.
    pub fn n_steps(&self) -> Vec<usize> {
        let mut n_steps = vec![0; self.nodes.len()];
        for node in self.steps.iter().filter_map(|step| step.node) {
            if let Some(n_steps) = n_steps.get_mut(node) {
                *n_steps += 1;
            }
        }
        n_steps
    }

    /// Tells whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.nodes.iter().all(|node| !node.action.changes())
    }

    /// Tells whether carrying it out removes guests.
    pub fn removes(&self) -> bool {
        let removal = |action| matches!(action, Action::Replace | Action::Destroy);
        self.nodes.iter().any(|node| removal(node.action))
    }

    /// Tells whether carrying it out removes accounts, packages or files inside nodes, or may do so
    /// in one that could not be asked.
    pub fn removes_inside(&self) -> bool {
        let nodes = self.nodes.iter().filter(|node| node.action.changes());
        let configs = nodes.clone().filter_map(|node| node.config.as_ref());
        let mut changes = configs
            .filter_map(|config| config.found.as_ref())
            .flat_map(|found| &found.changes);
        changes.any(Change::is_removal) || nodes.clone().any(NodePlan::may_remove_inside)
    }

    /// Tells whether two plans do the same, whatever they expect of time and whichever lines of the
    /// documents say so.
    pub fn same_work(&self, other: &Self) -> bool {
        let still = |plan: &Self| Self {
            estimate: None,
            measured: false,
            foreign: Vec::new(),
            nodes: plan.nodes.iter().map(NodePlan::without_reasons).collect(),
            refusals: plan.refusals.iter().map(Refusal::without_reason).collect(),
            ..plan.clone()
        };
        still(self) == still(other)
    }
}

/// A copy, for whoever keeps the plan itself.
impl From<&Plan> for Arc<Plan> {
    fn from(plan: &Plan) -> Self {
        Self::new(plan.clone())
    }
}

/// What is done to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It is as it should be, or not there as it should not be.
    Nothing,
    /// It is made.
    Create,
    /// It is there and brought to run.
    Start,
    /// It is changed where it is.
    Change,
    /// It runs, and is not inside as its spec says.
    Configure,
    /// It is removed and made anew.
    Replace,
    /// It is removed.
    Destroy,
    /// It gets an identity of this site; nothing else about it changes.
    Reidentify,
    /// The manifest does not name it any more; it is left alone.
    Leave,
}

impl Action {
    /// Returns the word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Create => "create",
            Self::Start => "start",
            Self::Change => "change",
            Self::Configure => "configure",
            Self::Replace => "replace",
            Self::Destroy => "destroy",
            Self::Reidentify => "reidentify",
            Self::Leave => "leave",
        }
    }

    /// Tells whether anything is done.
    pub fn changes(self) -> bool {
        !matches!(self, Self::Nothing | Self::Leave)
    }
}

/// What a reason is about, where anything depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReasonKind {
    /// Nothing depends on it.
    #[default]
    Other,
    /// The recorded guest of the node was made a guest of its own, which stays.
    GivenUp,
    /// Nobody saw what runs in the node, and it is destroyed with it.
    UnseenInside,
}

impl ReasonKind {
    fn is_other(&self) -> bool {
        *self == Self::Other
    }
}

/// Why, and the line behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// What it is about.
    #[serde(default, skip_serializing_if = "ReasonKind::is_other")]
    pub kind: ReasonKind,
    /// What a person reads.
    pub text: String,
    /// `path:line:column`, where a document says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// What is done to one node, and what it is like afterwards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodePlan {
    /// Its name.
    pub name: String,
    /// The host of the site it is on, directly or in another node.
    pub host: String,
    /// Where it lives.
    pub place: Place,
    /// How many nodes it runs on, one in another.
    pub depth: usize,
    /// What is done.
    pub action: Action,
    /// Why.
    pub reasons: Vec<Reason>,
    /// What it should be; none for a guest that the manifest does not name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<Wanted>,
    /// What is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<Found>,
    /// What it becomes inside; none for a node without a spec, and for one that fetches it itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<ConfigPlan>,
    /// The identity it gets, and what the journal knows of it, for a node that is reidentified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reidentified: Option<Box<Reidentified>>,
    /// The name that the journal has for it, where that is not `name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<String>,
}

impl NodePlan {
    /// Returns the name under which the journal knows it.
    pub fn record_name(&self) -> &str {
        self.recorded.as_ref().unwrap_or(&self.name)
    }

    /// Tells whether its recorded guest was made a guest of its own, which stays.
    pub fn is_given_up(&self) -> bool {
        let mut reasons = self.reasons.iter();
        reasons.any(|why| why.kind == ReasonKind::GivenUp)
    }

    /// Tells whether configuring it may remove what an earlier spec gave it, without anybody having
    /// seen what that is. A node that was never reached has nothing of an earlier spec.
    pub fn may_remove_inside(&self) -> bool {
        let stays = match self.action {
            Action::Start | Action::Change | Action::Configure => true,
            Action::Nothing
            | Action::Create
            | Action::Replace
            | Action::Destroy
            | Action::Reidentify
            | Action::Leave => false,
        };
        let (Some(config), Some(there)) = (&self.config, &self.found) else {
            return false;
        };
        let differs = match &there.configured {
            Some(before) => before.digest != config.digest,
            None => there.ready != Some(false),
        };
        stays && differs && config.found.is_none()
    }

    /// Returns what is done to the node, without why.
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

/// A guest that gets an identity of this site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reidentified {
    /// Its new identity.
    pub uuid: GuestUuid,
    /// What the journal knows of it, which stays.
    pub record: NodeRecord,
}

/// What a node becomes inside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfigPlan {
    /// Its spec.
    pub spec: String,
    /// What the resolved spec adds up to; the spec itself may hold secrets.
    pub digest: String,
    /// Where SSH listens once it is applied.
    pub port: u16,
    /// What the node said, when it could be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<Comparison>,
    /// Why it could not be asked, of a node that runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unseen: Option<Unseen>,
}

/// Why a node that runs could not be asked what it is like inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unseen {
    /// What happened.
    pub why: ForeignText,
    /// What to do about it; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
}

impl ConfigPlan {
    /// Tells whether the node was asked, and applying its spec would change nothing.
    pub fn is_settled(&self) -> bool {
        self.found.as_ref().is_some_and(|found| found.settled)
    }
}

/// A node beside its spec.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Whether applying the spec would change nothing.
    pub settled: bool,
    /// What differs. Some of it may only be named, whoever asks.
    pub changes: Vec<Change>,
    /// Why the node cannot become what its spec says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<ForeignText>,
}

/// A guest of ours that is there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Which it is.
    pub guest: GuestRef,
    /// Whether its identity is of the first form, without a site.
    #[serde(default)]
    pub first_form: bool,
    /// Whether it runs.
    #[serde(default)]
    pub power: Power,
    /// Whether it was created completely; `None` when nothing is recorded.
    pub made: Option<bool>,
    /// Whether it was reached; `None` when nothing is recorded, or not whether it was.
    pub ready: Option<bool>,
    /// Virtual CPUs, when known.
    pub cores: Option<u32>,
    /// Memory, when known.
    pub memory: Option<Mib>,
    /// Disk, when known.
    pub disk: Option<Gib>,
    /// Its address when it was last seen ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// What it was last made inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured: Option<Configured>,
    /// Whether it was created for guests to run on it; `None` when nothing is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts_guests: Option<bool>,
}

/// A guest's place on the network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// Its MAC address, lower case.
    pub mac: String,
    /// Bridge of the host, where there are bridges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<String>,
    /// VLAN tag.
    pub vlan: Option<u16>,
    /// Fixed address with prefix; `None` for DHCP. Virtual machines get it from their seed.
    pub address: Option<(IpAddr, u8)>,
    /// Gateway.
    pub gateway: Option<IpAddr>,
}

/// A guest as its hypervisor creates it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestPlan {
    /// Its identity.
    pub uuid: GuestUuid,
    /// What it is.
    pub kind: GuestKind,
    /// The machine it is made on, by the name the hypervisor has for it.
    pub host: String,
    /// Its id, or `None` to have one chosen.
    pub vmid: Option<GuestId>,
    /// Virtual CPUs.
    pub cores: u32,
    /// Memory.
    pub memory: Mib,
    /// Disk.
    pub disk: Gib,
    /// Storage of the disk, where there are storages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
    /// Storage of the seed and of images, where there are storages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_storage: Option<String>,
    /// Its place on the network.
    #[serde(flatten)]
    pub nic: Nic,
    /// Whether a container runs without privileges.
    pub unprivileged: bool,
    /// Whether guests will run on it, so that it needs the host's CPU features.
    pub hosts_guests: bool,
}

/// What a node should be: everything that making it needs, but secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// Its guest.
    #[serde(flatten)]
    pub guest: GuestPlan,
    /// What it is made from: the name of an image, or a volume.
    pub source: String,
    /// Index of the image in the plan; none for a volume that is there already.
    pub image: Option<usize>,
    /// Name servers.
    pub dns: Vec<IpAddr>,
    /// The user that is made on first boot.
    pub user: String,
    /// Packages that are installed on first boot.
    pub packages: Vec<String>,
}

impl Deref for Wanted {
    type Target = GuestPlan;

    fn deref(&self) -> &GuestPlan {
        &self.guest
    }
}

/// An image that must be in a storage before guests are made from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageNeed {
    /// The image's own name.
    pub name: String,
    /// Where it must be.
    pub place: Place,
    /// The host of the site behind the place.
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
    /// Where the host can fetch it from.
    pub url: Option<String>,
    /// What it must add up to.
    pub checksum: Option<String>,
}

/// A guest that is not ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreign {
    /// Where it is.
    pub place: Place,
    /// Its id.
    pub vmid: GuestId,
    /// Its name.
    pub name: String,
    /// The host it is on.
    #[serde(default)]
    pub host: String,
    /// The manifest it belongs to, when it is one of another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// The site it belongs to, when it is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<SiteId>,
    /// The node whose identity it carries without being its guest: a copy or a restored backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_of: Option<String>,
}

/// Something that cannot be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The node, when it is about one.
    pub node: Option<String>,
    /// Why.
    pub reason: Reason,
    /// What to do about it.
    pub hint: String,
}

impl Refusal {
    /// Returns what is refused, without why.
    #[must_use]
    pub fn without_reason(&self) -> Self {
        Self::of(self.node.as_deref(), <(String, String)>::default())
    }

    /// Refuses something for a reason that no line of a document gave.
    pub(super) fn of(node: Option<&str>, (detail, hint): (String, String)) -> Self {
        Self {
            node: node.map(str::to_owned),
            reason: Reason {
                text: detail,
                ..Reason::default()
            },
            hint,
        }
    }
}
