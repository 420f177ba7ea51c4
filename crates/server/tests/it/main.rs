//! A server over real TLS on loopback.

mod attack;
mod clients;
mod endpoint;
mod enrol;
mod job;
mod lifecycle;
mod raw;
mod recorded;
mod recovery;
mod repos;
mod site;
mod spec;
mod trigger;
mod upload_pack;
