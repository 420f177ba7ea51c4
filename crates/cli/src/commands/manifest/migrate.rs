//! `homestak manifest migrate`: converts a manifest of version 1 to version 2.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use homestak_api::v1::{ManifestMigration, MigratedManifest, kind};
use homestak_core::doc::emit::emit;
use homestak_core::doc::migrate::{NotMigrated, migrate};
use homestak_core::doc::{Diagnostics, Source, Sources, yaml};
use homestak_driver::{DriverError, wire};
use homestak_site::{SiteSource, find};

use crate::commands::{Outcome, write_file};
use crate::settings::Settings;
use crate::ui::Printer;

/// Migrates a file, or a manifest of the site.
pub(super) fn run(
    file: Option<&Path>,
    name: Option<&str>,
    out: Option<&Path>,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let path = match (file, name) {
        (Some(file), _) => file.to_owned(),
        (None, Some(name)) => of_site(name, settings)?,
        (None, None) => {
            return Err(
                DriverError::usage("No manifest was named.").hint("homestak manifest migrate FILE")
            );
        }
    };
    let text =
        fs_err::read_to_string(&path).map_err(|error| DriverError::file("read", &path, &error))?;
    let stem = path
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let (mut sources, mut faults) = (Sources::default(), Diagnostics::default());
    let source = Source::new(path.display().to_string(), text);
    let file = sources.add(source.clone());
    let migrated = yaml::parse(file, &source, &mut faults)
        .ok_or(NotMigrated::Invalid)
        .and_then(|tree| migrate(&tree, &stem, &mut faults));
    printer.diagnostics(&faults, &sources);
    let document = migrated.map_err(|why| refusal(why, &path))?;
    let text = emit(&document);
    if let Some(out) = out {
        write_file(out, &text)?;
        printer.message(&format!("Wrote {}", out.display()));
    }
    if printer.output.json {
        let migration = ManifestMigration {
            success: true,
            manifest: MigratedManifest(document.to_json()),
            diagnostics: wire::diagnostic::diagnostics(&faults, &sources),
        };
        printer.json(&kind::MANIFEST_MIGRATE, &migration);
    } else if out.is_none() {
        printer.data(&text);
    }
    Ok(ExitCode::SUCCESS)
}

fn of_site(name: &str, settings: &Settings) -> Result<PathBuf, DriverError> {
    let SiteSource::Directory(site) = find(&settings.driver.candidates)?.source else {
        return Err(DriverError::failed(
            "The stock site has no manifests of version 1.",
        ));
    };
    let places = [
        format!("manifests/{name}.yaml"),
        format!("v2/manifests/{name}.yaml"),
    ];
    let found = places
        .iter()
        .map(|place| site.join(place))
        .find(|path| path.is_file());
    found.ok_or_else(|| {
        DriverError::failed(format!(
            "There is no manifest `{name}` in {}",
            site.display()
        ))
    })
}

fn refusal(why: NotMigrated, path: &Path) -> DriverError {
    let shown = path.display();
    match why {
        NotMigrated::AlreadyCurrent => {
            DriverError::failed(format!("`{shown}` is already a manifest of version 2.")).hint(
                format!("homestak manifest validate --manifest-file {shown}"),
            )
        }
        NotMigrated::NoLevels => DriverError::failed(format!(
            "`{shown}` has no `levels`, so it is not a manifest of version 1."
        )),
        NotMigrated::Invalid => {
            DriverError::failed(format!("`{shown}` is invalid, so it was not migrated."))
        }
    }
}
