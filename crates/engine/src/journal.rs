//! The journal of runs: intents are written before each act, results after it, so that a run can be
//! resumed or rolled back after a crash.
//!
//! Entries are never changed; no act starts before its intent is on disk.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use homestak_core::doc::scalar::SiteId;
use homestak_core::plan::{NodeRecord, OtherRecords, Plan, StepId, StepKind, Steps};
use homestak_core::resolve::ResolvedManifest;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ports::{ErrorClass, NextAction, PortError};

/// The number of a run; later runs have higher numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(pub i64);

impl std::fmt::Display for RunId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What a run locks: a manifest of a site on a host. Two runs on the same scope never overlap.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    /// The site; `None` for entries of the first journal format, which had no sites.
    pub site: Option<SiteId>,
    /// The manifest.
    pub manifest: String,
    /// The host of the site.
    pub host: String,
}

impl Scope {
    /// Names a manifest of a site on a host.
    pub fn new(site: Option<&SiteId>, manifest: &str, host: &str) -> Self {
        Self {
            site: site.cloned(),
            manifest: manifest.to_owned(),
            host: host.to_owned(),
        }
    }

    /// Returns the scopes of a manifest, sorted: one for each host of the site.
    pub fn of_manifest(site: &SiteId, resolved: &ResolvedManifest) -> Vec<Self> {
        let hosts = resolved.nodes.iter().filter_map(|node| node.host.as_ref());
        let hosts: BTreeSet<&String> = hosts.map(|host| &host.value).collect();
        let of_host = |host: &String| Self::new(Some(site), &resolved.name, host);
        hosts.into_iter().map(of_host).collect()
    }
}

/// A fencing token: a number that grows with each lease on a scope. The holder of an older number
/// has lost the lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// The scope, as a key that is unique across journals: each journal counts separately.
    pub scope: String,
    /// The number.
    pub number: i64,
}

/// How often a holder writes a heartbeat: often enough to detect its death soon, rarely enough to
/// cost nothing.
pub const HEARTBEAT: Duration = Duration::from_secs(15);
/// How long a holder on another machine may be without a heartbeat before its lease can be unlocked:
/// a machine under load misses one heartbeat, perhaps two.
pub const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(60);

/// Whether the holder of a lease is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderState {
    /// It runs, or nothing indicates otherwise.
    Alive,
    /// It has ended, and the scope is free.
    Dead,
    /// It is on another machine or in another container; only its heartbeat is known.
    Unknown,
}

/// The holder of a lease.
#[derive(Clone, Debug)]
pub struct LeaseHolder {
    /// The number of the lease.
    pub number: i64,
    /// The process, such as `process 4711 on desk`.
    pub holder: String,
    /// Since when.
    pub since: Timestamp,
    /// Its last heartbeat.
    pub heartbeat: Timestamp,
    /// Whether it is alive.
    pub life: HolderState,
}

impl std::fmt::Display for LeaseHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.holder)?;
        match self.life {
            HolderState::Alive | HolderState::Dead => Ok(()),
            HolderState::Unknown => write!(f, " (last heartbeat {:.0})", self.heartbeat),
        }
    }
}

impl LeaseHolder {
    /// Returns whether the lease can be unlocked.
    pub fn is_unlockable(&self, now: Timestamp) -> bool {
        match self.life {
            HolderState::Dead => true,
            HolderState::Alive => false,
            HolderState::Unknown => {
                let silent = now.duration_since(self.heartbeat);
                Duration::try_from(silent).is_ok_and(|silent| silent >= HEARTBEAT_TIMEOUT)
            }
        }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunOutcome {
    /// All steps completed.
    Done,
    /// A step failed; nothing was undone. Can be resumed.
    Failed,
    /// It was interrupted between steps. Can be resumed.
    Stopped,
    /// A step failed, or the user requested it: everything this run did was undone.
    RolledBack,
    /// Undoing failed; manual intervention is needed.
    Stuck,
    /// A later run replaced it.
    Superseded,
}

impl RunOutcome {
    /// Returns the name in the journal and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
            Self::RolledBack => "rolled-back",
            Self::Stuck => "stuck",
            Self::Superseded => "superseded",
        }
    }
}

/// What happened to a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepEvent {
    /// It is about to start.
    Intent,
    /// It completed; `changed` is false when there was nothing to do.
    Done {
        /// Whether anything was changed.
        changed: bool,
    },
    /// It failed, possibly half-way.
    Failed(StepError),
    /// It is about to be undone.
    UndoIntent,
    /// It was undone; `changed` is false when there was nothing to undo.
    Undone {
        /// Whether anything was changed.
        changed: bool,
    },
    /// It could not be undone.
    UndoFailed(StepError),
    /// The user marked it as resolved.
    Settled,
}

/// An entry of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The step; `None` for a record that no step wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepId>,
    /// What happened to it.
    pub happened: StepEvent,
    /// When.
    pub at: Timestamp,
    /// The new record of the step's node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<NodeRecord>,
}

impl Entry {
    /// Returns whether a create was undone and its guest kept: if the guest was deleted, that is
    /// recorded.
    pub(crate) fn is_kept(&self, step: StepKind) -> bool {
        let undone = matches!(self.happened, StepEvent::Undone { .. });
        undone && step == StepKind::Create && self.record.is_none()
    }
}

/// The error of a step, as the journal stores it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepError {
    /// Its class, stored by name.
    #[serde(serialize_with = "write_class", deserialize_with = "read_class")]
    pub class: ErrorClass,
    /// The message.
    pub message: String,
    /// The last lines of the task log.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<String>,
    /// What the user can do; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
    /// What to do next. Older journals have only the hint.
    #[serde(default, skip_serializing_if = "NextAction::is_default")]
    pub next: NextAction,
}

fn write_class<S: Serializer>(class: &ErrorClass, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(class.name())
}

fn read_class<'de, D: Deserializer<'de>>(from: D) -> Result<ErrorClass, D::Error> {
    let name = String::deserialize(from)?;
    Ok(ErrorClass::from_name(&name))
}

impl StepError {
    /// Returns whether everything but some refused parts was done. The run neither stops nor rolls
    /// back for it: any user of a node could cause it.
    pub fn is_partial(&self) -> bool {
        self.class == ErrorClass::Partly
    }

    /// Returns whether a new plan is needed.
    pub fn needs_new_plan(&self) -> bool {
        self.next == NextAction::NewPlan
    }
}

impl From<&PortError> for StepError {
    fn from(error: &PortError) -> Self {
        Self {
            class: error.class,
            message: error.to_string(),
            log: error.log.iter().map(ToString::to_string).collect(),
            hint: error.hint.clone(),
            next: error.next,
        }
    }
}

/// A run in a listing.
#[derive(Clone, Debug, PartialEq)]
pub struct RunSummary {
    /// Its number.
    pub id: RunId,
    /// Its random mark, which is stored on guests it creates; `None` for runs of the first format.
    pub mark: Option<String>,
    /// The site; `None` for runs of the first format.
    pub site: Option<SiteId>,
    /// The format version of its plan.
    pub form: u32,
    /// The manifest.
    pub manifest: String,
    /// Hosts of the site it touched.
    pub hosts: Vec<String>,
    /// The command, such as `apply`.
    pub verb: String,
    /// When it started.
    pub started: Timestamp,
    /// When and how it ended; `None` while it runs, and after a crash.
    pub ended: Option<(Timestamp, RunOutcome)>,
}

impl RunSummary {
    /// Returns whether it is a run of a site. Runs of the first format match every site.
    pub fn is_of(&self, site: &SiteId) -> bool {
        self.site.as_ref().is_none_or(|other| other == site)
    }

    /// Returns its scopes.
    pub fn scopes(&self) -> Vec<Scope> {
        let of_host = |host: &String| Scope::new(self.site.as_ref(), &self.manifest, host);
        self.hosts.iter().map(of_host).collect()
    }
}

/// A run with its plan and entries.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its summary.
    pub head: RunSummary,
    /// Its plan.
    pub plan: Plan,
    /// Its entries, in order.
    pub entries: Vec<Entry>,
}

impl Run {
    /// Returns the entries about steps of the plan, each with the index of its step.
    pub fn step_entries(&self) -> impl DoubleEndedIterator<Item = (usize, &Entry)> {
        step_entries(&self.plan.steps, &self.entries)
    }
}

/// Returns the entries about some steps, each with the index of its step.
pub(crate) fn step_entries<'a>(
    steps: &'a Steps,
    entries: &'a [Entry],
) -> impl DoubleEndedIterator<Item = (usize, &'a Entry)> {
    entries
        .iter()
        .filter_map(|entry| Some((steps.position(entry.step.as_ref()?)?, entry)))
}

/// Errors of the journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process holds the scope.
    #[error("`{manifest}` on `{host}` is locked by {holder} since {since}", manifest = scope.manifest, host = scope.host)]
    Held {
        /// The scope.
        scope: Scope,
        /// The holder, such as `process 4711 on desk`.
        holder: String,
        /// Since when.
        since: Timestamp,
    },
    /// The lease of this run was unlocked by someone else. The run stops without undoing anything.
    #[error("this run lost its lease on `{manifest}` on `{host}`{}", by(holder.as_deref()), manifest = scope.manifest, host = scope.host)]
    Lost {
        /// The scope.
        scope: Scope,
        /// The present holder, if any.
        holder: Option<String>,
    },
    /// It cannot be read or written. Nothing was done.
    #[error("{doing}: {detail}")]
    Broken {
        /// The operation.
        doing: String,
        /// The error of the system.
        detail: String,
        /// What the user can do.
        hint: String,
    },
}

impl JournalError {
    /// Makes the error of a lock on nothing, which would keep nobody away.
    pub fn no_scope() -> Self {
        Self::Broken {
            doing: "lock the manifest".to_owned(),
            detail: "no host of it was named".to_owned(),
            hint: String::new(),
        }
    }
}

fn by(holder: Option<&str>) -> String {
    holder.map_or_else(String::new, |holder| format!(" to {holder}"))
}

/// Selects runs for a listing.
#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    /// Of this site; runs of the first format match every site.
    pub site: Option<SiteId>,
    /// On this manifest.
    pub manifest: Option<String>,
    /// On this host.
    pub host: Option<String>,
    /// Older than this one.
    pub before: Option<RunId>,
    /// At most this many.
    pub limit: Option<usize>,
}

/// A lock on scopes, until it is dropped or its process dies.
pub trait Lease: Send + Sync {}

/// Stores runs. One test suite covers every implementation.
#[async_trait]
pub trait Journal: Send + Sync {
    /// Locks scopes for a run; fails when any of them is locked by a live process, or when there are
    /// none. Once the lease is unlocked by someone else, writes of runs on these scopes fail with
    /// [`JournalError::Lost`].
    async fn lock(&self, scopes: &[Scope]) -> Result<Box<dyn Lease>, JournalError>;
    /// Returns the fencing token of this process for a scope.
    async fn fence(&self, scope: &Scope) -> Result<Option<Fence>, JournalError>;
    /// Returns the holder of a scope.
    async fn holder(&self, scope: &Scope) -> Result<Option<LeaseHolder>, JournalError>;
    /// Removes the lease with this number, which makes the scope free under a higher number. Refused
    /// when it is not [unlockable](LeaseHolder::is_unlockable), or when the number has changed.
    async fn unlock(&self, scope: &Scope, number: i64) -> Result<(), JournalError>;
    /// Starts a run. Its plan and its mark are on disk when this returns.
    async fn begin(
        &self,
        verb: &str,
        plan: &Plan,
        mark: &str,
        at: Timestamp,
    ) -> Result<RunId, JournalError>;
    /// Appends an entry, in constant time. It is on disk when this returns. A run that had ended is
    /// open again.
    async fn append(&self, run: RunId, entry: &Entry) -> Result<(), JournalError>;
    /// Ends a run. When called again, the last call counts.
    async fn end(&self, run: RunId, ending: RunOutcome, at: Timestamp) -> Result<(), JournalError>;
    /// Lists the runs on a manifest, or on all manifests, of every site, newest first.
    async fn runs(&self, manifest: Option<&str>) -> Result<Vec<RunSummary>, JournalError> {
        let filter = RunFilter {
            manifest: manifest.map(str::to_owned),
            ..RunFilter::default()
        };
        self.list_runs(&filter).await
    }
    /// Lists the runs that match a filter, newest first.
    async fn list_runs(&self, filter: &RunFilter) -> Result<Vec<RunSummary>, JournalError>;
    /// Reads a run.
    async fn run(&self, id: RunId) -> Result<Option<Run>, JournalError>;
    /// Returns the entries of a run that were written after a position, each with its own position,
    /// so that another process can follow the run. Position 0 is before the first entry.
    async fn entries_after(
        &self,
        run: RunId,
        position: i64,
    ) -> Result<Vec<(i64, Entry)>, JournalError>;
    /// Returns the newest record of each node of a scope that is not destroyed, sorted by name.
    /// Records of the first format, without a site, count until the site writes its own.
    async fn records(&self, scope: &Scope) -> Result<Vec<NodeRecord>, JournalError>;
    /// Returns the records of a site outside some scopes.
    async fn elsewhere(
        &self,
        site: &SiteId,
        except: &[Scope],
    ) -> Result<OtherRecords, JournalError> {
        let mut scopes = BTreeSet::new();
        for run in self.runs(None).await? {
            if !run.is_of(site) {
                continue;
            }
            let of_host = |host: &String| Scope::new(Some(site), &run.manifest, host);
            let of_run = run.hosts.iter().map(of_host);
            scopes.extend(of_run.filter(|scope| !except.contains(scope)));
        }
        let mut all = Vec::new();
        for scope in scopes {
            let records = self.records(&scope).await?.into_iter();
            all.extend(records.map(|record| (scope.manifest.clone(), record)));
        }
        Ok(OtherRecords(all))
    }
    /// Deletes the record of a node; its guest is not changed.
    async fn forget(&self, scope: &Scope, node: &str) -> Result<bool, JournalError>;
    /// Returns the recent duration of steps of each kind, in seconds.
    async fn durations(&self) -> Result<Vec<(StepKind, f64)>, JournalError>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::Sent;

    #[test]
    fn an_error_keeps_its_class_and_next_action_in_the_journal() {
        for class in [
            ErrorClass::Partly,
            ErrorClass::Unreachable { sent: Sent::Maybe },
        ] {
            for next in [NextAction::Repeat, NextAction::NewPlan, NextAction::Trust] {
                let error = PortError {
                    class,
                    next,
                    ..PortError::refused("configure `web`", "no", "correct the spec")
                };
                let stored = StepError::from(&error);
                let text = serde_json::to_string(&stored).unwrap();
                assert!(text.contains(&format!("\"class\":\"{}\"", class.name())));
                let back: StepError = serde_json::from_str(&text).unwrap();
                assert_eq!(back, stored);
                assert_eq!(back.is_partial(), class == ErrorClass::Partly);
                assert_eq!(back.needs_new_plan(), next == NextAction::NewPlan);
            }
        }
    }

    #[test]
    fn errors_of_older_journals_are_read_and_an_unknown_class_is_broken() {
        let read = |text: &str| serde_json::from_str::<StepError>(text).unwrap();
        let old = read(r#"{"class":"lost","message":"no","hint":"and apply again"}"#);
        let sent = Sent::Maybe;
        assert_eq!(old.class, ErrorClass::Unreachable { sent });
        assert_eq!(old.next, NextAction::Repeat);
        assert_eq!(
            read(r#"{"class":"new","message":"no"}"#).class,
            ErrorClass::Broken
        );
    }
}
