//! Which repositories are served, and bringing the copies of all of them up to date.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use homestak_api::lock;
use homestak_api::publication::{PublishDirectory, is_repo_name};
use homestak_core::error::chain;
use jiff::Timestamp;

use super::copy::{copy, remove_copy};
use super::error::RepoError;
use super::record::RepoRecord;
use super::source::Source;
use crate::error::DriverError;

/// Repositories that are served when they exist: those of earlier homestak tools.
const KNOWN: &[&str] = &[
    "ansible",
    "bootstrap",
    "config",
    "iac-driver",
    "packer",
    "tofu",
];
/// The one with the site.
const SITE: &str = "config";
/// Most repositories.
const REPOS: usize = 64;

/// Where repositories are searched.
#[derive(Clone, Debug, Default)]
pub(crate) struct RepoPlaces {
    /// Paths of repositories by name, of the site.
    pub(crate) configured: BTreeMap<String, PathBuf>,
    /// The root directory of an installation.
    pub(crate) root: Option<PathBuf>,
    /// The directory of the site.
    pub(crate) site: Option<PathBuf>,
}

/// A served repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoStatus {
    /// Its name.
    pub name: String,
    /// The commit of `_working`.
    pub working: Option<String>,
    /// Whether the working tree differs from the last commit.
    pub modified: bool,
    /// The size of its packs in bytes.
    pub size: u64,
    /// Whether the copy is new.
    pub changed: bool,
}

/// A repository that could not be prepared. An earlier copy is still served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoFailure {
    /// Its name.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// The result of a refresh of all repositories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepoReport {
    /// Served repositories.
    pub repos: Vec<RepoStatus>,
    /// Those that could not be prepared.
    pub failed: Vec<RepoFailure>,
    /// Known names that were not found.
    pub missing: Vec<String>,
    /// Names that are excluded.
    pub excluded: Vec<String>,
    /// Names that are no longer served.
    pub removed: Vec<String>,
    /// What the user should know, a line each.
    pub notices: Vec<String>,
    /// The file with the token.
    pub token_file: PathBuf,
}

impl RepoReport {
    /// Returns what is different from before, a line each.
    pub fn changes(&self) -> Vec<String> {
        let changed = self.repos.iter().filter(|repo| repo.changed);
        let changed = changed.map(|repo| {
            let commit = repo.working.as_deref().unwrap_or("no commit");
            let commit = commit.get(..12).unwrap_or(commit);
            let modified = if repo.modified {
                ", with uncommitted changes"
            } else {
                ""
            };
            format!("repository `{}`: {commit}{modified}", repo.name)
        });
        let removed = self.removed.iter();
        let removed = removed.map(|name| format!("repository `{name}` removed"));
        changed.chain(removed).collect()
    }

    /// Returns what went wrong or needs attention, a line each.
    pub fn warnings(&self) -> Vec<String> {
        let failed = self.failed.iter();
        let failed = failed
            .map(|failed| format!("warning: repository `{}`: {}", failed.name, failed.reason));
        let notices = self.notices.iter();
        failed
            .chain(notices.map(|text| format!("notice: {text}")))
            .collect()
    }
}

/// Brings all copies up to date, and removes those that are not served any more. `None` when
/// repositories are not served. Blocks on disk I/O.
pub(crate) fn refresh(
    publish: &PublishDirectory,
    server: &Path,
    places: &RepoPlaces,
    (now, patience): (Timestamp, Duration),
) -> Result<Option<RepoReport>, DriverError> {
    let record = RepoRecord::read(server)?;
    if record.is_none() && !publish.repos_path().exists() {
        return Ok(None);
    }
    let (is_served, time) = (record.is_some(), (now, patience));
    let report = copy_all((publish, server, places), record.as_ref(), false, time)?;
    Ok(is_served.then_some(report))
}

/// Brings all copies up to date for a record that need not be written yet. Unless at least one can be
/// prepared, all copies stay as they are. Blocks on disk I/O.
pub(crate) fn prepare(
    publish: &PublishDirectory,
    server: &Path,
    (places, record): (&RepoPlaces, &RepoRecord),
    time: (Timestamp, Duration),
) -> Result<RepoReport, DriverError> {
    copy_all((publish, server, places), Some(record), true, time)
}

/// Copies what a record selects, and removes other copies; where one is needed, not without any that
/// could be prepared.
fn copy_all(
    (publish, server, places): (&PublishDirectory, &Path, &RepoPlaces),
    record: Option<&RepoRecord>,
    needs_one: bool,
    (now, patience): (Timestamp, Duration),
) -> Result<RepoReport, DriverError> {
    let turn = server.join("repos.lock");
    let file = crate::server::open_lock(&turn)?;
    lock::lock(&file, patience, |_| ())
        .map_err(|error| DriverError::file("lock", &turn, &error))?;
    let repos = publish.repos_path();
    homestak_api::durable::create_private(&repos)
        .map_err(|error| DriverError::file("create", &repos, &error))?;
    let mut report = RepoReport::default();
    let mut wanted = BTreeMap::new();
    if let Some(record) = record {
        report.token_file = record.token_path(server);
        wanted = select(record, places, &mut report);
    }
    for (name, path) in &wanted {
        match copy(publish, name, path, now.as_second()) {
            Ok(copied) => {
                let notices = copied.notices.iter();
                report
                    .notices
                    .extend(notices.map(|text| format!("repository `{name}`: {text}")));
                report.repos.push(RepoStatus {
                    name: name.clone(),
                    working: copied.repo.working,
                    modified: copied.repo.modified,
                    size: copied.repo.size,
                    changed: copied.changed,
                });
            }
            Err(error) => report.failed.push(failure(name, &error)),
        }
    }
    if needs_one && report.repos.is_empty() {
        return Ok(report);
    }
    let published = publish.repos();
    for repo in published.map_err(|error| DriverError::file("read", &repos, &error))? {
        if !wanted.contains_key(&repo.name) {
            match remove_copy(publish, &repo.name) {
                Ok(()) => report.removed.push(repo.name),
                Err(error) => report.failed.push(failure(&repo.name, &error)),
            }
        }
    }
    Ok(report)
}

/// Returns why repositories could not be prepared, a line each, as far as that is seen without
/// reading them.
pub(crate) fn problems(record: &RepoRecord, places: &RepoPlaces) -> Vec<String> {
    let mut report = RepoReport::default();
    for (name, path) in select(record, places, &mut report) {
        if let Err(error) = Source::open(&path) {
            report.failed.push(failure(&name, &error));
        }
    }
    let directory = record.directory.iter().filter(|path| !path.is_dir());
    let directory = directory.map(|path| {
        let path = path.display();
        format!("the directory of repositories `{path}` does not exist (--repos-dir)")
    });
    let failed = report.failed.iter();
    let failed = failed.map(|failed| format!("repository `{}`: {}", failed.name, failed.reason));
    directory.chain(failed).collect()
}

fn failure(name: &str, error: &RepoError) -> RepoFailure {
    RepoFailure {
        name: name.to_owned(),
        reason: chain(error),
    }
}

/// Returns the paths of the repositories to serve.
fn select(
    record: &RepoRecord,
    places: &RepoPlaces,
    report: &mut RepoReport,
) -> BTreeMap<String, PathBuf> {
    let names: BTreeSet<&str> = KNOWN
        .iter()
        .copied()
        .chain(places.configured.keys().map(String::as_str))
        .collect();
    let mut wanted = BTreeMap::new();
    for name in names {
        let fails = |reason: &str| RepoFailure {
            name: homestak_core::foreign::ForeignText::line(name)
                .as_str()
                .to_owned(),
            reason: reason.to_owned(),
        };
        if record.exclude.iter().any(|one| one == name) {
            report.excluded.push(name.to_owned());
        } else if !is_repo_name(name) {
            report.failed.push(fails(
                "its name is not made of letters, digits, `.`, `_` and `-`",
            ));
        } else if let Some(path) = places.configured.get(name) {
            wanted.insert(name.to_owned(), path.clone());
        } else if let Some(path) = found(name, record, places) {
            wanted.insert(name.to_owned(), path);
        } else {
            report.missing.push(name.to_owned());
        }
        if wanted.len() > REPOS {
            wanted.remove(name);
            report.failed.push(fails("there are too many repositories"));
        }
    }
    wanted
}

/// Returns where a known repository is, if it exists.
fn found(name: &str, record: &RepoRecord, places: &RepoPlaces) -> Option<PathBuf> {
    let mut paths = Vec::new();
    paths.extend(
        record
            .directory
            .as_ref()
            .map(|directory| directory.join(name)),
    );
    if let Some(root) = &places.root {
        if record.directory.is_none() {
            paths.push(root.join("iac").join(name));
        }
        if record.directory.is_none() || matches!(name, "bootstrap" | SITE) {
            paths.push(root.join(name));
        }
    }
    if name == SITE
        && let Some(site) = &places.site
        && site.join(".git").exists()
    {
        paths.push(site.clone());
    }
    paths.into_iter().find(|path| path.exists())
}
