//! Executes a staged update, batch by batch.

use std::sync::Arc;

use homestak_api::v1::node_job::JobOutcome;
use homestak_api::v1::node_update::NodeUpdateState;
use homestak_engine::operate::Interrupt;
use tokio::task::JoinSet;
use tracing::Instrument as _;

use super::health;
use super::plan::{StagedUpdate, UpdateRequest, no_outcome, state_of, update_job};
use crate::error::{DriverError, ErrorKind};
use crate::node_job::{JobEvent, JobRunner};
use crate::nodes::RecordedNode;

/// An event of a staged update.
#[derive(Clone, Debug)]
pub enum UpdateEvent {
    /// A batch begins.
    Batch {
        /// Its number, from 1.
        number: usize,
        /// How many there are.
        of: usize,
        /// Its nodes.
        nodes: Vec<String>,
    },
    /// A node is worked on.
    Node {
        /// Its name.
        node: String,
        /// What is being done.
        doing: String,
    },
    /// Output of the job of a node.
    Output {
        /// Its name.
        node: String,
        /// The output. It may end within a line.
        text: String,
    },
    /// The update of a node has ended.
    Ended {
        /// Its name.
        node: String,
        /// Its outcome.
        state: NodeUpdateState,
        /// Why.
        message: Option<String>,
    },
}

/// Receives the events of a staged update.
pub type UpdateObserver = Arc<dyn Fn(UpdateEvent) + Send + Sync>;

/// How the update of a node ended.
struct NodeEnd {
    state: NodeUpdateState,
    message: Option<String>,
    job: Option<String>,
    outcome: Option<JobOutcome>,
}

impl NodeEnd {
    fn new(state: NodeUpdateState, message: String) -> Self {
        Self {
            state,
            message: Some(message),
            job: None,
            outcome: None,
        }
    }
}

impl StagedUpdate {
    /// Updates the nodes. A node that fails, or does not come back healthy, is the end of it; so is an
    /// interrupt. Batches that began are completed.
    pub async fn execute(&mut self, interrupt: &Interrupt, observe: &UpdateObserver) {
        let batches = self.batches.clone();
        for (nth, batch) in batches.iter().enumerate() {
            if interrupt.is_requested() {
                self.stop("it was interrupted".to_owned());
                return;
            }
            let names = batch.iter().map(|nth| self.nodes[*nth].entry.node.clone());
            observe(UpdateEvent::Batch {
                number: nth + 1,
                of: batches.len(),
                nodes: names.collect(),
            });
            self.batch(batch, observe).await;
            let is_good = |nth: &&usize| self.nodes[**nth].entry.state == NodeUpdateState::Updated;
            let bad: Vec<&usize> = batch.iter().filter(|nth| !is_good(nth)).collect();
            if !bad.is_empty() {
                let whys = bad.iter().map(|nth| {
                    let entry = &self.nodes[**nth].entry;
                    format!("`{}` {}", entry.node, verb(entry.state))
                });
                let whys: Vec<String> = whys.collect();
                self.stop(whys.join(", "));
                return;
            }
        }
    }

    /// Marks what was not started, after [`execute`](Self::execute) was dropped. The outcome of nodes that
    /// were being updated is not known.
    pub fn abort(&mut self) {
        self.stop("it was aborted".to_owned());
    }

    /// Marks what is left as not started.
    fn stop(&mut self, why: String) {
        for node in &mut self.nodes {
            if node.entry.state == NodeUpdateState::Planned {
                node.entry.state = NodeUpdateState::NotStarted;
            }
        }
        self.stopped = Some(why);
    }

    /// Updates the nodes of a batch at the same time.
    async fn batch(&mut self, batch: &[usize], observe: &UpdateObserver) {
        let mut running = JoinSet::new();
        // A node needs the time for a restart twice: to end its services, and to start.
        let silent = self.runner.boot_limit() * 2;
        for nth in batch.iter().copied() {
            // Until its end is known: the update may be aborted.
            self.nodes[nth].entry.state = NodeUpdateState::Unknown;
            let Some(node) = self.nodes[nth].recorded.clone() else {
                continue;
            };
            let (runner, request) = (
                self.runner.clone().with_silence(silent),
                self.request.clone(),
            );
            let observe = observe.clone();
            let span = tracing::error_span!("update", node = node.name());
            // Cancel safety: dropped only when the program is aborted; the node continues on its own.
            running.spawn(
                async move { (nth, update(&runner, &node, &request, &observe).await) }
                    .instrument(span),
            );
        }
        while let Some(done) = running.join_next().await {
            // A task that panicked is logged, and its node stays without an end.
            let Ok((nth, end)) = done else { continue };
            let entry = &mut self.nodes[nth].entry;
            observe(UpdateEvent::Ended {
                node: entry.node.clone(),
                state: end.state,
                message: end.message.clone(),
            });
            (entry.state, entry.message, entry.job) = (end.state, end.message, end.job);
            if let Some(outcome) = end.outcome {
                entry.rebooted = outcome.result.rebooted;
                entry.reboot_needed = outcome.result.reboot_needed;
                if !outcome.result.packages.is_empty() {
                    entry.packages = outcome.result.packages;
                }
            }
        }
    }
}

/// Updates a node, and waits until it is healthy.
async fn update(
    runner: &JobRunner,
    node: &RecordedNode,
    request: &UpdateRequest,
    observe: &UpdateObserver,
) -> NodeEnd {
    let name = node.name().to_owned();
    let doing = |doing: &str| {
        observe(UpdateEvent::Node {
            node: name.clone(),
            doing: doing.to_owned(),
        });
    };
    doing("checking it");
    let before = match health::check(runner, node, runner.boot_limit()).await {
        Ok(before) => before,
        Err(why) => {
            let why = format!("it was not updated, because it is not healthy: {why}");
            return NodeEnd::new(NodeUpdateState::Failed, why);
        }
    };
    doing("updating it");
    let (of, to) = (name.clone(), observe.clone());
    let on_event = move |event: JobEvent| {
        let node = of.clone();
        match event {
            JobEvent::Output(text) => to(UpdateEvent::Output { node, text }),
            JobEvent::Waiting(what) => to(UpdateEvent::Node {
                node,
                doing: format!("waiting for {what}"),
            }),
            JobEvent::NotTaken { .. } => to(UpdateEvent::Node {
                node,
                doing: "waiting for it to take the job".to_owned(),
            }),
            JobEvent::Submitted { .. } | JobEvent::State(_) => {}
        }
    };
    let ended = runner
        .run(
            node,
            &update_job(request, false, runner.boot_limit()),
            &(Arc::new(on_event) as _),
        )
        .await;
    let ended = match ended {
        Ok(ended) => ended,
        Err(error) => return NodeEnd::new(state_of_error(&error), error.message),
    };
    let outcome = ended.job.outcome.clone();
    let outcome = outcome.unwrap_or_else(|| no_outcome(ended.job.state));
    let mut end = NodeEnd {
        state: state_of(outcome.state),
        message: outcome.message.clone(),
        job: Some(ended.job.id),
        outcome: Some(outcome),
    };
    if end.state == NodeUpdateState::Updated {
        doing("waiting until it is healthy");
        let report = |why: &str| doing(&format!("waiting until it is healthy: {why}"));
        if let Err(why) = health::wait_for(runner, node, &before, &report).await {
            (end.state, end.message) = (NodeUpdateState::Unhealthy, Some(why));
        }
    }
    end
}

/// Returns what a node did that ends the update, as text after its name.
fn verb(state: NodeUpdateState) -> &'static str {
    match state {
        NodeUpdateState::Refused => "refused",
        NodeUpdateState::Unhealthy => "did not come back healthy",
        NodeUpdateState::Unknown => "did not report a result",
        NodeUpdateState::Failed
        | NodeUpdateState::Planned
        | NodeUpdateState::UpToDate
        | NodeUpdateState::Skipped
        | NodeUpdateState::Updated
        | NodeUpdateState::NotStarted => "failed",
    }
}

fn state_of_error(error: &DriverError) -> NodeUpdateState {
    match error.kind {
        ErrorKind::Refused => NodeUpdateState::Refused,
        ErrorKind::Stopped => NodeUpdateState::Unknown,
        ErrorKind::Failed | ErrorKind::Usage => NodeUpdateState::Failed,
    }
}
