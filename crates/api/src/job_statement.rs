//! The statement of a job that the key of the site signs, so that a server can pass on jobs but cannot
//! create any.

use homestak_core::observed::GuestUuid;
use serde::{Deserialize, Serialize};

use crate::v1::node_job::{JobKind, JobOptions};

/// The longest time for which a job can wait for its node, in seconds. Nodes remember the ids of jobs
/// that they took for as long, so that none runs twice.
pub const MAX_LIFETIME: i64 = 7 * 24 * 3600;

/// The longest time that a job can be given, in seconds.
pub const MAX_TIME_LIMIT: u64 = 24 * 3600;

/// Returns whether a text is the id of a job: 32 hexadecimal digits in lower case.
pub fn is_job_id(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == 32 && text.bytes().all(is_digit)
}

/// A job for one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatement {
    /// The site's id.
    pub site: String,
    /// The node's name.
    pub node: String,
    /// The guest's UUID.
    pub uuid: GuestUuid,
    /// The id of the job: 32 hexadecimal digits, never used again.
    pub id: String,
    /// What it does.
    pub kind: JobKind,
    /// How.
    #[serde(default)]
    pub options: JobOptions,
    /// When it was signed, in seconds since 1970.
    pub issued: i64,
    /// Until when the node may take it; at most [`MAX_LIFETIME`] later.
    pub expires: i64,
    /// How many seconds it may take: 1 to [`MAX_TIME_LIMIT`].
    pub time_limit: u64,
    /// Who asked for it, for logs.
    pub operator: String,
}
