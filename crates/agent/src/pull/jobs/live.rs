//! Sends the output of a job while it runs, by a thread of its own: a job never waits for a server.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use homestak_api::v1::node_job::JobReport;

use super::super::client::Client;
use crate::error::FetchError;

/// How much output is sent of a job, in bytes: as much as a server keeps.
const MAX_OUTPUT: usize = 256 << 10;
/// How much is sent at once, in bytes. A server accepts 64 KiB of JSON, in which characters may take
/// twice as much.
const MAX_CHUNK: usize = 24 << 10;
/// Output is collected this long before it is sent.
const BATCH_TIME: Duration = Duration::from_secs(1);
/// The longest pause after a failure.
const MAX_PAUSE: Duration = Duration::from_secs(30);
const TRUNCATED: &str = "[more output was left out]\n";

/// The output of a job.
pub(super) struct LiveOutput {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    output: Mutex<PendingOutput>,
    ended: Condvar,
}

/// Output that was not sent yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PendingOutput {
    /// How many bytes were sent before.
    pub(super) offset: u64,
    text: String,
    /// How many bytes there were in all.
    n_bytes: usize,
    is_truncated: bool,
    has_ended: bool,
}

impl PendingOutput {
    fn push(&mut self, line: &str) {
        if self.is_truncated {
            return;
        }
        let length = line.len() + 1;
        if self.n_bytes + length + TRUNCATED.len() > MAX_OUTPUT {
            self.is_truncated = true;
            self.text.push_str(TRUNCATED);
            return;
        }
        self.n_bytes += length;
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Returns the next part, and the report with it.
    fn report(&self) -> Option<JobReport> {
        let mut end = self.text.len().min(MAX_CHUNK);
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        (end > 0).then(|| JobReport {
            offset: self.offset,
            output: self.text[..end].to_owned(),
            outcome: None,
        })
    }

    fn remove(&mut self, report: &JobReport) {
        let length = report.output.len().min(self.text.len());
        self.text.drain(..length);
        self.offset += u64::try_from(length).unwrap_or_default();
    }

    /// Sends everything that is left.
    pub(super) fn send(&mut self, client: &Client, id: &str) -> Result<(), FetchError> {
        while let Some(report) = self.report() {
            client.job_report(id, &report)?;
            self.remove(&report);
        }
        Ok(())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, PendingOutput> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveOutput {
    /// Starts sending. Without a client or a thread, the output is sent at the end.
    pub(super) fn new(id: &str, client: Option<Client>) -> Self {
        let shared = Arc::new(Shared::default());
        let (id, other) = (id.to_owned(), shared.clone());
        let work = client.map(|client| move || send_all(&client, &id, &other));
        let thread = work.and_then(|work| std::thread::Builder::new().spawn(work).ok());
        Self { shared, thread }
    }

    /// Adds a line.
    pub(super) fn line(&self, line: &str) {
        self.shared.lock().push(line);
    }

    /// Ends sending, and returns what was not sent.
    pub(super) fn end(self) -> PendingOutput {
        self.shared.lock().has_ended = true;
        self.shared.ended.notify_all();
        if let Some(thread) = self.thread {
            // A thread that panicked has sent what it has removed.
            _ = thread.join();
        }
        self.shared.lock().clone()
    }
}

fn send_all(client: &Client, id: &str, shared: &Shared) {
    let mut pause = BATCH_TIME;
    loop {
        let output = shared.lock();
        let waited = shared
            .ended
            .wait_timeout_while(output, pause, |output| !output.has_ended);
        let (output, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if output.has_ended {
            return;
        }
        let Some(report) = output.report() else {
            continue;
        };
        drop(output);
        match client.job_report(id, &report) {
            Ok(()) => {
                shared.lock().remove(&report);
                pause = BATCH_TIME;
            }
            Err(error) => {
                tracing::debug!("the output is not sent: {error}");
                pause = pause.saturating_mul(2).min(MAX_PAUSE);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_bounded_and_sent_in_parts_of_whole_characters() {
        let live = LiveOutput::new("a", None);
        for _ in 0..100_000 {
            live.line(&"é".repeat(20));
        }
        let mut output = live.end();
        let (mut whole, mut n_reports) = (String::new(), 0);
        while let Some(report) = output.report() {
            assert!(report.output.len() <= MAX_CHUNK);
            assert_eq!(report.offset, whole.len() as u64);
            whole.push_str(&report.output);
            output.remove(&report);
            n_reports += 1;
        }
        assert!(whole.len() <= MAX_OUTPUT && whole.len() > MAX_OUTPUT - 100);
        assert!(whole.ends_with(&format!("é\n{TRUNCATED}")));
        assert_eq!((n_reports, output.offset), (11, whole.len() as u64));
        assert_eq!(LiveOutput::new("a", None).end().report(), None);
    }
}
