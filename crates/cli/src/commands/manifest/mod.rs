//! `homestak manifest`: shows and executes manifests, and inspects their runs.

mod apply;
mod configure;
mod context;
mod destroy;
mod diff;
mod forget;
mod graph;
mod history;
mod migrate;
mod plan;
mod reidentify;
mod report;
mod resume;
mod rollback;
pub(super) mod show;
mod status;
mod test;
mod test_report;
mod unlock;
mod validate;

use std::process::ExitCode;

use homestak_api::v1::{ManifestList, ManifestSummary, kind};
use homestak_core::resolve::{ResolveOptions, manifest};

use super::Outcome;
use crate::args::{ManifestCommand, RunArgs};
use crate::settings::Settings;
use crate::ui::{Printer, table};

pub(super) use diff::run as diff;

/// Runs a manifest command.
pub(super) fn run(command: ManifestCommand, settings: &Settings, printer: &Printer) -> Outcome {
    match command {
        ManifestCommand::List => list(settings, printer),
        ManifestCommand::Show {
            manifest,
            node,
            origin,
            show_secrets,
        } => {
            let options = show::Options {
                node: node.as_deref(),
                origin,
                show_secrets,
            };
            show::run(&manifest, &options, settings, printer)
        }
        ManifestCommand::Validate { manifest } => validate::run(&manifest, settings, printer),
        ManifestCommand::Plan(args) => plan::run(&args, settings, printer),
        ManifestCommand::Apply(args) => apply::run(&args, settings, printer),
        ManifestCommand::Configure(args) => configure::run(&args, settings, printer),
        ManifestCommand::Destroy(args) => destroy::run(&args, settings, printer),
        ManifestCommand::Test(args) => test::run(&args, settings, printer),
        ManifestCommand::Status { which, offline } => {
            status::run(&which, offline, settings, printer)
        }
        ManifestCommand::Resume {
            which,
            mut mark_resolved,
            from,
            events,
        } => {
            if !from.is_empty() {
                printer.message("notice: `--from` is now `--mark-resolved`");
                mark_resolved.extend(from);
            }
            resume::resume(&which, &mark_resolved, events, settings, printer)
        }
        ManifestCommand::Rollback(args) => rollback::run(&args, settings, printer),
        ManifestCommand::History {
            which,
            limit,
            before,
        } => history::run(&which, limit as usize, before, settings, printer),
        ManifestCommand::Unlock {
            manifest,
            host,
            yes,
        } => unlock::run(manifest, host, yes, settings, printer),
        ManifestCommand::Report {
            run,
            manifest,
            host,
            out,
            follow,
        } => {
            let which = RunArgs {
                name: None,
                manifest,
                host,
            };
            let options = report::Options {
                number: run,
                out: out.as_deref(),
                follow,
            };
            report::run(&options, &which, settings, printer)
        }
        ManifestCommand::Reidentify { manifest, execute } => {
            reidentify::run(&manifest, &execute, settings, printer)
        }
        ManifestCommand::Forget {
            node,
            manifest,
            host,
            yes,
        } => {
            let which = RunArgs {
                name: None,
                manifest,
                host,
            };
            forget::run(&node, &which, yes, settings, printer)
        }
        ManifestCommand::Graph {
            manifest,
            format,
            out,
            ascii,
        } => graph::run(&manifest, format, out.as_deref(), ascii, settings, printer),
        ManifestCommand::Migrate {
            file,
            manifest,
            out,
        } => migrate::run(
            file.as_deref(),
            manifest.as_deref(),
            out.as_deref(),
            settings,
            printer,
        ),
    }
}

fn list(settings: &Settings, printer: &Printer) -> Outcome {
    let session = settings.session()?;
    let mut manifests = Vec::new();
    for name in session.catalog.manifests.keys() {
        let (resolved, faults) = manifest(&session.catalog, name, &ResolveOptions::default());
        let resolved = resolved.as_ref();
        let description = resolved.and_then(|resolved| resolved.description.clone());
        let pattern = resolved.map(|resolved| resolved.pattern.value.to_string());
        manifests.push(ManifestSummary {
            name: name.clone(),
            pattern: pattern.unwrap_or_default(),
            nodes: resolved.map_or(0, |resolved| resolved.nodes.len()),
            valid: faults.errors() == 0,
            description: description.unwrap_or_default(),
        });
    }
    if printer.output.json {
        printer.json(&kind::MANIFEST_LIST, &ManifestList { manifests });
        return Ok(ExitCode::SUCCESS);
    }
    let rows = manifests.into_iter().map(|manifest| {
        let description = match manifest.valid {
            true => manifest.description,
            false => format!("(invalid) {}", manifest.description),
        };
        let nodes = manifest.nodes.to_string();
        vec![manifest.name, manifest.pattern, nodes, description]
    });
    let headings = ["name", "pattern", "nodes", "description"];
    printer.data(&table::render(&headings, rows.collect()));
    Ok(ExitCode::SUCCESS)
}
