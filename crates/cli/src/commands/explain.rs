//! `homestak explain`: what a code means.

use std::process::ExitCode;

use homestak_core::doc::Code;
use homestak_driver::DriverError;
use serde_json::json;

use super::Outcome;
use crate::ui::{Printer, table};

/// Explains one code, or lists all.
pub(super) fn run(wanted: Option<&str>, printer: &Printer) -> Outcome {
    let Some(wanted) = wanted else {
        if printer.shape.json {
            let all: Vec<_> = Code::ALL
                .iter()
                .map(|code| json!({ "code": code.id(), "title": code.title() }))
                .collect();
            printer.json("explain", json!({ "codes": all }));
        } else {
            let rows = Code::ALL
                .iter()
                .map(|code| vec![code.id().into(), code.title().into()])
                .collect();
            printer.data(&table::render(&["code", "meaning"], rows));
        }
        return Ok(ExitCode::SUCCESS);
    };
    let found = Code::ALL
        .iter()
        .find(|code| code.id().eq_ignore_ascii_case(wanted));
    let code = found.ok_or_else(|| {
        DriverError::unknown("code", wanted, Code::ALL.iter().map(|code| code.id()))
    })?;
    if printer.shape.json {
        printer.json(
            "explain",
            json!({ "code": code.id(), "title": code.title(), "explanation": code.explanation() }),
        );
    } else {
        printer.data(&format!(
            "{}: {}\n\n{}\n",
            code.id(),
            code.title(),
            code.explanation()
        ));
    }
    Ok(ExitCode::SUCCESS)
}
