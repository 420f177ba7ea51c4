//! Spec and facts become changes and steps: what differs on a node, and what is done about it.
//!
//! In: a [`NodeSpec`], [`Facts`], the [`State`] of the last time. Out: a [`Decision`].
//! Never: I/O, clock; a step without a change that says why; another order for another order of
//! the spec.
//!
//! [`NodeSpec`]: crate::doc::node_spec::NodeSpec

mod access;
mod change;
mod decide;
mod drift;
mod edit;
mod event;
mod facts;
mod keys;
mod ledger;
mod platform;
mod policy;
mod render;
mod resource;
mod scope;
mod settle;
mod sshd;
mod state;
mod step;
mod system;
mod undo;
mod wanted;

pub use access::{KEY_FILES, SUDOERS, SUDOERS_D};
pub use change::{Change, Danger, Handling, Since};
pub use decide::{Decision, decide};
pub use drift::{Again, Drift, Mended, Now, Open, sweep};
pub use event::{Event, Numbered};
pub use facts::{
    Facts, FileFact, NetworkFact, NetworkManager, PackageFact, SystemFact, UnitFact, UserFact,
};
pub use policy::Policy;
pub use render::render;
pub use resource::{Resource, SudoRule};
pub use scope::Scope;
pub use sshd::{SSHD, SSHD_D, SSHD_OWN};
pub use state::{Managed, State};
pub use step::Step;
pub use undo::{ACCOUNTS, WayBack};
pub use wanted::wanted;

/// Where nodes keep what is theirs.
pub const HOME: &str = "/usr/local/etc/homestak";
/// The program that converges a node.
pub const AGENT: &str = "/usr/local/bin/homestak-agent";
/// The unit that keeps a node as its spec says.
pub const UNIT: &str = "homestak-agent.service";
