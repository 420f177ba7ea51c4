//! A diagnostic with the source line and the place marked.
//!
//! In: a diagnostic and the sources. Out: text with colour; the printer strips it if unwanted.
//! Never: a line of a source that holds secrets.

use annotate_snippets::{AnnotationKind, Element, Group, Level, Origin, Renderer, Snippet};
use homestak_core::doc::{Diagnostic, Severity, Source, Sources, Span};

/// Most bytes of a line that are shown; a whole document may stand on one.
const LONGEST_LINE: usize = 240;

/// Renders a diagnostic.
pub(crate) fn render(fault: &Diagnostic, sources: &Sources) -> String {
    let level = match fault.severity {
        Severity::Error => Level::ERROR,
        Severity::Notice => Level::NOTE.with_name("notice"),
    };
    let mut group = Group::with_title(level.primary_title(fault.message.as_str()).id(fault.code.id()));
    for element in place(fault.span, None, sources) {
        group = group.element(element);
    }
    for (span, text) in &fault.labels {
        for element in place(*span, Some(text), sources) {
            group = group.element(element);
        }
    }
    if let Some(hint) = &fault.hint {
        group = group.element(Level::HELP.with_name("hint").message(hint.as_str()));
    }
    Renderer::styled().render(&[group])
}

/// Renders one place: where it is, and the line with the place marked.
fn place<'s>(span: Span, label: Option<&'s str>, sources: &'s Sources) -> Vec<Element<'s>> {
    let location = sources.locate(span);
    let origin = Origin::path(location.path).line(location.line).char_column(location.column);
    let Some(source) = sources.source(span.file) else { return vec![origin.into()] };
    let Some((excerpt, marked)) = excerpt(source, span) else { return vec![origin.into()] };
    let kind = if label.is_some() { AnnotationKind::Context } else { AnnotationKind::Primary };
    let annotation = kind.span(marked).label(label);
    let snippet = Snippet::source(excerpt).line_start(location.line).fold(false).annotation(annotation);
    vec![origin.into(), snippet.into()]
}

/// Returns the line of a place, cut to a window around it, and the place within that.
fn excerpt(source: &Source, span: Span) -> Option<(&str, std::ops::Range<usize>)> {
    if source.secret || source.text.is_empty() {
        return None;
    }
    let line = source.line_range(source.line_of(span.start));
    let start = (span.start as usize).clamp(line.start, line.end);
    // A place over several lines is marked on its first one.
    let end = (span.end as usize).clamp(start, line.end);
    let mut from = line.start;
    let mut to = line.end;
    if line.len() > LONGEST_LINE {
        from = floor(&source.text, start.saturating_sub(LONGEST_LINE / 2).max(line.start));
        to = floor(&source.text, (from + LONGEST_LINE).min(line.end)).max(start);
    }
    let end = end.min(to);
    Some((source.text.get(from..to)?, start - from..end - from))
}

fn floor(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
