//! Selects the manifest of a command: by name, from a file, or as JSON.

use std::path::{Path, PathBuf};

use homestak_core::catalog::InputDocument;
use homestak_core::doc::DocumentKind;
use homestak_core::doc::manifest::Mode;
use homestak_core::resolve::{ResolveOptions, ResolvedManifest, manifest};
use serde::Deserialize;

use crate::error::DriverError;
use crate::session::{Session, require_sound};

/// Selects a manifest, with overrides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ManifestSelector {
    /// Its name.
    #[serde(skip)]
    pub name: Option<String>,
    /// Its file, if it is not part of the site.
    #[serde(default)]
    pub file: Option<PathBuf>,
    /// Its content as JSON.
    #[serde(default)]
    pub json: Option<String>,
    /// The host of nodes without one.
    #[serde(default)]
    pub host: Option<String>,
    /// The mode, instead of that of the manifest.
    #[serde(default)]
    pub mode: Option<Mode>,
}

impl ManifestSelector {
    /// Returns whether a manifest is selected.
    pub fn is_given(&self) -> bool {
        self.name.is_some() || self.file.is_some() || self.json.is_some()
    }
}

/// Finds and resolves the manifest, after adding it to the site if needed. Its diagnostics are
/// reported; errors make this fail.
pub fn select(
    choice: &ManifestSelector,
    session: &mut Session,
) -> Result<(ResolvedManifest, ResolveOptions), DriverError> {
    let name = pick(choice, session)?.ok_or_else(|| {
        let known = session.catalog.manifests.keys();
        let known: Vec<&str> = known.map(String::as_str).collect();
        DriverError::usage("No manifest was given.")
            .hint(format!("add `-M NAME`; available: {}", known.join(", ")))
    })?;
    let request = request(choice, session)?;
    let (resolved, faults) = manifest(&session.catalog, &name, &request);
    require_sound(session.notices.as_ref(), &faults, &session.catalog.sources)?;
    let resolved =
        resolved.ok_or_else(|| DriverError::failed("The manifest could not be read."))?;
    Ok((resolved, request))
}

/// Returns the name of the selected manifest, after adding it to the site if needed.
pub fn pick(
    choice: &ManifestSelector,
    session: &mut Session,
) -> Result<Option<String>, DriverError> {
    if let Some(json) = &choice.json {
        let file = [".yaml", ".yml", ".json"]
            .iter()
            .any(|suffix| json.ends_with(suffix));
        if file && !json.contains('{') {
            return Err(DriverError::usage(format!(
                "`--manifest-json` takes the manifest itself, and `{json}` is the name of a file."
            ))
            .hint(format!("--manifest-file {json}")));
        }
        let name = inline_name(json);
        let input = InputDocument {
            kind: DocumentKind::Manifest,
            name: name.clone(),
            path: "--manifest-json".into(),
            text: Ok(json.clone()),
        };
        session.catalog.add(input);
        return Ok(Some(name));
    }
    if let Some(path) = &choice.file {
        return Ok(Some(session.add_file(DocumentKind::Manifest, path)?));
    }
    let Some(name) = &choice.name else {
        return Ok(None);
    };
    if !session.catalog.manifests.contains_key(name) {
        let known = session.catalog.manifests.keys().map(String::as_str);
        let unknown = DriverError::unknown("manifest", name, known);
        let path = Path::new(name);
        let is_path = name.contains('/') || path.extension().is_some_and(|end| end == "json");
        return Err(match is_path && !path.exists() {
            true => unknown.hint(format!("there is no file `{name}` either")),
            false => unknown,
        });
    }
    Ok(Some(name.clone()))
}

/// Inline JSON has no file name, so its own name counts.
fn inline_name(json: &str) -> String {
    let parsed: Option<serde_json::Value> = serde_json::from_str(json).ok();
    let name = parsed
        .as_ref()
        .and_then(|manifest| manifest.get("name")?.as_str());
    name.unwrap_or("inline").to_owned()
}

/// Makes the error for a host that neither the site nor this program has.
pub(crate) fn unknown_host(name: &str, session: &Session) -> DriverError {
    DriverError::unknown("host", name, session.catalog.host_names())
        .hint("hosts are the files in `nodes/` and `hosts/` of the site")
}

/// Returns the overrides for resolving.
pub fn request(
    choice: &ManifestSelector,
    session: &Session,
) -> Result<ResolveOptions, DriverError> {
    let unknown = |host: &&String| !session.catalog.has_host(host);
    if let Some(host) = choice.host.as_ref().filter(unknown) {
        return Err(unknown_host(host, session));
    }
    Ok(ResolveOptions {
        host: choice.host.clone(),
        mode: choice.mode,
        ..ResolveOptions::default()
    })
}
