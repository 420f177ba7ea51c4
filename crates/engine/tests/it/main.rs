//! The operator against the simulator, over TLS, with an accelerated clock.
#![expect(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "tests may panic, print how much they tested, and read the amount from the environment"
)]

mod apply;
mod bystanders;
mod cases;
mod clock;
mod concurrent;
mod configure;
mod configurer;
mod crash;
mod env;
mod faults;
mod flaky;
mod memory_journal;
mod observe;
mod ownership;
mod pull;
mod random_faults;
mod random_owners;
mod steps;
mod waits;
