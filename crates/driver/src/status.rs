//! How the nodes of a run are doing: what is remembered of them, what the run did to them, and how
//! their hosts say they are now.

use std::collections::BTreeMap;

use homestak_core::observed::GuestId;
use homestak_core::plan::{NodeRecord, NodeStatus};
use jiff::Timestamp;

use crate::driver::Driver;
use crate::error::DriverError;
use crate::live::{Live, ask, contacts};
use crate::runs::{
    Chronicle, Life, RunHead, Runs, Status, Which, is_resumable, is_unfinished, newest, read,
};

/// How one node is doing.
pub struct NodeState {
    /// How the run or its record has it.
    pub status: Status,
    /// The host of the site it is on.
    pub host: String,
    /// The id of its guest.
    pub guest_id: Option<GuestId>,
    /// Its address when it was last seen ready.
    pub address: Option<String>,
    /// What went wrong.
    pub error: Option<String>,
    /// How it is now; `None` when nobody asked, or nobody answered.
    pub live: Option<Live>,
    /// When it was last reached.
    pub contact: Option<Timestamp>,
}

/// How the nodes of a run are doing.
pub struct RunState {
    /// What the run did.
    pub chronicle: Chronicle,
    /// Who carries it out.
    pub holder: Option<String>,
    /// Its nodes, by name.
    pub nodes: BTreeMap<String, NodeState>,
    /// Why hosts could not be asked.
    pub unasked: Option<String>,
    /// Whether it can be resumed.
    pub resumable: bool,
    /// Whether no newer run replaced it.
    pub current: bool,
}

/// Which runs are meant.
pub enum Chosen {
    /// Several of several manifests: the newest of each.
    Overview(Vec<RunHead>),
    /// Those that are looked at, one by one.
    Runs(Vec<RunHead>),
}

/// Runs whose nodes are looked at.
pub struct StatusQuery<'d> {
    /// The runs.
    pub runs: Runs<'d>,
    /// Which of them are meant.
    pub chosen: Chosen,
    driver: &'d Driver,
    all: Vec<RunHead>,
    current: Vec<RunHead>,
}

impl<'d> StatusQuery<'d> {
    /// Finds the newest runs of the manifest that is named; without a name the only one that is
    /// unfinished, or all.
    pub async fn open(driver: &'d Driver, which: &'d Which) -> Result<Self, DriverError> {
        let runs = driver.runs(which)?;
        let all = runs.listed().await?;
        let current = runs.current().await?;
        let mut open = current.iter().filter(|run| is_unfinished(run));
        let chosen = match (&which.manifest, open.next(), open.next()) {
            (Some(_), ..) => Chosen::Runs(newest(all.clone())),
            (None, Some(one), None) => Chosen::Runs(vec![one.clone()]),
            (None, ..) => Chosen::Overview(newest(all.clone())),
        };
        Ok(Self {
            runs,
            chosen,
            driver,
            all,
            current,
        })
    }

    /// Looks at the nodes of a run. Hosts are asked, unless `offline`.
    pub async fn of_run(&self, head: &RunHead, offline: bool) -> Result<RunState, DriverError> {
        let (driver, journal) = (self.driver, self.driver.journal());
        let asked = match offline {
            true => None,
            false => Some(ask(head, driver).await),
        };
        let run = read(head, journal).await?;
        let mut chronicle = Chronicle::of_run(&run);
        // Held by someone who lives: it is being carried out.
        let mut holder = None;
        for scope in head.scopes() {
            let held = journal.holding(&scope).await?;
            let held = held.filter(|held| held.life != Life::Dead);
            holder = holder.or(held.map(|held| held.to_string()));
        }
        if holder.is_none() {
            chronicle.died();
        }
        let mut nodes = self.recorded(head, &chronicle).await?;
        let (live, unasked) = match asked {
            Some(Ok(live)) => (live, None),
            Some(Err(error)) => (BTreeMap::new(), Some(error.message)),
            None => (BTreeMap::new(), None),
        };
        let same = |run: &&RunHead| run.manifest == head.manifest && run.hosts == head.hosts;
        let earlier: Vec<RunHead> = self.all.iter().filter(same).cloned().collect();
        let contacts = contacts(&earlier, journal).await?;
        for (name, node) in &mut nodes {
            node.live = live.get(name).cloned();
            if let Some(live) = &mut node.live
                && live.power == "absent"
                && matches!(node.status, Status::Destroyed | Status::Absent)
            {
                // That it is gone is what was asked for.
                (live.differs, live.differences) = (Some(false), Vec::new());
            }
            let answered = node.live.as_ref().is_some_and(|live| live.answered);
            node.contact = match answered {
                true => Some(driver.operator.clock.now()),
                false => contacts.get(name).copied(),
            };
        }
        let current = self.current.contains(head);
        Ok(RunState {
            resumable: holder.is_none() && current && is_resumable(head),
            chronicle,
            holder,
            nodes,
            unasked,
            current,
        })
    }

    /// Returns nodes as they are remembered, and as the run left those that it touched.
    async fn recorded(
        &self,
        head: &RunHead,
        chronicle: &Chronicle,
    ) -> Result<BTreeMap<String, NodeState>, DriverError> {
        let mut nodes: BTreeMap<String, NodeState> = BTreeMap::new();
        for scope in head.scopes() {
            for record in self.runs.journal.records(&scope).await? {
                // A node that was moved has a record for each host.
                let row = chronicle.nodes.iter().find(|row| row.name == record.name);
                let is_here = row.is_some_and(|row| row.host == record.host);
                if is_here || !nodes.contains_key(&record.name) {
                    nodes.insert(record.name.clone(), remembered(&record));
                }
            }
        }
        for row in &chronicle.nodes {
            // What was not touched is as it is remembered.
            let untouched = row.phases.is_empty() && row.now.is_none();
            if untouched && nodes.contains_key(&row.name) && row.status != Status::Interrupted {
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
            };
            nodes.insert(row.name.clone(), state);
        }
        Ok(nodes)
    }
}

fn remembered(record: &NodeRecord) -> NodeState {
    NodeState {
        status: match record.status {
            NodeStatus::Ready => Status::Completed,
            NodeStatus::Created => Status::Pending,
            NodeStatus::Creating | NodeStatus::Destroying => Status::Interrupted,
            NodeStatus::Destroyed => Status::Destroyed,
        },
        host: record.host.clone(),
        guest_id: record.guest.vmid,
        address: record.address.map(|ip| ip.to_string()),
        error: None,
        live: None,
        contact: None,
    }
}
