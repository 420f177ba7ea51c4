//! Messages of the driver, in addition to its results and the events of runs.

use homestak_core::doc::{Diagnostics, Sources};

/// Receives messages for the user. Nothing that a caller needs to continue is reported here only.
pub trait Notices: Send + Sync {
    /// Reports what is being done, for verbose output.
    fn detail(&self, text: &str);
    /// Reports what the user should know.
    fn notice(&self, text: &str);
    /// Reports errors and notices in documents.
    fn diagnostics(&self, faults: &Diagnostics, sources: &Sources);
}
