//! `homestak sim serve --faults`: a script of faults and events, in YAML or JSON.

use std::path::Path;

use homestak_core::doc::{Diagnostics, Source, Sources, yaml};
use homestak_core::error::chain;
use homestak_driver::DriverError;
use homestak_sim::Script;

use crate::ui::Printer;

/// Reads and checks a script.
pub(super) fn read(file: &Path, printer: &Printer) -> Result<Script, DriverError> {
    let text =
        fs_err::read_to_string(file).map_err(|error| DriverError::file("read", file, &error))?;
    let mut sources = Sources::default();
    let source = Source::new(file.display().to_string(), text);
    let id = sources.add(source.clone());
    let mut faults = Diagnostics::default();
    let tree = yaml::parse(id, &source, &mut faults);
    homestak_driver::require_sound(printer, &faults, &sources)?;
    let list = tree.map(|tree| tree.to_json()).unwrap_or_default();
    Script::parse(&list).map_err(|error| {
        DriverError::failed(format!("`{}`: {}.", file.display(), chain(&error)))
            .hint("docs/guides/simulator.md lists the faults and events")
    })
}
