//! The status of the nodes of a run: their records, what the run did to them, and what their hosts
//! report now.

use std::collections::BTreeMap;

use homestak_api::v1::NodePower;
use homestak_core::observed::GuestId;
use homestak_core::plan::{NodeRecord, NodeStatus};
use jiff::Timestamp;

use crate::driver::Driver;
use crate::error::DriverError;
use crate::observation::{NodeObservation, ask, contacts};
use crate::runs::{
    HolderState, RowStatus, RunReport, RunSelector, RunSummary, Runs, is_resumable, is_unfinished,
    newest, read,
};
use crate::server::NodeAccount;

/// The status of a node.
pub struct NodeState {
    /// Its status in the run, or from its record.
    pub status: RowStatus,
    /// The host of the site it is on.
    pub host: String,
    /// The id of its guest.
    pub guest_id: Option<GuestId>,
    /// Its last known address.
    pub address: Option<String>,
    /// The error.
    pub error: Option<String>,
    /// Its observed state; `None` when it was not observed or did not answer.
    pub live: Option<NodeObservation>,
    /// When it was last reached.
    pub contact: Option<Timestamp>,
    /// What it last reported to the server; `None` for nodes that do not, and when that was not read.
    pub account: Option<NodeAccount>,
}

/// The status of the nodes of a run.
pub struct RunStatus {
    /// The report of the run.
    pub report: RunReport,
    /// The process that executes it.
    pub holder: Option<String>,
    /// Its nodes, by name.
    pub nodes: BTreeMap<String, NodeState>,
    /// Why hosts could not be observed.
    pub unasked: Option<String>,
    /// Whether it can be resumed.
    pub resumable: bool,
    /// Whether no newer run replaced it.
    pub current: bool,
}

/// The selected runs.
pub enum StatusScope {
    /// The newest run of each manifest.
    Overview(Vec<RunSummary>),
    /// Runs to show in detail.
    Runs(Vec<RunSummary>),
}

/// A query for the status of runs.
pub struct StatusQuery<'d> {
    /// The runs.
    pub runs: Runs<'d>,
    /// The selected ones.
    pub chosen: StatusScope,
    driver: &'d Driver,
    all: Vec<RunSummary>,
    current: Vec<RunSummary>,
}

impl<'d> StatusQuery<'d> {
    /// Selects the newest runs of the given manifest; without one, the only unfinished run, or all.
    pub async fn open(driver: &'d Driver, which: &'d RunSelector) -> Result<Self, DriverError> {
        let runs = driver.runs(which)?;
        let all = runs.listed().await?;
        let current = runs.current().await?;
        let mut open = current.iter().filter(|run| is_unfinished(run));
        let chosen = match (&which.manifest, open.next(), open.next()) {
            (Some(_), ..) => StatusScope::Runs(newest(all.clone())),
            (None, Some(one), None) => StatusScope::Runs(vec![one.clone()]),
            (None, ..) => StatusScope::Overview(newest(all.clone())),
        };
        Ok(Self {
            runs,
            chosen,
            driver,
            all,
            current,
        })
    }

    /// Returns the status of the nodes of a run. Hosts are observed, unless `offline`.
    pub async fn of_run(&self, head: &RunSummary, offline: bool) -> Result<RunStatus, DriverError> {
        let (driver, journal) = (self.driver, self.driver.journal());
        let asked = match offline {
            true => None,
            false => Some(ask(head, driver).await),
        };
        let run = read(head, journal).await?;
        let mut report = RunReport::of_run(&run);
        // A live holder executes it.
        let mut holder = None;
        for scope in head.scopes() {
            let held = journal.holder(&scope).await?;
            let held = held.filter(|held| held.life != HolderState::Dead);
            holder = holder.or(held.map(|held| held.to_string()));
        }
        if holder.is_none() {
            report.mark_interrupted();
        }
        let mut nodes = self.recorded(head, &report).await?;
        let (live, unasked) = match asked {
            Some(Ok(live)) => (live, None),
            Some(Err(error)) => (BTreeMap::new(), Some(error.message)),
            None => (BTreeMap::new(), None),
        };
        let same = |run: &&RunSummary| run.manifest == head.manifest && run.hosts == head.hosts;
        let earlier: Vec<RunSummary> = self.all.iter().filter(same).cloned().collect();
        let contacts = contacts(&earlier, journal).await?;
        for (name, node) in &mut nodes {
            node.live = live.get(name).cloned();
            if let Some(live) = &mut node.live
                && live.power == NodePower::Absent
                && matches!(node.status, RowStatus::Destroyed | RowStatus::Absent)
            {
                // Its absence was requested.
                (live.differs, live.differences) = (Some(false), Vec::new());
            }
            let answered = node.live.as_ref().is_some_and(|live| live.answered);
            node.contact = match answered {
                true => Some(driver.operator.clock.now()),
                false => contacts.get(name).copied(),
            };
        }
        if !offline {
            self.read_accounts(head, &mut nodes).await?;
        }
        let current = self.current.contains(head);
        Ok(RunStatus {
            resumable: holder.is_none() && current && is_resumable(head),
            report,
            holder,
            nodes,
            unasked,
            current,
        })
    }

    /// Adds what nodes that fetch their specs last reported. What cannot be read stays unknown.
    async fn read_accounts(
        &self,
        head: &RunSummary,
        nodes: &mut BTreeMap<String, NodeState>,
    ) -> Result<(), DriverError> {
        let server = &self.driver.configurer.server;
        for scope in head.scopes() {
            for record in self.runs.journal.records(&scope).await? {
                let Some(node) = nodes.get_mut(&record.name) else {
                    continue;
                };
                if node.host != record.host || record.status == NodeStatus::Destroyed {
                    continue;
                }
                match server.account(&record.guest.uuid).await {
                    Ok(account) => {
                        let contact = account.as_ref().and_then(|account| account.contact);
                        node.contact = node.contact.max(contact);
                        node.account = account;
                    }
                    Err(error) => {
                        let notices = &self.driver.session.notices;
                        notices.detail(&format!(
                            "the reports of `{}` were not read: {}",
                            record.name, error.message
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns nodes from their records, and from the run for those it touched.
    async fn recorded(
        &self,
        head: &RunSummary,
        report: &RunReport,
    ) -> Result<BTreeMap<String, NodeState>, DriverError> {
        let mut nodes: BTreeMap<String, NodeState> = BTreeMap::new();
        for scope in head.scopes() {
            for record in self.runs.journal.records(&scope).await? {
                // A node that was moved has a record for each host.
                let row = report.nodes.iter().find(|row| row.name == record.name);
                let is_here = row.is_some_and(|row| row.host == record.host);
                if is_here || !nodes.contains_key(&record.name) {
                    nodes.insert(record.name.clone(), remembered(&record));
                }
            }
        }
        for row in &report.nodes {
            // Untouched nodes are as recorded.
            let untouched = row.phases.is_empty() && row.now.is_none();
            if untouched && nodes.contains_key(&row.name) && row.status != RowStatus::Interrupted {
                continue;
            }
            let state = NodeState {
                status: row.status,
                host: row.host.clone(),
                guest_id: row.guest_id,
                address: row.address.map(|ip| ip.to_string()),
                error: row.error.as_ref().map(|error| error.message.clone()),
                live: None,
                contact: None,
                account: None,
            };
            nodes.insert(row.name.clone(), state);
        }
        Ok(nodes)
    }
}

fn remembered(record: &NodeRecord) -> NodeState {
    NodeState {
        status: match record.status {
            NodeStatus::Ready => RowStatus::Completed,
            NodeStatus::Created => RowStatus::Pending,
            NodeStatus::Creating | NodeStatus::Destroying => RowStatus::Interrupted,
            NodeStatus::Destroyed => RowStatus::Destroyed,
        },
        host: record.host.clone(),
        guest_id: record.guest.vmid,
        address: record.address.map(|ip| ip.to_string()),
        error: None,
        live: None,
        contact: None,
        account: None,
    }
}
