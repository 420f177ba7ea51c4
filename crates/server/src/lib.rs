//! The server: sends each node its own signed spec over TLS, and records the reports of nodes.
//!
//! The process that listens holds no key of the site: specs are signed by the driver before they
//! are published. It holds the keys that tokens are verified with and a 30-day intermediate that it
//! issues certificates of nodes with.

mod account;
mod app;
mod body;
mod caller;
mod connections;
mod contact;
mod error;
mod flush;
mod heartbeat;
mod http;
mod job;
mod line_limit;
mod listen;
mod process;
mod published;
mod rate;
mod refusal;
mod repos;
pub mod route;
mod server;
pub mod settings;
mod share;
mod stall;
mod throttle;
mod tls;
mod tokens;
mod trigger;
mod verified;
mod watch;

pub use app::check_certificate;
pub use error::ServerError;
pub use heartbeat::Heartbeat;
pub use server::{Server, ServerOptions};
pub use trigger::trigger_problems;
