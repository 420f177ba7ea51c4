//! Runs manifests for any front end: opens the site, connects to hosts, observes, plans, checks,
//! executes, verifies and reports.
//!
//! It does not print or prompt, and does not read arguments or the environment.

mod blocking;
pub mod clock;
pub mod configure;
#[cfg(debug_assertions)]
mod crash;
pub mod drift;
mod driver;
pub mod error;
pub mod hosts;
pub mod job;
pub mod node_job;
pub mod node_update;
pub mod nodes;
pub mod notices;
pub mod observation;
pub mod plan_file;
pub mod preflight;
mod process;
pub mod publish;
pub mod rebuild;
pub mod repos;
pub mod resume;
pub mod rollback;
pub mod run_follow;
pub mod runs;
pub mod secrets;
mod seed_source;
pub mod select;
pub mod server;
pub mod session;
pub mod settings;
pub mod site_keys;
pub mod status;
pub mod wire;

pub use blocking::run_blocking;
pub use driver::{Driver, journal};
pub use error::{DriverError, ErrorKind};
pub use homestak_engine::events;
pub use notices::Notices;
pub use session::{Session, require_sound};
pub use settings::DriverSettings;
