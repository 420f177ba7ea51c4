//! Where a resolved value came from.
//!
//! In: places and rules. Out: [`Origin`], and text for `--origin`.
//! Never: the value itself, which may be secret.

use crate::doc::{Sources, Span, Spanned};

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It stands in a document.
    Written(Span),
    /// It is what homestak does when nobody says otherwise.
    BuiltIn,
    /// It was given on the command line.
    CommandLine(&'static str),
    /// It follows from something else; the text says how, the place says from what.
    Derived(String, Option<Span>),
    /// It was recorded when the node was created.
    Recorded,
}

impl Origin {
    /// Describes the origin, with `path:line:column` where there is a place.
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
pub struct Valued<T> {
    /// The value.
    pub value: T,
    /// Where it came from.
    pub origin: Origin,
}

impl<T: PartialEq> PartialEq for Valued<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T> Valued<T> {
    /// Makes a value that nobody wrote.
    pub fn built_in(value: T) -> Self {
        Self {
            value,
            origin: Origin::BuiltIn,
        }
    }

    /// Makes a value that stands in a document.
    pub fn written(value: T, span: Span) -> Self {
        Self {
            value,
            origin: Origin::Written(span),
        }
    }

    /// Makes a value that follows from something else.
    pub fn derived(value: T, how: impl Into<String>, span: Option<Span>) -> Self {
        Self {
            value,
            origin: Origin::Derived(how.into(), span),
        }
    }
}

impl<T: Clone> From<&Spanned<T>> for Valued<T> {
    fn from(spanned: &Spanned<T>) -> Self {
        Self::written(spanned.value.clone(), spanned.span)
    }
}

/// Returns the written value, or the built-in one.
pub fn written_or<T: Clone>(written: Option<&Spanned<T>>, default: T) -> Valued<T> {
    written.map_or_else(|| Valued::built_in(default), Valued::from)
}
