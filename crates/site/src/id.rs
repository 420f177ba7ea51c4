//! The site's id: read, added once, replaced when a person asks for it.
//!
//! `site.yaml` is changed as text, so that comments and order stay, and what was written is read
//! back before it takes effect.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use homestak_api::durable::{self, Access};
use homestak_core::catalog::{Catalog, Input};
use homestak_core::doc::Kind;
use homestak_core::doc::scalar::SiteId;

/// The file of the built-in site's id, in the state directory.
const STOCK_FILE: &str = "site-id";

/// Why a site has no id, or kept the one it had.
#[derive(Debug, thiserror::Error)]
pub enum IdError {
    /// The file could not be written.
    #[error("write the site's id to `{path}`")]
    Write {
        /// The file.
        path: PathBuf,
        /// The lines that a person can add.
        lines: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file is written in a way that no line can be added to.
    #[error("`{path}` cannot be changed line by line")]
    Form {
        /// The file.
        path: PathBuf,
        /// The lines that a person can add.
        lines: String,
    },
    /// The file could not be read, so nobody knows whether there is an id in it.
    #[error("read the site's id from `{path}`")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file is not valid, so nobody knows whether there is an id in it.
    #[error("`{path}` is not valid")]
    Faulty {
        /// The file.
        path: PathBuf,
    },
    /// Someone else gave the site an id meanwhile.
    #[error("the site has the id `{0}` now")]
    Other(SiteId),
    /// The system gave no random bytes.
    #[error("make a random id: {0}")]
    Random(getrandom::Error),
}

/// Makes a random id.
pub fn random() -> Result<SiteId, IdError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(IdError::Random)?;
    Ok(SiteId::from_random(bytes))
}

/// Reads the id of the site in a directory.
pub fn read(directory: &Path) -> Result<Option<SiteId>, IdError> {
    let path = directory.join("site.yaml");
    let text = read_or_empty(&path)?;
    id_in(&text).ok_or(IdError::Faulty { path })
}

/// Reads the id of the built-in site.
pub fn read_stock(state: &Path) -> Result<Option<SiteId>, IdError> {
    let path = state.join(STOCK_FILE);
    let text = read_or_empty(&path)?;
    if text.is_empty() {
        return Ok(None);
    }
    let id = SiteId::new(text.trim());
    id.map(Some).ok_or(IdError::Faulty { path })
}

/// Gives the built-in site an id, and tells whether it had none. One that it has stays.
pub fn add_stock(state: &Path, id: &SiteId) -> Result<bool, IdError> {
    if is_there(read_stock(state)?, id)? {
        return Ok(false);
    }
    durable::create_private(state)
        .map_err(|source| not_written(&state.join(STOCK_FILE), id, source))?;
    let _turn = turn(state)?;
    if is_there(read_stock(state)?, id)? {
        return Ok(false);
    }
    replace_stock(state, id).map(|_| true)
}

/// Gives the built-in site another id, and returns the file.
pub fn replace_stock(state: &Path, id: &SiteId) -> Result<PathBuf, IdError> {
    let path = state.join(STOCK_FILE);
    let text = format!("{id}\n");
    let written = durable::create_private(state)
        .and_then(|()| durable::write(&path, text.as_bytes(), Access::PRIVATE));
    match written {
        Ok(()) => Ok(path),
        Err(source) => Err(IdError::Write {
            path,
            lines: text,
            source,
        }),
    }
}

/// Gives the site in a directory an id, and tells whether it had none. One that it has stays.
pub fn add(directory: &Path, id: &SiteId) -> Result<bool, IdError> {
    if is_there(read(directory)?, id)? {
        return Ok(false);
    }
    let _turn = turn(directory)?;
    if is_there(read(directory)?, id)? {
        return Ok(false);
    }
    replace(directory, id).map(|_| true)
}

/// Gives the site in a directory another id, and returns the file.
pub fn replace(directory: &Path, id: &SiteId) -> Result<PathBuf, IdError> {
    let path = directory.join("site.yaml");
    let failed = |source| not_written(&path, id, source);
    // A link leads to the file that is meant.
    let file = match fs_err::canonicalize(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => path.clone(),
        Err(error) => return Err(failed(error)),
    };
    let text = read_or_empty(&file)?;
    let access = match fs_err::metadata(&file) {
        Ok(metadata) => Access {
            mode: metadata.mode() & 0o7777,
            // Only root can give a file to someone else, and everyone else has it already.
            owner: rustix::process::geteuid()
                .is_root()
                .then(|| (metadata.uid(), metadata.gid())),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Access::PUBLIC,
        Err(error) => return Err(failed(error)),
    };
    let changed = with_id(&text, id);
    if id_in(&changed) != Some(Some(id.clone())) {
        return Err(IdError::Form {
            path,
            lines: lines(id),
        });
    }
    durable::write(&file, changed.as_bytes(), access).map_err(failed)?;
    Ok(path)
}

/// Tells whether a site has this id; another one is an error.
fn is_there(known: Option<SiteId>, id: &SiteId) -> Result<bool, IdError> {
    match known {
        Some(known) if known == *id => Ok(true),
        Some(other) => Err(IdError::Other(other)),
        None => Ok(false),
    }
}

/// Waits until no other command gives the site an id.
fn turn(directory: &Path) -> Result<std::fs::File, IdError> {
    let locked = durable::open_directory(directory).and_then(|directory| {
        directory.lock()?;
        Ok(directory)
    });
    locked.map_err(|source| IdError::Read {
        path: directory.to_owned(),
        source,
    })
}

fn lines(id: &SiteId) -> String {
    format!("schema_version: 2\nid: {id}\n")
}

fn not_written(path: &Path, id: &SiteId, source: io::Error) -> IdError {
    IdError::Write {
        path: path.to_owned(),
        lines: lines(id),
        source,
    }
}

fn read_or_empty(path: &Path) -> Result<String, IdError> {
    match fs_err::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(source) => Err(IdError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Returns the text with an id and the schema version that goes with it.
fn with_id(text: &str, id: &SiteId) -> String {
    let key = |line: &str, name: &str| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.trim_start().starts_with(':'))
    };
    let id_line = format!("id: {id}");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let version = lines.iter().position(|line| key(line, "schema_version"));
    let version = version.unwrap_or_else(|| {
        // After comments and the mark that begins a document.
        let before = |line: &String| {
            line.is_empty() || line.starts_with(['#', '%']) || line.starts_with("---")
        };
        let at = lines.iter().position(|line| !before(line));
        let at = at.unwrap_or(lines.len());
        lines.insert(at, String::new());
        at
    });
    lines[version] = "schema_version: 2".to_owned();
    match lines.iter().position(|line| key(line, "id")) {
        Some(at) => lines[at] = id_line,
        None => {
            let why =
                "# Tells this site's guests from those of others. Never change it by editing.";
            lines.insert(version + 1, why.to_owned());
            lines.insert(version + 2, id_line);
        }
    }
    lines.join("\n") + "\n"
}

/// Returns the id in a text, if any; `None` when the text is not that of a valid site.
fn id_in(text: &str) -> Option<Option<SiteId>> {
    if text.trim().is_empty() {
        return Some(None);
    }
    let catalog = Catalog::read(vec![Input {
        kind: Kind::Site,
        name: "site".into(),
        path: "site.yaml".into(),
        text: Ok(text.to_owned()),
    }]);
    let site = catalog.site.as_ref()?;
    (site.value.is_some() && site.faults.errors() == 0).then(|| catalog.site_id().cloned())
}

#[cfg(test)]
mod tests {
    use super::{IdError, add, add_stock, id_in, read, replace, with_id};
    use homestak_core::doc::scalar::SiteId;

    fn id(text: &str) -> SiteId {
        SiteId::new(text).unwrap()
    }

    #[test]
    fn an_id_is_added_to_any_usual_site_and_everything_else_stays() {
        let ours = id("kq7f2mzx4vbt3npw");
        for text in [
            "",
            "# A comment.\n",
            "---\ndefaults:\n  timezone: UTC\n",
            "# Ours.\nschema_version: 1\n\ndefaults:\n  timezone: UTC",
            "defaults: {timezone: UTC}\nschema_version: 1 # first\n",
        ] {
            let changed = with_id(text, &ours);
            assert_eq!(id_in(&changed), Some(Some(ours.clone())), "{changed}");
            for line in text.lines().filter(|line| !line.starts_with("schema")) {
                assert!(changed.contains(line), "{line}\n{changed}");
            }
            let again = with_id(&changed, &id("aq7f2mzx4vbt3npw"));
            assert_eq!(again.matches("\nid: ").count(), 1, "{again}");
        }
    }

    #[test]
    fn a_site_keeps_its_id_until_it_is_replaced() {
        let site = tempfile::tempdir().unwrap();
        let (one, other) = (id("kq7f2mzx4vbt3npw"), id("aq7f2mzx4vbt3npw"));
        assert_eq!(read(site.path()).unwrap(), None);
        assert!(add(site.path(), &one).unwrap());
        assert!(!add(site.path(), &one).unwrap());
        assert!(matches!(
            add(site.path(), &other),
            Err(IdError::Other(known)) if known == one
        ));
        replace(site.path(), &other).unwrap();
        assert_eq!(read(site.path()).unwrap(), Some(other));
    }

    #[test]
    fn a_site_that_cannot_be_changed_by_lines_is_left_as_it_is_and_the_lines_are_shown() {
        let site = tempfile::tempdir().unwrap();
        let file = site.path().join("site.yaml");
        let text = "{defaults: {timezone: UTC}}\n";
        fs_err::write(&file, text).unwrap();
        let error = add(site.path(), &id("kq7f2mzx4vbt3npw")).unwrap_err();
        let IdError::Form { lines, .. } = error else {
            panic!("{error}");
        };
        assert!(lines.contains("id: kq7f2mzx4vbt3npw"), "{lines}");
        assert_eq!(fs_err::read_to_string(&file).unwrap(), text);
    }

    #[test]
    fn an_id_that_cannot_be_read_is_not_a_missing_one() {
        let site = tempfile::tempdir().unwrap();
        let file = site.path().join("site.yaml");
        for text in [
            "schema_version: 2\nid: 17\n",
            "schema_version: 3\n",
            "id: [\n",
        ] {
            fs_err::write(&file, text).unwrap();
            let error = add(site.path(), &id("kq7f2mzx4vbt3npw")).unwrap_err();
            assert!(matches!(error, IdError::Faulty { .. }), "{text}: {error}");
            assert_eq!(fs_err::read_to_string(&file).unwrap(), text);
        }
        fs_err::write(site.path().join("site-id"), "nonsense!\n").unwrap();
        let error = add_stock(site.path(), &id("kq7f2mzx4vbt3npw")).unwrap_err();
        assert!(matches!(error, IdError::Faulty { .. }), "{error}");
    }
}
