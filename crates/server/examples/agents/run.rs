//! Nodes that connect within some time, ask for their specs and the agent, and report.

use std::collections::BTreeMap;
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use homestak_api::certificate::{Credential, Role};
use homestak_api::limit::monotonic;
use homestak_api::trust::{Fingerprint, Trust, client_config_with_credential};
use homestak_api::v1::report::{Report, ReportState};
use reqwest::StatusCode;
use reqwest::header::{ETAG, IF_NONE_MATCH};
use serde_json::json;

use crate::{Failure, percentile};

/// How long the server may hold a request for jobs, as in `homestak-agent`.
const MAX_WAIT: Duration = Duration::from_secs(20);

/// One simulated agent.
pub(crate) struct Agent {
    own: Credential,
    name: String,
    /// Nodes have different addresses: those of the loopback network.
    address: IpAddr,
}

/// What an agent does after its pass.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// It closes its connections.
    Close,
    /// It leaves them open.
    Keep,
    /// It closes the one of its report, and requests jobs on the other one.
    Poll,
}

/// What all agents have in common.
pub(crate) struct Common {
    pub(crate) url: String,
    trust: Trust,
    etag: String,
}

impl Agent {
    fn new(number: u32, line: &str) -> Result<Self, Failure> {
        let own = Credential::from_text(line)?;
        let Role::Node { name, .. } = own.role().clone() else {
            return Err("not the certificate of a node".into());
        };
        let [_, high, middle, low] = number.to_be_bytes();
        let address = Ipv4Addr::new(127, high + 1, middle, low).into();
        Ok(Self { own, name, address })
    }

    /// Creates a client that has no connection and no session yet.
    fn client(&self, trust: &Trust) -> Result<reqwest::Client, Failure> {
        let config = client_config_with_credential(trust, Some(self.own.for_tls()?))?;
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(config)
            .local_address(self.address)
            .http1_only()
            .no_proxy()
            .build()?;
        Ok(client)
    }

    /// Fetches the spec, and returns its entity tag.
    async fn etag(&self, url: &str, trust: &Trust) -> Result<String, Failure> {
        let request = self.client(trust)?.get(format!("{url}/spec/{}", self.name));
        let answer = request.send().await?.error_for_status()?;
        let etag = answer.headers().get(ETAG).ok_or("no entity tag")?;
        Ok(etag.to_str()?.to_owned())
    }

    /// Asks for the spec and the agent, which have not changed, and reports. Returns the clients.
    pub(crate) async fn pass(&self, common: &Common) -> Result<[reqwest::Client; 2], Failure> {
        let fetching = self.client(&common.trust)?;
        let request = fetching.get(format!("{}/spec/{}", common.url, self.name));
        let answer = request.header(IF_NONE_MATCH, &common.etag).send().await?;
        if answer.status() != StatusCode::NOT_MODIFIED {
            return Err(format!("{} instead of 304", answer.status()).into());
        }
        let url = format!("{}/v1/agents/{}", common.url, std::env::consts::ARCH);
        fetching.head(url).send().await?.error_for_status()?;
        let report = Report {
            run: self.name.clone(),
            state: ReportState::Converged,
            generation: Some(7),
            step: None,
            changed: Some(false),
            error: None,
            permanent: false,
            drift: Vec::new(),
            agent: "0.1.0".to_owned(),
        };
        let reporting = self.client(&common.trust)?;
        let request = reporting.post(format!("{}/v1/reports", common.url));
        let answer = request.json(&report).send().await?;
        if answer.status() != StatusCode::CREATED {
            return Err(format!("{} instead of 201", answer.status()).into());
        }
        answer.bytes().await?;
        Ok([fetching, reporting])
    }
}

/// Reads the agents of a site, and what they have in common.
pub(crate) async fn agents(directory: &Path, url: &str) -> Result<(Vec<Agent>, Common), Failure> {
    let authority = fs_err::read_to_string(directory.join("authority"))?;
    let authority = Fingerprint::parse(&authority).ok_or("not a fingerprint")?;
    let trust = Trust::Site(vec![authority]);
    let text = fs_err::read_to_string(directory.join("agents.jsonl"))?;
    let agents = (0..).zip(text.lines());
    let agents: Vec<Agent> = agents
        .map(|(number, line)| Agent::new(number, line))
        .collect::<Result<_, _>>()?;
    let first = agents.first().ok_or("there are no agents")?;
    let common = Common {
        etag: first.etag(url, &trust).await?,
        url: url.to_owned(),
        trust,
    };
    Ok((agents, common))
}

/// Lets all agents connect, and returns how long each took, from the time at which it was due.
pub(crate) async fn run(
    directory: &Path,
    url: &str,
    within: Duration,
    after: After,
) -> Result<serde_json::Value, Failure> {
    let (agents, common) = agents(directory, url).await?;
    let common = Arc::new(common);
    let n_agents = u32::try_from(agents.len())?;
    let mut tasks = tokio::task::JoinSet::new();
    let begun = monotonic();
    for (number, agent) in (0_u32..).zip(agents) {
        let common = common.clone();
        // Neighbours in the list are not neighbours in time; 7919 is a prime number.
        let slot = u32::try_from(u64::from(number) * 7919 % u64::from(n_agents))?;
        let due = begun + within * slot / n_agents;
        tasks.spawn(async move {
            // Cancel safety: nothing cancels it.
            tokio::time::sleep(due.saturating_sub(monotonic())).await;
            let [fetching, reporting] = agent.pass(&common).await?;
            let taken = monotonic().saturating_sub(due);
            let kept = match after {
                After::Close => None,
                After::Keep => Some((fetching, Some(reporting))),
                After::Poll => {
                    drop(reporting);
                    poll(&fetching, &common, begun + within).await?;
                    Some((fetching, None))
                }
            };
            Ok::<_, Failure>((taken, kept))
        });
    }
    let (mut taken, mut kept, mut errors) = (Vec::new(), Vec::new(), BTreeMap::new());
    while let Some(ended) = tasks.join_next().await {
        match ended? {
            Ok((time, clients)) => {
                taken.push(time);
                kept.extend(clients);
            }
            Err(error) => *errors.entry(cause(&*error)).or_insert(0_u32) += 1,
        }
    }
    taken.sort_unstable();
    Ok(json!({
        "agents": n_agents, "failed": errors.values().sum::<u32>(), "errors": errors,
        "seconds": monotonic().saturating_sub(begun).as_secs_f64(),
        "p50": percentile(&taken, 0.5), "p99": percentile(&taken, 0.99), "max": percentile(&taken, 1.0),
    }))
}

/// Requests jobs one after another, until the end.
pub(crate) async fn poll(
    client: &reqwest::Client,
    common: &Common,
    end: Duration,
) -> Result<u32, Failure> {
    let mut n_requests = 0;
    loop {
        let wait = end.saturating_sub(monotonic()).min(MAX_WAIT).as_secs();
        if wait == 0 {
            return Ok(n_requests);
        }
        let url = format!("{}/v1/offers?wait={wait}", common.url);
        let answer = client.get(url).send().await?;
        if answer.status() != StatusCode::OK {
            return Err(format!("{} instead of 200", answer.status()).into());
        }
        answer.bytes().await?;
        n_requests += 1;
    }
}

/// Returns the last cause, which names neither the node nor a port.
pub(crate) fn cause(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}
