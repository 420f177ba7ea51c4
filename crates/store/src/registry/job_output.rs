//! The output of jobs: appended in parts, bounded, and read from any byte.

use rusqlite::{Connection, OptionalExtension as _, params};

use super::job_entry::MAX_OUTPUT;

/// Shorter parts are extended, so that many small reports do not become many rows.
const SHORT_PART: usize = 8 << 10;

/// Output of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobOutput {
    /// The output from the requested byte on.
    pub text: String,
    /// The byte after its end.
    pub next: u64,
    /// Whether later output was dropped because there was too much.
    pub truncated: bool,
}

/// How much output of a job there is.
pub(super) struct Extent {
    /// The number of the job.
    pub(super) job: i64,
    /// How many bytes the node has sent.
    pub(super) sent: u64,
    /// How many are kept.
    pub(super) kept: usize,
    /// Whether some were dropped.
    pub(super) truncated: bool,
}

impl Extent {
    /// Appends what was not sent before of a text that begins at an offset. What is missing between is
    /// skipped.
    pub(super) fn append(
        &mut self,
        connection: &Connection,
        offset: u64,
        text: &str,
    ) -> rusqlite::Result<()> {
        let end = offset.saturating_add(text.len() as u64);
        let repeated = usize::try_from(self.sent.saturating_sub(offset)).unwrap_or(usize::MAX);
        let text = from(text, repeated);
        if text.is_empty() || self.truncated {
            self.sent = self.sent.max(end);
            return Ok(());
        }
        self.sent = end;
        let fitting = up_to(text, MAX_OUTPUT.saturating_sub(self.kept));
        self.truncated = fitting.len() < text.len();
        if fitting.is_empty() {
            return Ok(());
        }
        let mut last = connection.prepare_cached(
            "SELECT start, body FROM job_output WHERE job = ?1 ORDER BY start DESC LIMIT 1",
        )?;
        let last = last.query_row([self.job], |row| Ok((row.get(0)?, row.get(1)?)));
        let last: Option<(i64, String)> = last.optional()?;
        let (start, body) = match last {
            Some((start, body)) if body.len() < SHORT_PART => (start, body + fitting),
            Some(_) | None => (number(self.kept), fitting.to_owned()),
        };
        connection.execute(
            "INSERT INTO job_output (job, start, body) VALUES (?1, ?2, ?3) \
             ON CONFLICT (job, start) DO UPDATE SET body = ?3",
            params![self.job, start, body],
        )?;
        self.kept += fitting.len();
        Ok(())
    }

    /// Returns the output from a byte on; from the next character on when it is inside one.
    pub(super) fn read(&self, connection: &Connection, after: u64) -> rusqlite::Result<JobOutput> {
        let mut output = JobOutput {
            text: String::new(),
            next: self.kept as u64,
            truncated: self.truncated,
        };
        let Some(after) = usize::try_from(after).ok().filter(|at| *at < self.kept) else {
            return Ok(output);
        };
        let mut parts = connection.prepare_cached(
            "SELECT start, body FROM job_output WHERE job = ?1 AND start >= \
             (SELECT max(start) FROM job_output WHERE job = ?1 AND start <= ?2) ORDER BY start",
        )?;
        let parts = parts.query_map(params![self.job, number(after)], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
        })?;
        for part in parts {
            let (start, body) = part?;
            let start = usize::try_from(start).unwrap_or(0);
            output
                .text
                .push_str(from(&body, after.saturating_sub(start)));
        }
        Ok(output)
    }
}

fn number(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// Returns the text after some bytes; the end of a character that begins before is left out.
fn from(text: &str, bytes: usize) -> &str {
    let at = (bytes..text.len()).find(|at| text.is_char_boundary(*at));
    at.map_or("", |at| &text[at..])
}

/// Returns as many whole characters as have room in some bytes.
fn up_to(text: &str, bytes: usize) -> &str {
    let longest = bytes.min(text.len());
    let end = (0..=longest).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}
