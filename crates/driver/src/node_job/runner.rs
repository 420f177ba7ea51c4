//! Runs jobs on recorded nodes: through the server for nodes that fetch their specs themselves, over
//! SSH for others.

use std::sync::Arc;
use std::time::Duration;

use homestak_api::v1::node_job::{JobState, JobStatus};
use homestak_api::v1::node_status::NodeStatus;
use homestak_api::v1::node_update::{JobRoute, NodeJob};
use homestak_core::doc::manifest::Mode;
use homestak_core::doc::timeouts::Limit;
use tracing::Instrument as _;

use super::event::{JobEvent, JobObserver};
use super::follow::{self, FollowLimit, KeptOutput};
use super::request::JobRequest;
use super::{ssh, statement};
use crate::driver::Driver;
use crate::error::DriverError;
use crate::nodes::RecordedNode;
use crate::server::{ServerClient, ServerClientError, ServerLease};

/// What is known of a job when it is no longer followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastKnown {
    /// Its id.
    pub id: String,
    /// How it reaches the node.
    pub route: JobRoute,
    /// Its state.
    pub state: JobState,
    /// When it was submitted, in seconds since 1970.
    pub begun: i64,
}

/// How long an interrupted command waits for the server.
pub const ABANDON_TIME: Duration = Duration::from_secs(5);

/// The result of no longer following a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abandoned {
    /// The job in its last known state.
    pub job: NodeJob,
    /// Whether it was cancelled: no server would be there for the node to take it from.
    pub is_cancelled: bool,
    /// Whether the server reported this state now.
    pub is_current: bool,
}

/// Runs jobs on nodes.
#[derive(Clone)]
pub struct JobRunner {
    lease: Arc<ServerLease>,
    /// For how long a node that has taken a job may be silent.
    silent: Option<Duration>,
}

impl JobRunner {
    /// Uses the site and the server of a driver.
    pub fn new(driver: &Driver) -> Self {
        Self {
            lease: driver.configurer.server.clone(),
            silent: None,
        }
    }

    /// Gives jobs up whose node has been silent for so long since it took them.
    #[must_use]
    pub(crate) fn with_silence(mut self, silent: Duration) -> Self {
        self.silent = Some(silent);
        self
    }

    /// Returns how long a node may take to be there again.
    pub(crate) fn boot_limit(&self) -> Duration {
        self.lease.session().timeouts().of(Limit::Boot)
    }

    /// Returns how a job reaches a node: nodes of the mode `pull` take theirs from the server.
    pub async fn route(&self, node: &RecordedNode) -> Result<JobRoute, DriverError> {
        let recorded = node.record.configured.as_ref();
        let mode = match recorded.and_then(|recorded| recorded.mode) {
            Some(mode) => Some(mode),
            None => {
                let published = self.lease.published_spec(&node.record.guest.uuid).await?;
                published.and_then(|published| published.mode)
            }
        };
        Ok(match mode {
            Some(Mode::Pull) => JobRoute::Server,
            Some(Mode::Push | Mode::Hybrid) | None => JobRoute::Ssh,
        })
    }

    /// Runs a job on a node, and follows it to its end.
    pub async fn run(
        &self,
        node: &RecordedNode,
        request: &JobRequest,
        observe: &JobObserver,
    ) -> Result<NodeJob, DriverError> {
        require_real(node)?;
        let job = self.run_real(node, request, observe);
        job.instrument(span(node, request)).await
    }

    async fn run_real(
        &self,
        node: &RecordedNode,
        request: &JobRequest,
        observe: &JobObserver,
    ) -> Result<NodeJob, DriverError> {
        let ended = match self.route_of(node, request).await? {
            JobRoute::Ssh => ssh::run(&self.lease, node, request, observe).await,
            JobRoute::Server => {
                let (client, job) = self.queue(node, request).await?;
                observe(JobEvent::Submitted {
                    id: job.id.clone(),
                    route: JobRoute::Server,
                });
                let limit = FollowLimit {
                    silent: self.silent,
                    expires: Duration::from_secs(request.expires),
                    time_limit: Duration::from_secs(request.time_limit),
                };
                let followed = follow::follow(&self.lease, client, &job.id, limit, observe).await;
                followed.map(|(job, output)| NodeJob {
                    job,
                    route: JobRoute::Server,
                    output: output.text,
                    truncated: output.truncated,
                })
            }
        };
        self.log(node, request, &ended);
        ended
    }

    /// Queues a job for a node, and does not wait for it.
    pub async fn detach(
        &self,
        node: &RecordedNode,
        request: &JobRequest,
    ) -> Result<NodeJob, DriverError> {
        require_real(node)?;
        let job = self.detach_real(node, request);
        job.instrument(span(node, request)).await
    }

    async fn detach_real(
        &self,
        node: &RecordedNode,
        request: &JobRequest,
    ) -> Result<NodeJob, DriverError> {
        let name = node.name();
        if self.route_of(node, request).await? == JobRoute::Ssh {
            return Err(DriverError::usage(format!(
                "A job of `{name}` runs over SSH, and cannot be queued."
            ))
            .hint("leave out --detach; nodes of the mode `pull` take jobs from the server"));
        }
        let client = self.lease.client().await?;
        if self.lease.is_temporary().await? {
            return Err(DriverError::refused(
                "The server is temporary and stops when this command ends, so the node could not take the job.",
            )
            .hint("homestak server start keeps a server running")
            .hint(
                "without --detach, the command keeps the server running until the job has ended",
            ));
        }
        drop(client);
        let (_, job) = self.queue(node, request).await?;
        let queued = Ok(NodeJob {
            job,
            route: JobRoute::Server,
            output: String::new(),
            truncated: false,
        });
        self.log(node, request, &queued);
        queued
    }

    /// Cancels a job that was not taken if the server ends with this command; returns it then.
    pub async fn cancel_on_temporary(&self, id: &str) -> Result<Option<JobStatus>, DriverError> {
        if !self.lease.is_temporary().await? {
            return Ok(None);
        }
        match self.lease.client().await?.cancel_job(id).await {
            Ok(cancelled) => Ok(Some(cancelled)),
            Err(ServerClientError::Refused { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends following a job: what was not taken is cancelled if the server ends with this command.
    /// Without an answer of the server in time, the last known state remains.
    pub async fn abandon(
        &self,
        node: &RecordedNode,
        request: &JobRequest,
        last: LastKnown,
    ) -> Abandoned {
        let route = last.route;
        let mut abandoned = Abandoned {
            job: last_known(node, request, last),
            is_cancelled: false,
            is_current: false,
        };
        if route == JobRoute::Server {
            let update = self.cancel_or_update(&mut abandoned);
            // Cancel safety: a job that is not cancelled expires.
            _ = tokio::time::timeout(ABANDON_TIME, update).await;
        }
        abandoned
    }

    async fn cancel_or_update(&self, abandoned: &mut Abandoned) -> Result<(), DriverError> {
        let job = &mut abandoned.job;
        let id = job.job.id.clone();
        if let Ok(Some(cancelled)) = self.cancel_on_temporary(&id).await {
            job.job = cancelled;
            (abandoned.is_cancelled, abandoned.is_current) = (true, true);
            return Ok(());
        }
        // Not that of the lease, which would start a server for this.
        let client = self.lease.site().await?.client()?;
        let (mut next, mut kept) = (0, KeptOutput::default());
        // Cancel safety: only reads.
        while let Ok(detail) = client.job(&id, next, Duration::ZERO).await {
            abandoned.is_current = true;
            let is_more = !detail.output.is_empty() && detail.next > next;
            kept.add(&detail.output);
            kept.truncated |= detail.truncated;
            next = detail.next;
            job.job = detail.job;
            if !is_more || kept.truncated {
                break;
            }
        }
        (job.output, job.truncated) = (kept.text, kept.truncated);
        Ok(())
    }

    async fn route_of(
        &self,
        node: &RecordedNode,
        request: &JobRequest,
    ) -> Result<JobRoute, DriverError> {
        match request.over_ssh || request.id.is_some() {
            true => Ok(JobRoute::Ssh),
            false => self.route(node).await,
        }
    }

    async fn queue(
        &self,
        node: &RecordedNode,
        request: &JobRequest,
    ) -> Result<(ServerClient, JobStatus), DriverError> {
        let client = self.lease.client().await?;
        require_enrolled(&client, node).await?;
        let (_, signed) = statement::sign(&self.lease, node, request).await?;
        let job = follow::submit(&self.lease, client.clone(), node, &signed).await?;
        Ok((client, job))
    }

    /// Logs how a job ended; refused and failed ones too.
    fn log(&self, node: &RecordedNode, request: &JobRequest, ended: &Result<NodeJob, DriverError>) {
        let (name, kind) = (node.name(), request.kind.name());
        let by = statement::operator();
        self.lease.session().notices.detail(&match ended {
            Ok(ended) => {
                let (id, state) = (&ended.job.id, ended.job.state.name());
                format!("job {id} ({kind}) of `{name}` for {by}: {state}")
            }
            Err(error) => format!("job ({kind}) of `{name}` for {by}: {}", error.message),
        });
    }
}

/// Makes a job from what this command knows of it.
fn last_known(node: &RecordedNode, request: &JobRequest, last: LastKnown) -> NodeJob {
    let lifetime = match last.route {
        JobRoute::Server => i64::try_from(request.expires).unwrap_or(i64::MAX),
        JobRoute::Ssh => 0,
    };
    NodeJob {
        job: JobStatus {
            id: last.id,
            node: node.name().to_owned(),
            uuid: node.record.guest.uuid.to_string(),
            kind: request.kind,
            origin: statement::operator(),
            state: last.state,
            issued: last.begun,
            expires: last.begun.saturating_add(lifetime),
            time_limit: request.time_limit,
            taken: None,
            ended: None,
            outcome: None,
        },
        route: last.route,
        output: String::new(),
        truncated: false,
    }
}

/// Returns the span of a job.
fn span(node: &RecordedNode, request: &JobRequest) -> tracing::Span {
    tracing::error_span!("job", node = node.name(), kind = request.kind.name())
}

/// Refuses simulated nodes, which have no inside.
fn require_real(node: &RecordedNode) -> Result<(), DriverError> {
    if !node.traits.is_simulated {
        return Ok(());
    }
    let message = format!("`{}` is simulated, and runs no jobs.", node.name());
    Err(DriverError::refused(message)
        .hint("nodes on this machine do: homestak manifest apply -M NAME -H local"))
}

/// Refuses nodes that could not take a job: they have not enrolled, or were revoked.
async fn require_enrolled(
    client: &ServerClient,
    node: &RecordedNode,
) -> Result<NodeStatus, DriverError> {
    let (name, options) = (node.name(), node.options());
    let found = match client.node(node.record.guest.uuid.as_str()).await {
        Ok(found) => Some(found),
        Err(error) if error.is_missing() => None,
        Err(error) => return Err(error.into()),
    };
    match found {
        Some(found) if found.revoked.is_some() => {
            let why = found.revoke_reason.unwrap_or_default();
            Err(DriverError::refused(format!(
                "`{name}` was revoked and can take no jobs ({why})."
            ))
            .hint(format!(
                "homestak node enrol {name} {options} lets it enrol again"
            )))
        }
        Some(found) if found.enrolled.is_some() => Ok(found),
        Some(_) | None => Err(DriverError::refused(format!(
            "`{name}` has not enrolled at the server, and can take no jobs from it."
        ))
        .hint(format!(
            "homestak manifest status {options} shows its state"
        ))
        .hint(format!(
            "homestak node enrol {name} {options} lets it enrol"
        ))),
    }
}
