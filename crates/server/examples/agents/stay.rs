//! Nodes that stay: each does what `homestak-agent pull` does between two changes of its spec, once
//! every interval, and holds a request for jobs in between.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use homestak_api::limit::monotonic;
use serde_json::json;

use crate::run::{Agent, Common, agents, cause, poll};
use crate::{Failure, percentile};

/// What the requests of some passes took, and why they failed.
#[derive(Default)]
struct Passes {
    /// How long a pass took, without the requests for jobs.
    taken: Vec<Duration>,
    n_offers: u32,
    errors: BTreeMap<String, u32>,
}

impl Passes {
    fn fail(&mut self, error: &Failure) {
        *self.errors.entry(cause(&**error)).or_default() += 1;
    }

    fn add(&mut self, other: Self) {
        self.taken.extend(other.taken);
        self.n_offers += other.n_offers;
        for (error, count) in other.errors {
            *self.errors.entry(error).or_default() += count;
        }
    }
}

/// Lets all agents work until some time has passed. Their passes are spread over the interval.
pub(crate) async fn stay(
    directory: &Path,
    url: &str,
    lasting: Duration,
    every: Duration,
) -> Result<serde_json::Value, Failure> {
    let (agents, common) = agents(directory, url).await?;
    let n_agents = u32::try_from(agents.len())?;
    let common = Arc::new(common);
    let mut tasks = tokio::task::JoinSet::new();
    let begun = monotonic();
    for (number, agent) in (0_u32..).zip(agents) {
        let common = common.clone();
        let first = begun + every * number / n_agents;
        // Cancel safety: nothing cancels it.
        tasks.spawn(async move { work(&agent, &common, first, begun + lasting, every).await });
    }
    let mut all = Passes::default();
    while let Some(ended) = tasks.join_next().await {
        all.add(ended?);
    }
    all.taken.sort_unstable();
    Ok(json!({
        "agents": n_agents, "passes": all.taken.len(), "offers": all.n_offers,
        "failed": all.errors.values().sum::<u32>(), "errors": all.errors,
        "p50": percentile(&all.taken, 0.5), "p99": percentile(&all.taken, 0.99),
        "max": percentile(&all.taken, 1.0),
    }))
}

/// One agent, until `end`.
async fn work(
    agent: &Agent,
    common: &Common,
    first: Duration,
    end: Duration,
    every: Duration,
) -> Passes {
    let (mut passes, mut due) = (Passes::default(), first);
    while due < end {
        // Cancel safety: nothing cancels it.
        tokio::time::sleep(due.saturating_sub(monotonic())).await;
        let begun = monotonic();
        due += every;
        let client = match agent.pass(common).await {
            // Reports have a connection of their own, which is closed.
            Ok([client, _]) => client,
            Err(error) => {
                passes.fail(&error);
                continue;
            }
        };
        passes.taken.push(monotonic().saturating_sub(begun));
        match poll(&client, common, due.min(end)).await {
            Ok(count) => passes.n_offers += count,
            Err(error) => passes.fail(&error),
        }
    }
    passes
}
