//! The operator on the simulator, over real TLS, on a fast clock.
//!
//! In: small manifests. Out: the world they make, also when anything fails on the way.
//! Never: a real host.
#![allow(unreachable_pub, missing_docs, reason = "a test binary has no users")]

mod apply;
mod cases;
mod clock;
mod crash;
mod faults;
mod flaky;
mod lab;
mod memory;
mod walks;
