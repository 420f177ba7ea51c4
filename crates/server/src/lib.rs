//! SERVES: gives each node its own signed spec over TLS, and records what nodes report.
//!
//! The process that listens holds no key of the site: specs are signed by the driver before they
//! are published. It holds the keys that tokens are verified with and a 30-day intermediate that it
//! issues certificates of nodes with.

mod app;
mod caller;
mod connections;
mod contact;
mod error;
mod http;
mod listen;
mod published;
mod refusal;
mod server;
pub mod settings;
mod stall;
mod throttle;
mod tls;

pub use error::ServerError;
pub use server::{Server, ServerOptions};
