//! A plan as steps: the smallest things that are done, recorded and undone.
//!
//! In: a [`Plan`]. Out: steps with what each waits for, the same for the same plan.
//! Never: a step that makes a choice.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::types::{Action, NodePlan, Place, Plan};
use crate::observed::{GuestKind, Power};

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepKind {
    /// Brings an image into its storage.
    Image,
    /// Makes the guest, stopped.
    Create,
    /// Starts it.
    Start,
    /// Waits until it is reached.
    Ready,
    /// Takes its first-boot data away.
    Discard,
    /// Makes it inside what its spec says.
    Configure,
    /// Changes CPUs and memory of a stopped guest.
    Reshape,
    /// Grows its disk.
    Grow,
    /// Brings it to a halt.
    Stop,
    /// Removes it.
    Destroy,
    /// Gives it an identity of this site.
    Reidentify,
}

impl StepKind {
    /// Every kind.
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

    /// Returns the word.
    pub fn word(self) -> &'static str {
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

    /// Returns what is happening, for a person.
    pub fn doing(self) -> &'static str {
        match self {
            Self::Image => "fetching the image",
            Self::Create => "creating",
            Self::Start => "starting",
            Self::Ready => "waiting until it is reached",
            Self::Discard => "removing first-boot data",
            Self::Configure => "configuring",
            Self::Reshape => "changing CPUs and memory",
            Self::Grow => "growing the disk",
            Self::Stop => "stopping",
            Self::Destroy => "destroying",
            Self::Reidentify => "giving it this site's identity",
        }
    }
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What it does.
    pub kind: StepKind,
    /// Index of the node in the plan; none for an image.
    pub node: Option<usize>,
    /// Index of the image in the plan, for an image.
    pub image: Option<usize>,
    /// Indices of the steps that must be done before.
    pub after: Vec<usize>,
}

/// Turns a plan into steps. A step's index is its name in the journal.
pub fn steps(plan: &Plan) -> Vec<Step> {
    Maker::new(plan).make()
}

struct Maker<'p> {
    plan: &'p Plan,
    steps: Vec<Step>,
    /// For each node, the step after which its children can be made.
    ready: BTreeMap<&'p str, usize>,
    /// For each place and id, the step that frees it.
    freed: BTreeMap<(&'p Place, Option<u32>), usize>,
    /// For each place, every step that removes a guest there that the manifest does not name.
    pruned: BTreeMap<&'p Place, Vec<usize>>,
    /// For each node, the steps that remove its children.
    emptied: BTreeMap<&'p str, Vec<usize>>,
    images: BTreeMap<usize, usize>,
}

impl<'p> Maker<'p> {
    fn new(plan: &'p Plan) -> Self {
        Self {
            plan,
            steps: Vec::new(),
            ready: BTreeMap::new(),
            freed: BTreeMap::new(),
            pruned: BTreeMap::new(),
            emptied: BTreeMap::new(),
            images: BTreeMap::new(),
        }
    }

    fn make(mut self) -> Vec<Step> {
        // Children go before their parents, and whatever goes makes room for what comes.
        for (at, node) in self.plan.nodes.iter().enumerate().rev() {
            if matches!(node.action, Action::Destroy | Action::Replace) {
                self.remove(at, node);
            }
        }
        for (at, node) in self.plan.nodes.iter().enumerate() {
            self.bring(at, node);
        }
        self.steps
    }

    fn push(&mut self, kind: StepKind, node: usize, after: Vec<usize>) -> usize {
        self.steps.push(Step {
            kind,
            node: Some(node),
            image: None,
            after,
        });
        self.steps.len() - 1
    }

    fn remove(&mut self, at: usize, node: &'p NodePlan) {
        let Some(found) = &node.found else {
            return;
        };
        let children = self.emptied.remove(node.name.as_str()).unwrap_or_default();
        let stop = self.push(StepKind::Stop, at, children);
        let gone = self.push(StepKind::Destroy, at, vec![stop]);
        self.freed.insert((&node.place, found.guest.vmid), gone);
        if node.wanted.is_none() {
            self.pruned.entry(&node.place).or_default().push(gone);
        }
        if let Place::Inside(parent) = &node.place {
            self.emptied.entry(parent).or_default().push(gone);
        }
    }

    fn bring(&mut self, at: usize, node: &'p NodePlan) {
        let parent = match &node.place {
            Place::Inside(parent) => self.ready.get(parent.as_str()).copied(),
            Place::Host(_) => None,
        };
        let last = match node.action {
            Action::Nothing | Action::Leave | Action::Destroy => return,
            Action::Create | Action::Replace => {
                let made = self.create(at, node, parent);
                Some(self.run(at, node, vec![made], true))
            }
            Action::Start => {
                let found = node.found.as_ref();
                let before = match found.filter(|found| found.made != Some(true)) {
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
            after.push(self.image(image, parent));
        }
        if let Some(vmid) = wanted.and_then(|wanted| wanted.vmid) {
            after.extend(self.freed.get(&(&node.place, Some(vmid))));
        }
        after.extend(self.pruned.get(&node.place).into_iter().flatten());
        // The node's own old guest goes first.
        let own = node.found.as_ref().map(|found| found.guest.vmid);
        after.extend(own.and_then(|vmid| self.freed.get(&(&node.place, vmid))));
        after.sort_unstable();
        after.dedup();
        self.push(StepKind::Create, at, after)
    }

    fn image(&mut self, image: usize, parent: Option<usize>) -> usize {
        if let Some(step) = self.images.get(&image) {
            return *step;
        }
        self.steps.push(Step {
            kind: StepKind::Image,
            node: None,
            image: Some(image),
            after: parent.into_iter().collect(),
        });
        let step = self.steps.len() - 1;
        self.images.insert(image, step);
        step
    }

    /// Starts a guest, waits for it and configures it; returns the step after which it is ready.
    fn run(&mut self, at: usize, node: &NodePlan, after: Vec<usize>, fresh: bool) -> usize {
        let start = self.push(StepKind::Start, at, after);
        let ready = self.push(StepKind::Ready, at, vec![start]);
        let vm = node
            .wanted
            .as_ref()
            .is_some_and(|wanted| wanted.kind == GuestKind::Vm);
        // What is configured counts as ready, so its first-boot data goes before.
        let before = if fresh && vm {
            self.push(StepKind::Discard, at, vec![ready])
        } else {
            ready
        };
        self.configure(at, node, vec![before]).unwrap_or(ready)
    }

    /// Configures a node that has a spec.
    fn configure(&mut self, at: usize, node: &NodePlan, after: Vec<usize>) -> Option<usize> {
        node.config.as_ref()?;
        Some(self.push(StepKind::Configure, at, after))
    }

    /// Changes a guest; returns the step after which it is ready, if any comes.
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
            // New sizes count from the next start on.
            if found.power == Power::Running {
                before = vec![self.push(StepKind::Stop, at, before)];
            }
            before = vec![self.push(StepKind::Reshape, at, before)];
        }
        if found.power == Power::Running && !differs {
            let last = before.last().copied();
            return self.configure(at, node, before).or(last);
        }
        Some(self.run(at, node, before, found.ready != Some(true)))
    }
}
