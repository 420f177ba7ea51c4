//! Errors and diagnostics.

use homestak_api::v1::{
    Diagnostic, DiagnosticLabel, Failure, FailureDetail, FailureError, FailureKind, SourceLocation,
};
use homestak_core::doc::{self, Diagnostics, Sources, Span};
use homestak_core::plan::Refusal;

use crate::error::{DriverError, ErrorKind};

/// Converts an error.
pub fn failure(error: &DriverError) -> Failure {
    Failure {
        success: false,
        error: FailureError {
            kind: match error.kind {
                ErrorKind::Failed => FailureKind::Failed,
                ErrorKind::Usage => FailureKind::Usage,
                ErrorKind::Refused => FailureKind::Refused,
                ErrorKind::Stopped => FailureKind::Stopped,
            },
            message: error.message.clone(),
            hints: error.hints.clone(),
            code: error.code.map(|code| code.id().to_owned()),
        },
        diagnostics: error.diagnostics.clone(),
    }
}

/// Converts diagnostics, sorted by location.
pub fn diagnostics(faults: &Diagnostics, sources: &Sources) -> Vec<Diagnostic> {
    let location = |span: Span| {
        let location = sources.locate(span);
        SourceLocation {
            path: location.path,
            line: location.line,
            column: location.column,
        }
    };
    let label = |(span, text): &(Span, String)| DiagnosticLabel {
        location: location(*span),
        text: text.clone(),
    };
    let one = |fault: &&doc::Diagnostic| Diagnostic {
        code: fault.code.id().to_owned(),
        severity: fault.severity.into(),
        message: fault.message.clone(),
        hint: fault.hint.clone(),
        labels: fault.labels.iter().map(label).collect(),
        location: location(fault.span),
    };
    faults.sorted(sources).iter().map(one).collect()
}

/// Converts diagnostics for an error.
pub(crate) fn details(faults: &Diagnostics, sources: &Sources) -> Vec<FailureDetail> {
    let all = diagnostics(faults, sources).into_iter();
    all.map(FailureDetail::Diagnostic).collect()
}

/// Converts refusals of a plan for an error.
pub(crate) fn refusals(refusals: &[Refusal]) -> Vec<FailureDetail> {
    let all = refusals.iter().cloned();
    all.map(FailureDetail::Refusal).collect()
}
