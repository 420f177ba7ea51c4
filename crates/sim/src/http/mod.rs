//! Bytes in, bytes out: requests parsed, answers written, as Proxmox VE's daemon does.
//!
//! In: HTTP requests. Out: calls to a World and HTTP answers with its reason phrases.
//! Never: what a call does.

pub(crate) mod multipart;
pub(crate) mod parse;
pub(crate) mod reply;
pub(crate) mod wire;
