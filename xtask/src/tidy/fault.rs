//! A fault: where it is, what it is, and what to do.
//!
//! In: path, line, words. Out: `path:line: what, and what to do`, which editors can jump to.
//! Never: levels; a fault is a fault.

use std::fmt;

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Path from the root.
    pub path: String,
    /// Line, from 1.
    pub line: usize,
    /// What it is, and what to do.
    pub message: String,
}

impl Fault {
    /// Makes a fault.
    pub fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}
