//! PRETENDS: a world that looks like Proxmox VE.
//!
//! In: a [`World`] built in code, then calls, over TLS or in-process. Out: the answers Proxmox VE gives.
//! Never: touching a real host.

mod calls;
mod control;
mod guest;
mod hash;
mod http;
pub mod kept;
pub mod replay;
mod schema;
mod serve;
mod world;

pub use calls::route::METHODS;
pub use calls::{Answer, Credentials, Delivery, Request, Upload};
pub use serve::{Handle, Identity, ServeError, serve, serve_as, serve_inside};
pub use world::{
    Boots, Builder, Call, Event, Fault, FaultKind, GuestFacts, Kind, Pace, RestoreError, Script,
    ScriptError, Stages, SteppedClock, Timed, Timing, World,
};
