//! Shared by all crates except `core`: TLS trust, durable files, logging and the runtime.

pub mod certificate;
mod clock;
pub mod durable;
pub mod environment;
pub mod job_statement;
pub mod limit;
pub mod lock;
pub mod log;
pub mod node_key;
pub mod probe;
pub mod publication;
pub mod runtime;
pub mod signature;
mod stop;
pub mod systemd;
pub mod trust;
pub mod trusted_path;
pub mod v1;
mod verifier;
