//! Version 1 of the wire: every type that another process reads, one file per resource.
//!
//! A type here is a commitment. Fields are added, never renamed or removed, and readers ignore
//! fields they do not know. Nothing here decides or prints. Values of `core` are converted here,
//! those of the engine, the providers and the driver in `homestak_driver::wire`.

mod agent;
mod change;
mod diagnostic;
pub mod enrol;
mod guest;
mod host;
mod image;
pub mod kind;
mod local;
mod manifest;
mod node;
pub mod node_status;
mod plan;
pub mod report;
mod resource;
mod run;
mod secrets;
mod sim;
mod site;
mod spec;
mod state;
mod status;
mod token;
mod words;

pub use agent::*;
pub use change::*;
pub use diagnostic::*;
pub use guest::*;
pub use host::*;
pub use image::*;
pub use kind::{Document, Kind, OUTPUTS, OutputKind, Program, VERSION};
pub use local::*;
pub use manifest::*;
pub use node::*;
pub use plan::*;
pub use resource::*;
pub use run::*;
pub use secrets::*;
pub use sim::*;
pub use site::*;
pub use spec::*;
pub use state::*;
pub use status::*;
pub use token::*;
