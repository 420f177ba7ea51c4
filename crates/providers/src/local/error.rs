//! Converts errors of the local host to errors of the port.

use homestak_core::foreign::ForeignText;
use homestak_engine::ports::{ErrorClass, PortError};

use crate::process::ProgramError;

/// A file or directory could not be used.
pub(super) fn io(doing: &str, error: &std::io::Error) -> PortError {
    let hint = match error.kind() {
        std::io::ErrorKind::PermissionDenied => "the local host needs root: run it with sudo",
        std::io::ErrorKind::StorageFull => "free space, then try again",
        _ => "",
    };
    let class = match error.kind() {
        // A lock that another process holds.
        std::io::ErrorKind::TimedOut => ErrorClass::Busy,
        _ => ErrorClass::Refused,
    };
    PortError {
        class,
        ..PortError::refused(doing, error.to_string(), hint)
    }
}

/// A program failed.
pub(super) fn program(doing: &str, error: &ProgramError) -> PortError {
    let hint = match error {
        ProgramError::NotStarted { .. } => "homestak local setup installs what is missing",
        ProgramError::TimedOut(_) | ProgramError::Failed { .. } => "",
    };
    PortError::refused(doing, error.to_string(), hint)
}

/// A named object does not exist.
pub(super) fn missing(doing: &str, detail: impl Into<ForeignText>) -> PortError {
    PortError {
        class: ErrorClass::Missing,
        ..PortError::refused(doing, detail, "")
    }
}
