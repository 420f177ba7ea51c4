//! A simulator of Proxmox VE.
//!
//! A [`World`] is one simulated installation. It answers API calls in process or over TLS and never
//! touches a real host.

mod calls;
mod control;
mod guest;
mod hash;
mod http;
pub mod persistent;
pub mod replay;
mod schema;
mod serve;
mod world;

pub use calls::route::METHODS;
pub use calls::{Answer, Credentials, Delivery, Request, Upload};
pub use serve::{Handle, Identity, ServeError, serve, serve_inside, serve_with_identity};
pub use world::{
    BootStages, Boots, Builder, Call, Event, Fault, FaultKind, GuestFacts, Kind, Pace,
    RestoreError, Script, ScriptError, SteppedClock, TimedEvent, Timing, World,
};
