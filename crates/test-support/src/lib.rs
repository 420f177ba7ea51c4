//! What tests of several crates share: real nodes of this machine, SSH servers, images, a server of
//! specs, sample runs, and the commands of the guides.
//!
//! Never: part of the product; only tests and examples depend on it.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "tests make real files and processes, say what they tried, and fail by panicking"
)]

pub mod bed;
pub mod guides;
pub mod images;
pub mod output;
pub mod run;
pub mod sample;
pub mod server;
pub mod sshd;
