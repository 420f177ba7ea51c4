//! `homestak site`: shows, creates and checks the site.

use std::path::Path;
use std::process::ExitCode;

use homestak_api::v1::{SiteCandidate, SiteDetail, SiteInit, SiteNewId, SiteValidation, kind};
use homestak_core::catalog::LoadProblem;
use homestak_core::doc::scalar::SiteId;
use homestak_core::doc::{Code, DocumentKind, Severity};
use homestak_core::resolve::site::validate;
use homestak_driver::error::count;
use homestak_driver::runs::{is_unfinished, newest, other_site_hint, runs_of_other_sites};
use homestak_driver::{DriverError, journal};
use homestak_site::find::{SearchOutcome, SearchedPath};
use homestak_site::id::{self, IdError};
use homestak_site::{SiteSource, git, init};

use super::{Outcome, agree, verdict};
use crate::args::SiteCommand;
use crate::runtime::block_on;
use crate::settings::Settings;
use crate::ui::{Printer, table};

/// Runs a site command.
pub(super) fn run(command: SiteCommand, settings: &Settings, printer: &Printer) -> Outcome {
    match command {
        SiteCommand::Show => show(settings, printer),
        SiteCommand::Init { directory } => start(&directory, printer),
        SiteCommand::Validate => check(settings, printer),
        SiteCommand::NewId { id, yes } => new_id(id.as_deref(), yes, settings, printer),
    }
}

/// Gives the site another id, after showing the consequences.
fn new_id(wanted: Option<&str>, yes: bool, settings: &Settings, printer: &Printer) -> Outcome {
    let session = settings.session()?;
    let new = match wanted {
        Some(text) => SiteId::new(text).ok_or_else(|| {
            DriverError::usage(format!("`{text}` is not the id of a site."))
                .hint("an id has 8 to 32 lower-case letters and digits, and begins with a letter")
        })?,
        None => id::random()?,
    };
    let journal = journal(&settings.driver)?;
    let known = match session.known_id() {
        Ok(known) => known.cloned(),
        // The file has no valid id that could be lost.
        Err(IdError::InvalidStock { .. }) if wanted.is_some() => None,
        Err(error) => {
            let failed = session.id().err().unwrap_or_else(|| error.into());
            if !matches!(error, IdError::InvalidStock { .. }) {
                return Err(failed);
            }
            let others = block_on(runs_of_other_sites(None, &[], journal.as_ref(), None))??;
            let hints = others.iter().map(other_site_hint);
            return Err(hints.fold(failed, DriverError::hint));
        }
    };
    if known.as_ref() == Some(&new) {
        if printer.output.json {
            print_new_id(&new, known.as_ref(), None, printer);
        } else {
            printer.message(&format!(
                "The site's id is `{new}` already; nothing was changed."
            ));
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(known) = &known {
        let mut runs = block_on(journal.runs(None))??;
        runs.retain(|run| run.site.as_ref() == Some(known));
        for run in newest(runs).iter().filter(|run| is_unfinished(run)) {
            printer.message(&format!(
                "notice: run {} ({} `{}` on {}) is unfinished; with another id it is neither resumed nor undone",
                run.id,
                run.verb,
                run.manifest,
                run.hosts.join(",")
            ));
        }
        let question = format!(
            "Replace the site's id `{known}`? Guests tagged with it belong to another site afterwards: \
             nothing here changes or removes them any more."
        );
        block_on(agree(yes, &question, printer))??;
    }
    let file = session.replace_id(&new)?;
    if printer.output.json {
        print_new_id(&new, known.as_ref(), Some(&file), printer);
    } else {
        printer.message(&format!(
            "The site's id is `{new}`, written to {}",
            file.display()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn print_new_id(new: &SiteId, before: Option<&SiteId>, file: Option<&Path>, printer: &Printer) {
    let body = SiteNewId {
        success: true,
        id: new.to_string(),
        before: before.map(ToString::to_string),
        file: file.map(|file| file.display().to_string()),
    };
    printer.json(&kind::SITE_NEW_ID, &body);
}

/// Returns a short reason why the id is unknown.
fn unknown(error: &IdError) -> String {
    let (path, why) = match error {
        IdError::Invalid { path } | IdError::InvalidStock { path, .. } => (path, "is not valid"),
        IdError::Read { path, .. } => (path, "cannot be read"),
        IdError::Write { .. }
        | IdError::NotEditable { .. }
        | IdError::Conflict(_)
        | IdError::Random(_) => {
            return error.to_string();
        }
    };
    let file = path.file_name().unwrap_or_default().display();
    format!("{file} {why}")
}

fn show(settings: &Settings, printer: &Printer) -> Outcome {
    let session = settings.session()?;
    let catalog = &session.catalog;
    let chosen = match &session.search.source {
        SiteSource::Directory(directory) => directory.display().to_string(),
        SiteSource::Stock => "stock".to_owned(),
    };
    let id = session.known_id().map_err(unknown);
    let by = session
        .search
        .searched
        .last()
        .map_or("", |candidate| candidate.by);
    let secrets = match &catalog.secrets {
        None => "none",
        Some(secrets) if secrets.value.is_none() => "cannot be opened",
        Some(_) if session.sealed => "sealed",
        Some(_) => "plain",
    };
    let counts: Vec<(DocumentKind, usize)> = [
        (DocumentKind::Manifest, catalog.manifests.len()),
        (DocumentKind::Spec, catalog.specs.len()),
        (DocumentKind::Posture, catalog.postures.len()),
        (DocumentKind::Preset, catalog.presets.len()),
        (DocumentKind::Image, catalog.images.len()),
        (DocumentKind::Host, catalog.hosts.len()),
        (DocumentKind::Node, catalog.nodes.len()),
    ]
    .to_vec();
    if printer.output.json {
        let looked_at = session
            .search
            .searched
            .iter()
            .map(|candidate| SiteCandidate {
                by: candidate.by.to_owned(),
                path: candidate
                    .path
                    .as_ref()
                    .map(|path| path.display().to_string()),
                outcome: outcome(candidate).to_owned(),
            });
        let documents = counts.iter();
        let documents =
            documents.map(|(kind, number)| (format!("{}s", kind.name()), (*number).into()));
        let detail = SiteDetail {
            site: chosen,
            chosen_by: by.to_owned(),
            looked_at: looked_at.collect(),
            documents: documents.collect(),
            secrets: secrets.to_owned(),
            state: settings.driver.state.display().to_string(),
            id: (id.as_ref().ok().copied().flatten()).map(ToString::to_string),
            id_error: id.err(),
        };
        printer.json(&kind::SITE_SHOW, &detail);
        return Ok(ExitCode::SUCCESS);
    }
    let documents: Vec<String> = counts
        .iter()
        .map(|(kind, number)| count(*number, kind.name()))
        .collect();
    let rows = session
        .search
        .searched
        .iter()
        .map(|candidate| {
            let path = candidate
                .path
                .as_ref()
                .map_or_else(String::new, |path| path.display().to_string());
            vec![candidate.by.to_owned(), outcome(candidate).to_owned(), path]
        })
        .collect();
    let shown = match &id {
        Ok(Some(id)) => id.to_string(),
        Ok(None) => "none yet".to_owned(),
        Err(why) => format!("unknown ({why})"),
    };
    printer.data(&format!(
        "site:       {chosen}\nid:         {}\nchosen by:  {by}\ndocuments:  {}\nsecrets:    {secrets}\nstate:      {}\n\n{}",
        shown,
        documents.join(", "),
        settings.driver.state.display(),
        table::render(&["search path", "result", "path"], rows),
    ));
    Ok(ExitCode::SUCCESS)
}

fn outcome(candidate: &SearchedPath) -> &'static str {
    match candidate.outcome {
        SearchOutcome::NotSet => "not set",
        SearchOutcome::Missing => "does not exist",
        SearchOutcome::Empty => "not a site",
        SearchOutcome::Used => "used",
    }
}

fn start(directory: &Path, printer: &Printer) -> Outcome {
    let written = init(directory)?;
    if printer.output.json {
        let init = SiteInit {
            success: true,
            site: directory.display().to_string(),
            files: (written.iter())
                .map(|file| file.display().to_string())
                .collect(),
        };
        printer.json(&kind::SITE_INIT, &init);
        return Ok(ExitCode::SUCCESS);
    }
    let shown = directory.display();
    // Absolute, so that it is valid in every directory.
    let absolute = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    printer.message(&format!(
        "Wrote {} to {shown}\n\nNext:\n  homestak --site {shown} site validate\n  homestak --site {shown} manifest show n1-push\n  export HOMESTAK_SITE_CONFIG={}    # to leave --site out",
        count(written.len(), "file"),
        absolute.display(),
    ));
    Ok(ExitCode::SUCCESS)
}

fn check(settings: &Settings, printer: &Printer) -> Outcome {
    let mut session = settings.session()?;
    if let SiteSource::Directory(directory) = &session.search.source {
        for file in git::tracked(directory, &session.plaintext) {
            let path = directory.join(&file).display().to_string();
            session.catalog.add_problem(path, &plaintext_in_git(&file));
        }
    }
    let catalog = &session.catalog;
    let faults = validate(catalog);
    let documents = catalog.n_documents();
    let good = format!(
        "The site is valid: {}, {}, {}.",
        count(catalog.manifests.len(), "manifest"),
        count(catalog.specs.len(), "spec"),
        count(documents, "document in all").replace("document in alls", "documents in all"),
    );
    let body = |success, diagnostics| SiteValidation {
        documents,
        success,
        diagnostics,
    };
    let found = (&faults, &catalog.sources);
    verdict(printer, &kind::SITE_VALIDATE, found, body, &good)
}

fn plaintext_in_git(file: &str) -> LoadProblem {
    LoadProblem {
        code: Code::PlaintextSecrets,
        severity: Severity::Error,
        message: format!("`{file}` is not encrypted and is tracked by git"),
        hint: format!(
            "git rm --cached {file}, encrypt it with `homestak secrets encrypt`, and replace what was pushed"
        ),
    }
}
