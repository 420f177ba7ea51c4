//! A site opened for one command: found, loaded, decoded.
//!
//! In: settings. Out: [`Session`].
//! Never: a command that loads a site in a way of its own.

use std::path::Path;

use homestak_core::catalog::{Catalog, Input, Problem};
use homestak_core::doc::{Code, Kind, Severity};
use homestak_site::{Chosen, Find, find, load, load_stock};

use crate::commands::secrets::open;
use crate::error::CommandError;
use crate::settings::Settings;
use crate::ui::{Printer, count};

/// A site opened for one command.
pub(crate) struct Session {
    /// Its documents.
    pub(crate) catalog: Catalog,
    /// Which site it is, and why.
    pub(crate) find: Find,
    /// Files of the site that hold unsealed secrets.
    pub(crate) plaintext: Vec<String>,
    /// Whether the secrets that are read are sealed.
    pub(crate) sealed: bool,
}

impl Session {
    /// Finds, loads and decodes the site.
    pub(crate) fn open(settings: &Settings) -> Result<Self, CommandError> {
        let find = find(&settings.candidates)?;
        let mut loaded = match &find.chosen {
            Chosen::Stock => load_stock(),
            Chosen::Directory(directory) => load(directory, &|text| unseal(text, settings)),
        };
        let plaintext = std::mem::take(&mut loaded.plaintext);
        let sealed = loaded.sealed;
        let by = find.looks.last().map_or("", |look| look.by);
        let documents = count(loaded.inputs.len(), "document");
        Printer::new(settings.shape).detail(&match &find.chosen {
            Chosen::Stock => format!("site: stock, {documents}"),
            Chosen::Directory(directory) => {
                format!("site: {} ({by}), {documents}", directory.display())
            }
        });
        Ok(Self {
            catalog: loaded.catalog(),
            find,
            plaintext,
            sealed,
        })
    }
}

impl Session {
    /// Adds a document from a file, in place of the site's of that name, and returns its name.
    pub(crate) fn add_file(&mut self, kind: Kind, path: &Path) -> Result<String, CommandError> {
        let bytes = fs_err::read(path).map_err(|error| CommandError::file("read", path, &error))?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let (name, shown) = (stem.into_owned(), path.display().to_string());
        let text = homestak_site::load::text(bytes);
        self.catalog.add(Input {
            kind,
            name: name.clone(),
            path: shown,
            text,
        });
        Ok(name)
    }
}

/// Opens sealed secrets with the keys of the standard places. Having no key is no fault of the
/// site, so it is a notice; a file that was tampered with is one.
fn unseal(text: &str, settings: &Settings) -> Result<String, Problem> {
    open(text, settings).map_err(|failure| Problem {
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
