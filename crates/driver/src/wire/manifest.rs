//! Manifests and specs with their references resolved.

use homestak_api::v1::{ManifestDetail, Origins, ResolvedNode, ResolvedSpec, SpecDetail};
use homestak_core::doc::Sources;
use homestak_core::resolve::{self, ResolvedJson, ResolvedManifest};
use serde_json::Value as Json;

use crate::error::DriverError;

/// Reads what a sheet holds as a type of the wire. A sheet and its type are declared apart, so a
/// mistake in one of them is an error here.
fn read<T: serde::de::DeserializeOwned>(sheet: Json) -> Result<T, DriverError> {
    serde_json::from_value(sheet).map_err(|error| {
        DriverError::failed(format!("Internal error: {error}."))
            .hint("this is a bug in homestak; please report it")
    })
}

/// Converts a manifest. Each node comes with its resolved spec, if it has one.
pub fn detail(
    resolved: &ResolvedManifest,
    nodes: Vec<ResolvedNode>,
) -> Result<ManifestDetail, DriverError> {
    let mut body = resolved.render().into_json();
    body["nodes"] = Json::Array(Vec::new());
    let detail: ManifestDetail = read(body)?;
    Ok(ManifestDetail { nodes, ..detail })
}

/// Converts a node, with its resolved spec; with `origins`, also where values come from.
pub fn node(
    node: &resolve::ResolvedNode,
    spec: Option<ResolvedJson>,
    sources: Option<&Sources>,
) -> Result<ResolvedNode, DriverError> {
    let sheet = node.render();
    let own = sources.map(|sources| origins(&sheet, sources));
    let of_spec = sources.map(|sources| spec.as_ref().map(|spec| origins(spec, sources)));
    let mut body = sheet.into_json();
    body["resolved_spec"] = Json::Null;
    let node: ResolvedNode = read(body)?;
    Ok(ResolvedNode {
        resolved_spec: spec.map(resolved_spec),
        origins: own,
        spec_origins: of_spec,
        ..node
    })
}

/// Converts a spec; with `origins`, also where its values come from.
pub fn spec(name: &str, sheet: ResolvedJson, sources: Option<&Sources>) -> SpecDetail {
    SpecDetail {
        name: name.to_owned(),
        origins: sources.map(|sources| origins(&sheet, sources)),
        spec: resolved_spec(sheet),
    }
}

fn resolved_spec(sheet: ResolvedJson) -> ResolvedSpec {
    match sheet.into_json() {
        Json::Object(fields) => ResolvedSpec(fields),
        _ => ResolvedSpec(serde_json::Map::new()),
    }
}

fn origins(sheet: &ResolvedJson, sources: &Sources) -> Origins {
    let origins = sheet.origins().iter();
    let origins = origins.map(|(path, origin)| (path.clone(), origin.describe(sources).into()));
    Origins(origins.collect())
}
