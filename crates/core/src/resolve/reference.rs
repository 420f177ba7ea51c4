//! Names that must exist: the message when they do not.
//!
//! In: a name, its place, what exists. Out: a fault with the nearest existing name.
//! Never: the same dangling name reported with different words in different places.

use crate::doc::decode::closest;
use crate::doc::{Code, Diagnostic, Diagnostics, Span};

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

/// Guesses for the first few faults only, where every guess means a look at many names.
const GUESSES: usize = 20;
/// How many names are many.
const MANY: usize = 1_000;

/// Reports that `name` does not exist among the nodes or regions of a manifest, which can be many.
pub(super) fn lost<'k>(
    faults: &mut Diagnostics,
    (code, what): (Code, &str),
    (name, span): (&str, Span),
    n_known: usize,
    known: impl Iterator<Item = &'k str>,
) {
    let guess = n_known <= MANY && !faults.is_full() || faults.errors() < GUESSES;
    faults.push(if guess {
        dangling(code, span, what, name, known)
    } else {
        Diagnostic::error(code, span, format!("there is no {what} `{name}`")).hint(format!(
            "there are {n_known} others; mend the first faults first"
        ))
    });
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
