//! `homestak explain`: what a code means.

use std::process::ExitCode;

use homestak_api::v1::{CodeTitle, Explanation, kind};
use homestak_core::doc::Code;
use homestak_core::doc::decode::closest;
use homestak_driver::DriverError;

use super::Outcome;
use crate::ui::{Printer, table};

/// Explains one code, or lists all.
pub(super) fn run(wanted: Option<&str>, printer: &Printer) -> Outcome {
    let Some(wanted) = wanted else {
        if printer.output.json {
            let codes = Code::ALL.iter().map(|code| CodeTitle {
                code: code.id().to_owned(),
                title: code.title().to_owned(),
            });
            let codes = codes.collect();
            printer.json(&kind::EXPLAIN, &Explanation::List { codes });
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
    let code = found.ok_or_else(|| unknown(wanted))?;
    if printer.output.json {
        let explanation = Explanation::Code {
            code: code.id().to_owned(),
            title: code.title().to_owned(),
            explanation: code.explanation().to_owned(),
        };
        printer.json(&kind::EXPLAIN, &explanation);
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

fn unknown(wanted: &str) -> DriverError {
    let mut codes: Vec<&str> = Code::ALL.iter().map(|code| code.id()).collect();
    codes.sort_unstable();
    let error = DriverError::failed(format!("There is no code `{wanted}`."));
    match closest(wanted, codes.iter().copied()) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error.hint(format!("available:\n  {}", codes.join("\n  "))),
    }
}
