//! A job as it is recorded, and the state that follows from it.

use homestak_api::v1::node_job::{JobKind, JobOutcome, JobResult, JobState};
use rusqlite::Row;
use rusqlite::types::Type;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The most output that is kept of a job, in bytes.
pub const MAX_OUTPUT: usize = 256 << 10;
/// A job that was taken is lost when its node was silent for this long after the time limit, in
/// seconds: it ends a job at the limit, and needs a moment to report that.
pub const REPORT_PATIENCE: i64 = 120;
/// How many seconds a job that a trigger started may take.
pub const TRIGGER_TIME_LIMIT: i64 = 3600;

/// A job of a node. Times are in seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobEntry {
    /// Its id.
    pub id: String,
    /// The guest.
    pub uuid: String,
    /// The node's name.
    pub node: String,
    /// What it does.
    pub kind: JobKind,
    /// Who or what started it.
    pub origin: String,
    /// The signed job; none when a trigger started it.
    pub statement: Option<String>,
    /// When it was issued.
    pub issued: i64,
    /// Until when the node may take it.
    pub expires: i64,
    /// How many seconds it may take.
    pub time_limit: i64,
    /// When the node took it.
    pub taken: Option<i64>,
    /// When it was cancelled; if it was taken, when its node lost its certificate.
    pub cancelled: Option<i64>,
    /// When its outcome arrived.
    pub ended: Option<i64>,
    /// When the node last reported about it.
    pub reported: Option<i64>,
    /// Its outcome. In lists it has no result, and the first 1,000 characters of its message.
    pub outcome: Option<JobOutcome>,
}

impl JobEntry {
    /// Returns how far it is.
    pub fn state(&self, now: i64) -> JobState {
        if let Some(outcome) = &self.outcome {
            return outcome.state;
        }
        match (self.cancelled, self.taken) {
            (Some(_), None) => JobState::Cancelled,
            (Some(_), Some(_)) => JobState::Lost,
            (None, Some(taken)) => {
                let limit = taken.saturating_add(self.time_limit);
                let silent_since = limit.max(self.reported.unwrap_or(limit));
                match now > silent_since.saturating_add(REPORT_PATIENCE) {
                    true => JobState::Lost,
                    false => JobState::Taken,
                }
            }
            (None, None) if now >= self.expires => JobState::Expired,
            (None, None) => JobState::Queued,
        }
    }

    /// Reads a row with all columns, or with those of a list.
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let outcome: Option<String> = row.get("outcome")?;
        let outcome = match outcome {
            None => None,
            Some(state) => Some(JobOutcome {
                state: word(state)?,
                message: row.get("message")?,
                result: match row.get::<_, Option<String>>("result")? {
                    Some(result) => serde_json::from_str(&result).map_err(unreadable)?,
                    None => JobResult::default(),
                },
            }),
        };
        Ok(Self {
            id: row.get("id")?,
            uuid: row.get("uuid")?,
            node: row.get("node")?,
            kind: word(row.get("kind")?)?,
            origin: row.get("origin")?,
            statement: row.get("statement")?,
            issued: row.get("issued")?,
            expires: row.get("expires")?,
            time_limit: row.get("time_limit")?,
            taken: row.get("taken")?,
            cancelled: row.get("cancelled")?,
            ended: row.get("ended")?,
            reported: row.get("reported")?,
            outcome,
        })
    }
}

/// Reads a value that is stored as its name.
fn word<T: DeserializeOwned>(text: String) -> rusqlite::Result<T> {
    serde_json::from_value(Value::String(text)).map_err(unreadable)
}

fn unreadable(error: serde_json::Error) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, Type::Text, Box::new(error))
}
