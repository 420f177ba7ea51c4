//! References become values, and each value remembers where it came from.
//!
//! In: a [`Catalog`](crate::catalog::Catalog) and what the command line adds. Out: resolved
//! manifests and specs, exports, and every fault found on the way. Checking is resolving.
//! Never: a value that depends on the order of files or nodes.

mod address;
pub mod ansible;
mod manifest;
mod node;
pub mod origin;
mod pattern;
mod picture;
mod reference;
mod render;
mod reveal;
mod sheet;
pub mod site;
pub mod spec;
pub mod tofu;
mod topology;
mod vmid;

pub use address::Networking;
pub use manifest::{Request, Resolved, ResolvedSettings, manifest};
pub use node::{ResolvedNode, Size};
pub use origin::{Origin, Valued};
pub use reveal::{Reveal, SecretRef};
pub use sheet::Sheet;
