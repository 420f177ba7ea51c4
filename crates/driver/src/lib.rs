//! DRIVES: one pipeline for everybody who carries manifests out: open the site, connect hosts,
//! observe, plan, check, execute, verify, report.
//!
//! In: values. Out: values, events, and errors with their kind.
//! Never: printing, asking, reading arguments or the environment.

pub mod clock;
pub mod configure;
#[cfg(debug_assertions)]
mod crash;
pub mod drift;
mod driver;
pub mod error;
pub mod hosts;
pub mod job;
pub mod live;
pub mod nodes;
pub mod notices;
mod off;
pub mod plan_file;
pub mod preflight;
mod process;
pub mod rebuild;
pub mod resume;
pub mod rollback;
pub mod runs;
pub mod secrets;
mod seeds;
pub mod select;
pub mod session;
pub mod settings;
pub mod status;

pub use driver::{Driver, journal};
pub use error::{DriverError, ErrorKind};
pub use homestak_engine::events;
pub use notices::Notices;
pub use off::off;
pub use session::{Session, require_sound};
pub use settings::DriverSettings;
