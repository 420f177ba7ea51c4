//! A site opened for one command: found, loaded and decoded.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use homestak_core::catalog::{Catalog, InputDocument, LoadProblem};
use homestak_core::doc::scalar::SiteId;
use homestak_core::doc::timeouts::Timeouts;
use homestak_core::doc::{Code, Diagnostics, DocumentKind, Severity, Sources};
use homestak_site::id::{self, IdChange, IdError};
use homestak_site::{SiteSearch, SiteSource, find, load, load_stock};

use crate::clock::ProgramClock;
use crate::error::{DriverError, count};
use crate::hosts::kind_infos;
use crate::notices::Notices;
use crate::secrets::{KeySources, open};
use crate::settings::DriverSettings;
use crate::wire;

/// A site opened for one command.
pub struct Session {
    /// Its documents.
    pub catalog: Catalog,
    /// How the site was found.
    pub search: SiteSearch,
    /// Files of the site with unencrypted secrets.
    pub plaintext: Vec<String>,
    /// Its id; a new one, not stored yet, for a site without. Unknown when its file is not valid.
    id: Result<SiteId, IdError>,
    /// Whether the site has the id already.
    pub has_id: bool,
    /// The state directory, with the id of the built-in site.
    pub(crate) state: PathBuf,
    /// Receives messages.
    pub notices: Arc<dyn Notices>,
    /// The clock.
    pub time: ProgramClock,
    /// Whether the secrets are encrypted.
    pub sealed: bool,
    /// Time limits of flags and the environment; those of the manifest come after them.
    flagged: Timeouts,
    timeouts: Mutex<Timeouts>,
}

impl Session {
    /// Finds, loads and decodes the site. Reads files, so that asynchronous code calls it through
    /// [`run_blocking`](crate::run_blocking()).
    pub fn open(settings: &DriverSettings, notices: Arc<dyn Notices>) -> Result<Self, DriverError> {
        let search = find(&settings.candidates)?;
        let mut loaded = match &search.source {
            SiteSource::Stock => load_stock(),
            SiteSource::Directory(directory) => {
                load(directory, &|text| unseal(text, &settings.keys))
            }
        };
        let plaintext = std::mem::take(&mut loaded.plaintext);
        let sealed = loaded.sealed;
        let by = search.searched.last().map_or("", |candidate| candidate.by);
        let documents = count(loaded.inputs.len(), "document");
        notices.detail(&match &search.source {
            SiteSource::Stock => format!("site: stock, {documents}"),
            SiteSource::Directory(directory) => {
                format!("site: {} ({by}), {documents}", directory.display())
            }
        });
        let mut catalog = loaded.catalog();
        catalog.kinds = kind_infos(&settings.kinds);
        let known = read_id(&search.source, &settings.state);
        let has_id = matches!(known, Ok(Some(_)));
        let id = known.and_then(|known| known.map_or_else(id::random, Ok));
        Ok(Self {
            catalog,
            search,
            plaintext,
            sealed,
            id,
            has_id,
            state: settings.state.clone(),
            notices,
            time: settings.time.clone(),
            flagged: settings.timeouts,
            timeouts: Mutex::new(settings.timeouts),
        })
    }

    /// Uses the time limits of a manifest, where neither flags nor the environment set one.
    pub fn limit(&self, manifest: &Timeouts) {
        let all = manifest.with(&self.flagged);
        *self.timeouts.lock().unwrap_or_else(PoisonError::into_inner) = all;
    }

    /// Returns the effective time limits.
    pub fn timeouts(&self) -> Timeouts {
        *self.timeouts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the site's id, or a new one for a site without. Reports diagnostics and fails when
    /// the id is not valid, so that nothing is done under a wrong one.
    pub fn id(&self) -> Result<&SiteId, DriverError> {
        self.id.as_ref().map_err(|error| {
            let failed = DriverError::from(error);
            let site = self.catalog.site.as_ref();
            let Some(site) = site.filter(|_| matches!(error, IdError::Invalid { .. })) else {
                return failed;
            };
            let sources = &self.catalog.sources;
            self.notices.diagnostics(&site.diagnostics, sources);
            let failed = match (error, site.diagnostics.errors()) {
                // What is wrong was shown, and is not the id in most cases.
                (IdError::Invalid { path }, 1..) => {
                    DriverError::failed(format!("`{}` is not valid.", path.display()))
                }
                _ => failed,
            };
            DriverError {
                diagnostics: Some(wire::diagnostic::details(&site.diagnostics, sources)),
                ..failed
            }
        })
    }

    /// Returns the id of the site, if it has one.
    pub fn known_id(&self) -> Result<Option<&SiteId>, &IdError> {
        self.id.as_ref().map(|id| Some(id).filter(|_| self.has_id))
    }

    /// Fails when the site has been given an id in the meantime.
    pub fn require_none_yet(&self) -> Result<(), DriverError> {
        match read_id(&self.search.source, &self.state)? {
            Some(other) => Err(IdError::Conflict(other).into()),
            None => Ok(()),
        }
    }

    /// Uses the id of a plan file for a site without, if it was new with the plan. Any other id is
    /// that of another site.
    pub fn expect_id(&mut self, id: &SiteId, is_new: bool) -> Result<(), DriverError> {
        if self.has_id {
            return Ok(());
        }
        if !is_new {
            return Err(DriverError::refused(format!(
                "The plan was made for site `{id}`; this site has no id."
            ))
            .hint(format!(
                "homestak site new-id --id {id} if this is that site"
            ))
            .hint("homestak manifest plan --out FILE writes a plan of this site"));
        }
        if let Ok(own) = &mut self.id {
            own.clone_from(id);
        }
        Ok(())
    }

    /// Stores the id of a site that has none.
    pub fn keep_id(&self) -> Result<(), DriverError> {
        let id = self.id()?;
        let (added, file) = match &self.search.source {
            SiteSource::Stock => (id::add_stock(&self.state, id), id::stock_file(&self.state)),
            SiteSource::Directory(directory) => {
                (id::add(directory, id), directory.join("site.yaml"))
            }
        };
        let added = added.map_err(|error| DriverError::from(error).hint("nothing was created"))?;
        let keep = match &self.search.source {
            SiteSource::Stock => "It is in the state directory: back that up.",
            SiteSource::Directory(_) => "Commit it with the site.",
        };
        let file = file.display();
        match added {
            IdChange::Nothing => {}
            IdChange::Version => self.notices.notice(&format!(
                "notice: {file} has `schema_version: 2` from now on, so that an older homestak, \
                 which does not support site ids, refuses the site"
            )),
            IdChange::Id => self.notices.notice(&format!(
                "notice: this site has the id `{id}` from now on, written to {file}\n  \
                 Guests are tagged with it; only guests with this tag are changed or removed. \
                 {keep}"
            )),
        }
        Ok(())
    }

    /// Replaces the id of the site, and returns the file it is in.
    pub fn replace_id(&self, new: &SiteId) -> Result<PathBuf, DriverError> {
        Ok(match &self.search.source {
            SiteSource::Stock => id::replace_stock(&self.state, new)?,
            SiteSource::Directory(directory) => id::replace(directory, new)?,
        })
    }
}

impl Session {
    /// Adds a document from a file, replacing that of the site with the same name, and returns its
    /// name: the one in the manifest, or else that of the file.
    pub fn add_file(&mut self, kind: DocumentKind, path: &Path) -> Result<String, DriverError> {
        let bytes = fs_err::read(path).map_err(|error| DriverError::file("read", path, &error))?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let (name, shown) = (stem.into_owned(), path.display().to_string());
        let text = homestak_site::load::text(bytes);
        let input = |name: &str| InputDocument {
            kind,
            name: name.to_owned(),
            path: shown.clone(),
            text: text.clone(),
        };
        let of_site = match kind {
            DocumentKind::Manifest => self.catalog.manifests.remove(&name),
            _ => None,
        };
        self.catalog.add(input(&name));
        let added = match kind {
            DocumentKind::Manifest => self.catalog.manifests.get(&name),
            _ => None,
        };
        let written = added.and_then(|document| document.value.as_ref()?.name.as_ref());
        let Some(written) = written.map(ToString::to_string).filter(|own| *own != name) else {
            return Ok(name);
        };
        self.catalog.manifests.remove(&name);
        if let Some(of_site) = of_site {
            self.catalog.manifests.insert(name, of_site);
        }
        self.catalog.add(input(&written));
        Ok(written)
    }
}

fn read_id(chosen: &SiteSource, state: &Path) -> Result<Option<SiteId>, IdError> {
    match chosen {
        SiteSource::Stock => id::read_stock(state),
        SiteSource::Directory(directory) => id::read(directory),
    }
}

/// Decrypts secrets with the configured keys. A missing key is a notice; a damaged file is an
/// error.
fn unseal(text: &str, keys: &KeySources) -> Result<String, LoadProblem> {
    open(text, keys).map_err(|failure| LoadProblem {
        code: Code::Sealed,
        severity: if failure.no_key {
            Severity::Notice
        } else {
            Severity::Error
        },
        message: failure.message,
        hint: failure.hint,
    })
}

/// Reports diagnostics, and fails when there are errors.
pub fn require_sound(
    notices: &dyn Notices,
    faults: &Diagnostics,
    sources: &Sources,
) -> Result<(), DriverError> {
    // The driver has its own key; who else can log in is checked by `validate`.
    notices.diagnostics(&faults.without(Code::NoKeys), sources);
    if faults.errors() == 0 {
        return Ok(());
    }
    let error = DriverError::failed("The documents have errors.")
        .hint("fix the errors above, then repeat the command");
    Err(DriverError {
        diagnostics: Some(wire::diagnostic::details(faults, sources)),
        ..error
    })
}
