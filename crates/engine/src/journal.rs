//! What is written down before and after every act, so that nothing is lost when anything dies.
//!
//! In: intents and results. Out: the same, in order, after a crash.
//! Never: an act whose intent is not on disk; an entry that is changed later.

use std::collections::BTreeSet;

use async_trait::async_trait;
use homestak_core::doc::scalar::SiteId;
use homestak_core::plan::{Elsewhere, NodeRecord, Plan, StepId, StepKind, Steps};
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

/// Holds scopes until it is dropped. A holder that dies loses them.
pub trait Lease: Send + Sync {}

/// Where runs are written down. One suite of tests holds for every implementation.
#[async_trait]
pub trait Journal: Send + Sync {
    /// Takes scopes for one run; refuses when any is held by someone who lives.
    async fn hold(&self, scopes: &[Scope]) -> Result<Box<dyn Lease>, JournalError>;
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
    async fn runs(&self, manifest: Option<&str>) -> Result<Vec<RunHead>, JournalError>;
    /// Reads a run.
    async fn run(&self, id: RunId) -> Result<Option<Run>, JournalError>;
    /// Returns the newest record of each node of a scope that is not destroyed, sorted by name.
    /// Records of the first form name no site, and count until one is written with it.
    async fn records(&self, scope: &Scope) -> Result<Vec<NodeRecord>, JournalError>;
    /// Returns what is recorded of a site beside some scopes.
    async fn elsewhere(&self, site: &SiteId, but: &[Scope]) -> Result<Elsewhere, JournalError> {
        let mut scopes = BTreeSet::new();
        for run in self.runs(None).await? {
            if !run.is_of(site) {
                continue;
            }
            let of_run = run.hosts.into_iter().map(|host| Scope {
                site: Some(site.clone()),
                manifest: run.manifest.clone(),
                host,
            });
            scopes.extend(of_run.filter(|scope| !but.contains(scope)));
        }
        let mut all = Vec::new();
        for scope in scopes {
            let records = self.records(&scope).await?.into_iter();
            all.extend(records.map(|record| (scope.manifest.clone(), record)));
        }
        Ok(Elsewhere(all))
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
            for next in [Next::Repeat, Next::NewPlan] {
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
