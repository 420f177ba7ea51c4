//! Values of the engine, the providers and the driver as types of the wire (`homestak_api::v1`),
//! one file per resource. Nothing here decides, observes or prints.

pub mod diagnostic;
pub mod event;
pub mod host;
pub mod image;
pub mod local;
pub mod manifest;
pub mod run;
pub mod sim;
pub mod state;
pub mod status;
