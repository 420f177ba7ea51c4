//! Errors, diagnostics of documents, and what their codes mean.

use homestak_core::plan::Refusal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::string_enum::string_enum;

string_enum! {
    /// What kind of failure it is; the exit code follows from it.
    FailureKind {
        /// It failed, or a document is invalid.
        Failed = "failed",
        /// The command line is wrong.
        Usage = "usage",
        /// A guard refused it.
        Refused = "refused",
        /// It was stopped before it was complete, and can be resumed.
        Stopped = "stopped",
    }
}

string_enum! {
    /// How severe a diagnostic is.
    DiagnosticSeverity from homestak_core::doc::Severity {
        /// The document cannot be used.
        Error = "error",
        /// The document can be used.
        Notice = "notice",
    }
}

/// A command that failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// Always `false`.
    pub success: bool,
    /// What went wrong.
    pub error: FailureError,
    /// What was found before it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diagnostics: Option<Vec<FailureDetail>>,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FailureError {
    /// What kind of failure it is.
    pub kind: FailureKind,
    /// What happened.
    pub message: String,
    /// What to do next.
    pub hints: Vec<String>,
    /// The code of the diagnostic, as `homestak explain` takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

/// One detail of a failure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum FailureDetail {
    /// A diagnostic of a document.
    Diagnostic(Diagnostic),
    /// Something that a plan cannot do.
    Refusal(Refusal),
    /// Why the spec of a node cannot be applied.
    Reason(String),
}

/// A diagnostic of a document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnostic {
    /// Its code, such as `SK0201`.
    pub code: String,
    /// How severe it is.
    pub severity: DiagnosticSeverity,
    /// What is wrong.
    pub message: String,
    /// How to fix it.
    pub hint: Option<String>,
    /// Other locations that explain it.
    pub labels: Vec<DiagnosticLabel>,
    /// Where it is.
    #[serde(flatten)]
    pub location: SourceLocation,
}

/// Another location that explains a diagnostic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DiagnosticLabel {
    /// Where it is.
    #[serde(flatten)]
    pub location: SourceLocation,
    /// What is there.
    pub text: String,
}

/// A location in a document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SourceLocation {
    /// The file.
    pub path: String,
    /// Its line, from 1.
    pub line: usize,
    /// The column in the line, from 1.
    pub column: usize,
}

/// What codes of diagnostics mean.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Explanation {
    /// One code.
    Code {
        /// The code.
        code: String,
        /// What it means, in one line.
        title: String,
        /// What it means, and how to fix it.
        explanation: String,
    },
    /// All codes.
    List {
        /// Each with its title.
        codes: Vec<CodeTitle>,
    },
}

/// A code with its title.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CodeTitle {
    /// The code.
    pub code: String,
    /// What it means, in one line.
    pub title: String,
}

/// JSON Schemas that were written to files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SchemaFiles {
    /// Always `true`.
    pub success: bool,
    /// The files.
    pub files: Vec<String>,
}
