//! What is recorded of nodes, tokens and reports.

/// A node as the server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEntry {
    /// The guest's UUID.
    pub uuid: String,
    /// The node's name.
    pub name: String,
    /// Its manifest.
    pub manifest: String,
    /// The host it runs on.
    pub host: String,
    /// Its certificate, once it enrolled.
    pub certificate: Option<CertificateEntry>,
    /// SHA-256 of its public key, once it enrolled.
    pub public_key: Option<String>,
    /// SHA-256 of the certificate that the current one replaced, until the current one was used.
    pub replaced: Option<String>,
    /// When that certificate expires.
    pub replaced_until: Option<i64>,
    /// Whether it renewed a certificate that had expired, which is allowed once.
    pub renewed_late: bool,
    /// When it enrolled.
    pub enrolled: Option<i64>,
    /// When it was revoked, and why.
    pub revoked: Option<(i64, String)>,
    /// The address of its last request.
    pub address: Option<String>,
    /// The version of its agent.
    pub agent: Option<String>,
    /// When the server last received a request from it.
    pub last_contact: Option<i64>,
}

/// The client certificate of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateEntry {
    /// Its SHA-256.
    pub fingerprint: String,
    /// Valid from.
    pub not_before: i64,
    /// Valid until.
    pub not_after: i64,
}

/// A provisioning token, without the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenEntry {
    /// Its id.
    pub id: String,
    /// The guest it is for.
    pub uuid: String,
    /// The node it is for.
    pub node: String,
    /// When it was issued.
    pub issued: i64,
    /// When it expires.
    pub expires: Option<i64>,
    /// When it was used for the first time.
    pub used: Option<i64>,
    /// When it was revoked.
    pub revoked: Option<i64>,
}

/// A report of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportEntry {
    /// Its number; later reports have higher ones.
    pub id: i64,
    /// The guest.
    pub uuid: String,
    /// When it arrived.
    pub received: i64,
    /// The report, as JSON.
    pub body: String,
}
