//! What is asked of a node.

use homestak_api::v1::node_job::{JobKind, JobOptions};

use crate::error::DriverError;

/// For how long a job waits for its node by default, in seconds: a node that is being restarted or
/// does not reach its server takes it later, and a forgotten job does not run days later.
pub const DEFAULT_EXPIRES: u64 = 3_600;

/// A job for a node.
#[derive(Clone, Debug)]
pub struct JobRequest {
    /// What it does.
    pub kind: JobKind,
    /// How.
    pub options: JobOptions,
    /// How many seconds it may take.
    pub time_limit: u64,
    /// For how many seconds it waits for its node to take it.
    pub expires: u64,
    /// Whether it is sent over SSH in every mode.
    pub over_ssh: bool,
    /// The id of a job that was started over SSH and is followed again; otherwise it gets a new one.
    pub id: Option<String>,
}

impl JobRequest {
    /// Makes a job of a kind, with defaults.
    pub fn new(kind: JobKind) -> Self {
        Self {
            kind,
            options: JobOptions::default(),
            time_limit: default_time_limit(kind),
            expires: DEFAULT_EXPIRES,
            over_ssh: false,
            id: None,
        }
    }
}

/// Returns how long a job of a kind may take by default, in seconds: several times what a slow node
/// needs.
pub fn default_time_limit(kind: JobKind) -> u64 {
    match kind {
        JobKind::Converge | JobKind::Update => 3_600,
        JobKind::Check => 300,
        JobKind::Reboot => 600,
        JobKind::Collect => 120,
    }
}

/// Reads the id of a job: 32 hexadecimal digits.
pub fn parse_id(text: &str) -> Result<String, DriverError> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    match text.len() == 32 && text.bytes().all(is_digit) {
        true => Ok(text.to_owned()),
        false => Err(DriverError::usage(
            "A job is named by its id, which has 32 hexadecimal digits.",
        )
        .hint("homestak job list shows the ids of jobs")),
    }
}

/// Makes the id of a new job.
pub(super) fn new_id() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_id_becomes_a_part_of_a_path() {
        let id = new_id();
        assert_eq!(parse_id(&id).expect("an id"), id);
        let upper = id.replace(|c: char| c.is_ascii_lowercase(), "A");
        let long = format!("{id}0");
        for text in [
            "",
            "../nodes",
            "0123",
            long.as_str(),
            "%2e%2e%2f0123456789abcdef01234567",
        ] {
            parse_id(text).expect_err(text);
        }
        if upper != id {
            parse_id(&upper).expect_err("capitals");
        }
    }
}
