//! HTTP as Proxmox VE's daemon speaks it: parses requests and writes answers.

pub(crate) mod multipart;
pub(crate) mod parse;
pub(crate) mod reply;
pub(crate) mod wire;
