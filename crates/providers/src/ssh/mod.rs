//! SSH with nobody taken on trust: keys, and commands on nodes that prove who they are.
//!
//! In: a state directory, guests, commands. Out: keys that are made once, host keys that are pinned,
//! what commands printed.
//! Never: a host key that is believed because it was seen first.

mod client;
mod error;
mod keyring;
mod multiplex;
mod process;
mod quote;

pub use client::{HostKeyPolicy, MAX_OUTPUT, Output, Ssh, Stream};
pub use error::SshError;
pub use keyring::Keyring;
pub use quote::{quote, shell_line};

/// What installs OpenSSH's client.
pub const INSTALL: &str = "apt-get install openssh-client";
