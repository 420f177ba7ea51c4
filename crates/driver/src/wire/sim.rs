//! The simulator.

use std::path::Path;

use homestak_api::v1::{SimEndpoint, SimNested, SimStatus};

/// Converts the state of a simulator. Its token is not part of it: who may read it finds it in
/// the directory.
pub fn status(
    directory: &Path,
    endpoint: Option<&SimEndpoint>,
    guests: Option<usize>,
) -> SimStatus {
    let nested = |endpoint: &SimEndpoint| {
        let nested = endpoint.inside.iter().map(|inside| SimNested {
            name: inside.name.clone(),
            address: inside.address.clone(),
            guests: inside.guests.clone(),
            url: inside.url.clone(),
            fingerprint: inside.fingerprint.clone(),
        });
        nested.collect()
    };
    SimStatus {
        directory: directory.display().to_string(),
        running: endpoint.is_some(),
        guests,
        url: endpoint.map(|endpoint| endpoint.url.clone()),
        fingerprint: endpoint.map(|endpoint| endpoint.fingerprint.clone()),
        pid: endpoint.map(|endpoint| endpoint.pid),
        inside: endpoint.map(nested),
    }
}
