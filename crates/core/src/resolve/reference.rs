//! Names that must exist: the message when they do not.
//!
//! In: a name, its place, what exists. Out: a fault with the nearest existing name.
//! Never: the same dangling name reported with different words in different places.

use crate::doc::decode::closest;
use crate::doc::{Code, Diagnostic, Span};

/// Reports that `name` does not exist among `known`.
pub(crate) fn dangling<'k>(
    code: Code,
    span: Span,
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'k str>,
) -> Diagnostic {
    let known: Vec<&str> = known.collect();
    let hint = match closest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if known.is_empty() => {
            format!("there is no {what} at all; write one, or remove the reference")
        }
        None => format!("there is: {}", list(&known)),
    };
    Diagnostic::error(code, span, format!("there is no {what} `{name}`")).hint(hint)
}

/// Lists names for a hint: all when they are few, the first ones otherwise.
fn list(names: &[&str]) -> String {
    const MOST: usize = 12;
    let mut sorted = names.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let more = sorted.len().saturating_sub(MOST);
    sorted.truncate(MOST);
    let shown = sorted
        .iter()
        .map(|name| format!("`{name}`"))
        .collect::<Vec<_>>()
        .join(", ");
    if more > 0 {
        format!("{shown} and {more} more")
    } else {
        shown
    }
}
