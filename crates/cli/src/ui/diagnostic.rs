//! Renders a diagnostic with its source line, marked at the location.
//!
//! Lines of files that hold secrets are never shown.

use std::ops::Range;

use annotate_snippets::{AnnotationKind, Element, Group, Level, Origin, Renderer, Snippet};
use homestak_core::doc::{Diagnostic, Severity, Source, Sources, Span};

/// Longest line that is shown; a whole document may stand on one.
const LONGEST_LINE: usize = 2_000;
/// How far apart places may be to be shown in one snippet, in bytes; lines between are folded.
const ONE_SNIPPET: u32 = 8_000;

/// Renders a diagnostic.
pub(crate) fn render(fault: &Diagnostic, sources: &Sources) -> String {
    let level = match fault.severity {
        Severity::Error => Level::ERROR,
        Severity::Notice => Level::NOTE.with_name("notice"),
    };
    let mut group = Group::with_title(
        level
            .primary_title(fault.message.as_str())
            .id(fault.code.id()),
    );
    let mut places: Vec<(Span, Option<&str>)> = vec![(fault.span, None)];
    places.extend(
        fault
            .labels
            .iter()
            .map(|(span, text)| (*span, Some(text.as_str()))),
    );
    let together = |(span, _): &(Span, Option<&str>)| {
        span.file == fault.span.file && span.start.abs_diff(fault.span.start) < ONE_SNIPPET
    };
    let (near, far): (Vec<_>, Vec<_>) = places.into_iter().partition(together);
    group = group.element(snippet(&near, sources));
    for range in far {
        group = group.element(snippet(&[range], sources));
    }
    if let Some(hint) = &fault.hint {
        group = group.element(Level::HELP.with_name("hint").message(hint.as_str()));
    }
    Renderer::styled().render(&[group])
}

/// Renders places of one source: its path, and the lines with the places marked.
fn snippet<'s>(places: &[(Span, Option<&'s str>)], sources: &'s Sources) -> Element<'s> {
    let first = places[0].0;
    let location = sources.locate(first);
    let source = sources
        .source(first.file)
        .filter(|source| !source.secret && !source.text.is_empty());
    let marks: Option<Vec<_>> =
        source.and_then(|source| places.iter().map(|range| mark(source, range.0)).collect());
    let (Some(source), Some(marks)) = (source, marks) else {
        return Origin::path(location.path)
            .line(location.line)
            .char_column(location.column)
            .into();
    };
    let from = marks.iter().map(|mark| mark.line.start).min().unwrap_or(0);
    let to = marks.iter().map(|mark| mark.line.end).max().unwrap_or(0);
    let line = source.line_of(u32::try_from(from).unwrap_or(0)) + 1;
    let annotations = marks.iter().zip(places).map(|(mark, (_, label))| {
        let kind = if label.is_some() {
            AnnotationKind::Context
        } else {
            AnnotationKind::Primary
        };
        kind.span(mark.range.start - from..mark.range.end - from)
            .label(*label)
    });
    let text = source.text.get(from..to).unwrap_or_default();
    Snippet::source(text)
        .path(location.path)
        .line_start(line)
        .annotations(annotations)
        .into()
}

/// A marked range and its line, in bytes of the source.
struct Mark {
    line: Range<usize>,
    range: Range<usize>,
}

/// Finds the line of a span. A span of several lines is marked on the first.
fn mark(source: &Source, span: Span) -> Option<Mark> {
    let line = source.line_range(source.line_of(span.start));
    let start = (span.start as usize).clamp(line.start, line.end);
    let end = (span.end as usize).clamp(start, line.end);
    (line.len() <= LONGEST_LINE).then_some(Mark {
        line,
        range: start..end,
    })
}
