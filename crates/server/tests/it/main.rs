//! A server over real TLS on loopback.

mod enrol;
mod site;
mod spec;
