//! What every crate outside of `core` shares: TLS trust, durable files, logging and the runtime.

pub mod certificate;
mod clock;
pub mod durable;
pub mod environment;
pub mod limit;
pub mod lock;
pub mod log;
pub mod probe;
pub mod publication;
pub mod runtime;
pub mod signature;
mod stop;
pub mod trust;
pub mod v1;
mod verifier;
