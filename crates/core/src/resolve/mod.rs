//! Resolves references between documents to values, each with its origin, and reports diagnostics on
//! the way: validating is resolving. Results do not depend on the order of files or nodes.

mod address;
pub mod ansible;
mod diagram;
mod manifest;
mod node;
mod node_graph;
pub mod origin;
mod pattern;
mod reference;
mod render;
mod resolved_json;
mod secret_visibility;
pub mod site;
pub mod spec;
pub mod tofu;
pub mod trigger;
mod vmid;

pub use address::Networking;
pub use manifest::{ResolveOptions, ResolvedManifest, ResolvedSettings, manifest};
pub use node::{NodeSize, ResolvedNode};
pub use origin::{Origin, WithOrigin};
pub use resolved_json::ResolvedJson;
pub use secret_visibility::{SecretRef, SecretVisibility};
