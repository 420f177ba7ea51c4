//! Shared by the tests of several crates: local hosts, SSH servers, images, a TLS server, sample
//! runs and the commands of the guides. Only tests and examples depend on this crate.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "tests create real files and processes, print what they did, and fail by panicking"
)]

pub mod guides;
pub mod images;
pub mod output;
pub mod random;
pub mod run;
pub mod sample;
pub mod server;
pub mod sshd;
pub mod test_host;
