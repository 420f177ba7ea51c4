//! Events of runs, from which the terminal output, JSON lines and reports are made.
//!
//! Observers are called synchronously and must not block; nothing is decided by them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use homestak_api::runtime::SharedClock;
use homestak_core::plan::{Action, NodeLocation, Plan, StepKind};
use jiff::Timestamp;

use crate::context::{self, StepContext};
use crate::journal::{RunId, RunOutcome, StepError};
use crate::ports::{GuestId, GuestUuid, ProgressListener, ProviderEvent};

/// An event of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// When it happened.
    pub at: Timestamp,
    /// The run; `None` for what a provider reports outside of one.
    pub run: Option<RunId>,
    /// What happened.
    pub kind: EventKind,
}

/// What an event is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The whole run.
    #[default]
    Run,
    /// A node, by its name.
    Node(String),
    /// An image on a host.
    Image {
        /// The image's name.
        name: String,
        /// The host, or the node, that stores it.
        location: String,
    },
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Run => Ok(()),
            Self::Node(name) => f.write_str(name),
            Self::Image { name, location } => write!(f, "image {name} on {location}"),
        }
    }
}

/// A node of the plan, as reported when a run starts.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedNode {
    /// Its name.
    pub name: String,
    /// The node it runs on.
    pub parent: Option<String>,
    /// The host of the site it is on.
    pub host: String,
    /// What is done to it.
    pub action: Action,
    /// How many steps that takes.
    pub steps: usize,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum EventKind {
    /// A run started, or was resumed.
    RunStarted {
        /// The command that started it.
        verb: String,
        /// The manifest.
        manifest: String,
        /// Whether it continues an earlier one.
        resumed: bool,
        /// Every node of the plan.
        nodes: Vec<PlannedNode>,
    },
    /// A step started.
    StepStarted {
        /// Node or image it is about.
        subject: Subject,
        /// What it does.
        step: StepKind,
        /// Whether it is being undone.
        undo: bool,
    },
    /// What a step waits for.
    Waiting {
        /// Node or image it is about.
        subject: Subject,
        /// What it waits for.
        what: String,
    },
    /// What a step is doing.
    Doing {
        /// Node it is about.
        subject: Subject,
        /// What it is doing.
        what: String,
    },
    /// A warning.
    Warning {
        /// Node or image it is about, or the run.
        subject: Subject,
        /// The message.
        text: String,
    },
    /// A step completed.
    StepDone {
        /// Node or image it is about.
        subject: Subject,
        /// What it did.
        step: StepKind,
        /// Whether it was undone.
        undo: bool,
        /// Whether anything was changed.
        changed: bool,
        /// Whether undoing it kept the guest, because this run did not create it.
        kept: bool,
        /// How long it took, in seconds.
        seconds: f64,
        /// The guest's id, when known.
        guest_id: Option<GuestId>,
        /// The guest's address, when known.
        address: Option<IpAddr>,
    },
    /// A step failed.
    StepFailed {
        /// Node or image it is about.
        subject: Subject,
        /// Its kind.
        step: StepKind,
        /// Whether it was being undone.
        undo: bool,
        /// The error.
        error: StepError,
        /// How long it took, in seconds.
        seconds: f64,
    },
    /// The run is being rolled back.
    RollbackStarted,
    /// A run ended.
    RunEnded {
        /// How it ended.
        ending: RunOutcome,
        /// How long it took, in seconds.
        seconds: f64,
    },
}

impl EventKind {
    /// Returns the event that a run of a plan starts or continues.
    pub fn run_started(verb: &str, plan: &Plan, resumed: bool) -> Self {
        let nodes = plan.nodes.iter().zip(plan.steps_per_node());
        let nodes = nodes.map(|(node, steps)| PlannedNode {
            name: node.name.clone(),
            parent: match &node.location {
                NodeLocation::Inside(parent) => Some(parent.clone()),
                NodeLocation::Host(_) => None,
            },
            host: node.host.clone(),
            action: node.action,
            steps,
        });
        Self::RunStarted {
            verb: verb.to_owned(),
            manifest: plan.manifest.clone(),
            resumed,
            nodes: nodes.collect(),
        }
    }
}

/// Receives the events of runs. Must not block.
pub trait Observer: Send + Sync {
    /// Receives an event.
    fn on_event(&self, event: &Event);
}

/// Emits events to an observer. Concurrent runs have a `RunEvents` each; what a shared client of
/// a provider reports becomes an event of the run whose step called it.
pub struct EventHub(RunEvents);

impl EventHub {
    /// Emits to an observer.
    pub fn new(observer: Arc<dyn Observer>, clock: SharedClock) -> Arc<Self> {
        Arc::new(Self(RunEvents {
            observer,
            clock,
            run: None,
            names: BTreeMap::new(),
            images: BTreeMap::new(),
        }))
    }

    /// Returns the events of a run, with the nodes of its guests and the subjects of its images.
    pub(crate) fn of_run(
        &self,
        run: RunId,
        names: BTreeMap<GuestUuid, String>,
        images: BTreeMap<String, Subject>,
    ) -> Arc<RunEvents> {
        Arc::new(RunEvents {
            observer: self.0.observer.clone(),
            clock: self.0.clock.clone(),
            run: Some(run),
            names,
            images,
        })
    }
}

impl ProgressListener for EventHub {
    fn report(&self, guest: Option<&GuestUuid>, event: ProviderEvent) {
        let StepContext { hub, subject, .. } = context::current();
        let hub = hub.as_deref().unwrap_or(&self.0);
        hub.report(guest, subject, event);
    }
}

/// Emits the events of one run.
pub(crate) struct RunEvents {
    observer: Arc<dyn Observer>,
    clock: SharedClock,
    run: Option<RunId>,
    names: BTreeMap<GuestUuid, String>,
    images: BTreeMap<String, Subject>,
}

impl RunEvents {
    /// Emits an event.
    pub(crate) fn emit(&self, kind: EventKind) {
        let event = Event {
            at: self.clock.now(),
            run: self.run,
            kind,
        };
        tracing::trace!(run = event.run.map(|run| run.0), event = ?event.kind, "event");
        self.observer.on_event(&event);
    }

    /// Turns what a provider reports into an event about the guest's node, or about the step's
    /// subject when no guest is named.
    fn report(&self, guest: Option<&GuestUuid>, subject: Subject, event: ProviderEvent) {
        let name = guest.and_then(|uuid| self.names.get(uuid));
        let subject = name.cloned().map_or(subject, Subject::Node);
        match event {
            // The step itself reports what it does.
            ProviderEvent::Waiting(_) if subject == Subject::Run => {}
            ProviderEvent::Waiting(what) => self.emit(EventKind::Waiting { subject, what }),
            ProviderEvent::Image { name, what } => {
                if let Some(subject) = self.images.get(&name).cloned() {
                    self.emit(EventKind::Waiting { subject, what });
                }
            }
            // Used by the step that configures the node.
            ProviderEvent::Began => {}
            ProviderEvent::Doing(what) => self.emit(EventKind::Doing { subject, what }),
            ProviderEvent::Warning(text) => self.emit(EventKind::Warning { subject, text }),
        }
    }
}
