//! What is written down before and after every act, so that nothing is lost when anything dies.
//!
//! In: intents and results. Out: the same, in order, after a crash.
//! Never: an act whose intent is not on disk; an entry that is changed later.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use homestak_core::doc::scalar::SiteId;
use homestak_core::plan::{NodeRecord, OtherRecords, Plan, StepId, StepKind, Steps};
use homestak_core::resolve::ResolvedManifest;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ports::{Class, Next, PortError};

/// The number of a run; later ones are larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(pub i64);

impl std::fmt::Display for RunId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What excludes what: two runs on the same manifest of a site and host never overlap.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    /// The site; `None` for what the first form of the journal knows, without a site.
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

/// The right to change what is in a scope, as a number that grows with each lease on the scope and
/// never falls: whoever has an older one has lost the lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// The scope, as a key that is unique among all journals: other journals count for themselves.
    pub scope: String,
    /// The number.
    pub number: i64,
}

/// How often a holder records that it lives: often enough to learn soon that it does not, seldom
/// enough to cost nothing.
pub const HEARTBEAT: Duration = Duration::from_secs(15);
/// After so long without a heartbeat, a person may take a lease from a holder that cannot be asked:
/// a machine that is only busy misses one heartbeat, perhaps two.
pub const SILENT: Duration = Duration::from_secs(60);

/// Whether the holder of a lease lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It lives, or nothing says that it does not.
    Alive,
    /// It is gone, and the scope is free.
    Dead,
    /// It is on another machine or in another container: only its heartbeat is known.
    Unknown,
}

/// Who holds a scope.
#[derive(Clone, Debug)]
pub struct Holding {
    /// The number of the lease.
    pub number: i64,
    /// Who holds it, such as `process 4711 on desk`.
    pub holder: String,
    /// Since when.
    pub since: Timestamp,
    /// When it last recorded that it lives.
    pub heartbeat: Timestamp,
    /// Whether it lives.
    pub life: Life,
}

impl std::fmt::Display for Holding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.holder)?;
        match self.life {
            Life::Alive | Life::Dead => Ok(()),
            Life::Unknown => write!(f, " (last heartbeat {:.0})", self.heartbeat),
        }
    }
}

impl Holding {
    /// Tells whether a person may take the lease from its holder.
    pub fn is_takeable(&self, now: Timestamp) -> bool {
        match self.life {
            Life::Dead => true,
            Life::Alive => false,
            Life::Unknown => {
                let silent = now.duration_since(self.heartbeat);
                Duration::try_from(silent).is_ok_and(|silent| silent >= SILENT)
            }
        }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// Everything was done.
    Done,
    /// A step failed; what is there stays. Can be resumed.
    Failed,
    /// It was interrupted between steps. Can be resumed.
    Stopped,
    /// A step failed, or a person asked; everything this run did was undone.
    RolledBack,
    /// An undo failed; a person is needed.
    Stuck,
    /// A later run took over from what it found.
    Superseded,
}

impl Ending {
    /// Returns the word.
    pub fn word(self) -> &'static str {
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
pub enum Happened {
    /// It is about to be done.
    Intent,
    /// It was done; `changed` is false when it was done before.
    Done {
        /// Whether anything was changed.
        changed: bool,
    },
    /// It failed; it may have been done in part.
    Failed(Trouble),
    /// It is about to be undone.
    UndoIntent,
    /// It was undone; `changed` is false when there was nothing to undo.
    Undone {
        /// Whether anything was changed.
        changed: bool,
    },
    /// It could not be undone.
    UndoFailed(Trouble),
    /// A person says that it is settled.
    Settled,
}

/// One line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The step; none when something was recorded that no step did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepId>,
    /// What happened to it.
    pub happened: Happened,
    /// When.
    pub at: Timestamp,
    /// What is known of the step's node from here on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<NodeRecord>,
}

impl Entry {
    /// Tells whether a step was undone and its guest left in place: what becomes of the guest of
    /// any other create that is undone is recorded.
    pub(crate) fn is_kept(&self, step: StepKind) -> bool {
        let undone = matches!(self.happened, Happened::Undone { .. });
        undone && step == StepKind::Create && self.record.is_none()
    }
}

/// An error as it is written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// What kind it is; a word in the journal.
    #[serde(serialize_with = "write_class", deserialize_with = "read_class")]
    pub class: Class,
    /// What happened.
    pub message: String,
    /// The last lines of the task's log.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<String>,
    /// What a person can do next; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
    /// What leads on. Earlier journals say it in the hint alone.
    #[serde(default, skip_serializing_if = "Next::is_usual")]
    pub next: Next,
}

fn write_class<S: Serializer>(class: &Class, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(class.word())
}

fn read_class<'de, D: Deserializer<'de>>(from: D) -> Result<Class, D::Error> {
    let word = String::deserialize(from)?;
    Ok(Class::from_word(&word))
}

impl Trouble {
    /// Tells whether everything was done but what was refused by itself. That is no reason to stop
    /// or to roll back: one user of a node could bring it about.
    pub fn is_partial(&self) -> bool {
        self.class == Class::Partly
    }

    /// Tells whether a new plan is the way on: what the run was planned with is to be corrected.
    pub fn needs_new_plan(&self) -> bool {
        self.next == Next::NewPlan
    }
}

impl From<&PortError> for Trouble {
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

/// A run as the journal lists it.
#[derive(Clone, Debug, PartialEq)]
pub struct RunHead {
    /// Its number.
    pub id: RunId,
    /// Its random mark, which guests that it creates carry; `None` for runs of the first form.
    pub mark: Option<String>,
    /// The site; `None` for runs of the first form.
    pub site: Option<SiteId>,
    /// The form of its plan.
    pub form: u32,
    /// The manifest.
    pub manifest: String,
    /// Hosts of the site it touched.
    pub hosts: Vec<String>,
    /// What it was for, such as `apply`.
    pub verb: String,
    /// When it began.
    pub started: Timestamp,
    /// When and how it ended; `None` while it runs, and when it died.
    pub ended: Option<(Timestamp, Ending)>,
}

impl RunHead {
    /// Tells whether it is a run of a site. Those of the first form may be of any.
    pub fn is_of(&self, site: &SiteId) -> bool {
        self.site.as_ref().is_none_or(|other| other == site)
    }

    /// Returns its scopes.
    pub fn scopes(&self) -> Vec<Scope> {
        let of_host = |host: &String| Scope::new(self.site.as_ref(), &self.manifest, host);
        self.hosts.iter().map(of_host).collect()
    }
}

/// A run with everything that is written down about it.
#[derive(Clone, Debug)]
pub struct Run {
    /// How it is listed.
    pub head: RunHead,
    /// What it was to do.
    pub plan: Plan,
    /// What happened, in order.
    pub entries: Vec<Entry>,
}

impl Run {
    /// Returns the entries about steps of the plan, each with the index of its step.
    pub fn of_steps(&self) -> impl DoubleEndedIterator<Item = (usize, &Entry)> {
        of_steps(&self.plan.steps, &self.entries)
    }
}

/// Returns the entries about some steps, each with the index of its step.
pub(crate) fn of_steps<'a>(
    steps: &'a Steps,
    entries: &'a [Entry],
) -> impl DoubleEndedIterator<Item = (usize, &'a Entry)> {
    entries
        .iter()
        .filter_map(|entry| Some((steps.position(entry.step.as_ref()?)?, entry)))
}

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Someone else works on the same manifest and host.
    #[error("{holder} works on `{manifest}` on `{host}` since {since}", manifest = scope.manifest, host = scope.host)]
    Held {
        /// What is held.
        scope: Scope,
        /// Who holds it, such as `process 4711 on desk`.
        holder: String,
        /// Since when.
        since: Timestamp,
    },
    /// The lease of this run was taken from it. Nothing more is done, nor undone.
    #[error("this run lost its lease on `{manifest}` on `{host}`{}", by(holder.as_deref()), manifest = scope.manifest, host = scope.host)]
    Lost {
        /// What it held.
        scope: Scope,
        /// Who holds it now, if anyone.
        holder: Option<String>,
    },
    /// It cannot be read or written. Nothing was acted on.
    #[error("{doing}: {detail}")]
    Broken {
        /// What was tried.
        doing: String,
        /// What the system said.
        detail: String,
        /// What a person can do.
        hint: String,
    },
}

fn by(holder: Option<&str>) -> String {
    holder.map_or_else(String::new, |holder| format!(" to {holder}"))
}

/// Which runs are listed.
#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    /// Of this site, and of the first form, which may be of any.
    pub site: Option<SiteId>,
    /// On this manifest.
    pub manifest: Option<String>,
    /// On this host.
    pub host: Option<String>,
    /// Older than this one.
    pub before: Option<RunId>,
    /// So many, at most.
    pub limit: Option<usize>,
}

/// Holds scopes until it is dropped. A holder that dies loses them.
pub trait Lease: Send + Sync {}

/// Where runs are written down. One suite of tests holds for every implementation.
#[async_trait]
pub trait Journal: Send + Sync {
    /// Takes scopes for one run; refuses when any is held by someone who lives. From then on
    /// whatever is written of runs on them is refused ([`JournalError::Lost`]) once a lease was
    /// taken away.
    async fn hold(&self, scopes: &[Scope]) -> Result<Box<dyn Lease>, JournalError>;
    /// Returns the number under which this program holds a scope.
    async fn fence(&self, scope: &Scope) -> Result<Option<Fence>, JournalError>;
    /// Returns who holds a scope.
    async fn holding(&self, scope: &Scope) -> Result<Option<Holding>, JournalError>;
    /// Takes the lease of a number from its holder: the scope is free afterwards, under a higher
    /// number. Refused when it is not [takeable](Holding::is_takeable), or was taken meanwhile.
    async fn unlock(&self, scope: &Scope, number: i64) -> Result<(), JournalError>;
    /// Begins a run: its plan and its mark are on disk when this returns.
    async fn begin(
        &self,
        verb: &str,
        plan: &Plan,
        mark: &str,
        at: Timestamp,
    ) -> Result<RunId, JournalError>;
    /// Adds an entry: it is on disk when this returns. Takes the same time however long the run.
    /// A run that had ended goes on with it, and has no end until it ends again.
    async fn append(&self, run: RunId, entry: &Entry) -> Result<(), JournalError>;
    /// Ends a run; the last ending counts.
    async fn end(&self, run: RunId, ending: Ending, at: Timestamp) -> Result<(), JournalError>;
    /// Lists the runs on a manifest, newest first, of every site; of every manifest when none is
    /// named.
    async fn runs(&self, manifest: Option<&str>) -> Result<Vec<RunHead>, JournalError> {
        let filter = RunFilter {
            manifest: manifest.map(str::to_owned),
            ..RunFilter::default()
        };
        self.page(&filter).await
    }
    /// Lists the runs that a filter lets through, newest first.
    async fn page(&self, filter: &RunFilter) -> Result<Vec<RunHead>, JournalError>;
    /// Reads a run.
    async fn run(&self, id: RunId) -> Result<Option<Run>, JournalError>;
    /// Returns the newest record of each node of a scope that is not destroyed, sorted by name.
    /// Records of the first form name no site, and count until one is written with it.
    async fn records(&self, scope: &Scope) -> Result<Vec<NodeRecord>, JournalError>;
    /// Returns what is recorded of a site beside some scopes.
    async fn elsewhere(&self, site: &SiteId, but: &[Scope]) -> Result<OtherRecords, JournalError> {
        let mut scopes = BTreeSet::new();
        for run in self.runs(None).await? {
            if !run.is_of(site) {
                continue;
            }
            let of_host = |host: &String| Scope::new(Some(site), &run.manifest, host);
            let of_run = run.hosts.iter().map(of_host);
            scopes.extend(of_run.filter(|scope| !but.contains(scope)));
        }
        let mut all = Vec::new();
        for scope in scopes {
            let records = self.records(&scope).await?.into_iter();
            all.extend(records.map(|record| (scope.manifest.clone(), record)));
        }
        Ok(OtherRecords(all))
    }
    /// Forgets a node: its record goes, its guest is left alone.
    async fn forget(&self, scope: &Scope, node: &str) -> Result<bool, JournalError>;
    /// Returns how long steps of each kind took lately, in seconds.
    async fn durations(&self) -> Result<Vec<(StepKind, f64)>, JournalError>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::Sent;

    #[test]
    fn an_error_keeps_its_class_and_what_leads_on_in_the_journal() {
        for class in [Class::Partly, Class::Unreachable { sent: Sent::Maybe }] {
            for next in [Next::Repeat, Next::NewPlan, Next::Trust] {
                let error = PortError {
                    class,
                    next,
                    ..PortError::refused("configure `web`", "no", "correct the spec")
                };
                let trouble = Trouble::from(&error);
                let text = serde_json::to_string(&trouble).unwrap();
                assert!(text.contains(&format!("\"class\":\"{}\"", class.word())));
                let back: Trouble = serde_json::from_str(&text).unwrap();
                assert_eq!(back, trouble);
                assert_eq!(back.is_partial(), class == Class::Partly);
                assert_eq!(back.needs_new_plan(), next == Next::NewPlan);
            }
        }
    }

    #[test]
    fn errors_of_earlier_journals_are_read_and_an_unknown_class_makes_no_sense() {
        let read = |text: &str| serde_json::from_str::<Trouble>(text).unwrap();
        let old = read(r#"{"class":"lost","message":"no","hint":"and apply again"}"#);
        let sent = Sent::Maybe;
        assert_eq!(old.class, Class::Unreachable { sent });
        assert_eq!(old.next, Next::Repeat);
        assert_eq!(
            read(r#"{"class":"new","message":"no"}"#).class,
            Class::Broken
        );
    }
}
