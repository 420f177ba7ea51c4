//! SPEAKS: TLS trust, durable files and the runtime that everything outside of `core` shares.
//!
//! In: settings, tasks, time. Out: TLS configurations, files, clocks, tracked tasks.
//! Never: decisions; a connection that is not verified.

mod clock;
pub mod durable;
pub mod environment;
pub mod limit;
pub mod lock;
pub mod probe;
pub mod runtime;
mod stop;
pub mod trust;
mod verifier;
