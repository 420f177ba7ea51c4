//! SSH with nobody taken on trust: keys, and who may prove what with them.
//!
//! In: a state directory, guests. Out: keys that are made once, and host keys that are pinned.
//! Never: a host key that is believed because it was seen first.

mod keyring;
mod process;

pub use keyring::Keyring;
