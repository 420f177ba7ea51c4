//! Discovers the addresses of cluster hosts, so that the host of a guest is called directly.
//!
//! Only hosts whose certificate the entry host vouches for are used.

use std::collections::BTreeMap;
use std::net::IpAddr;

use homestak_api::trust::{Fingerprint, Trust};
use homestak_engine::ports::PortError;
use serde_json::Value;

use super::client::Pve;
use super::error::{PveError, Reason};
use super::quirks::{parse_bool, text_of};
use super::requests::{ApiCall, CLUSTER_STATUS, NODES};
use super::settings::Endpoint;

impl Pve {
    /// Asks the entry host for the addresses of all hosts; none without the privilege.
    pub async fn discover(&self) -> Result<BTreeMap<String, Endpoint>, PortError> {
        let found = async {
            let status = self.ask(&ApiCall::to(&CLUSTER_STATUS)).await?;
            let nodes = self.ask(&ApiCall::to(&NODES)).await?;
            Ok::<_, PveError>(endpoints(&self.settings.endpoint, &status, &nodes))
        };
        match found.await {
            Err(error) if error.reason == Reason::Permission => Ok(BTreeMap::new()),
            result => {
                let url = &self.settings.endpoint.url;
                result.map_err(|error| error.into_port_error(format!("query the hosts of {url}")))
            }
        }
    }
}

/// Reads addresses and fingerprints. A pinned entry vouches for the others' fingerprints; an
/// authority is valid for all; certificates of public authorities have names that are not listed.
pub fn endpoints(entry: &Endpoint, status: &Value, nodes: &Value) -> BTreeMap<String, Endpoint> {
    let rows = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let fingerprints: BTreeMap<String, Fingerprint> = rows(nodes)
        .iter()
        .filter_map(|row| {
            let fingerprint = Fingerprint::parse(&text_of(row, "ssl_fingerprint"))?;
            Some((text_of(row, "node"), fingerprint))
        })
        .collect();
    let port = entry
        .url
        .rsplit_once(':')
        .and_then(|(_, port)| port.trim_end_matches('/').parse::<u16>().ok())
        .unwrap_or(8006);
    rows(status)
        .iter()
        .filter(|row| text_of(row, "type") == "node")
        // The host behind the entry is reached through it already.
        .filter(|row| !row.get("local").and_then(parse_bool).unwrap_or(false))
        .filter_map(|row| {
            let name = Some(text_of(row, "name")).filter(|name| !name.is_empty())?;
            let trust = match &entry.trust {
                Trust::Pinned(_) => Trust::Pinned(*fingerprints.get(&name)?),
                Trust::Authority(pem) => Trust::Authority(pem.clone()),
                Trust::WebPki | Trust::Site(_) | Trust::SiteSince(..) => return None,
            };
            let host = match text_of(row, "ip").parse().ok()? {
                IpAddr::V4(address) => address.to_string(),
                IpAddr::V6(address) => format!("[{address}]"),
            };
            let url = format!("https://{host}:{port}");
            Some((name, Endpoint { url, trust }))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pinned_entry_vouches_for_the_other_hosts() {
        let mark = Fingerprint([7; 32]);
        let entry = Endpoint {
            url: "https://pve1:8006".to_owned(),
            trust: Trust::Pinned(Fingerprint([1; 32])),
        };
        let status = json!([
            {"type": "cluster", "quorate": 1},
            {"type": "node", "name": "pve1", "ip": "192.0.2.1", "local": 1},
            {"type": "node", "name": "pve2", "ip": "192.0.2.2", "local": 0},
            {"type": "node", "name": "pve3", "ip": "2001:db8::3"},
        ]);
        let nodes = json!([
            {"node": "pve2", "ssl_fingerprint": mark.to_string()},
            {"node": "pve3"},
        ]);
        let found = endpoints(&entry, &status, &nodes);
        assert_eq!(
            found.len(),
            1,
            "a host without a fingerprint is not trusted: {found:?}"
        );
        assert_eq!(found["pve2"].url, "https://192.0.2.2:8006");
        assert_eq!(found["pve2"].trust, Trust::Pinned(mark));
        let entry = Endpoint {
            trust: Trust::Authority("pem".to_owned()),
            ..entry
        };
        let found = endpoints(&entry, &status, &nodes);
        assert_eq!(found["pve3"].url, "https://[2001:db8::3]:8006");
    }
}
