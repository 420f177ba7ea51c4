//! Version 1 of the wire format: the output types that other processes read, one file per resource.
//!
//! A type here is a commitment. Fields are added, never renamed or removed, and readers ignore
//! fields they do not know. The same holds for types of `core` that are stored and that `v1` re-uses
//! unchanged: plans, changes, resources, drift and guests. Values of the engine, the providers and
//! the driver are converted in `homestak_driver::wire`.

mod agent;
pub mod answer;
mod diagnostic;
pub mod enrol;
mod event;
mod host;
mod image;
pub mod kind;
mod local;
mod manifest;
mod node;
pub mod node_job;
pub mod node_status;
pub mod node_update;
pub mod openapi;
mod plan;
pub mod report;
mod run;
mod secrets;
mod server;
mod sim;
mod site;
mod spec;
mod state;
mod status;
mod string_enum;
mod token;
pub mod trigger;

pub use agent::*;
pub use diagnostic::*;
pub use event::*;
pub use host::*;
pub use image::*;
pub use kind::{Document, Kind, OUTPUTS, OutputKind, Program, UNTAGGED, UntaggedOutput, VERSION};
pub use local::*;
pub use manifest::*;
pub use node::*;
pub use plan::*;
pub use run::*;
pub use secrets::*;
pub use server::*;
pub use sim::*;
pub use site::*;
pub use spec::*;
pub use state::*;
pub use status::*;
pub use token::*;
