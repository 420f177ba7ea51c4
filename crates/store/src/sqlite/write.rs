//! What is written, as SQL.
//!
//! In: runs, entries, endings. Out: rows, in the transaction that is open.
//! Never: a commit in the middle; what is kept in memory is only a shorter way to the same rows.

use std::collections::BTreeMap;

use homestak_core::doc::scalar::SiteId;
use homestak_core::plan::{NodeRecord, NodeStatus, Plan, StepId, StepKind};
use homestak_engine::journal::{Ending, Entry, Happened, RunId, Scope};
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, params};
use serde_json::{from_str, to_string};

use super::fault::Fault;
use super::lease::{self, Granted};
use super::{pace, patch, row};

/// A connection, and what is remembered between its transactions.
pub(super) struct Desk {
    connection: Connection,
    runs: BTreeMap<RunId, Going>,
    /// Scopes that this program holds, or lost without knowing.
    pub(super) granted: BTreeMap<Scope, Granted>,
}

type Kinds = BTreeMap<StepId, StepKind>;

/// A run that goes on.
struct Going {
    site: Option<SiteId>,
    manifest: String,
    /// What must be held to write more.
    scopes: Vec<Scope>,
    /// The kind of each step.
    kinds: Kinds,
    /// When each step began that is being done.
    begun: BTreeMap<StepId, Timestamp>,
    /// The newest record of each node, and its entry.
    told: BTreeMap<String, (i64, NodeRecord)>,
}

impl Going {
    fn new(of: RunScope, kinds: Kinds) -> Self {
        Self {
            scopes: of.scopes(),
            site: of.site,
            manifest: of.manifest,
            kinds,
            begun: BTreeMap::new(),
            told: BTreeMap::new(),
        }
    }
}

/// What a run is on.
#[derive(Clone)]
struct RunScope {
    site: Option<SiteId>,
    manifest: String,
    hosts: Vec<String>,
}

impl RunScope {
    fn of(connection: &Connection, run: RunId) -> Result<Self, Fault> {
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
            hosts: from_str(&hosts).map_err(Fault::nonsense)?,
        })
    }

    fn scopes(&self) -> Vec<Scope> {
        let scope = |host: &String| Scope::new(self.site.as_ref(), &self.manifest, host);
        self.hosts.iter().map(scope).collect()
    }
}

/// A run that is to be written down.
pub(super) struct Beginning {
    verb: String,
    of: RunScope,
    mark: String,
    hosts: String,
    form: u32,
    plan: String,
    kinds: Kinds,
    at: i64,
}

impl Beginning {
    pub(super) fn new(verb: &str, plan: &Plan, mark: &str, at: Timestamp) -> Result<Self, Fault> {
        Ok(Self {
            verb: verb.to_owned(),
            of: RunScope {
                site: plan.site.clone(),
                manifest: plan.manifest.clone(),
                hosts: plan.hosts.clone(),
            },
            mark: mark.to_owned(),
            hosts: to_string(&plan.hosts).map_err(Fault::nonsense)?,
            plan: to_string(plan).map_err(Fault::nonsense)?,
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

impl Desk {
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

    /// Opens a transaction. Immediate: whatever is read in it is still so when it is written.
    pub(super) fn start(&mut self) -> Result<(), Fault> {
        self.execute("BEGIN IMMEDIATE")
    }

    pub(super) fn commit(&mut self) -> Result<(), Fault> {
        self.execute("COMMIT")
    }

    /// Gives the transaction up, with everything that is remembered from it.
    pub(super) fn abandon(&mut self) {
        self.runs.clear();
        if !self.connection.is_autocommit() {
            // A rollback that fails leaves a transaction open; the next one then says so.
            drop(self.execute("ROLLBACK"));
        }
    }

    fn execute(&self, sql: &str) -> Result<(), Fault> {
        self.connection.prepare_cached(sql)?.execute(())?;
        Ok(())
    }

    pub(super) fn begin(&mut self, run: &Beginning) -> Result<RunId, Fault> {
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
        let going = Going::new(run.of.clone(), run.kinds.clone());
        self.runs.insert(id, going);
        Ok(id)
    }

    pub(super) fn append(&mut self, run: RunId, entry: &Entry) -> Result<(), Fault> {
        if !self.runs.contains_key(&run) {
            self.runs.insert(run, load(&self.connection, run)?);
        }
        // Results too: another may have changed since what they are about.
        lease::require(self, self.runs.get(&run).map_or(&[], |going| &going.scopes))?;
        let Self {
            connection, runs, ..
        } = self;
        let going = runs.get_mut(&run).ok_or_else(|| unknown(run))?;
        let id = going.write(connection, run, entry)?;
        if let Some(record) = &entry.record {
            project(connection, going.site.as_ref(), &going.manifest, record)?;
            going.told.insert(record.name.clone(), (id, record.clone()));
        }
        going.time(connection, entry)?;
        // An entry after the end: the run goes on.
        connection
            .prepare_cached(
                "UPDATE runs SET ended = NULL, ending = NULL WHERE id = ?1 AND ended IS NOT NULL",
            )?
            .execute(params![run.0])?;
        Ok(())
    }

    pub(super) fn end(&mut self, run: RunId, ending: Ending, at: Timestamp) -> Result<(), Fault> {
        lease::require(self, &RunScope::of(&self.connection, run)?.scopes())?;
        self.connection
            .prepare_cached("UPDATE runs SET ended = ?2, ending = ?3 WHERE id = ?1")?
            .execute(params![run.0, row::from_time(at)?, ending.word()])?;
        self.runs.remove(&run);
        Ok(())
    }

    pub(super) fn forget(&mut self, scope: &Scope, node: &str) -> Result<bool, Fault> {
        let mut gone = false;
        // One of the first form counts for this site too, until it writes its own.
        for site in [scope.site.as_ref(), None] {
            if remove(&self.connection, site, &scope.manifest, &scope.host, node)? {
                gone = true;
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
        Ok(gone)
    }
}

impl Going {
    /// Writes the row of an entry and returns its number.
    fn write(&self, connection: &Connection, run: RunId, entry: &Entry) -> Result<i64, Fault> {
        let (what, trouble) = row::from_happened(&entry.happened)?;
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

    /// Returns a record as what differs from the one before, or whole.
    fn pack(&self, record: &NodeRecord) -> Result<(Option<i64>, Option<String>), Fault> {
        if let Some((base, before)) = self.told.get(&record.name)
            && let Some(patch) = patch::diff(before, record)
        {
            return Ok((Some(*base), Some(patch)));
        }
        let whole = to_string(record).map_err(Fault::nonsense)?;
        Ok((None, Some(whole)))
    }

    /// Keeps how long a step took. A step that was begun by a program that died is not counted:
    /// the time it was dead is in it.
    fn time(&mut self, connection: &Connection, entry: &Entry) -> Result<(), Fault> {
        let Some(step) = &entry.step else {
            return Ok(());
        };
        let changed = match &entry.happened {
            Happened::Intent => {
                self.begun.insert(step.clone(), entry.at);
                return Ok(());
            }
            Happened::Done { changed } => *changed,
            Happened::Failed(_)
            | Happened::UndoIntent
            | Happened::Undone { .. }
            | Happened::UndoFailed(_)
            | Happened::Settled => false,
        };
        let (Some(begun), Some(kind)) = (self.begun.remove(step), self.kinds.get(step)) else {
            return Ok(());
        };
        let seconds = entry.at.duration_since(begun).as_secs_f64();
        // Less than nothing: the clock was set back meanwhile.
        if changed && seconds >= 0.0 {
            pace::keep(connection, *kind, seconds)?;
        }
        Ok(())
    }
}

/// Takes up a run that another process began, or that ended before.
fn load(connection: &Connection, run: RunId) -> Result<Going, Fault> {
    let of = RunScope::of(connection, run)?;
    let plan: String = connection
        .prepare_cached("SELECT plan FROM plans WHERE run = ?1")?
        .query_row(params![run.0], |row| row.get(0))?;
    let plan: Plan = from_str(&plan).map_err(Fault::nonsense)?;
    Ok(Going::new(of, kinds(&plan)))
}

/// Makes the newest record of a node what is known of it. One of the first form is superseded by
/// the first that its site writes.
pub(super) fn project(
    connection: &Connection,
    site: Option<&SiteId>,
    manifest: &str,
    record: &NodeRecord,
) -> Result<(), Fault> {
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
            to_string(record).map_err(Fault::nonsense)?
        ])?;
    Ok(())
}

fn remove(
    connection: &Connection,
    site: Option<&SiteId>,
    manifest: &str,
    host: &str,
    node: &str,
) -> Result<bool, Fault> {
    let gone = connection
        .prepare_cached(
            "DELETE FROM nodes WHERE site = ?1 AND manifest = ?2 AND host = ?3 AND name = ?4",
        )?
        .execute(params![
            site.map_or("", SiteId::as_str),
            manifest,
            host,
            node
        ])?;
    Ok(gone > 0)
}

fn unknown(run: RunId) -> Fault {
    Fault::said(
        format!("there is no run {run}"),
        "is it in another state directory? `HOMESTAK_STATE` names it",
    )
}
