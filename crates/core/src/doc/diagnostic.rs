//! What is wrong with a document, where, and what to do about it.
//!
//! In: faults found while reading. Out: [`Diagnostic`]s, as data; wording for people, no layout.
//! Never: the value of a secret; whoever makes a message about a secret source names kinds only.

use std::collections::BTreeSet;

use super::code::Code;
use super::source::{Sources, Span};

/// How much a diagnostic matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The document is wrong and is not used.
    Error,
    /// The document is used; something about it is worth knowing.
    Notice,
}

/// One fault or notice, with its place and a way out.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostic {
    /// The stable code.
    pub code: Code,
    /// Whether it stops the document from being used.
    pub severity: Severity,
    /// Where it is.
    pub span: Span,
    /// What is wrong, as a fragment without a final period.
    pub message: String,
    /// Other places that belong to it.
    pub labels: Vec<(Span, String)>,
    /// What to do next.
    pub hint: Option<String>,
}

impl Diagnostic {
    /// Makes an error.
    pub fn error(code: Code, span: Span, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            code,
            severity: Severity::Error,
            span,
            message,
            labels: Vec::new(),
            hint: None,
        }
    }

    /// Makes a notice.
    pub fn notice(code: Code, span: Span, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Notice,
            ..Self::error(code, span, message)
        }
    }

    /// Adds the way out.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self {
            hint: Some(hint.into()),
            ..self
        }
    }

    /// Adds another place.
    #[must_use]
    pub fn label(mut self, span: Span, text: impl Into<String>) -> Self {
        self.labels.push((span, text.into()));
        self
    }
}

/// Most diagnostics kept from one run. More than this helps nobody and costs memory.
const MAX_KEPT: usize = 1_000;

/// Collects diagnostics, so that one run reports all of them.
#[derive(Clone, Debug, Default)]
pub struct Diagnostics {
    kept: Vec<Diagnostic>,
    /// What is kept already: documents shared by several others are reported once.
    seen: BTreeSet<(Code, Span, String)>,
    errors: usize,
    dropped: usize,
}

impl Diagnostics {
    /// Adds one. A diagnostic that is already there is not added again.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        let key = (diagnostic.code, diagnostic.span, diagnostic.message.clone());
        if self.seen.contains(&key) {
            return;
        }
        self.errors += usize::from(diagnostic.severity == Severity::Error);
        if self.kept.len() < MAX_KEPT {
            self.seen.insert(key);
            self.kept.push(diagnostic);
        } else {
            self.dropped += 1;
        }
    }

    /// Adds all of another collection.
    pub fn extend(&mut self, other: Self) {
        let kept = other
            .iter()
            .filter(|fault| fault.severity == Severity::Error)
            .count();
        self.errors += other.errors - kept;
        self.dropped += other.dropped;
        for diagnostic in other.kept {
            self.push(diagnostic);
        }
    }

    /// Returns the same without the diagnostics of a code.
    #[must_use]
    pub fn without(&self, code: Code) -> Self {
        let mut others = Self {
            dropped: self.dropped,
            ..Self::default()
        };
        for diagnostic in self.kept.iter().filter(|fault| fault.code != code) {
            others.push(diagnostic.clone());
        }
        others.errors = self.errors;
        others
    }

    /// Tells whether further diagnostics are counted only, so that no work need go into them.
    pub fn is_full(&self) -> bool {
        self.kept.len() >= MAX_KEPT
    }

    /// Returns how many errors were reported so far.
    pub fn errors(&self) -> usize {
        self.errors
    }

    /// Returns how many diagnostics were counted but not kept.
    pub fn dropped(&self) -> usize {
        self.dropped
    }

    /// Returns the diagnostics sorted by file path, place and code.
    pub fn sorted(&self, sources: &Sources) -> Vec<&Diagnostic> {
        let mut all: Vec<_> = self.kept.iter().collect();
        all.sort_by_cached_key(|fault| {
            let path = sources
                .source(fault.span.file)
                .map(|source| source.path.clone());
            (path, fault.span.start, fault.code, fault.message.clone())
        });
        all
    }

    /// Returns the diagnostics in the order they were found.
    pub fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        self.kept.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doc::FileId;

    #[test]
    fn the_same_fault_is_kept_once_however_many_come_between() {
        let fault = |start| {
            let span = Span {
                file: FileId(0),
                start,
                end: start,
            };
            Diagnostic::error(Code::UnknownKey, span, "unknown key")
        };
        let mut faults = Diagnostics::default();
        (0..200).for_each(|start| faults.push(fault(start)));
        faults.push(fault(0));
        assert_eq!((faults.errors(), faults.iter().count()), (200, 200));
    }
}
