//! A site opened for one command: found, loaded, decoded.
//!
//! In: settings. Out: [`Session`].
//! Never: a command that loads a site in a way of its own.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use homestak_core::catalog::{Catalog, InputDocument, LoadProblem};
use homestak_core::doc::scalar::SiteId;
use homestak_core::doc::timeouts::Timeouts;
use homestak_core::doc::{Code, Diagnostics, DocumentKind, Severity, Sources};
use homestak_site::id::{self, IdChange, IdError};
use homestak_site::{SiteSearch, SiteSource, find, load, load_stock};

use crate::clock::Time;
use crate::error::{DriverError, count, diagnostics_json};
use crate::hosts::known;
use crate::notices::Notices;
use crate::secrets::{KeySources, open};
use crate::settings::DriverSettings;

/// A site opened for one command.
pub struct Session {
    /// Its documents.
    pub catalog: Catalog,
    /// Which site it is, and why.
    pub search: SiteSearch,
    /// Files of the site that hold unsealed secrets.
    pub plaintext: Vec<String>,
    /// Its id; a new one that is not written anywhere yet for a site without. Unknown when the
    /// file it is kept in is not valid.
    id: Result<SiteId, IdError>,
    /// Whether the site has that id already.
    pub has_id: bool,
    /// Where state is kept, with the id of the built-in site.
    pub(crate) state: PathBuf,
    /// Who hears notices.
    pub notices: Arc<dyn Notices>,
    /// The clock that everything waits by.
    pub time: Time,
    /// Whether the secrets that are read are sealed.
    pub sealed: bool,
    /// Time limits of flags and the environment, and those of the manifest below them.
    flagged: Timeouts,
    timeouts: Mutex<Timeouts>,
}

impl Session {
    /// Finds, loads and decodes the site. Reads files, so that asynchronous code calls it through
    /// [`off`](crate::off()).
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
        let by = search.searched.last().map_or("", |look| look.by);
        let documents = count(loaded.inputs.len(), "document");
        notices.detail(&match &search.source {
            SiteSource::Stock => format!("site: stock, {documents}"),
            SiteSource::Directory(directory) => {
                format!("site: {} ({by}), {documents}", directory.display())
            }
        });
        let mut catalog = loaded.catalog();
        catalog.kinds = known(&settings.kinds);
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

    /// Has the time limits of a manifest hold, where neither flags nor the environment set one.
    pub fn limit(&self, manifest: &Timeouts) {
        let all = manifest.with(&self.flagged);
        *self.timeouts.lock().unwrap_or_else(PoisonError::into_inner) = all;
    }

    /// Returns the time limits that hold.
    pub fn timeouts(&self) -> Timeouts {
        *self.timeouts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the site's id, or a new one for a site without. When the id is unknown, this shows
    /// the faults and fails, so that nothing is done under a guess.
    pub fn id(&self) -> Result<&SiteId, DriverError> {
        self.id.as_ref().map_err(|error| {
            let failed = DriverError::from(error);
            let site = self.catalog.site.as_ref();
            let Some(site) = site.filter(|_| matches!(error, IdError::Invalid { .. })) else {
                return failed;
            };
            let sources = &self.catalog.sources;
            self.notices.diagnostics(&site.diagnostics, sources);
            DriverError {
                diagnostics: Some(Box::new(diagnostics_json(&site.diagnostics, sources))),
                ..failed
            }
        })
    }

    /// Returns the id that the site has, and `None` when it has none yet.
    pub fn known_id(&self) -> Result<Option<&SiteId>, &IdError> {
        self.id.as_ref().map(|id| Some(id).filter(|_| self.has_id))
    }

    /// Makes sure that a site without an id has not got one meanwhile.
    pub fn require_none_yet(&self) -> Result<(), DriverError> {
        match read_id(&self.search.source, &self.state)? {
            Some(other) => Err(IdError::Conflict(other).into()),
            None => Ok(()),
        }
    }

    /// Takes the id of a written plan for a site that has none, so that the plan still fits. Only
    /// an id that was new with the plan: any other one is that of another site.
    pub fn expect_id(&mut self, id: &SiteId, is_new: bool) -> Result<(), DriverError> {
        if self.has_id {
            return Ok(());
        }
        if !is_new {
            return Err(DriverError::refused(format!(
                "The plan is of the site `{id}`, and this site has none."
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

    /// Makes sure that the site has the id that guests are about to get; one without an id gets it.
    pub fn keep_id(&self) -> Result<(), DriverError> {
        let id = self.id()?;
        let (added, file) = match &self.search.source {
            SiteSource::Stock => (id::add_stock(&self.state, id), id::stock_file(&self.state)),
            SiteSource::Directory(directory) => {
                (id::add(directory, id), directory.join("site.yaml"))
            }
        };
        let added = added.map_err(|error| DriverError::from(error).hint("nothing was created"))?;
        let file = file.display();
        match added {
            IdChange::Nothing => {}
            IdChange::Version => self.notices.notice(&format!(
                "notice: {file} has `schema_version: 2` from now on, so that an older homestak, \
                 which knows no ids, refuses the site"
            )),
            IdChange::Id => self.notices.notice(&format!(
                "notice: this site has the id `{id}` from now on, written to {file}\n  \
                 Guests carry it, and only guests that carry it are changed or removed. \
                 Keep it with the site."
            )),
        }
        Ok(())
    }

    /// Gives the site another id, and returns where it is written.
    pub fn replace_id(&self, new: &SiteId) -> Result<PathBuf, DriverError> {
        Ok(match &self.search.source {
            SiteSource::Stock => id::replace_stock(&self.state, new)?,
            SiteSource::Directory(directory) => id::replace(directory, new)?,
        })
    }
}

impl Session {
    /// Adds a document from a file, in place of the site's of that name, and returns its name: the
    /// one that a manifest gives itself, else the file's.
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

/// Opens sealed secrets with the keys of the standard places. Having no key is no fault of the
/// site, so it is a notice; a file that was tampered with is one.
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

/// Stops when documents have faults, after handing them over.
pub fn require_sound(
    notices: &dyn Notices,
    faults: &Diagnostics,
    sources: &Sources,
) -> Result<(), DriverError> {
    // The driver has a key of its own; who else can log in is a question for `validate`.
    notices.diagnostics(&faults.without(Code::NoKeys), sources);
    if faults.errors() == 0 {
        return Ok(());
    }
    let error = DriverError::failed("The documents have faults, so there is nothing to show.")
        .hint("mend the faults above, then run the command again");
    Err(DriverError {
        diagnostics: Some(Box::new(diagnostics_json(faults, sources))),
        ..error
    })
}
