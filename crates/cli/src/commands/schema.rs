//! `homestak schema`: JSON Schemas of documents, for editors.

use std::path::Path;
use std::process::ExitCode;

use homestak_api::v1::{self, SchemaFiles};
use homestak_core::doc::DocumentKind;
use homestak_driver::DriverError;
use serde_json::{Map, Value};

use super::{Outcome, write_file};
use crate::ui::Printer;

/// Prints or writes schemas.
pub(super) fn run(wanted: Option<&str>, out: Option<&Path>, printer: &Printer) -> Outcome {
    let kinds: Vec<DocumentKind> = match wanted {
        None => DocumentKind::ALL.to_vec(),
        Some(name) => {
            let found = DocumentKind::ALL
                .iter()
                .copied()
                .find(|kind| kind.name() == name);
            let known = || DocumentKind::ALL.iter().map(|kind| kind.name());
            vec![found.ok_or_else(|| DriverError::unknown("kind of document", name, known()))?]
        }
    };
    let Some(directory) = out else {
        match kinds.as_slice() {
            [one] => printer.raw_json(&one.schema()),
            all => {
                let map: Map<_, _> = all
                    .iter()
                    .map(|kind| (kind.name().to_owned(), kind.schema()))
                    .collect();
                printer.raw_json(&Value::Object(map));
            }
        }
        return Ok(ExitCode::SUCCESS);
    };
    fs_err::create_dir_all(directory)
        .map_err(|error| DriverError::file("create", directory, &error))?;
    let mut written = Vec::new();
    for kind in kinds {
        let path = directory.join(format!("{}.v{}.json", kind.name(), kind.version()));
        write_file(&path, &format!("{:#}\n", kind.schema()))?;
        written.push(path.display().to_string());
    }
    if printer.output.json {
        let files = SchemaFiles {
            success: true,
            files: written,
        };
        printer.json(&v1::kind::SCHEMA, &files);
    } else {
        printer.data(&(written.join("\n") + "\n"));
    }
    Ok(ExitCode::SUCCESS)
}
