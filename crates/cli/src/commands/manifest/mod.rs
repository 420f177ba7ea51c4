//! `homestak manifest`: shows and executes manifests, and inspects their runs.

mod apply;
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

use homestak_core::resolve::{ResolveOptions, manifest};
use serde_json::json;

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
                printer.say("notice: `--from` is now `--mark-resolved`");
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
        } => {
            let which = RunArgs {
                name: None,
                manifest,
                host,
            };
            report::run(run, &which, out.as_deref(), settings, printer)
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
    let mut rows = Vec::new();
    for name in session.catalog.manifests.keys() {
        let (resolved, faults) = manifest(&session.catalog, name, &ResolveOptions::default());
        let valid = faults.errors() == 0;
        let (pattern, nodes, description) =
            resolved.as_ref().map_or_else(Default::default, |resolved| {
                let description = resolved.description.clone().unwrap_or_default();
                (
                    resolved.pattern.value.to_string(),
                    resolved.nodes.len(),
                    description,
                )
            });
        rows.push((name.clone(), pattern, nodes, valid, description));
    }
    if printer.shape.json {
        let manifests: Vec<_> = rows
            .into_iter()
            .map(|(name, pattern, nodes, valid, description)| {
                json!({ "name": name, "pattern": pattern, "nodes": nodes, "valid": valid, "description": description })
            })
            .collect();
        printer.json("manifest.list", json!({ "manifests": manifests }));
    } else {
        let rows = rows
            .into_iter()
            .map(|(name, pattern, nodes, valid, description)| {
                let description = if valid {
                    description
                } else {
                    format!("(invalid) {description}")
                };
                vec![name, pattern, nodes.to_string(), description]
            })
            .collect();
        printer.data(&table::render(
            &["name", "pattern", "nodes", "description"],
            rows,
        ));
    }
    Ok(ExitCode::SUCCESS)
}
