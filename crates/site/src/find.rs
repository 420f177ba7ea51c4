//! Finds the site that is used, and records which paths were searched. A path that was given
//! explicitly must exist, and a site that another user could have written is refused.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use homestak_core::doc::DocumentKind;

/// Possible locations of a site, in order of precedence.
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
    /// Prefix of system-wide paths; `/` except in tests.
    pub system_root: PathBuf,
    /// Users whose sites are used without being given explicitly: the current user, root, and the
    /// user who called sudo.
    pub owners: Vec<u32>,
}

/// The site that is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SiteSource {
    /// A directory.
    Directory(PathBuf),
    /// The built-in site.
    Stock,
}

/// A searched path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchedPath {
    /// Where the path comes from, such as `$HOMESTAK_SITE_CONFIG`.
    pub by: &'static str,
    /// The path, if any.
    pub path: Option<PathBuf>,
    /// The result.
    pub outcome: SearchOutcome,
}

/// The result of searching a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchOutcome {
    /// No path was given.
    NotSet,
    /// The directory does not exist.
    Missing,
    /// The directory has no files of a site.
    Empty,
    /// This site is used.
    Used,
}

/// The site that was found, and the searched paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteSearch {
    /// The site that is used.
    pub source: SiteSource,
    /// Searched paths, in order; the last one is used.
    pub searched: Vec<SearchedPath>,
}

/// Why no site was found.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// A path that was given explicitly is not a directory.
    #[error("{by} is set to `{path}`, which is not a directory")]
    Missing {
        /// Where the path comes from.
        by: &'static str,
        /// The path.
        path: PathBuf,
    },
    /// Other users could have written the site or parts of it.
    #[error("the site `{path}` is not trusted: {}", listed(parts))]
    Untrusted {
        /// The site.
        path: PathBuf,
        /// The untrusted parts.
        parts: Vec<Untrusted>,
    },
}

/// A file or directory that other users could have written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Untrusted {
    /// It belongs to another user.
    Foreign {
        /// The site, or something in it.
        part: PathBuf,
        /// User id of its owner.
        owner: u32,
    },
    /// Others can write to it.
    Writable {
        /// The site, or something in it.
        part: PathBuf,
        /// The mode to remove, in the syntax of `chmod`.
        mode: &'static str,
    },
}

impl std::fmt::Display for Untrusted {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Foreign { part, owner } => {
                write!(to, "`{}` belongs to user {owner}", part.display())
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

/// Files and directories that identify a site.
const SITE_FILES: &[&str] = &[
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

/// Recipients of secrets; read with the site, but does not identify one.
const SOPS_RULES: &str = ".sops.yaml";

/// Finds the site.
pub fn find(candidates: &Candidates) -> Result<SiteSearch, FindError> {
    let mut searched = Vec::new();
    // A path that was given explicitly must exist: another site is never used instead.
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
    // The first is given explicitly too, in the environment.
    let paths = [
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
    for (is_explicit, by, path) in paths {
        let outcome = path.as_deref().map_or(SearchOutcome::NotSet, probe);
        searched.push(SearchedPath {
            by,
            path: path.clone(),
            outcome,
        });
        if let (SearchOutcome::Used, Some(path)) = (outcome, path) {
            check(&path, (!is_explicit).then_some(&candidates.owners))?;
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

fn probe(path: &Path) -> SearchOutcome {
    if !path.is_dir() {
        SearchOutcome::Missing
    } else if SITE_FILES.iter().any(|name| path.join(name).exists()) {
        SearchOutcome::Used
    } else {
        SearchOutcome::Empty
    }
}

/// Checks that no other user could have written the site or its documents. A site that was not
/// given explicitly must also belong to one of `owners`: any user can create a directory of that
/// name in a shared directory.
fn check(site: &Path, owners: Option<&Vec<u32>>) -> Result<(), FindError> {
    let mut parts = Vec::new();
    for part in files_of(site) {
        // The link, and its target.
        let link = part.symlink_metadata().ok();
        let target = part.metadata().ok();
        let is_foreign = |found: &&Metadata| owners.is_some_and(|own| !own.contains(&found.uid()));
        if let Some(found) = link.iter().chain(&target).find(is_foreign) {
            let owner = found.uid();
            parts.push(Untrusted::Foreign { part, owner });
        } else if let Some(mode) = target.and_then(|found| writable(&found, owners.is_some())) {
            parts.push(Untrusted::Writable { part, mode });
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

/// Returns the site and all files and directories that are read.
fn files_of(site: &Path) -> Vec<PathBuf> {
    let mut parts = vec![site.to_owned()];
    parts.extend(
        SITE_FILES
            .iter()
            .chain([&SOPS_RULES])
            .map(|name| site.join(name)),
    );
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

/// Returns the mode that lets others write. A group may write to a site that was given explicitly;
/// otherwise only the group of root and the private group of the user, which has the same id.
fn writable(found: &Metadata, groups: bool) -> Option<&'static str> {
    let own_group = found.gid() == 0 || found.gid() == found.uid();
    match found.mode() {
        mode if mode & 0o002 != 0 => Some("o-w"),
        mode if mode & 0o020 != 0 && groups && !own_group => Some("g-w"),
        _ => None,
    }
}
