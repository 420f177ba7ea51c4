//! Requests that only a simulated Proxmox VE answers: its guests run no SSH that could be reached.

use std::net::IpAddr;

use homestak_engine::ports::PortError;

use super::client::Pve;
use super::quirks::parse_bool;
use super::requests::{ApiCall, Method, Route};

/// Not part of the API: only a simulator answers it.
static SSH: Route = Route {
    method: Method::Get,
    path: "/sim/ssh",
    required: &["address"],
    optional: &[],
};

impl Pve {
    /// Asks a simulator whether SSH answers at an address of its guests.
    pub async fn simulated_ssh(&self, address: IpAddr) -> Result<bool, PortError> {
        let call = ApiCall::to(&SSH).param("address", address);
        let answer = self.ask(&call).await;
        let answer =
            answer.map_err(|error| error.into_port_error(format!("query SSH at {address}")))?;
        Ok(answer.get("answers").and_then(parse_bool).unwrap_or(false))
    }
}
