//! Compares a [`NodeSpec`] with the observed [`Facts`] of a node and the [`State`] of the last run,
//! and decides which changes are made and by which steps: a [`Decision`].
//!
//! Pure: no I/O, no clock. Every step belongs to a change, and the order of lists in the spec does
//! not matter, except for name servers.
//!
//! [`NodeSpec`]: crate::doc::node_spec::NodeSpec

mod access;
mod change;
mod decide;
mod decision_builder;
mod desired;
mod drift_state;
mod edit;
mod event;
mod fact_scope;
mod facts;
mod files;
mod keys;
mod platform;
mod policy;
mod render;
mod resource;
mod sshd;
mod state;
mod step;
mod system;
mod undo_plan;

pub use access::{KEY_FILES, SUDOERS, SUDOERS_D};
pub use change::{Change, ChangeCause, Danger, Handling};
pub use decide::{Decision, decide};
pub use desired::desired_resources;
pub use drift_state::{
    ClockReading, CorrectedDrift, DriftState, FieldBackoff, OpenDrift, check_interval,
};
pub use event::{Event, NumberedEvent};
pub use fact_scope::FactScope;
pub use facts::{
    Facts, FileFact, NetworkFact, NetworkManager, PackageFact, SystemFact, UnitFact, UserFact,
};
pub use policy::Policy;
pub use render::render;
pub use resource::{Resource, SudoRule};
pub use sshd::{SSHD, SSHD_D, SSHD_OWN};
pub use state::{Managed, State};
pub use step::ConvergeStep;
pub use undo_plan::{ACCOUNTS, UndoPlan};

/// The directory of homestak on nodes.
pub const HOME: &str = "/usr/local/etc/homestak";
/// The program that converges a node.
pub const AGENT: &str = "/usr/local/bin/homestak-agent";
/// The unit that corrects drift.
pub const UNIT: &str = "homestak-agent.service";
