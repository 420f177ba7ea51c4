//! Updates the nodes of a manifest in batches: plans, updates a batch, waits until its nodes are
//! healthy, and stops at the first that is not.

mod batch;
mod health;
mod plan;
mod run;

pub use plan::{Asking, StagedUpdate, UpdateLock, UpdateRequest};
pub use run::{UpdateEvent, UpdateObserver};
