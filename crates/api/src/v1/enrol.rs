//! How a node obtains its certificate.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::certificate::Issued;

/// A request for a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EnrolRequest {
    /// The node's name.
    pub node: String,
    /// The UUID of the guest.
    pub uuid: String,
    /// The public key: an uncompressed point of P-256, in base64.
    pub public_key: String,
    /// The version of the agent.
    pub agent: String,
}

/// The certificate of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EnrolResponse {
    /// The certificate and those that signed it, in PEM.
    pub chain: String,
    /// Until when it is valid, in seconds since 1970.
    pub not_after: i64,
}

impl From<Issued> for EnrolResponse {
    fn from(issued: Issued) -> Self {
        Self {
            not_after: issued.not_after.as_second(),
            chain: issued.chain,
        }
    }
}
