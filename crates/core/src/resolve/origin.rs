//! The origin of a resolved value.

use crate::doc::{Sources, Span, Spanned};

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Written in a document.
    Written(Span),
    /// The built-in default.
    BuiltIn,
    /// A command-line option.
    CommandLine(&'static str),
    /// Derived from another value: how, and from which span.
    Derived(String, Option<Span>),
    /// Recorded when the node was created.
    Recorded,
}

impl Origin {
    /// Describes the origin, with `path:line:column` if there is a span.
    pub fn describe(&self, sources: &Sources) -> String {
        match self {
            Self::Written(span) => sources.locate(*span).to_string(),
            Self::BuiltIn => "built-in default".into(),
            Self::CommandLine(flag) => format!("command line ({flag})"),
            Self::Derived(how, Some(span)) => format!("{how} ({})", sources.locate(*span)),
            Self::Derived(how, None) => how.clone(),
            Self::Recorded => "recorded when the node was created".into(),
        }
    }
}

/// A value with its origin. Equality ignores the origin.
#[derive(Clone, Debug)]
pub struct WithOrigin<T> {
    /// The value.
    pub value: T,
    /// Its origin.
    pub origin: Origin,
}

impl<T: PartialEq> PartialEq for WithOrigin<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T> WithOrigin<T> {
    /// Makes a built-in default.
    pub fn built_in(value: T) -> Self {
        Self {
            value,
            origin: Origin::BuiltIn,
        }
    }

    /// Makes a value written in a document.
    pub fn written(value: T, span: Span) -> Self {
        Self {
            value,
            origin: Origin::Written(span),
        }
    }

    /// Makes a derived value.
    pub fn derived(value: T, how: impl Into<String>, span: Option<Span>) -> Self {
        Self {
            value,
            origin: Origin::Derived(how.into(), span),
        }
    }
}

impl<T: Clone> From<&Spanned<T>> for WithOrigin<T> {
    fn from(spanned: &Spanned<T>) -> Self {
        Self::written(spanned.value.clone(), spanned.span)
    }
}

/// Returns the written value, or the built-in default.
pub fn written_or<T: Clone>(written: Option<&Spanned<T>>, default: T) -> WithOrigin<T> {
    written.map_or_else(|| WithOrigin::built_in(default), WithOrigin::from)
}
