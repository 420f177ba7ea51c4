//! Results of preflight checks. An unknown result never counts as good.

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Good.
    Good,
    /// It could not be found out.
    Unknown,
    /// It may go wrong.
    Warning,
    /// It will go wrong.
    Failure,
}

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How it came out.
    pub severity: Severity,
    /// What was checked.
    pub check: &'static str,
    /// What was found.
    pub detail: String,
    /// What to do about it, as commands where there are some; may be empty.
    pub fix: String,
}
