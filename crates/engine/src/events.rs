//! What happens, as it happens: the terminal, JSON lines and reports are all made from this.
//!
//! In: what the operator does. Out: [`Event`] to whoever listens.
//! Never: a decision; nothing waits for a listener.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use homestak_api::runtime::SharedClock;
use homestak_core::plan::{Action, StepKind};
use jiff::Timestamp;
use serde::{Serialize, Serializer};

use crate::context::{self, Context};
use crate::journal::{Ending, RunId, Trouble};
use crate::ports::{GuestId, GuestUuid, Listener, Remark};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Event {
    /// When.
    pub at: Timestamp,
    /// In which run.
    pub run: RunId,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What an event is about. Serialized as text.
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
        place: String,
    },
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Run => Ok(()),
            Self::Node(name) => f.write_str(name),
            Self::Image { name, place } => write!(f, "image {name} on {place}"),
        }
    }
}

impl Serialize for Subject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A node as a run begins.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cast {
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
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum What {
    /// A run began, or goes on.
    RunStarted {
        /// What it is for.
        verb: String,
        /// The manifest.
        manifest: String,
        /// Whether it goes on from an earlier one.
        resumed: bool,
        /// Every node of the plan.
        nodes: Vec<Cast>,
    },
    /// A step began.
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
        /// What for.
        what: String,
    },
    /// What a step does just now.
    Doing {
        /// Node it is about.
        subject: Subject,
        /// What.
        what: String,
    },
    /// Something a person should know.
    Warning {
        /// Node or image it is about, or the run.
        subject: Subject,
        /// What.
        text: String,
    },
    /// A step was done.
    StepDone {
        /// Node or image it is about.
        subject: Subject,
        /// What it did.
        step: StepKind,
        /// Whether it was undone.
        undo: bool,
        /// Whether anything was changed.
        changed: bool,
        /// Whether undoing it left the guest in place, because this run did not create it.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        kept: bool,
        /// How long it took, in seconds.
        seconds: f64,
        /// The guest's id, when known.
        #[serde(rename = "vmid", skip_serializing_if = "Option::is_none")]
        guest_id: Option<GuestId>,
        /// The guest's address, when known.
        #[serde(skip_serializing_if = "Option::is_none")]
        address: Option<IpAddr>,
    },
    /// A step failed.
    StepFailed {
        /// Node or image it is about.
        subject: Subject,
        /// What it was to do.
        step: StepKind,
        /// Whether it was being undone.
        undo: bool,
        /// What went wrong.
        trouble: Trouble,
        /// How long it took, in seconds.
        seconds: f64,
    },
    /// Steps are undone from here on.
    RollbackStarted,
    /// A run ended.
    RunEnded {
        /// How.
        ending: Ending,
        /// How long it took, in seconds.
        seconds: f64,
    },
}

/// Hears what happens. Must not wait.
pub trait Observer: Send + Sync {
    /// Hears one event.
    fn hear(&self, event: &Event);
}

/// Where events are told. Runs that go on at the same time have a hub each; a client of a
/// provider that they share listens to any hub, and what it says is told by that of the run whose
/// step makes it speak.
pub struct Hub(RunHub);

impl Hub {
    /// Makes a hub.
    pub fn new(observer: Arc<dyn Observer>, clock: SharedClock) -> Arc<Self> {
        Arc::new(Self(RunHub {
            observer,
            clock,
            run: RunId(0),
            names: BTreeMap::new(),
            images: BTreeMap::new(),
        }))
    }

    /// Makes the hub of a run, which knows which guest is which node, and what images are called in
    /// events.
    pub(crate) fn of_run(
        &self,
        run: RunId,
        names: BTreeMap<GuestUuid, String>,
        images: BTreeMap<String, Subject>,
    ) -> Arc<RunHub> {
        Arc::new(RunHub {
            observer: self.0.observer.clone(),
            clock: self.0.clock.clone(),
            run,
            names,
            images,
        })
    }
}

impl Listener for Hub {
    fn hear(&self, guest: Option<&GuestUuid>, remark: Remark) {
        let Context { hub, subject, .. } = context::current();
        let hub = hub.as_deref().unwrap_or(&self.0);
        hub.hear(guest, subject, remark);
    }
}

/// Where events of one run are told.
pub(crate) struct RunHub {
    observer: Arc<dyn Observer>,
    clock: SharedClock,
    run: RunId,
    names: BTreeMap<GuestUuid, String>,
    images: BTreeMap<String, Subject>,
}

impl RunHub {
    /// Tells an event.
    pub(crate) fn tell(&self, what: What) {
        let event = Event {
            at: self.clock.now(),
            run: self.run,
            what,
        };
        tracing::trace!(event = serde_json::to_string(&event).ok(), "event");
        self.observer.hear(&event);
    }

    /// What a provider says while it works becomes an event of the node it is about, which is the
    /// step's subject unless it names a guest.
    fn hear(&self, guest: Option<&GuestUuid>, subject: Subject, remark: Remark) {
        let name = guest.and_then(|uuid| self.names.get(uuid));
        let subject = name.cloned().map_or(subject, Subject::Node);
        match remark {
            // Nobody knows whose wait it is; the step itself says what it does.
            Remark::Waiting(_) if subject == Subject::Run => {}
            Remark::Waiting(what) => self.tell(What::Waiting { subject, what }),
            Remark::Image { name, what } => {
                if let Some(subject) = self.images.get(&name).cloned() {
                    self.tell(What::Waiting { subject, what });
                }
            }
            // Only whoever waits for the node needs to know.
            Remark::Began => {}
            Remark::Doing(what) => self.tell(What::Doing { subject, what }),
            Remark::Warning(text) => self.tell(What::Warning { subject, text }),
        }
    }
}
