//! Results of preflight checks. An unknown result never counts as good.

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingSeverity {
    /// Good.
    Good,
    /// It could not be determined.
    Unknown,
    /// It may fail.
    Warning,
    /// It will fail.
    Failure,
}

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its severity.
    pub severity: FindingSeverity,
    /// What was checked.
    pub check: &'static str,
    /// What was found.
    pub detail: String,
    /// What to do about it, as commands where there are some; may be empty.
    pub fix: String,
}
