//! SSH with pinned host keys: key management and commands on nodes.

mod client;
mod error;
mod keyring;
mod multiplex;
mod process;
mod quote;

pub use client::{HostKeyPolicy, MAX_OUTPUT, Output, Ssh, Stream};
pub use error::{SshError, UnreachableReason};
pub use keyring::Keyring;
pub use quote::{quote, shell_line};

/// What installs OpenSSH's client.
pub const INSTALL: &str = "apt-get install openssh-client";
