//! The steps of a plan: the smallest units that are executed, recorded and undone.
//!
//! They are derived once, when the plan is made, and stored with it. A step never makes a decision.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use super::types::{Action, NodeLocation, NodePlan, Plan};
use crate::observed::{GuestId, GuestKind, PowerState};

/// What a step does.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum StepKind {
    /// Downloads an image into its storage.
    Image,
    /// Creates the guest, stopped.
    Create,
    /// Starts it.
    Start,
    /// Waits until it is reached.
    Ready,
    /// Removes its first-boot data.
    Discard,
    /// Applies its spec.
    Configure,
    /// Changes CPUs and memory of a stopped guest.
    Reshape,
    /// Grows its disk.
    Grow,
    /// Stops it.
    Stop,
    /// Deletes it.
    Destroy,
    /// Gives it an identity of this site.
    Reidentify,
}

impl StepKind {
    /// All kinds.
    pub const ALL: [Self; 11] = [
        Self::Image,
        Self::Create,
        Self::Start,
        Self::Ready,
        Self::Discard,
        Self::Configure,
        Self::Reshape,
        Self::Grow,
        Self::Stop,
        Self::Destroy,
        Self::Reidentify,
    ];

    /// Returns the name used in plans and step ids.
    pub fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Create => "create",
            Self::Start => "start",
            Self::Ready => "ready",
            Self::Discard => "discard",
            Self::Configure => "configure",
            Self::Reshape => "reshape",
            Self::Grow => "grow",
            Self::Stop => "stop",
            Self::Destroy => "destroy",
            Self::Reidentify => "reidentify",
        }
    }

    /// Describes the step in progress, for the operator.
    pub fn doing(self) -> &'static str {
        match self {
            Self::Image => "preparing the image",
            Self::Create => "creating",
            Self::Start => "starting",
            Self::Ready => "waiting until it is reachable",
            Self::Discard => "removing first-boot data",
            Self::Configure => "configuring",
            Self::Reshape => "changing CPUs and memory",
            Self::Grow => "growing the disk",
            Self::Stop => "stopping",
            Self::Destroy => "destroying",
            Self::Reidentify => "assigning this site's identity",
        }
    }
}

/// The id of a step: its kind and object, such as `create:father/web`, `ready:father/hv/web` for a node
/// inside `hv`, or `image:father/debian-13.qcow2`. Unique in its plan and independent of the rest of
/// it: a node has at most one step of each kind.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(from = "String", into = "String")]
#[schemars(inline)]
pub struct StepId(Arc<str>);

impl StepId {
    /// Makes the id of a step for an object at a location on a host of the site.
    fn new(kind: StepKind, (host, location): (&str, &NodeLocation), name: &str) -> Self {
        let kind = kind.name();
        Self::from(match location {
            NodeLocation::Host(host) => format!("{kind}:{host}/{name}"),
            NodeLocation::Inside(parent) => format!("{kind}:{host}/{parent}/{name}"),
        })
    }

    /// Returns it as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for StepId {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<StepId> for String {
    fn from(id: StepId) -> Self {
        id.0.as_ref().to_owned()
    }
}

impl fmt::Display for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its id.
    pub id: StepId,
    /// Its kind.
    pub kind: StepKind,
    /// Index of the node in the plan; `None` for an image.
    pub node: Option<usize>,
    /// Index of the image in the plan, for an image.
    pub image: Option<usize>,
    /// Indices of the steps that it depends on.
    pub after: Vec<usize>,
}

/// The steps of a plan, each after those that it depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<StepRow>")]
#[schemars(inline, with = "Vec<StepRow>")]
pub struct Steps {
    all: Vec<Step>,
    index: BTreeMap<StepId, usize>,
}

impl Steps {
    /// Returns the index of a step.
    pub fn position(&self, id: &StepId) -> Option<usize> {
        self.index.get(id).copied()
    }

    /// Appends a step and returns its index.
    fn push(&mut self, mut step: Step) -> usize {
        let at = self.all.len();
        // Guest names come from their hosts, which must not be able to merge two steps.
        while self.position(&step.id).is_some() {
            step.id = StepId::from(format!("{}#{at}", step.id));
        }
        self.index.insert(step.id.clone(), at);
        self.all.push(step);
        at
    }
}

impl Deref for Steps {
    type Target = [Step];

    fn deref(&self) -> &[Step] {
        &self.all
    }
}

/// A serialized step, with its dependencies by id.
#[derive(Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Step")]
struct StepRow {
    /// Its id, such as `create:father/web`.
    id: StepId,
    /// What it does.
    kind: StepKind,
    /// Index of the node in the plan; absent for an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<usize>,
    /// Index of the image in the plan, for an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    image: Option<usize>,
    /// The ids of the steps that it depends on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    after: Vec<StepId>,
}

impl Serialize for Steps {
    // One by one: a copy of all of them would double the memory.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name = |at: &usize| self[*at].id.clone();
        serializer.collect_seq(self.iter().map(|step| StepRow {
            id: step.id.clone(),
            kind: step.kind,
            node: step.node,
            image: step.image,
            after: step.after.iter().map(name).collect(),
        }))
    }
}

impl TryFrom<Vec<StepRow>> for Steps {
    type Error = String;

    fn try_from(rows: Vec<StepRow>) -> Result<Self, String> {
        let mut steps = Self::default();
        for step in rows {
            // Dependencies come first, so there are no cycles.
            let before = |id: &StepId| {
                let known = steps.position(id);
                known.ok_or_else(|| {
                    format!(
                        "step `{}` depends on `{id}`, which does not precede it",
                        step.id
                    )
                })
            };
            let after: Result<Vec<usize>, String> = step.after.iter().map(before).collect();
            if steps.position(&step.id).is_some() {
                return Err(format!("duplicate step `{}`", step.id));
            }
            steps.push(Step {
                after: after?,
                id: step.id,
                kind: step.kind,
                node: step.node,
                image: step.image,
            });
        }
        Ok(steps)
    }
}

/// Derives the steps of a plan.
pub fn steps(plan: &Plan) -> Steps {
    StepBuilder::new(plan).build()
}

struct StepBuilder<'p> {
    plan: &'p Plan,
    steps: Steps,
    /// For each node, the step after which its children can be created.
    ready: BTreeMap<&'p str, usize>,
    /// For each location and id, the step that frees it.
    freed: BTreeMap<(&'p NodeLocation, Option<GuestId>), usize>,
    /// For each location, the steps that delete orphans there.
    pruned: BTreeMap<&'p NodeLocation, Vec<usize>>,
    /// For each node, the steps that delete its children.
    emptied: BTreeMap<&'p str, Vec<usize>>,
    images: BTreeMap<usize, usize>,
}

impl<'p> StepBuilder<'p> {
    fn new(plan: &'p Plan) -> Self {
        Self {
            plan,
            steps: Steps::default(),
            ready: BTreeMap::new(),
            freed: BTreeMap::new(),
            pruned: BTreeMap::new(),
            emptied: BTreeMap::new(),
            images: BTreeMap::new(),
        }
    }

    fn build(mut self) -> Steps {
        // Children are deleted before their parents, and everything is deleted before guests are created.
        for (at, node) in self.plan.nodes.iter().enumerate().rev() {
            if matches!(node.action, Action::Destroy | Action::Replace) {
                self.remove(at, node);
            }
        }
        for (at, node) in self.plan.nodes.iter().enumerate() {
            self.add(at, node);
        }
        self.steps
    }

    fn push(&mut self, kind: StepKind, at: usize, after: Vec<usize>) -> usize {
        let node = &self.plan.nodes[at];
        self.steps.push(Step {
            id: StepId::new(kind, (&node.host, &node.location), &node.name),
            kind,
            node: Some(at),
            image: None,
            after,
        })
    }

    fn remove(&mut self, at: usize, node: &'p NodePlan) {
        let Some(found) = &node.found else {
            return;
        };
        let children = self.emptied.remove(node.name.as_str()).unwrap_or_default();
        let stop = self.push(StepKind::Stop, at, children);
        let destroyed = self.push(StepKind::Destroy, at, vec![stop]);
        self.freed
            .insert((&node.location, found.guest.vmid), destroyed);
        if node.wanted.is_none() {
            self.pruned
                .entry(&node.location)
                .or_default()
                .push(destroyed);
        }
        if let NodeLocation::Inside(parent) = &node.location {
            self.emptied.entry(parent).or_default().push(destroyed);
        }
    }

    fn add(&mut self, at: usize, node: &'p NodePlan) {
        let parent = match &node.location {
            NodeLocation::Inside(parent) => self.ready.get(parent.as_str()).copied(),
            NodeLocation::Host(_) => None,
        };
        let last = match node.action {
            Action::Nothing | Action::Keep | Action::Destroy => return,
            Action::Create | Action::Replace => {
                let created = self.create(at, node, parent);
                Some(self.run(at, node, vec![created], true))
            }
            Action::Start => {
                let found = node.found.as_ref();
                let before = match found.filter(|found| found.created != Some(true)) {
                    Some(_) => vec![self.create(at, node, parent)],
                    None => parent.into_iter().collect(),
                };
                let fresh = found.is_some_and(|found| found.ready != Some(true));
                Some(self.run(at, node, before, fresh))
            }
            Action::Reidentify => {
                self.push(StepKind::Reidentify, at, Vec::new());
                return;
            }
            Action::Change => self.change(at, node, parent),
            Action::Configure => self.configure(at, node, parent.into_iter().collect()),
        };
        if let Some(last) = last {
            self.ready.insert(&node.name, last);
        }
    }

    fn create(&mut self, at: usize, node: &'p NodePlan, parent: Option<usize>) -> usize {
        let mut after: Vec<usize> = parent.into_iter().collect();
        let wanted = node.wanted.as_ref();
        if let Some(image) = wanted.and_then(|wanted| wanted.image) {
            after.extend(self.image(image, parent));
        }
        if let Some(vmid) = wanted.and_then(|wanted| wanted.vmid) {
            after.extend(self.freed.get(&(&node.location, Some(vmid))));
        }
        after.extend(self.pruned.get(&node.location).into_iter().flatten());
        // The node's own old guest is deleted first.
        let own = node.found.as_ref().map(|found| found.guest.vmid);
        after.extend(own.and_then(|vmid| self.freed.get(&(&node.location, vmid))));
        after.sort_unstable();
        after.dedup();
        self.push(StepKind::Create, at, after)
    }

    fn image(&mut self, image: usize, parent: Option<usize>) -> Option<usize> {
        if let Some(step) = self.images.get(&image) {
            return Some(*step);
        }
        let need = self.plan.images.get(image)?;
        let step = self.steps.push(Step {
            id: StepId::new(
                StepKind::Image,
                (&need.site_host, &need.location),
                &need.file,
            ),
            kind: StepKind::Image,
            node: None,
            image: Some(image),
            after: parent.into_iter().collect(),
        });
        self.images.insert(image, step);
        Some(step)
    }

    /// Starts a guest, waits for it and configures it; returns the step after which it is ready.
    fn run(&mut self, at: usize, node: &NodePlan, after: Vec<usize>, fresh: bool) -> usize {
        let start = self.push(StepKind::Start, at, after);
        let ready = self.push(StepKind::Ready, at, vec![start]);
        let vm = node
            .wanted
            .as_ref()
            .is_some_and(|wanted| wanted.kind == GuestKind::Vm);
        if !(fresh && vm) {
            return self.configure(at, node, vec![ready]).unwrap_or(ready);
        }
        if node.pulls()
            && let Some(configured) = self.configure(at, node, vec![ready])
        {
            // Whether it has read its first-boot data completely is unknown until it reports.
            self.push(StepKind::Discard, at, vec![configured]);
            return configured;
        }
        // A configured node counts as ready, so its first-boot data is removed before.
        let discarded = self.push(StepKind::Discard, at, vec![ready]);
        self.configure(at, node, vec![discarded]).unwrap_or(ready)
    }

    /// Configures a node with a spec.
    fn configure(&mut self, at: usize, node: &NodePlan, after: Vec<usize>) -> Option<usize> {
        node.config.as_ref()?;
        Some(self.push(StepKind::Configure, at, after))
    }

    /// Changes a guest; returns the step after which it is ready, if there is any.
    fn change(&mut self, at: usize, node: &NodePlan, parent: Option<usize>) -> Option<usize> {
        let mut before: Vec<usize> = parent.into_iter().collect();
        let (Some(wanted), Some(found)) = (&node.wanted, &node.found) else {
            return Some(self.run(at, node, before, false));
        };
        if found.disk.is_some_and(|disk| disk < wanted.disk) {
            before = vec![self.push(StepKind::Grow, at, before)];
        }
        let differs = found.cores.is_some_and(|cores| cores != wanted.cores)
            || found.memory.is_some_and(|memory| memory != wanted.memory);
        if differs {
            // New sizes take effect at the next start.
            if found.power == PowerState::Running {
                before = vec![self.push(StepKind::Stop, at, before)];
            }
            before = vec![self.push(StepKind::Reshape, at, before)];
        }
        if found.power == PowerState::Running && !differs {
            let last = before.last().copied();
            return self.configure(at, node, before).or(last);
        }
        Some(self.run(at, node, before, found.ready != Some(true)))
    }
}
