//! `homestak manifest graph`: the topology as a tree, SVG, DOT or Mermaid.

use std::path::Path;
use std::process::ExitCode;

use homestak_api::v1::{self, ManifestGraph};
use homestak_core::draw::{self, Glyphs};
use homestak_driver::DriverError;
use homestak_driver::select::select;

use crate::args::{GraphFormat, ManifestArgs};
use crate::commands::{Outcome, write_file};
use crate::settings::Settings;
use crate::ui::Printer;

/// Deepest nesting that is drawn; a larger graph is not readable.
const DEEPEST: usize = 200;

/// Draws a manifest.
pub(super) fn run(
    args: &ManifestArgs,
    format: GraphFormat,
    out: Option<&Path>,
    ascii: bool,
    settings: &Settings,
    printer: &Printer,
) -> Outcome {
    let (resolved, _) = select(&args.choice(), &mut settings.session()?)?;
    let name = &resolved.name;
    let deepest = resolved
        .nodes
        .iter()
        .map(|node| node.depth)
        .max()
        .unwrap_or(0);
    if deepest >= DEEPEST {
        return Err(DriverError::failed(format!(
            "`{name}` is {} levels deep, too deep to draw.",
            deepest + 1
        ))
        .hint(format!("homestak manifest show {name}")));
    }
    let picture = resolved.diagram(args.host.as_deref());
    let drawn = match format {
        GraphFormat::Tree => draw::tree(
            &picture,
            if ascii {
                Glyphs::Ascii
            } else {
                Glyphs::Unicode
            },
        ),
        GraphFormat::Svg => draw::svg(&picture),
        GraphFormat::Dot => draw::dot(&picture),
        GraphFormat::Mermaid => draw::mermaid(&picture),
    };
    if let Some(path) = out {
        write_file(path, &drawn)?;
        printer.message(&format!("Wrote {}", path.display()));
    }
    if printer.output.json {
        let graph = ManifestGraph {
            name: name.clone(),
            format: match format {
                GraphFormat::Tree => v1::GraphFormat::Tree,
                GraphFormat::Svg => v1::GraphFormat::Svg,
                GraphFormat::Dot => v1::GraphFormat::Dot,
                GraphFormat::Mermaid => v1::GraphFormat::Mermaid,
            },
            graph: drawn,
            out: out.map(|out| out.display().to_string()),
        };
        printer.json(&v1::kind::MANIFEST_GRAPH, &graph);
    } else if out.is_none() {
        printer.data(&drawn);
    }
    Ok(ExitCode::SUCCESS)
}
