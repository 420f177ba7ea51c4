//! The id of a site: read, added once, replaced on request. `site.yaml` is edited as text, so that
//! comments and order stay, and the result is parsed before it is written.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use homestak_api::durable::{self, Access};
use homestak_api::lock;
use homestak_core::catalog::{Catalog, InputDocument};
use homestak_core::doc::DocumentKind;
use homestak_core::doc::scalar::SiteId;

/// File name of the id of the built-in site, in the state directory.
const STOCK_FILE: &str = "site-id";
/// How long to wait for another process that writes an id.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// Why the id of a site could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum IdError {
    /// The file could not be written.
    #[error("write the site's id to `{path}`")]
    Write {
        /// The file.
        path: PathBuf,
        /// Lines to add manually.
        lines: String,
        /// Whether it is `site.yaml`, which may have a line `schema_version` already.
        is_document: bool,
        /// The system error.
        #[source]
        source: io::Error,
    },
    /// The file is in a layout that cannot be edited automatically.
    #[error("`{path}` cannot be edited automatically")]
    NotEditable {
        /// The file.
        path: PathBuf,
        /// Lines to add manually.
        lines: String,
        /// The id to write in place of the existing one.
        instead: Option<SiteId>,
    },
    /// The file could not be read.
    #[error("read the site's id from `{path}`")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system error.
        #[source]
        source: io::Error,
    },
    /// The file is invalid.
    #[error("`{path}` is not valid")]
    Invalid {
        /// The file.
        path: PathBuf,
    },
    /// The file with the id of the built-in site is invalid.
    #[error("`{path}` is not valid")]
    InvalidStock {
        /// The file.
        path: PathBuf,
        /// Its content.
        content: String,
    },
    /// The site has another id.
    #[error("the site already has the id `{0}`")]
    Conflict(SiteId),
    /// The system random number generator failed.
    #[error("generate a random id: {0}")]
    Random(getrandom::Error),
}

/// What was added to a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdChange {
    /// Nothing: the site already has the id.
    Nothing,
    /// The schema version that goes with an id.
    Version,
    /// The id, and the schema version that goes with it.
    Id,
}

/// Id and schema version of a valid `site.yaml`.
#[derive(Debug, Default, PartialEq)]
struct SiteIdentity {
    id: Option<SiteId>,
    /// Whether the schema version is that of sites with an id.
    is_current: bool,
}

/// Generates a random id.
pub fn random() -> Result<SiteId, IdError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(IdError::Random)?;
    Ok(SiteId::from_random(bytes))
}

/// Reads the id of the site in a directory; `None` only if it certainly has none.
pub fn read(directory: &Path) -> Result<Option<SiteId>, IdError> {
    Ok(read_identity(directory)?.id)
}

fn read_identity(directory: &Path) -> Result<SiteIdentity, IdError> {
    let path = directory.join("site.yaml");
    match read_text(&path)? {
        Some(text) => parse_identity(text).ok_or(IdError::Invalid { path }),
        None => Ok(SiteIdentity::default()),
    }
}

/// Returns the path of the id of the built-in site.
pub fn stock_file(state: &Path) -> PathBuf {
    state.join(STOCK_FILE)
}

/// Reads the id of the built-in site; `None` only if the file does not exist.
pub fn read_stock(state: &Path) -> Result<Option<SiteId>, IdError> {
    let path = stock_file(state);
    let Some(bytes) = read_bytes(&path)? else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim();
    SiteId::new(text)
        .map(Some)
        .ok_or_else(|| IdError::InvalidStock {
            path,
            content: text.chars().take(64).collect(),
        })
}

/// Adds an id to the built-in site, unless it has one.
pub fn add_stock(state: &Path, id: &SiteId) -> Result<IdChange, IdError> {
    if has_id(read_stock(state)?, id)? {
        return Ok(IdChange::Nothing);
    }
    let failed = |source| stock_error(&stock_file(state), id, source);
    durable::create_private(state).map_err(failed)?;
    let _lock = lock_directory(state)?;
    if has_id(read_stock(state)?, id)? {
        return Ok(IdChange::Nothing);
    }
    replace_stock(state, id).map(|_| IdChange::Id)
}

/// Replaces the id of the built-in site, and returns the path.
pub fn replace_stock(state: &Path, id: &SiteId) -> Result<PathBuf, IdError> {
    let path = stock_file(state);
    let text = format!("{id}\n");
    durable::create_private(state)
        .and_then(|()| durable::write(&path, text.as_bytes(), Access::PRIVATE))
        .map_err(|source| stock_error(&path, id, source))?;
    Ok(path)
}

/// Adds an id and the matching schema version to a site, unless it has one.
pub fn add(directory: &Path, id: &SiteId) -> Result<IdChange, IdError> {
    let missing = || {
        let SiteIdentity {
            id: known,
            is_current,
        } = read_identity(directory)?;
        Ok(match (has_id(known, id)?, is_current) {
            (true, true) => IdChange::Nothing,
            (true, false) => IdChange::Version,
            (false, _) => IdChange::Id,
        })
    };
    if missing()? == IdChange::Nothing {
        return Ok(IdChange::Nothing);
    }
    let _lock = lock_directory(directory)?;
    let missing = missing()?;
    if missing != IdChange::Nothing {
        replace(directory, id)?;
    }
    Ok(missing)
}

/// Replaces the id of a site, and returns the path.
pub fn replace(directory: &Path, id: &SiteId) -> Result<PathBuf, IdError> {
    let path = directory.join("site.yaml");
    let failed = |source| IdError::Write {
        path: path.clone(),
        lines: lines(id),
        is_document: true,
        source,
    };
    // A link is not replaced; its target is.
    let file = match fs_err::canonicalize(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => path.clone(),
        Err(error) => return Err(failed(error)),
    };
    let text = read_text(&file)?.unwrap_or_default();
    let access = match fs_err::metadata(&file) {
        Ok(metadata) => Access {
            mode: metadata.mode() & 0o7777,
            // Only root can change the owner, and other users already own the file.
            owner: rustix::process::geteuid()
                .is_root()
                .then(|| (metadata.uid(), metadata.gid())),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Access::PUBLIC,
        Err(error) => return Err(failed(error)),
    };
    let changed = with_id(&text, id);
    let wanted = SiteIdentity {
        id: Some(id.clone()),
        is_current: true,
    };
    if parse_identity(changed.clone()) != Some(wanted) {
        let before = parse_identity(text).and_then(|known| known.id);
        return Err(IdError::NotEditable {
            path,
            lines: lines(id),
            instead: before.map(|_| id.clone()),
        });
    }
    durable::write(&file, changed.as_bytes(), access).map_err(failed)?;
    Ok(path)
}

/// Returns whether a site has this id; another id is an error.
fn has_id(known: Option<SiteId>, id: &SiteId) -> Result<bool, IdError> {
    match known {
        Some(known) if known == *id => Ok(true),
        Some(other) => Err(IdError::Conflict(other)),
        None => Ok(false),
    }
}

/// Locks a directory against other processes that write an id.
fn lock_directory(directory: &Path) -> Result<std::fs::File, IdError> {
    let locked = durable::open_directory(directory).and_then(|directory| {
        lock::lock(&directory, LOCK_TIMEOUT, |_| ())?;
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

fn stock_error(path: &Path, id: &SiteId, source: io::Error) -> IdError {
    IdError::Write {
        path: path.to_owned(),
        lines: format!("{id}\n"),
        is_document: false,
        source,
    }
}

/// Reads a file that may be missing.
fn read_bytes(path: &Path) -> Result<Option<Vec<u8>>, IdError> {
    match fs_err::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(IdError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Reads a text file that may be missing.
fn read_text(path: &Path) -> Result<Option<String>, IdError> {
    let text = read_bytes(path)?.map(String::from_utf8).transpose();
    text.map_err(|_| IdError::Invalid {
        path: path.to_owned(),
    })
}

/// Returns the text with an id and the matching schema version.
fn with_id(text: &str, id: &SiteId) -> String {
    let key = |line: &str, name: &str| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.trim_start().starts_with(':'))
    };
    // Keep the line endings of the file.
    let end = if text.contains("\r\n") { "\r" } else { "" };
    let id_line = format!("id: {id}{end}");
    let mut lines: Vec<String> = text.split_terminator('\n').map(str::to_owned).collect();
    let version = lines.iter().position(|line| key(line, "schema_version"));
    let version = version.unwrap_or_else(|| {
        // After comments and the start of the document.
        let before = |line: &String| {
            line.trim_end().is_empty() || line.starts_with(['#', '%']) || line.starts_with("---")
        };
        let at = lines.iter().position(|line| !before(line));
        let at = at.unwrap_or(lines.len());
        lines.insert(at, String::new());
        at
    });
    lines[version] = format!("schema_version: 2{end}");
    match lines.iter().position(|line| key(line, "id")) {
        Some(at) => lines[at] = id_line,
        None => {
            let why =
                "# Identifies the guests of this site. Do not edit; use `homestak site new-id`.";
            lines.insert(version + 1, format!("{why}{end}"));
            lines.insert(version + 2, id_line);
        }
    }
    lines.join("\n") + "\n"
}

/// Returns the identity in a text; `None` if it is not a valid site.
fn parse_identity(text: String) -> Option<SiteIdentity> {
    let catalog = Catalog::read(vec![InputDocument {
        kind: DocumentKind::Site,
        name: "site".into(),
        path: "site.yaml".into(),
        text: Ok(text),
    }]);
    let site = catalog.site.as_ref()?;
    let written = site
        .value
        .as_ref()
        .filter(|_| site.diagnostics.errors() == 0)?;
    let version = written.schema_version.as_ref();
    Some(SiteIdentity {
        id: catalog.site_id().cloned(),
        is_current: version.is_some_and(|version| version.value.0 >= 2),
    })
}

#[cfg(test)]
mod tests {
    use super::{
        IdChange, IdError, SiteIdentity, add, add_stock, parse_identity, read, read_stock, replace,
        with_id,
    };
    use homestak_core::doc::scalar::SiteId;

    fn id(text: &str) -> SiteId {
        SiteId::new(text).unwrap()
    }

    #[test]
    fn an_id_is_added_and_everything_else_stays() {
        let ours = id("kq7f2mzx4vbt3npw");
        for text in [
            "",
            "# A comment.\n",
            "---\ndefaults:\n  timezone: UTC\n",
            "# Ours.\nschema_version: 1\n\ndefaults:\n  timezone: UTC",
            "defaults: {timezone: UTC}\nschema_version: 1 # first\n",
        ] {
            let changed = with_id(text, &ours);
            let known = SiteIdentity {
                id: Some(ours.clone()),
                is_current: true,
            };
            assert_eq!(parse_identity(changed.clone()), Some(known), "{changed}");
            for line in text.lines().filter(|line| !line.starts_with("schema")) {
                assert!(changed.contains(line), "{line}\n{changed}");
            }
            let again = with_id(&changed, &id("aq7f2mzx4vbt3npw"));
            assert_eq!(again.matches("\nid: ").count(), 1, "{again}");
        }
    }

    #[test]
    fn windows_line_endings_are_kept() {
        let ours = id("kq7f2mzx4vbt3npw");
        for text in [
            "# Ours.\r\nschema_version: 1\r\ndefaults: {timezone: UTC}\r\n",
            "\r\ndefaults: {timezone: UTC}\r\n",
            "schema_version: 1\r\nid: aq7f2mzx4vbt3npw\r\n",
        ] {
            let changed = with_id(text, &ours);
            let known = SiteIdentity {
                id: Some(ours.clone()),
                is_current: true,
            };
            assert_eq!(parse_identity(changed.clone()), Some(known), "{changed:?}");
            let (all, crlf) = (changed.matches('\n'), changed.matches("\r\n"));
            assert_eq!(all.count(), crlf.count(), "{changed:?}");
        }
    }

    #[test]
    fn a_site_keeps_its_id_until_it_is_replaced() {
        let site = tempfile::tempdir().unwrap();
        let (one, other) = (id("kq7f2mzx4vbt3npw"), id("aq7f2mzx4vbt3npw"));
        assert_eq!(read(site.path()).unwrap(), None);
        assert_eq!(add(site.path(), &one).unwrap(), IdChange::Id);
        assert_eq!(add(site.path(), &one).unwrap(), IdChange::Nothing);
        assert!(matches!(
            add(site.path(), &other),
            Err(IdError::Conflict(known)) if known == one
        ));
        replace(site.path(), &other).unwrap();
        assert_eq!(read(site.path()).unwrap(), Some(other));
    }

    #[test]
    fn a_site_that_cannot_be_edited_is_unchanged_and_the_lines_are_returned() {
        let site = tempfile::tempdir().unwrap();
        let file = site.path().join("site.yaml");
        let text = "{defaults: {timezone: UTC}}\n";
        fs_err::write(&file, text).unwrap();
        let error = add(site.path(), &id("kq7f2mzx4vbt3npw")).unwrap_err();
        let IdError::NotEditable { lines, .. } = error else {
            panic!("{error}");
        };
        assert!(lines.contains("id: kq7f2mzx4vbt3npw"), "{lines}");
        assert_eq!(fs_err::read_to_string(&file).unwrap(), text);
    }

    #[test]
    fn an_unreadable_id_does_not_count_as_missing() {
        let site = tempfile::tempdir().unwrap();
        let file = site.path().join("site.yaml");
        for text in [
            "schema_version: 2\nid: 17\n",
            "schema_version: 3\n",
            "id: [\n",
            "",
            "# Nothing.\n",
        ] {
            fs_err::write(&file, text).unwrap();
            let error = add(site.path(), &id("kq7f2mzx4vbt3npw")).unwrap_err();
            assert!(matches!(error, IdError::Invalid { .. }), "{text}: {error}");
            assert_eq!(fs_err::read_to_string(&file).unwrap(), text);
        }
        for text in [&b"nonsense!\n"[..], b"", b"\xff\xfe"] {
            fs_err::write(site.path().join("site-id"), text).unwrap();
            let error = add_stock(site.path(), &id("kq7f2mzx4vbt3npw")).unwrap_err();
            assert!(matches!(error, IdError::InvalidStock { .. }), "{error}");
            let error = read_stock(site.path()).unwrap_err();
            assert!(matches!(error, IdError::InvalidStock { .. }), "{error}");
        }
    }

    #[test]
    fn the_schema_version_is_raised_for_an_existing_id() {
        let site = tempfile::tempdir().unwrap();
        let file = site.path().join("site.yaml");
        let ours = id("kq7f2mzx4vbt3npw");
        for version in ["schema_version: 1\n", ""] {
            fs_err::write(&file, format!("# Ours.\n{version}id: {ours}\n")).unwrap();
            assert_eq!(add(site.path(), &ours).unwrap(), IdChange::Version);
            let text = fs_err::read_to_string(&file).unwrap();
            assert_eq!(text, format!("# Ours.\nschema_version: 2\nid: {ours}\n"));
            assert_eq!(add(site.path(), &ours).unwrap(), IdChange::Nothing);
        }
    }
}
