//! Diagnostics of documents: what is wrong, where, and how to fix it, as data. Messages about
//! secret sources never contain values.

use std::collections::BTreeSet;

use super::code::Code;
use super::source::{Sources, Span};

/// The severity of a diagnostic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The document is invalid.
    Error,
    /// The document is valid.
    Notice,
}

/// An error or notice, with its position and a hint.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostic {
    /// The stable code.
    pub code: Code,
    /// Its severity.
    pub severity: Severity,
    /// Its position.
    pub span: Span,
    /// The message, without a final period.
    pub message: String,
    /// Related positions.
    pub labels: Vec<(Span, String)>,
    /// How to fix it.
    pub hint: Option<String>,
}

impl Diagnostic {
    /// Creates an error.
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

    /// Creates a notice.
    pub fn notice(code: Code, span: Span, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Notice,
            ..Self::error(code, span, message)
        }
    }

    /// Adds a hint.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self {
            hint: Some(hint.into()),
            ..self
        }
    }

    /// Adds a related position.
    #[must_use]
    pub fn label(mut self, span: Span, text: impl Into<String>) -> Self {
        self.labels.push((span, text.into()));
        self
    }
}

/// The number of diagnostics that are kept; further ones are only counted.
const MAX_KEPT: usize = 1_000;

/// A collection of diagnostics.
#[derive(Clone, Debug, Default)]
pub struct Diagnostics {
    kept: Vec<Diagnostic>,
    /// For deduplication: a document may be read by several others.
    seen: BTreeSet<(Code, Span, String)>,
    errors: usize,
    dropped: usize,
}

impl Diagnostics {
    /// Adds a diagnostic, unless it is a duplicate.
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

    /// Adds all diagnostics of another collection.
    pub fn extend(&mut self, other: Self) {
        let kept = other
            .iter()
            .filter(|one| one.severity == Severity::Error)
            .count();
        self.errors += other.errors - kept;
        self.dropped += other.dropped;
        for diagnostic in other.kept {
            self.push(diagnostic);
        }
    }

    /// Returns the collection without the diagnostics of a code.
    #[must_use]
    pub fn without(&self, code: Code) -> Self {
        let mut others = Self {
            dropped: self.dropped,
            ..Self::default()
        };
        for diagnostic in self.kept.iter().filter(|one| one.code != code) {
            others.push(diagnostic.clone());
        }
        others.errors = self.errors;
        others
    }

    /// Returns whether further diagnostics are only counted.
    pub fn is_full(&self) -> bool {
        self.kept.len() >= MAX_KEPT
    }

    /// Returns the number of errors.
    pub fn errors(&self) -> usize {
        self.errors
    }

    /// Returns the number of diagnostics that were counted but not kept.
    pub fn dropped(&self) -> usize {
        self.dropped
    }

    /// Returns the diagnostics sorted by path, position and code.
    pub fn sorted(&self, sources: &Sources) -> Vec<&Diagnostic> {
        let mut all: Vec<_> = self.kept.iter().collect();
        all.sort_by_cached_key(|one| {
            let path = sources
                .source(one.span.file)
                .map(|source| source.path.clone());
            (path, one.span.start, one.code, one.message.clone())
        });
        all
    }

    /// Returns the diagnostics in the order they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        self.kept.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doc::FileId;

    #[test]
    fn duplicates_are_dropped_however_many_diagnostics_are_between() {
        let unknown_key = |start| {
            let span = Span {
                file: FileId(0),
                start,
                end: start,
            };
            Diagnostic::error(Code::UnknownKey, span, "unknown key")
        };
        let mut all = Diagnostics::default();
        (0..200).for_each(|start| all.push(unknown_key(start)));
        all.push(unknown_key(0));
        assert_eq!((all.errors(), all.iter().count()), (200, 200));
    }
}
