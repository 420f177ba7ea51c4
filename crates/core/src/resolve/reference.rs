//! Diagnostics for references to names that do not exist, with the closest existing name as a hint.

use crate::doc::decode::closest;
use crate::doc::{Code, Diagnostic, Diagnostics, Span};

/// Returns the diagnostic for a reference to `name`, which is not among `known`.
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
            format!("there is no {what} at all; create one, or remove the reference")
        }
        None => format!("available: {}", list(&known)),
    };
    Diagnostic::error(code, span, format!("there is no {what} `{name}`")).hint(hint)
}

/// Search for similar names only for the first errors when there are many names to compare with.
const MAX_SUGGESTIONS: usize = 20;
/// How many names are many.
const MANY_NAMES: usize = 1_000;

/// Reports a reference to a node or region that does not exist in the manifest, which may have many.
pub(super) fn report_dangling<'k>(
    diagnostics: &mut Diagnostics,
    (code, what): (Code, &str),
    (name, span): (&str, Span),
    n_known: usize,
    known: impl Iterator<Item = &'k str>,
) {
    diagnostics.push(if suggests(diagnostics, n_known) {
        dangling(code, span, what, name, known)
    } else {
        Diagnostic::error(code, span, format!("there is no {what} `{name}`"))
            .hint(too_many(n_known))
    });
}

fn suggests(diagnostics: &Diagnostics, n_known: usize) -> bool {
    n_known <= MANY_NAMES && !diagnostics.is_full() || diagnostics.errors() < MAX_SUGGESTIONS
}

fn too_many(n_known: usize) -> String {
    format!("there are {n_known} others; fix the first errors first")
}

/// Reports a parent that is neither a node of the manifest nor a host.
pub(super) fn report_no_parent<'k>(
    diagnostics: &mut Diagnostics,
    (name, span): (&str, Span),
    n_known: usize,
    nodes: impl Iterator<Item = &'k str>,
    hosts: impl Iterator<Item = &'k str>,
) {
    let hint = if suggests(diagnostics, n_known) {
        let (nodes, hosts): (Vec<&str>, Vec<&str>) = (nodes.collect(), hosts.collect());
        match closest(name, nodes.iter().chain(&hosts).copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None if nodes.is_empty() => {
                "the manifest has no other node; remove `parent` for a node that runs on a host"
                    .to_owned()
            }
            None => format!(
                "nodes of this manifest: {}; hosts: {}",
                list(&nodes),
                list(&hosts)
            ),
        }
    } else {
        too_many(n_known)
    };
    let message = format!("there is no node `{name}`");
    diagnostics.push(Diagnostic::error(Code::NoSuchParent, span, message).hint(hint));
}

/// Lists the first few names for a hint.
fn list(names: &[&str]) -> String {
    const MAX_LISTED: usize = 12;
    let mut sorted = names.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let more = sorted.len().saturating_sub(MAX_LISTED);
    sorted.truncate(MAX_LISTED);
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
