//! Lines of events: what `--events` prints while a run is executed, and what a job of the agent prints
//! while a node is configured. They have no `kind`; `event` is what happened.

use std::net::IpAddr;

use homestak_core::converge::NumberedEvent;
use homestak_core::observed::GuestId;
use homestak_core::plan::{Action, StepKind};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::string_enum::string_enum;
use super::{AgentOutput, ConfigApplied};

/// An event of a job of the agent. Its end has the output of `config apply`.
pub type AgentEvent = NumberedEvent<AgentOutput<ConfigApplied>>;

/// An event of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunEvent {
    /// When it happened.
    pub at: Timestamp,
    /// The number of the run.
    pub run: i64,
    /// What happened.
    #[serde(flatten)]
    pub kind: RunEventKind,
}

/// What happened in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum RunEventKind {
    /// The run started, or was resumed.
    RunStarted {
        /// The command that started it.
        verb: String,
        /// The manifest.
        manifest: String,
        /// Whether it continues an earlier run.
        resumed: bool,
        /// Every node of the plan.
        nodes: Vec<EventNode>,
    },
    /// A step started.
    StepStarted {
        /// The node or image.
        subject: String,
        /// What the step does.
        step: StepKind,
        /// Whether it is being undone.
        undo: bool,
    },
    /// A step waits.
    Waiting {
        /// The node or image.
        subject: String,
        /// What it waits for.
        what: String,
    },
    /// A step reports what it is doing.
    Doing {
        /// The node.
        subject: String,
        /// What it is doing.
        what: String,
    },
    /// A warning.
    Warning {
        /// The node or image; empty when it is about the run.
        subject: String,
        /// The message.
        text: String,
    },
    /// A step completed.
    StepDone {
        /// The node or image.
        subject: String,
        /// What the step did.
        step: StepKind,
        /// Whether it was undone.
        undo: bool,
        /// Whether anything was changed.
        changed: bool,
        /// `true` when undoing it kept the guest, because this run did not create it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        kept: bool,
        /// How long it took, in seconds.
        seconds: f64,
        /// The guest's id, when known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vmid: Option<GuestId>,
        /// The guest's address, when known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<IpAddr>,
    },
    /// A step failed.
    StepFailed {
        /// The node or image.
        subject: String,
        /// What the step does.
        step: StepKind,
        /// Whether it was being undone.
        undo: bool,
        /// The error.
        #[serde(rename = "trouble")]
        error: EventError,
        /// How long it took, in seconds.
        seconds: f64,
    },
    /// The run is being rolled back.
    RollbackStarted,
    /// The run ended.
    RunEnded {
        /// How it ended.
        ending: super::RunEnding,
        /// How long it took, in seconds.
        seconds: f64,
    },
}

/// A node of the plan, when a run starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EventNode {
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

/// The error of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EventError {
    /// `refused`, `partly-refused`, `missing`, `busy`, `unreachable`, `lost`, `broken` or `bug`.
    pub class: String,
    /// The message.
    pub message: String,
    /// The last lines of the task log.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<String>,
    /// What the user can do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
    /// What to do next, unless it is to repeat the command once the cause is fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<EventNextAction>,
}

string_enum! {
    /// What to do after an error.
    EventNextAction {
        /// Make a new plan.
        NewPlan = "new-plan",
        /// Decide whether to trust the host's certificate.
        Trust = "trust",
    }
}
