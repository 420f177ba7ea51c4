//! The operator against the simulator, over TLS, with an accelerated clock.
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
mod concurrent;
mod configure;
mod configurer;
mod crash;
mod dice;
mod env;
mod faults;
mod flaky;
mod memory_journal;
mod observe;
mod ownership;
mod random_faults;
mod random_owners;
mod steps;
mod waits;
