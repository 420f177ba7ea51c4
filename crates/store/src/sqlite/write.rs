//! Writes runs, entries and endings in the open transaction. What is cached can be read from the
//! tables again.

use std::collections::BTreeMap;

use homestak_core::doc::scalar::SiteId;
use homestak_core::plan::{NodeRecord, NodeStatus, Plan, StepId, StepKind};
use homestak_engine::journal::{Entry, RunId, RunOutcome, Scope, StepEvent};
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, params};
use serde_json::{from_str, to_string};

use super::error::StoreError;
use super::lease::{self, GrantedLease};
use super::{durations, patch, row};

/// The writing connection, with its caches.
pub(super) struct WriteConnection {
    connection: Connection,
    runs: BTreeMap<RunId, OpenRun>,
    /// Leases of this process, including lost ones.
    pub(super) granted: BTreeMap<Scope, GrantedLease>,
}

type Kinds = BTreeMap<StepId, StepKind>;

/// A run that is being written.
struct OpenRun {
    site: Option<SiteId>,
    manifest: String,
    /// The scopes that must be locked.
    scopes: Vec<Scope>,
    /// The kind of each step.
    kinds: Kinds,
    /// Start times of steps in progress.
    begun: BTreeMap<StepId, Timestamp>,
    /// The newest record of each node, with the number of its entry.
    records: BTreeMap<String, (i64, NodeRecord)>,
}

impl OpenRun {
    fn new(of: RunScope, kinds: Kinds) -> Self {
        Self {
            scopes: of.scopes(),
            site: of.site,
            manifest: of.manifest,
            kinds,
            begun: BTreeMap::new(),
            records: BTreeMap::new(),
        }
    }
}

/// Site, manifest and hosts of a run.
#[derive(Clone)]
struct RunScope {
    site: Option<SiteId>,
    manifest: String,
    hosts: Vec<String>,
}

impl RunScope {
    fn of(connection: &Connection, run: RunId) -> Result<Self, StoreError> {
        let (site, manifest, hosts): (Option<String>, String, String) = connection
            .prepare_cached("SELECT site, manifest, hosts FROM runs WHERE id = ?1")?
            .query_row(params![run.0], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
            .optional()?
            .ok_or_else(|| unknown(run))?;
        Ok(Self {
            site: row::to_site(site)?,
            manifest,
            hosts: from_str(&hosts).map_err(StoreError::corrupt)?,
        })
    }

    fn scopes(&self) -> Vec<Scope> {
        let scope = |host: &String| Scope::new(self.site.as_ref(), &self.manifest, host);
        self.hosts.iter().map(scope).collect()
    }
}

/// A run to be recorded.
pub(super) struct NewRun {
    verb: String,
    of: RunScope,
    mark: String,
    hosts: String,
    form: u32,
    plan: String,
    kinds: Kinds,
    at: i64,
}

impl NewRun {
    pub(super) fn new(
        verb: &str,
        plan: &Plan,
        mark: &str,
        at: Timestamp,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            verb: verb.to_owned(),
            of: RunScope {
                site: plan.site.clone(),
                manifest: plan.manifest.clone(),
                hosts: plan.hosts.clone(),
            },
            mark: mark.to_owned(),
            hosts: to_string(&plan.hosts).map_err(StoreError::corrupt)?,
            plan: to_string(plan).map_err(StoreError::corrupt)?,
            form: plan.format,
            kinds: kinds(plan),
            at: row::from_time(at)?,
        })
    }
}

fn kinds(plan: &Plan) -> Kinds {
    let steps = plan.steps.iter();
    steps.map(|step| (step.id.clone(), step.kind)).collect()
}

impl WriteConnection {
    pub(super) fn new(connection: Connection) -> Self {
        Self {
            connection,
            runs: BTreeMap::new(),
            granted: BTreeMap::new(),
        }
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Starts a transaction. Immediate, so that what is read in it stays valid.
    pub(super) fn start(&mut self) -> Result<(), StoreError> {
        self.execute("BEGIN IMMEDIATE")
    }

    pub(super) fn commit(&mut self) -> Result<(), StoreError> {
        self.execute("COMMIT")
    }

    /// Rolls the transaction back, and clears the caches.
    pub(super) fn abandon(&mut self) {
        self.runs.clear();
        if !self.connection.is_autocommit() {
            // A failed rollback leaves a transaction open, which the next one reports.
            drop(self.execute("ROLLBACK"));
        }
    }

    fn execute(&self, sql: &str) -> Result<(), StoreError> {
        self.connection.prepare_cached(sql)?.execute(())?;
        Ok(())
    }

    pub(super) fn begin(&mut self, run: &NewRun) -> Result<RunId, StoreError> {
        lease::require(self, &run.of.scopes())?;
        self.connection
            .prepare_cached(
                "INSERT INTO runs (site, mark, manifest, hosts, verb, started, form)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?
            .execute(params![
                run.of.site.as_ref().map(SiteId::as_str),
                run.mark,
                run.of.manifest,
                run.hosts,
                run.verb,
                run.at,
                run.form
            ])?;
        let id = RunId(self.connection.last_insert_rowid());
        self.connection
            .prepare_cached("INSERT INTO plans (run, plan) VALUES (?1, ?2)")?
            .execute(params![id.0, run.plan])?;
        let open = OpenRun::new(run.of.clone(), run.kinds.clone());
        self.runs.insert(id, open);
        Ok(id)
    }

    pub(super) fn append(&mut self, run: RunId, entry: &Entry) -> Result<(), StoreError> {
        if !self.runs.contains_key(&run) {
            self.runs.insert(run, load(&self.connection, run)?);
        }
        // Results too: another process may have made changes.
        lease::require(self, self.runs.get(&run).map_or(&[], |open| &open.scopes))?;
        let Self {
            connection, runs, ..
        } = self;
        let open = runs.get_mut(&run).ok_or_else(|| unknown(run))?;
        let id = open.write(connection, run, entry)?;
        if let Some(record) = &entry.record {
            project(connection, open.site.as_ref(), &open.manifest, record)?;
            open.records
                .insert(record.name.clone(), (id, record.clone()));
        }
        open.time(connection, entry)?;
        // An entry reopens the run.
        connection
            .prepare_cached(
                "UPDATE runs SET ended = NULL, ending = NULL WHERE id = ?1 AND ended IS NOT NULL",
            )?
            .execute(params![run.0])?;
        Ok(())
    }

    pub(super) fn end(
        &mut self,
        run: RunId,
        ending: RunOutcome,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        lease::require(self, &RunScope::of(&self.connection, run)?.scopes())?;
        self.connection
            .prepare_cached("UPDATE runs SET ended = ?2, ending = ?3 WHERE id = ?1")?
            .execute(params![run.0, row::from_time(at)?, ending.name()])?;
        self.runs.remove(&run);
        Ok(())
    }

    pub(super) fn forget(&mut self, scope: &Scope, node: &str) -> Result<bool, StoreError> {
        let mut deleted = false;
        // Records of the first format count for this site too, until it writes its own.
        for site in [scope.site.as_ref(), None] {
            if remove(&self.connection, site, &scope.manifest, &scope.host, node)? {
                deleted = true;
                self.connection
                    .prepare_cached(
                        "INSERT INTO forgotten (after, site, manifest, host, node)
                         SELECT coalesce(max(id), 0), ?1, ?2, ?3, ?4 FROM entries",
                    )?
                    .execute(params![
                        site.map(SiteId::as_str),
                        scope.manifest,
                        scope.host,
                        node
                    ])?;
            }
        }
        Ok(deleted)
    }
}

impl OpenRun {
    /// Writes an entry, and returns its number.
    fn write(&self, connection: &Connection, run: RunId, entry: &Entry) -> Result<i64, StoreError> {
        let (what, trouble) = row::from_step_event(&entry.happened)?;
        let (base, record) = match &entry.record {
            Some(record) => self.pack(record)?,
            None => (None, None),
        };
        connection
            .prepare_cached(
                "INSERT INTO entries (run, step, what, at, trouble, base, record)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?
            .execute(params![
                run.0,
                entry.step.as_ref().map(StepId::as_str),
                what,
                row::from_time(entry.at)?,
                trouble,
                base,
                record
            ])?;
        Ok(connection.last_insert_rowid())
    }

    /// Returns a record as a patch of the one before, or whole.
    fn pack(&self, record: &NodeRecord) -> Result<(Option<i64>, Option<String>), StoreError> {
        if let Some((base, before)) = self.records.get(&record.name)
            && let Some(patch) = patch::diff(before, record)
        {
            return Ok((Some(*base), Some(patch)));
        }
        let whole = to_string(record).map_err(StoreError::corrupt)?;
        Ok((None, Some(whole)))
    }

    /// Stores the duration of a step, unless it was started by another process.
    fn time(&mut self, connection: &Connection, entry: &Entry) -> Result<(), StoreError> {
        let Some(step) = &entry.step else {
            return Ok(());
        };
        let changed = match &entry.happened {
            StepEvent::Intent => {
                self.begun.insert(step.clone(), entry.at);
                return Ok(());
            }
            StepEvent::Done { changed } => *changed,
            StepEvent::Failed(_)
            | StepEvent::UndoIntent
            | StepEvent::Undone { .. }
            | StepEvent::UndoFailed(_)
            | StepEvent::Settled => false,
        };
        let (Some(begun), Some(kind)) = (self.begun.remove(step), self.kinds.get(step)) else {
            return Ok(());
        };
        let seconds = entry.at.duration_since(begun).as_secs_f64();
        // The clock was set back.
        if changed && seconds >= 0.0 {
            durations::keep(connection, *kind, seconds)?;
        }
        Ok(())
    }
}

/// Loads a run that another process started, or that ended before.
fn load(connection: &Connection, run: RunId) -> Result<OpenRun, StoreError> {
    let of = RunScope::of(connection, run)?;
    let plan: String = connection
        .prepare_cached("SELECT plan FROM plans WHERE run = ?1")?
        .query_row(params![run.0], |row| row.get(0))?;
    let plan: Plan = from_str(&plan).map_err(StoreError::corrupt)?;
    Ok(OpenRun::new(of, kinds(&plan)))
}

/// Stores the newest record of a node. The first record of a site replaces one of the first format.
pub(super) fn project(
    connection: &Connection,
    site: Option<&SiteId>,
    manifest: &str,
    record: &NodeRecord,
) -> Result<(), StoreError> {
    for site in [site, None] {
        remove(connection, site, manifest, &record.host, &record.name)?;
    }
    if record.status == NodeStatus::Destroyed {
        return Ok(());
    }
    connection
        .prepare_cached(
            "INSERT INTO nodes (site, manifest, host, name, record) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![
            site.map_or("", SiteId::as_str),
            manifest,
            record.host,
            record.name,
            to_string(record).map_err(StoreError::corrupt)?
        ])?;
    Ok(())
}

fn remove(
    connection: &Connection,
    site: Option<&SiteId>,
    manifest: &str,
    host: &str,
    node: &str,
) -> Result<bool, StoreError> {
    let deleted = connection
        .prepare_cached(
            "DELETE FROM nodes WHERE site = ?1 AND manifest = ?2 AND host = ?3 AND name = ?4",
        )?
        .execute(params![
            site.map_or("", SiteId::as_str),
            manifest,
            host,
            node
        ])?;
    Ok(deleted > 0)
}

fn unknown(run: RunId) -> StoreError {
    StoreError::other(
        format!("there is no run {run}"),
        "it may be in another state directory; see `HOMESTAK_STATE`",
    )
}
