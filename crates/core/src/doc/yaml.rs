//! Parses YAML into a tree. The only file that uses the YAML crate. Depth, size and alias expansion
//! are limited, and the input is not processed recursively.

use std::collections::BTreeMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Tag};

use super::code::Code;
use super::decode::shorten;
use super::diagnostic::{Diagnostic, Diagnostics};
use super::open_map::OpenMap;
use super::size::{Size, size};
use super::source::{FileId, Source, Span};
use super::tree::{Data, Entry, Key, Scalar, Style, Value};

/// Maximum size of a document. A manifest of 10,000 nodes has about 2 MB.
pub const MAX_BYTES: usize = 16 << 20;
/// Maximum nesting. Documents need six levels; the parser itself has no limit.
const MAX_DEPTH: usize = 48;
/// Maximum number of values, with aliases expanded. Limits memory to about 250 MB.
const MAX_VALUES: usize = 1_000_000;
/// Maximum bytes of text that anchors and aliases may copy in one document.
const MAX_COPIED: usize = MAX_BYTES;

/// Parses one YAML document. Reports errors, and returns what could be parsed.
pub fn parse(file: FileId, source: &Source, diagnostics: &mut Diagnostics) -> Option<Value> {
    let start = Span::start_of(file);
    if source.text.len() > MAX_BYTES {
        diagnostics.push(
            Diagnostic::error(
                Code::TooLarge,
                start,
                format!("the file is too large: {} bytes", source.text.len()),
            )
            .hint(format!(
                "split it: a document may have up to {MAX_BYTES} bytes"
            )),
        );
        return None;
    }
    let control = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t' | '\u{85}');
    if let Some((at, found)) = source.text.char_indices().find(|(_, c)| control(*c)) {
        let at = u32::try_from(at).unwrap_or(u32::MAX);
        diagnostics.push(
            Diagnostic::error(
                Code::NotText,
                Span {
                    file,
                    start: at,
                    end: at,
                },
                format!(
                    "the file contains the control character U+{:04X}, so it is not a text document",
                    u32::from(found)
                ),
            )
            .hint("remove it; if the file is binary or in another encoding, save it as UTF-8"),
        );
        return None;
    }
    let mut builder = Builder::new(file, source, diagnostics);
    builder.run();
    let root = builder.root.take();
    if root.is_none() && !builder.failed {
        diagnostics.push(empty(start));
    }
    root
}

/// Returns the error for an empty document.
pub fn empty(at: Span) -> Diagnostic {
    Diagnostic::error(Code::EmptyDocument, at, "the document is empty")
        .hint("write at least one `key: value` line, or delete the file")
}

/// A collection that is not closed yet.
struct Open {
    span: Span,
    anchor: usize,
    kind: OpenKind,
}

enum OpenKind {
    Seq(Vec<Value>),
    Map(OpenMap),
}

struct Builder<'a> {
    file: FileId,
    text: &'a str,
    /// Whether the text contains secrets and must not be quoted.
    secret: bool,
    /// Byte offset of each character; empty if the text is ASCII.
    offsets: Vec<u32>,
    diagnostics: &'a mut Diagnostics,
    stack: Vec<Open>,
    anchors: BTreeMap<usize, Value>,
    values: usize,
    copied: usize,
    root: Option<Value>,
    failed: bool,
}

impl<'a> Builder<'a> {
    fn new(file: FileId, source: &'a Source, diagnostics: &'a mut Diagnostics) -> Self {
        let text = source.text.as_str();
        let offsets = if text.is_ascii() {
            Vec::new()
        } else {
            text.char_indices()
                .map(|(at, _)| u32::try_from(at).unwrap_or(u32::MAX))
                .collect()
        };
        Self {
            file,
            text,
            secret: source.secret,
            offsets,
            diagnostics,
            stack: Vec::new(),
            anchors: BTreeMap::new(),
            values: 0,
            copied: 0,
            root: None,
            failed: false,
        }
    }

    fn run(&mut self) {
        let mut documents = 0;
        for step in Parser::new_from_str(self.text) {
            let (event, span) = match step {
                Ok(step) => step,
                Err(error) => {
                    let at = error_offset(error.info(), self.text, self.byte(*error.marker()));
                    let span = Span {
                        file: self.file,
                        start: at,
                        end: at,
                    };
                    // The parser has its own limit for nested flow collections.
                    if error.info() == "recursion limit exceeded" {
                        return self.too_deep(span);
                    }
                    return self.fail(
                        Diagnostic::error(
                            Code::Syntax,
                            span,
                            format!("not valid YAML: {}", error.info()),
                        )
                        .hint(syntax_hint(error.info(), self.text, at)),
                    );
                }
            };
            let span = Span {
                file: self.file,
                start: self.byte(span.start),
                end: self.byte(span.end),
            };
            match event {
                Event::DocumentStart(_) => {
                    documents += 1;
                    if documents > 1 {
                        return self.fail(
                            Diagnostic::error(Code::SeveralDocuments, span, "a second document starts here")
                                .hint("keep one document per file; remove the `---` line or move the rest"),
                        );
                    }
                }
                Event::Scalar(text, style, anchor, tag) => {
                    let is_quoted =
                        matches!(style, ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted);
                    let span = if is_quoted { self.quoted(span) } else { span };
                    let style = self.style(style, tag.as_deref(), span);
                    let value = Value {
                        span,
                        data: Data::Scalar(Scalar {
                            text: text.into_owned(),
                            style,
                        }),
                    };
                    self.finish(value, anchor);
                }
                Event::SequenceStart(anchor, tag) => {
                    self.check_tag(tag.as_deref(), span);
                    self.open(span, anchor, OpenKind::Seq(Vec::new()));
                }
                Event::MappingStart(anchor, tag) => {
                    self.check_tag(tag.as_deref(), span);
                    self.open(span, anchor, OpenKind::Map(OpenMap::default()));
                }
                Event::SequenceEnd | Event::MappingEnd => self.close(span),
                Event::Alias(anchor) => self.alias(anchor, span),
                Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
            }
            if self.failed {
                return;
            }
        }
    }

    /// Ends the span of a quoted scalar at its closing quote; the parser includes white space and
    /// comments after it.
    fn quoted(&self, span: Span) -> Span {
        let text = self
            .text
            .get(span.start as usize..span.end as usize)
            .unwrap_or_default();
        let Some(quote) = text
            .chars()
            .next()
            .filter(|quote| matches!(quote, '"' | '\''))
        else {
            return span;
        };
        let bytes = text.as_bytes();
        let mut at = 1;
        while let Some(byte) = bytes.get(at) {
            match (quote, byte) {
                ('"', b'\\') => at += 1,
                ('\'', b'\'') if bytes.get(at + 1) == Some(&b'\'') => at += 1,
                ('"', b'"') | ('\'', b'\'') => {
                    let end = span.start + u32::try_from(at + 1).unwrap_or(0);
                    return Span {
                        end: end.min(span.end),
                        ..span
                    };
                }
                _ => {}
            }
            at += 1;
        }
        span
    }

    fn fail(&mut self, diagnostic: Diagnostic) {
        self.diagnostics.push(diagnostic);
        self.failed = true;
        self.root = None;
    }

    fn too_deep(&mut self, span: Span) {
        let message = format!("values are nested more than {MAX_DEPTH} levels deep");
        self.fail(
            Diagnostic::error(Code::TooDeep, span, message)
                .hint("flatten the document; valid documents have at most six levels"),
        );
    }

    fn byte(&self, marker: Marker) -> u32 {
        let end = u32::try_from(self.text.len()).unwrap_or(u32::MAX);
        if self.offsets.is_empty() {
            return u32::try_from(marker.index()).unwrap_or(end).min(end);
        }
        self.offsets.get(marker.index()).copied().unwrap_or(end)
    }

    fn style(&mut self, style: ScalarStyle, tag: Option<&Tag>, span: Span) -> Style {
        if tag.is_some_and(|tag| tag.is_yaml_core_schema() && tag.suffix == "str") {
            return Style::Quoted;
        }
        self.check_tag(tag, span);
        match style {
            ScalarStyle::Plain => Style::Plain,
            ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => Style::Quoted,
            ScalarStyle::Literal | ScalarStyle::Folded => Style::Block,
        }
    }

    fn check_tag(&mut self, tag: Option<&Tag>, span: Span) {
        let Some(tag) = tag else { return };
        let known = ["str", "int", "bool", "float", "null", "seq", "map"];
        if tag.is_yaml_core_schema() && known.contains(&tag.suffix.as_str()) {
            return;
        }
        let handle = if tag.is_yaml_core_schema() {
            "!!"
        } else {
            tag.handle.as_str()
        };
        let message = if self.secret {
            "the tag is not supported".to_owned()
        } else {
            format!(
                "the tag `{}` is not supported",
                shorten(&format!("{handle}{}", tag.suffix))
            )
        };
        self.diagnostics.push(
            Diagnostic::error(Code::Tag, span, message).hint(
                "remove the tag: documents contain only strings, numbers, lists and mappings",
            ),
        );
    }

    fn count(&mut self, values: usize, span: Span) -> bool {
        self.values = self.values.saturating_add(values);
        if self.values <= MAX_VALUES {
            return true;
        }
        self.fail(
            Diagnostic::error(
                Code::TooManyValues,
                span,
                format!(
                    "the document has more than {MAX_VALUES} values once its aliases are expanded"
                ),
            )
            .hint("expand the repeated parts, or split the document"),
        );
        false
    }

    /// Counts a tree that is about to be copied.
    fn count_copy(&mut self, size: Size, span: Span) -> bool {
        self.copied = self.copied.saturating_add(size.bytes);
        if self.copied <= MAX_COPIED {
            return self.count(size.values, span);
        }
        self.fail(
            Diagnostic::error(
                Code::TooManyValues,
                span,
                format!("anchors and aliases copy more than {MAX_COPIED} bytes of text"),
            )
            .hint("expand the repeated parts, or split the document"),
        );
        false
    }

    fn open(&mut self, span: Span, anchor: usize, kind: OpenKind) {
        if self.stack.len() >= MAX_DEPTH {
            return self.too_deep(span);
        }
        // A mapping or list where a key is expected is a complex key.
        if let Some(Open {
            kind: OpenKind::Map(OpenMap { pending: None, .. }),
            ..
        }) = self.stack.last()
        {
            let before = self.text.get(..span.start as usize).unwrap_or_default();
            let hint = if before.ends_with('{') {
                "quote values that contain `{{`"
            } else {
                "quote the key if it contains `[`, `{` or `:`"
            };
            return self.fail(
                Diagnostic::error(Code::KeyNotText, span, "a mapping key must be a string")
                    .hint(hint),
            );
        }
        if self.count(1, span) {
            self.stack.push(Open { span, anchor, kind });
        }
    }

    /// Closes the innermost collection. In flow style it ends with its bracket; in block style,
    /// where the closing span is empty, with its last value.
    fn close(&mut self, closing: Span) {
        let Some(open) = self.stack.pop() else { return };
        let (data, last) = match open.kind {
            OpenKind::Seq(items) => {
                let last = items.last().map(|item| item.span.end);
                (Data::Seq(items), last)
            }
            OpenKind::Map(map) => {
                let last = map.entries.last().map(|entry| entry.value.span.end);
                (Data::Map(map.close()), last)
            }
        };
        let bracket = (closing.end > closing.start).then_some(closing.start + 1);
        let end = bracket.or(last).unwrap_or(open.span.end).max(open.span.end);
        self.attach(
            Value {
                span: Span { end, ..open.span },
                data,
            },
            open.anchor,
        );
    }

    fn finish(&mut self, value: Value, anchor: usize) {
        if self.count(1, value.span) {
            self.attach(value, anchor);
        }
    }

    fn alias(&mut self, anchor: usize, span: Span) {
        // An alias within its own anchor has no value yet.
        let Some(size) = self.anchors.get(&anchor).map(size) else {
            return self.fail(
                Diagnostic::error(
                    Code::Syntax,
                    span,
                    "the alias refers to a value that contains it",
                )
                .hint("write the value instead of the alias"),
            );
        };
        if self.stack.len() + size.depth > MAX_DEPTH {
            return self.too_deep(span);
        }
        if !self.count_copy(size, span) {
            return;
        }
        if let Some(target) = self.anchors.get(&anchor).cloned() {
            self.attach(Value { span, ..target }, 0);
        }
    }

    fn attach(&mut self, value: Value, anchor: usize) {
        if anchor > 0 && self.count_copy(size(&value), value.span) {
            self.anchors.insert(anchor, value.clone());
        }
        if self.failed {
            return;
        }
        let Some(open) = self.stack.last_mut() else {
            self.root = Some(value);
            return;
        };
        match &mut open.kind {
            OpenKind::Seq(items) => items.push(value),
            OpenKind::Map(map) => match map.pending.take() {
                Some(_) if std::mem::take(&mut map.skip) => {}
                Some(key) if key.text == "<<" => self.merge(&key, value),
                Some(key) => map.push(Entry { key, value }),
                None => self.key(value),
            },
        }
    }

    /// Sets the next key of the innermost mapping.
    fn key(&mut self, value: Value) {
        let Some(Open {
            kind: OpenKind::Map(map),
            ..
        }) = self.stack.last_mut()
        else {
            return;
        };
        let Data::Scalar(scalar) = value.data else {
            return self.fail(
                Diagnostic::error(
                    Code::KeyNotText,
                    value.span,
                    "a mapping key must be a string",
                )
                .hint("quote the key if it contains `[`, `{` or `:`"),
            );
        };
        let key = Key {
            span: value.span,
            text: scalar.text,
        };
        let first = map.first(&key.text).filter(|_| key.text != "<<");
        if let Some(first) = first {
            map.skip = true;
            let message = format!("duplicate key `{}`", shorten(&key.text));
            self.diagnostics.push(
                Diagnostic::error(Code::DuplicateKey, key.span, message)
                    .label(first, "first defined here")
                    .hint("keep one of the two; YAML parsers disagree on which one is used"),
            );
        }
        map.pending = Some(key);
    }

    /// Merges the mapping or mappings of a `<<` key into the open mapping; explicit keys override
    /// them.
    fn merge(&mut self, key: &Key, value: Value) {
        let sources = match value.data {
            Data::Map(entries) => vec![entries],
            Data::Seq(items) if items.iter().all(|item| item.entries().is_some()) => items
                .into_iter()
                .filter_map(|item| match item.data {
                    Data::Map(entries) => Some(entries),
                    Data::Scalar(_) | Data::Seq(_) => None,
                })
                .collect(),
            Data::Scalar(_) | Data::Seq(_) => {
                self.diagnostics.push(
                    Diagnostic::error(Code::WrongType, key.span, "`<<` requires a mapping")
                        .hint("write `<<: *name`, where `&name` is the anchor of a mapping"),
                );
                return;
            }
        };
        if let Some(Open {
            kind: OpenKind::Map(map),
            ..
        }) = self.stack.last_mut()
        {
            map.merged.extend(sources.into_iter().flatten());
        }
    }
}

/// Returns the position of a syntax error. The parser reports a tab in the indentation at the start
/// of the enclosing text, which is on an earlier line.
fn error_offset(info: &str, text: &str, at: u32) -> u32 {
    let rest = text.get(at as usize..).unwrap_or_default();
    let tab = rest.find('\t').filter(|_| info.contains("found a tab"));
    at + tab.and_then(|tab| u32::try_from(tab).ok()).unwrap_or(0)
}

/// Returns a hint for common mistakes, from the message of the parser and the line of the error.
fn syntax_hint(info: &str, text: &str, at: u32) -> &'static str {
    let at = at as usize;
    let start = text
        .get(..at)
        .and_then(|before| before.rfind('\n'))
        .map_or(0, |newline| newline + 1);
    let line = text
        .get(start..)
        .and_then(|rest| rest.lines().next())
        .unwrap_or_default();
    if line.contains('\t') {
        "indent with spaces: YAML does not allow tabs"
    } else if line.contains("{{") {
        "quote values that contain `{{`"
    } else if info.contains("flow") || info.contains("expected node content") {
        "a `[` or `{` before this position is not closed, or a comma is missing"
    } else if info.contains("unknown anchor") {
        "define `&name` before the first use of `*name`; quote the value if a `*` is meant"
    } else if info.contains("unexpected character") {
        "quote values that start with this character"
    } else if line.matches('"').count() % 2 == 1 || line.matches('\'').count() % 2 == 1 {
        "a quote on this line is not closed"
    } else if line.trim_start().matches(": ").count() > 1 {
        "quote the value if it contains `: `"
    } else if info.contains("mapping values are not allowed") {
        "check the indentation of this line, and that the key on the line above is followed by `: `"
    } else {
        "check the indentation of this line and the one above it"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(text: &str) -> Vec<String> {
        let value = parse(
            FileId(0),
            &Source::new("x", text),
            &mut Diagnostics::default(),
        )
        .unwrap();
        let entries = value.entries().unwrap_or_default().iter();
        entries
            .map(|entry| {
                text[entry.value.span.start as usize..entry.value.span.end as usize].to_owned()
            })
            .collect()
    }

    #[test]
    fn a_span_covers_only_the_value() {
        let text =
            "a: \"x \\\" y\"  # said \"so\"\nb: 'it''s' # c\nc: plain # d\nd: [1, 2] # e\né: 'ü'\n";
        assert_eq!(
            spans(text),
            ["\"x \\\" y\"", "'it''s'", "plain", "[1, 2]", "'ü'"]
        );
    }

    #[test]
    fn explicit_keys_override_merged_ones() {
        let text = "base: &b {x: 1, y: 2}\nmore:\n  <<: *b\n  y: 3\n";
        let value = parse(
            FileId(0),
            &Source::new("x", text),
            &mut Diagnostics::default(),
        )
        .unwrap();
        let more = value.field("more").unwrap();
        assert_eq!(more.field("x").and_then(Value::as_text), Some("1"));
        assert_eq!(more.field("y").and_then(Value::as_text), Some("3"));
    }
}
