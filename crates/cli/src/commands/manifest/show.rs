//! `homestak manifest show`: the resolved nodes of a manifest, and where values come from.

use std::process::ExitCode;

use homestak_api::v1::kind;
use homestak_core::doc::emit::emit;
use homestak_core::doc::{Sources, Value};
use homestak_core::resolve::spec::spec;
use homestak_core::resolve::{ResolvedJson, ResolvedManifest, ResolvedNode, SecretVisibility};
use homestak_driver::error::count;
use homestak_driver::select::select;
use homestak_driver::{DriverError, Session, wire};
use serde_json::Value as Json;

use crate::args::ManifestArgs;
use crate::commands::Outcome;
use crate::settings::Settings;
use crate::ui::{Printer, table};

/// What is shown.
pub(super) struct Options<'a> {
    /// One node only.
    pub(super) node: Option<&'a str>,
    /// Where values come from.
    pub(super) origin: bool,
    /// Values of secrets.
    pub(super) show_secrets: bool,
}

/// Shows a manifest or one of its nodes.
pub(super) fn run(
    args: &ManifestArgs,
    options: &Options<'_>,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let mut session = settings.session()?;
    let (resolved, _) = select(&args.choice(), &mut session)?;
    let nodes: Vec<&ResolvedNode> = match options.node {
        None => resolved.nodes.iter().collect(),
        Some(name) => {
            let known = resolved.nodes.iter().map(|node| node.name.as_str());
            vec![
                resolved
                    .node(name)
                    .ok_or_else(|| DriverError::unknown("node", name, known))?,
            ]
        }
    };
    if printer.output.json {
        let sources = options.origin.then_some(&session.catalog.sources);
        let nodes = nodes.into_iter();
        let nodes = nodes
            .map(|node| wire::manifest::node(node, node_spec(node, &session, options), sources));
        let nodes = nodes.collect::<Result<_, _>>()?;
        let detail = wire::manifest::detail(&resolved, nodes)?;
        printer.json(&kind::MANIFEST_SHOW, &detail);
    } else if options.node.is_some() {
        for node in nodes {
            one(node, &session, options, printer);
        }
    } else {
        overview(&resolved, &nodes, &session, options, printer);
    }
    Ok(ExitCode::SUCCESS)
}

/// Values of secrets are shown on request only.
pub(crate) fn secret_visibility(show_secrets: bool) -> SecretVisibility {
    if show_secrets {
        SecretVisibility::Exposed
    } else {
        SecretVisibility::Masked
    }
}

fn node_spec(
    node: &ResolvedNode,
    session: &Session,
    options: &Options<'_>,
) -> Option<ResolvedJson> {
    let name = &node.spec.as_ref()?.value;
    spec(
        &session.catalog,
        name,
        Some(node),
        secret_visibility(options.show_secrets),
    )
}

fn one(node: &ResolvedNode, session: &Session, options: &Options<'_>, printer: &Printer) {
    let sheet = node.render();
    let resolved_spec = node_spec(node, session, options);
    if options.origin {
        let sources = &session.catalog.sources;
        let mut rows = origin_rows(&sheet, sources);
        if let Some(spec) = &resolved_spec {
            rows.extend(origin_rows(spec, sources).into_iter().map(|mut row| {
                row[0] = format!("resolved_spec.{}", row[0]);
                row
            }));
        }
        printer.data(&table::render(&["value", "is", "from"], rows));
        return;
    }
    let mut json = sheet.json();
    if let Some(spec) = resolved_spec {
        json["resolved_spec"] = spec.json();
    }
    printer.data(&emit(&Value::from_json(&json)));
}

fn overview(
    resolved: &ResolvedManifest,
    nodes: &[&ResolvedNode],
    session: &Session,
    options: &Options<'_>,
    printer: &Printer,
) {
    let sheet = resolved.render();
    let sources = &session.catalog.sources;
    if options.origin {
        let mut rows = origin_rows(&sheet, sources);
        for node in nodes {
            rows.extend(
                origin_rows(&node.render(), sources)
                    .into_iter()
                    .map(|mut row| {
                        row[0] = format!("{}.{}", node.name, row[0]);
                        row
                    }),
            );
        }
        printer.data(&table::render(&["value", "is", "from"], rows));
        return;
    }
    let mut head = format!("{} ({})", resolved.name, resolved.pattern.value);
    if let Some(description) = &resolved.description {
        head = format!("{head}: {description}");
    }
    let rows = nodes.iter().map(|node| row(node)).collect();
    let headings = [
        "name", "type", "runs on", "mode", "spec", "size", "image", "vmid", "address",
    ];
    printer.data(&format!("{head}\n\n{}", table::render(&headings, rows)));
}

fn row(node: &ResolvedNode) -> Vec<String> {
    let dash = || "-".to_owned();
    let place = node.parent.as_ref().map(|parent| parent.to_string());
    let place = place.or_else(|| node.host.as_ref().map(|host| host.value.clone()));
    let size = node.size.as_ref().map(|size| {
        let gib = size.memory.value / 1024;
        let memory = if gib > 0 {
            format!("{gib} GiB")
        } else {
            format!("{} MiB", size.memory.value)
        };
        let cores = count(usize::try_from(size.cores.value).unwrap_or(0), "core");
        format!("{cores}, {memory}, {} GiB", size.disk.value)
    });
    let image = node.image.as_ref().or(node.template.as_ref());
    vec![
        node.name.to_string(),
        node.kind.value.to_string(),
        place.unwrap_or_else(|| "(host)".into()),
        node.mode.value.to_string(),
        node.spec
            .as_ref()
            .map_or_else(dash, |spec| spec.value.clone()),
        size.unwrap_or_else(dash),
        image.map_or_else(dash, |image| image.value.clone()),
        node.vmid
            .as_ref()
            .map_or_else(dash, |vmid| vmid.value.to_string()),
        node.networking
            .address
            .value
            .map_or_else(|| "dhcp".into(), |address| address.to_string()),
    ]
}

/// Returns value, what it is and where it comes from, for a table.
pub(crate) fn origin_rows(sheet: &ResolvedJson, sources: &Sources) -> Vec<Vec<String>> {
    let json = sheet.json();
    let rows = sheet.origins().iter().map(|(path, origin)| {
        vec![
            path.clone(),
            short(value_at(&json, path)),
            origin.describe(sources),
        ]
    });
    rows.collect()
}

/// Cuts a value that would make the table too wide; JSON has it whole.
fn short(text: String) -> String {
    const WIDEST: usize = 40;
    if text.chars().count() <= WIDEST {
        return text;
    }
    let start: String = text.chars().take(WIDEST - 3).collect();
    format!("{start}...")
}

/// Returns the value at a path such as `access.users[0].name`, as short text.
fn value_at(json: &Json, path: &str) -> String {
    let pointer = path.replace(['.', '['], "/").replace(']', "");
    match json.pointer(&format!("/{pointer}")) {
        Some(Json::String(text)) => text.clone(),
        Some(Json::Null) | None => "-".into(),
        Some(Json::Array(items)) if items.iter().all(Json::is_string) => items
            .iter()
            .filter_map(Json::as_str)
            .collect::<Vec<_>>()
            .join(", "),
        Some(other) => other.to_string(),
    }
}
