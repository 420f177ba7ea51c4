//! `homestak spec`: list, show with everything resolved, check, compare with a node, fetch.

use std::path::Path;
use std::process::ExitCode;

use homestak_api::v1::{SpecList, SpecSummary, SpecValidation, kind};
use homestak_core::doc::{Diagnostics, DocumentKind};
use homestak_core::resolve::spec::{DEFAULT_POSTURE, check, spec};
use homestak_driver::error::count;
use homestak_driver::{DriverError, Session, require_sound, wire};

use super::manifest::show::{origin_rows, secret_visibility};
use super::{Outcome, run_agent, verdict};
use crate::args::SpecCommand;
use crate::settings::Settings;
use crate::ui::{Printer, table};

/// Runs a spec command.
pub(super) fn run(command: SpecCommand, settings: &Settings, printer: &Printer) -> Outcome {
    let open = || settings.session();
    match command {
        SpecCommand::List => list(&open()?, printer),
        SpecCommand::Show {
            name,
            origin,
            show_secrets,
        } => show(&open()?, &name, origin, show_secrets, printer),
        SpecCommand::Validate { specs } => validate(open()?, &specs, printer),
        SpecCommand::Diff(which) => super::manifest::diff(&which, settings, printer),
        SpecCommand::Get(own) => Ok(run_agent(&["spec", "get"], own, printer)),
    }
}

fn list(session: &Session, printer: &Printer) -> Outcome {
    let described = session.catalog.specs.values().map(|document| {
        let value = document.value.as_ref();
        let description = value
            .and_then(|spec| spec.description.as_ref())
            .map_or("", |text| text.as_str());
        let posture = value.and_then(|spec| spec.access.as_ref()?.posture.as_ref());
        (
            document.name.as_str(),
            posture.map_or(DEFAULT_POSTURE, |posture| posture.as_str()),
            description,
        )
    });
    if printer.output.json {
        let specs = described.map(|(name, posture, description)| SpecSummary {
            name: name.to_owned(),
            posture: posture.to_owned(),
            description: description.to_owned(),
        });
        let specs = specs.collect();
        printer.json(&kind::SPEC_LIST, &SpecList { specs });
    } else {
        let rows = described
            .map(|(name, posture, text)| vec![name.into(), posture.into(), text.into()])
            .collect();
        printer.data(&table::render(&["name", "posture", "description"], rows));
    }
    Ok(ExitCode::SUCCESS)
}

fn show(
    session: &Session,
    name: &str,
    origin: bool,
    show_secrets: bool,
    printer: &Printer,
) -> Outcome {
    let catalog = &session.catalog;
    if !catalog.specs.contains_key(name) {
        return Err(DriverError::unknown(
            "spec",
            name,
            catalog.specs.keys().map(String::as_str),
        ));
    }
    let mut faults = Diagnostics::default();
    check(catalog, name, &mut faults);
    require_sound(printer, &faults, &catalog.sources)?;
    let sheet = spec(catalog, name, None, secret_visibility(show_secrets))
        .ok_or_else(|| DriverError::failed(format!("The spec `{name}` could not be read.")))?;
    if printer.output.json {
        let sources = origin.then_some(&catalog.sources);
        printer.json(
            &kind::SPEC_SHOW,
            &wire::manifest::spec(name, sheet, sources),
        );
    } else if origin {
        printer.data(&table::render(
            &["value", "is", "from"],
            origin_rows(&sheet, &catalog.sources),
        ));
    } else {
        printer.data(&homestak_core::doc::emit::emit(
            &homestak_core::doc::Value::from_json(&sheet.json()),
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn validate(mut session: Session, wanted: &[String], printer: &Printer) -> Outcome {
    let mut names: Vec<String> = Vec::new();
    for name in wanted {
        // A path is read in place of the site's spec of that name.
        if name.contains('/') || Path::new(name).is_file() {
            names.push(session.add_file(DocumentKind::Spec, Path::new(name))?);
        } else if session.catalog.specs.contains_key(name) {
            names.push(name.clone());
        } else {
            let known = session.catalog.specs.keys().map(String::as_str);
            return Err(DriverError::unknown("spec", name, known));
        }
    }
    if wanted.is_empty() {
        names = session.catalog.specs.keys().cloned().collect();
    }
    let mut faults = Diagnostics::default();
    for name in &names {
        check(&session.catalog, name, &mut faults);
    }
    let good = format!(
        "{} valid: {}",
        if names.len() == 1 {
            "1 spec is"
        } else {
            "All specs are"
        },
        names.join(", ")
    );
    let good = if names.len() == 1 {
        good
    } else {
        good.replace(
            "All specs are",
            &format!("{} are", count(names.len(), "spec")),
        )
    };
    let body = |success, diagnostics| SpecValidation {
        specs: names,
        success,
        diagnostics,
    };
    let found = (&faults, &session.catalog.sources);
    verdict(printer, &kind::SPEC_VALIDATE, found, body, &good)
}
