//! `homestak manifest validate`: every fault of a manifest and of what it uses.

use homestak_api::v1::{ManifestValidation, ValidatedManifest, kind};
use homestak_core::doc::Diagnostics;
use homestak_core::resolve::manifest;
use homestak_driver::error::count;
use homestak_driver::select::{pick, request};

use crate::args::ManifestArgs;
use crate::commands::{Outcome, verdict};
use crate::settings::Settings;
use crate::ui::Printer;

/// Checks one manifest, or all of them.
pub(super) fn run(args: &ManifestArgs, settings: &Settings, printer: &Printer) -> Outcome {
    let mut session = settings.session()?;
    let choice = args.choice();
    let one = pick(&choice, &mut session)?;
    let request = request(&choice, &session)?;
    let catalog = &session.catalog;
    let names: Vec<String> = one.map_or_else(
        || catalog.manifests.keys().cloned().collect(),
        |name| vec![name],
    );
    let mut all = Diagnostics::default();
    let mut manifests = Vec::new();
    let mut good = Vec::new();
    for name in &names {
        let (resolved, faults) = manifest(catalog, name, &request);
        let nodes = resolved.as_ref().map_or(0, |resolved| resolved.nodes.len());
        let pattern = resolved
            .as_ref()
            .map_or_else(String::new, |resolved| resolved.pattern.value.to_string());
        good.push(format!(
            "{name}: valid ({}, {pattern})",
            count(nodes, "node")
        ));
        manifests.push(ValidatedManifest {
            name: name.clone(),
            valid: faults.errors() == 0,
            nodes,
            pattern,
        });
        all.extend(faults);
    }
    let body = |success, diagnostics| ManifestValidation {
        manifests,
        success,
        diagnostics,
    };
    verdict(
        printer,
        &kind::MANIFEST_VALIDATE,
        (&all, &catalog.sources),
        body,
        &good.join("\n"),
    )
}
