//! Which site is used, and why.
//!
//! In: what the command line and the environment say. Out: [`Find`]: the choice and what was
//! looked at before it.
//! Never: falling back silently when a person named a place.

use std::path::{Path, PathBuf};

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
}

/// The site that is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// A directory.
    Directory(PathBuf),
    /// The one built into the program.
    Stock,
}

/// One place that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// What named the place, such as `$HOMESTAK_SITE_CONFIG`.
    pub by: &'static str,
    /// The place, when there was one.
    pub path: Option<PathBuf>,
    /// What was found there.
    pub outcome: Outcome,
}

/// What was found at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
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
pub struct Find {
    /// The site that is used.
    pub chosen: Chosen,
    /// What was looked at, in order; the last one is used.
    pub looks: Vec<Look>,
}

/// Why there is no site.
#[derive(Debug, thiserror::Error)]
#[error("{by} names `{path}`, which is not a directory")]
pub struct FindError {
    /// What named the place.
    pub by: &'static str,
    /// The place.
    pub path: PathBuf,
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
    "v2",
];

/// Finds the site.
pub fn find(candidates: &Candidates) -> Result<Find, FindError> {
    let mut looks = Vec::new();
    // A place that a person named must be there: using another one instead would surprise.
    for (by, path) in [
        ("--site", &candidates.flag),
        ("$HOMESTAK_SITE_CONFIG", &candidates.site_config),
    ] {
        let Some(path) = path else {
            looks.push(Look {
                by,
                path: None,
                outcome: Outcome::NotSet,
            });
            continue;
        };
        if !path.is_dir() {
            return Err(FindError {
                by,
                path: path.clone(),
            });
        }
        looks.push(Look {
            by,
            path: Some(path.clone()),
            outcome: Outcome::Used,
        });
        return Ok(Find {
            chosen: Chosen::Directory(path.clone()),
            looks,
        });
    }
    let here = &candidates.working_directory;
    let system = &candidates.system_root;
    let places = [
        (
            "$HOMESTAK_ROOT/config",
            candidates.root.as_ref().map(|root| root.join("config")),
        ),
        ("./site-config", Some(here.join("site-config"))),
        (
            "../site-config",
            here.parent().map(|parent| parent.join("site-config")),
        ),
        (
            "/usr/local/etc/homestak",
            Some(system.join("usr/local/etc/homestak")),
        ),
        (
            "/opt/homestak/site-config",
            Some(system.join("opt/homestak/site-config")),
        ),
    ];
    for (by, path) in places {
        let outcome = path.as_deref().map_or(Outcome::NotSet, look);
        looks.push(Look {
            by,
            path: path.clone(),
            outcome,
        });
        if let (Outcome::Used, Some(path)) = (outcome, path) {
            return Ok(Find {
                chosen: Chosen::Directory(path),
                looks,
            });
        }
    }
    looks.push(Look {
        by: "the stock site",
        path: None,
        outcome: Outcome::Used,
    });
    Ok(Find {
        chosen: Chosen::Stock,
        looks,
    })
}

fn look(path: &Path) -> Outcome {
    if !path.is_dir() {
        Outcome::Missing
    } else if MARKS.iter().any(|mark| path.join(mark).exists()) {
        Outcome::Used
    } else {
        Outcome::Empty
    }
}
