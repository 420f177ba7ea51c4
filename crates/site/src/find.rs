//! Which site is used, and why.
//!
//! In: what the command line and the environment say. Out: [`SiteSearch`]: the choice and what was
//! looked at before it.
//! Never: falling back silently when a person named a place; a place that somebody else could have
//! put there.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use homestak_core::doc::DocumentKind;

/// Where a site may be, in order of precedence.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    /// `--site`
    pub flag: Option<PathBuf>,
    /// `$HOMESTAK_SITE_CONFIG`
    pub site_config: Option<PathBuf>,
    /// `$HOMESTAK_ROOT`
    pub root: Option<PathBuf>,
    /// The working directory, for `./site-config` and `../site-config`.
    pub working_directory: PathBuf,
    /// Where system-wide places start; `/` outside of tests.
    pub system_root: PathBuf,
    /// Users whose sites are used without being named: oneself, root, and who called sudo.
    pub owners: Vec<u32>,
}

/// The site that is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SiteSource {
    /// A directory.
    Directory(PathBuf),
    /// The one built into the program.
    Stock,
}

/// One place that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchedPath {
    /// What named the place, such as `$HOMESTAK_SITE_CONFIG`.
    pub by: &'static str,
    /// The place, when there was one.
    pub path: Option<PathBuf>,
    /// What was found there.
    pub outcome: SearchOutcome,
}

/// What was found at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchOutcome {
    /// Nothing named a place.
    NotSet,
    /// There is no such directory.
    Missing,
    /// There is a directory without anything of a site in it.
    Empty,
    /// This one is used.
    Used,
}

/// The choice and how it came about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteSearch {
    /// The site that is used.
    pub source: SiteSource,
    /// What was looked at, in order; the last one is used.
    pub searched: Vec<SearchedPath>,
}

/// Why there is no site.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// A place that was named is not there.
    #[error("{by} names `{path}`, which is not a directory")]
    Missing {
        /// What named the place.
        by: &'static str,
        /// The place.
        path: PathBuf,
    },
    /// Somebody else could have written it, or a part of it.
    #[error("the site `{path}` is not used: {}", listed(parts))]
    Untrusted {
        /// The site.
        path: PathBuf,
        /// What is wrong with the site and with what is read of it.
        parts: Vec<Untrusted>,
    },
}

/// A file or directory that somebody else could have written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Untrusted {
    /// It belongs to somebody else.
    Foreign {
        /// The site, or something in it.
        part: PathBuf,
        /// Number of the user it belongs to.
        owner: u32,
    },
    /// Others can write to it.
    Writable {
        /// The site, or something in it.
        part: PathBuf,
        /// The permission to take away, as chmod takes it.
        right: &'static str,
    },
}

impl std::fmt::Display for Untrusted {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Foreign { part, owner } => {
                write!(to, "`{}` belongs to the user {owner}", part.display())
            }
            Self::Writable { part, .. } => {
                write!(to, "other users can write to `{}`", part.display())
            }
        }
    }
}

fn listed(parts: &[Untrusted]) -> String {
    let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
    parts.join("; ")
}

/// Files and directories that make a directory a site.
const MARKS: &[&str] = &[
    "site.yaml",
    "secrets.yaml",
    "secrets.yaml.enc",
    "manifests",
    "specs",
    "postures",
    "presets",
    "nodes",
    "hosts",
    "images",
    "v2",
];

/// Says for whom secrets are sealed; read with the site, and no mark of one.
const RULES: &str = ".sops.yaml";

/// Finds the site.
pub fn find(candidates: &Candidates) -> Result<SiteSearch, FindError> {
    let mut searched = Vec::new();
    // A place that a person named must be there: using another one instead would surprise.
    for (by, path) in [
        ("--site", &candidates.flag),
        ("$HOMESTAK_SITE_CONFIG", &candidates.site_config),
    ] {
        let Some(path) = path else {
            searched.push(SearchedPath {
                by,
                path: None,
                outcome: SearchOutcome::NotSet,
            });
            continue;
        };
        if !path.is_dir() {
            return Err(FindError::Missing {
                by,
                path: path.clone(),
            });
        }
        check(path, None)?;
        searched.push(SearchedPath {
            by,
            path: Some(path.clone()),
            outcome: SearchOutcome::Used,
        });
        return Ok(SiteSearch {
            source: SiteSource::Directory(path.clone()),
            searched,
        });
    }
    let here = &candidates.working_directory;
    let system = &candidates.system_root;
    // The first is named by a person too, in the environment.
    let places = [
        (
            true,
            "$HOMESTAK_ROOT/config",
            candidates.root.as_ref().map(|root| root.join("config")),
        ),
        (false, "./site-config", Some(here.join("site-config"))),
        (
            false,
            "../site-config",
            here.parent().map(|parent| parent.join("site-config")),
        ),
        (
            false,
            "/usr/local/etc/homestak",
            Some(system.join("usr/local/etc/homestak")),
        ),
        (
            false,
            "/opt/homestak/site-config",
            Some(system.join("opt/homestak/site-config")),
        ),
    ];
    for (named, by, path) in places {
        let outcome = path.as_deref().map_or(SearchOutcome::NotSet, look);
        searched.push(SearchedPath {
            by,
            path: path.clone(),
            outcome,
        });
        if let (SearchOutcome::Used, Some(path)) = (outcome, path) {
            check(&path, (!named).then_some(&candidates.owners))?;
            return Ok(SiteSearch {
                source: SiteSource::Directory(path),
                searched,
            });
        }
    }
    searched.push(SearchedPath {
        by: "the stock site",
        path: None,
        outcome: SearchOutcome::Used,
    });
    Ok(SiteSearch {
        source: SiteSource::Stock,
        searched,
    })
}

fn look(path: &Path) -> SearchOutcome {
    if !path.is_dir() {
        SearchOutcome::Missing
    } else if MARKS.iter().any(|mark| path.join(mark).exists()) {
        SearchOutcome::Used
    } else {
        SearchOutcome::Empty
    }
}

/// Checks that nobody else could have written a site or a document of it. One that was not named
/// must also belong to one of `owners`: anybody can put a directory of that name into a directory
/// that all may use.
fn check(site: &Path, owners: Option<&Vec<u32>>) -> Result<(), FindError> {
    let mut parts = Vec::new();
    for part in read_of(site) {
        // The link, and what it leads to.
        let link = part.symlink_metadata().ok();
        let target = part.metadata().ok();
        let foreign = |found: &&Metadata| owners.is_some_and(|own| !own.contains(&found.uid()));
        if let Some(found) = link.iter().chain(&target).find(foreign) {
            let owner = found.uid();
            parts.push(Untrusted::Foreign { part, owner });
        } else if let Some(right) = target.and_then(|found| writable(&found, owners.is_some())) {
            parts.push(Untrusted::Writable { part, right });
        }
    }
    match parts.is_empty() {
        true => Ok(()),
        false => Err(FindError::Untrusted {
            path: site.to_owned(),
            parts,
        }),
    }
}

/// Returns the site and everything in it that may be read.
fn read_of(site: &Path) -> Vec<PathBuf> {
    let mut parts = vec![site.to_owned()];
    parts.extend(MARKS.iter().chain([&RULES]).map(|mark| site.join(mark)));
    let folders = DocumentKind::ALL.iter().filter_map(|kind| kind.directory());
    for folder in folders {
        let older = site.join("v2").join(folder);
        for directory in [&site.join(folder), &older] {
            let entries = fs_err::read_dir(directory).into_iter().flatten();
            let mut documents: Vec<PathBuf> = entries
                .filter_map(|entry| Some(entry.ok()?.path()))
                .collect();
            documents.retain(|path| {
                let ending = path.extension();
                ending.is_some_and(|ending| ending == "yaml" || ending == "yml")
            });
            documents.sort();
            parts.extend(documents);
        }
        parts.push(older);
    }
    parts.retain(|part| part.symlink_metadata().is_ok());
    parts
}

/// Returns the permission that lets others write. A group may, in a site that was named; in others
/// only root's group and the one that a user has alone, which has the user's number.
fn writable(found: &Metadata, groups: bool) -> Option<&'static str> {
    let own_group = found.gid() == 0 || found.gid() == found.uid();
    match found.mode() {
        mode if mode & 0o002 != 0 => Some("o-w"),
        mode if mode & 0o020 != 0 && groups && !own_group => Some("g-w"),
        _ => None,
    }
}
