//! The operator on the simulator, over real TLS, on a fast clock.
//!
//! In: small manifests. Out: the world they make, also when anything fails on the way.
//! Never: a real host.
#![expect(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test may panic, says how much it tried, and is told how much to try"
)]

mod apply;
mod bystanders;
mod cases;
mod clock;
mod configure;
mod crash;
mod dice;
mod faults;
mod flaky;
mod insides;
mod lab;
mod memory;
mod owners;
mod ownership;
mod seen;
mod several;
mod steps;
mod waits;
mod walks;
