//! Submits jobs to the server, and follows them there to their end.
//!
//! When it goes wrong: a server that does not answer is asked again for a while, or started again if
//! this driver may; submitting the same statement twice queues one job.

use std::time::Duration;

use homestak_api::limit::monotonic;
use homestak_api::v1::node_job::{JobDetail, JobState, JobStatus};
use homestak_core::doc::timeouts::Limit;

use super::event::{JobEvent, JobObserver};
use super::{MAX_OUTPUT, error};
use crate::error::DriverError;
use crate::nodes::RecordedNode;
use crate::server::{ServerClient, ServerClientError, ServerLease};

/// How long a request waits for news of a job.
const POLL: Duration = Duration::from_secs(20);
/// How long the first one waits: a node that waits for jobs takes one within this time.
const FIRST_POLL: Duration = Duration::from_secs(2);
/// The pause after an answer without news, and while the server does not answer.
const PAUSE: Duration = Duration::from_millis(300);

/// How much longer than a job can last its server may report that it goes on: clocks differ, and a job
/// is `lost` only some time after its limit.
const MARGIN: Duration = Duration::from_secs(600);

/// Output of a job, up to a limit.
#[derive(Debug, Default)]
pub(super) struct KeptOutput {
    pub(super) text: String,
    pub(super) truncated: bool,
}

impl KeptOutput {
    pub(super) fn add(&mut self, text: &str) {
        let left = MAX_OUTPUT.saturating_sub(self.text.len());
        let end = text.floor_char_boundary(left.min(text.len()));
        self.text.push_str(&text[..end]);
        self.truncated |= end < text.len();
    }
}

/// Returns a job with its output, up to the limit.
pub async fn whole_job(client: &ServerClient, id: &str) -> Result<JobDetail, ServerClientError> {
    // Cancel safety: only reads.
    whole(async |after| client.job(id, after, Duration::ZERO).await).await
}

/// Puts the parts of an answer together.
async fn whole<E>(mut part: impl AsyncFnMut(u64) -> Result<JobDetail, E>) -> Result<JobDetail, E> {
    let (mut detail, mut kept) = (part(0).await?, KeptOutput::default());
    loop {
        kept.add(&detail.output);
        kept.truncated |= detail.truncated;
        if detail.output.is_empty() || kept.truncated {
            break;
        }
        match part(detail.next).await {
            Ok(more) if more.next > detail.next => detail = more,
            // What was received is shown.
            Ok(_) | Err(_) => break,
        }
    }
    let KeptOutput { text, truncated } = kept;
    Ok(JobDetail {
        output: text,
        truncated,
        ..detail
    })
}

/// When a job is given up that has not ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct FollowLimit {
    /// For how long the node may be silent.
    pub(super) silent: Option<Duration>,
    /// For how long the job waits for its node.
    pub(super) expires: Duration,
    /// How long it may take.
    pub(super) time_limit: Duration,
}

impl FollowLimit {
    /// Returns how long a request waits for news of a job: not longer than the job waits for its node.
    fn wait(&self, state: Option<JobState>, waited: Duration) -> Duration {
        let longest = self.silent.map_or(POLL, |silent| POLL.min(silent));
        let expired = self.expires.saturating_sub(waited) + Duration::from_secs(1);
        match state {
            None => longest.min(FIRST_POLL).min(expired),
            Some(JobState::Queued) => longest.min(expired),
            Some(
                JobState::Taken
                | JobState::Succeeded
                | JobState::Failed
                | JobState::Refused
                | JobState::Cancelled
                | JobState::Expired
                | JobState::Lost,
            ) => longest,
        }
    }

    /// Returns whether a job that was submitted so long ago cannot have this state any more, unless
    /// the server withholds its outcome.
    fn is_overdue(&self, state: JobState, waited: Duration) -> bool {
        let longest = match state {
            JobState::Queued => self.expires,
            JobState::Taken => self.expires.saturating_add(self.time_limit),
            JobState::Succeeded
            | JobState::Failed
            | JobState::Refused
            | JobState::Cancelled
            | JobState::Expired
            | JobState::Lost => return false,
        };
        waited > longest.saturating_add(MARGIN)
    }
}

/// Submits a job.
pub(super) async fn submit(
    lease: &ServerLease,
    mut client: ServerClient,
    node: &RecordedNode,
    statement: &str,
) -> Result<JobStatus, DriverError> {
    let uuid = node.record.guest.uuid.as_str();
    let begun = monotonic();
    loop {
        // Cancel safety: a job whose answer is lost may be queued; it expires.
        match client.submit_job(uuid, statement).await {
            Ok(job) => return Ok(job),
            Err(error) if error.is_transient() => {
                if is_over(begun, lease) {
                    if matches!(error, ServerClientError::Refused { .. }) {
                        return Err(error.into());
                    }
                    let error = DriverError::from(error);
                    return Err(error::unknown(error.message)
                        .hint("the job may be queued; `homestak job list` shows it"));
                }
                tokio::time::sleep(PAUSE).await;
                client = lease.client().await?;
            }
            Err(ServerClientError::Refused { status: 404, .. }) => {
                return Err(DriverError::failed(format!(
                    "The server cannot queue jobs for `{}`.",
                    node.name()
                ))
                .hint("a server of an earlier version has no jobs: restart it with this version"));
            }
            Err(ServerClientError::Refused { status, detail, .. }) if status < 500 => {
                let detail = detail.trim_end_matches('.');
                let message = format!("The server refused the job: {detail}.");
                return Err(DriverError::refused(message));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn is_over(since: Duration, lease: &ServerLease) -> bool {
    let limit = lease.session().timeouts().of(Limit::Api);
    monotonic().saturating_sub(since) >= limit
}

/// Follows a job to its end. Its output is passed on as it arrives.
pub(super) async fn follow(
    lease: &ServerLease,
    mut client: ServerClient,
    id: &str,
    limit: FollowLimit,
    observe: &JobObserver,
) -> Result<(JobStatus, KeptOutput), DriverError> {
    let (mut next, mut state, mut kept) = (0, None, KeptOutput::default());
    let mut lost: Option<Duration> = None;
    let mut contact = Contact::new(limit);
    let begun = monotonic();
    loop {
        let wait = limit.wait(state, monotonic().saturating_sub(begun));
        // Cancel safety: only reads.
        match client.job(id, next, wait).await {
            Ok(JobDetail {
                job,
                output,
                next: after,
                truncated,
            }) => {
                lost = None;
                let is_new = state != Some(job.state) || !output.is_empty();
                if state.replace(job.state) != Some(job.state) {
                    observe(JobEvent::State(job.state));
                    if job.state == JobState::Queued {
                        // Cancel safety: only reads. An error shows in the next request for the job.
                        if let Ok(node) = client.node(&job.uuid).await {
                            let last_contact = node.last_contact;
                            observe(JobEvent::NotTaken { last_contact });
                        }
                    }
                }
                kept.truncated |= truncated;
                if !output.is_empty() {
                    kept.add(&output);
                    observe(JobEvent::Output(output));
                }
                // A position that decreases would repeat output forever.
                next = next.max(after);
                if job.state.is_ended() {
                    return Ok((job, kept));
                }
                let waited = monotonic().saturating_sub(begun);
                if limit.is_overdue(job.state, waited) {
                    let (seconds, state) = (waited.as_secs(), job.state.name());
                    return Err(error::unknown(format!(
                        "The server still reports the job of `{}` as {state} after {seconds} s, longer than its time limit.",
                        job.node
                    ))
                    .hint(format!("homestak job show {id} shows the job")));
                }
                if is_new {
                    contact.renew();
                    continue;
                }
                contact.require(&client, &job).await?;
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) if error.is_missing() => {
                return Err(
                    error::unknown(format!("The server no longer has the job `{id}`."))
                        .hint("its registry was lost or replaced; what the node did is not known"),
                );
            }
            Err(error) if error.is_transient() => {
                if lost.is_none() {
                    observe(JobEvent::Waiting("the server to answer".to_owned()));
                }
                let since = *lost.get_or_insert_with(monotonic);
                tokio::time::sleep(PAUSE).await;
                match lease.client().await {
                    Ok(found) => client = found,
                    Err(_) if !is_over(since, lease) => continue,
                    Err(_) => {}
                }
                if is_over(since, lease) {
                    let error = DriverError::from(error);
                    return Err(error::unknown(error.message).hint(format!(
                        "homestak job show {id} shows the job once the server answers"
                    )));
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// When a node last contacted its server, if a limit applies.
struct Contact {
    silent: Option<Duration>,
    last: Option<i64>,
    since: Duration,
}

impl Contact {
    fn new(limit: FollowLimit) -> Self {
        Self {
            silent: limit.silent,
            last: None,
            since: monotonic(),
        }
    }

    fn renew(&mut self) {
        self.since = monotonic();
    }

    /// Fails when a node that has taken a job has been silent for too long.
    async fn require(&mut self, client: &ServerClient, job: &JobStatus) -> Result<(), DriverError> {
        let Some(silent) = self.silent.filter(|_| job.state == JobState::Taken) else {
            return Ok(());
        };
        // Cancel safety: only reads. An error shows in the next request for the job.
        if let Ok(node) = client.node(&job.uuid).await
            && node.last_contact != self.last
        {
            self.last = node.last_contact;
            self.renew();
        }
        let waited = monotonic().saturating_sub(self.since);
        if waited < silent {
            return Ok(());
        }
        let seconds = waited.as_secs();
        let name = &job.node;
        Err(error::unknown(format!(
            "`{name}` took the job, and the server has not received anything from it for {seconds} s."
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_cannot_have_a_job_waited_for_without_end() {
        let limit = FollowLimit {
            silent: None,
            expires: Duration::from_secs(300),
            time_limit: Duration::from_secs(60),
        };
        for (state, seconds, expected) in [
            (JobState::Queued, 900, false),
            (JobState::Queued, 901, true),
            (JobState::Taken, 960, false),
            (JobState::Taken, 961, true),
            (JobState::Lost, 1_000_000, false),
        ] {
            let found = limit.is_overdue(state, Duration::from_secs(seconds));
            assert_eq!(found, expected, "{state:?} {seconds}");
        }
    }

    #[test]
    fn requests_for_a_queued_job_wait_no_longer_than_it_does() {
        let limit = FollowLimit {
            silent: None,
            expires: Duration::from_secs(3),
            time_limit: Duration::from_secs(60),
        };
        for (state, waited, expected) in [
            (None, 0, 2),
            (Some(JobState::Queued), 2, 2),
            (Some(JobState::Queued), 9, 1),
            (Some(JobState::Taken), 2, 20),
        ] {
            let found = limit.wait(state, Duration::from_secs(waited));
            assert_eq!(found, Duration::from_secs(expected), "{state:?} {waited}");
        }
    }

    fn status() -> JobStatus {
        JobStatus {
            id: String::new(),
            node: "web".to_owned(),
            uuid: String::new(),
            kind: homestak_api::v1::node_job::JobKind::Collect,
            origin: String::new(),
            state: JobState::Succeeded,
            issued: 0,
            expires: 0,
            time_limit: 0,
            taken: None,
            ended: None,
            outcome: None,
        }
    }

    #[tokio::test]
    async fn a_server_that_sends_output_without_end_is_not_asked_for_more() {
        let mut n_asked = 0;
        let shown = whole(async |after| {
            n_asked += 1;
            Ok::<_, ()>(JobDetail {
                job: status(),
                output: "x".repeat(100_000),
                next: after + 100_000,
                truncated: false,
            })
        });
        let shown = shown.await.expect("a job");
        assert_eq!((shown.output.len(), shown.truncated), (MAX_OUTPUT, true));
        assert_eq!(n_asked, 3);
    }

    #[tokio::test]
    async fn output_that_is_sent_in_parts_is_put_together() {
        let parts = ["one", "two", ""];
        let shown = whole(async |after| {
            let next = after.min(1) + 1;
            Ok::<_, ()>(JobDetail {
                job: status(),
                output: parts[usize::try_from(after).expect("small")].to_owned(),
                next,
                truncated: false,
            })
        });
        let shown = shown.await.expect("a job");
        assert_eq!((shown.output.as_str(), shown.truncated), ("onetwo", false));
    }

    #[test]
    fn output_is_kept_up_to_a_limit_and_cut_between_characters() {
        let mut kept = KeptOutput::default();
        kept.add(&"x".repeat(MAX_OUTPUT - 1));
        assert!(!kept.truncated);
        kept.add("é");
        assert!(kept.truncated);
        assert_eq!(kept.text.len(), MAX_OUTPUT - 1);
    }
}
