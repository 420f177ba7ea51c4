//! Provisioning tokens.

use homestak_core::token::Claims;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A new token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TokenMinted {
    /// The token.
    pub token: String,
    /// The claims of the token.
    pub claims: TokenClaims,
}

/// The claims of a token, and whether its signature is valid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TokenInspection {
    /// Always `true`.
    pub success: bool,
    /// The claims of the token.
    pub claims: TokenClaims,
    /// Whether its signature is valid; `null` if it was not verified.
    pub verified: Option<bool>,
}

/// The claims of a token. Fields have the same names as in the token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TokenClaims {
    /// The version of its format.
    pub v: u32,
    /// The node it is for.
    pub n: String,
    /// The spec that it may fetch.
    pub s: String,
    /// When it was issued, in seconds since 1970.
    pub iat: i64,
}

impl From<&Claims> for TokenClaims {
    fn from(claims: &Claims) -> Self {
        Self {
            v: 1,
            n: claims.node.clone(),
            s: claims.spec.clone(),
            iat: claims.issued_at,
        }
    }
}
