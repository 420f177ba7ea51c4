//! A YAML document with secrets: parsing, and comparing documents by value. Errors never quote the
//! text.

use homestak_core::doc::tree::Meaning;
use homestak_core::doc::{
    Data, Diagnostics, Entry, FileId, Scalar, Severity, Source, Style, Value, yaml,
};

/// Why a text is not a document that can be encrypted or decrypted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DocumentError {
    /// The text is not one YAML document.
    #[error("line {line}, column {column}: {problem}")]
    NotYaml {
        /// Line, from one.
        line: usize,
        /// Column, from one.
        column: usize,
        /// The problem, without text of the document.
        problem: String,
    },
    /// The document is a list or a single value.
    #[error("the document is not a mapping (`key: value` lines)")]
    NotMapping,
}

/// Parses a text as one mapping.
pub(crate) fn parse(text: &str) -> Result<Value, DocumentError> {
    let source = Source::secret("", text);
    let mut diagnostics = Diagnostics::default();
    let root = yaml::parse(FileId(0), &source, &mut diagnostics);
    let first = diagnostics
        .iter()
        .find(|one| one.severity == Severity::Error);
    if let Some(error) = first {
        let line = source.line_of(error.span.start);
        let range = source.line_range(line);
        let before = text.get(range.start..error.span.start as usize);
        return Err(DocumentError::NotYaml {
            line: line + 1,
            column: before.unwrap_or_default().chars().count() + 1,
            problem: error.message.clone(),
        });
    }
    root.filter(|root| root.entries().is_some())
        .ok_or(DocumentError::NotMapping)
}

/// Copies a tree with new values, in document order, without the `sops` block.
///
/// `scalars` has one entry for each value that is not null; `None` keeps the value.
pub(crate) fn with_values(root: &Value, scalars: &[Option<Scalar>]) -> Value {
    let entries: Vec<Entry> = root
        .entries()
        .unwrap_or_default()
        .iter()
        .filter(|entry| entry.key.text != "sops")
        .cloned()
        .collect();
    let mut copy = Value {
        span: root.span,
        data: Data::Map(entries),
    };
    fill(&mut copy, &mut scalars.iter());
    copy
}

fn fill<'s>(value: &mut Value, scalars: &mut impl Iterator<Item = &'s Option<Scalar>>) {
    match &mut value.data {
        Data::Scalar(scalar) if scalar.meaning() == Meaning::Null => {}
        Data::Scalar(scalar) => {
            if let Some(Some(new)) = scalars.next() {
                *scalar = new.clone();
            }
        }
        Data::Seq(items) => items.iter_mut().for_each(|item| fill(item, scalars)),
        Data::Map(entries) => entries
            .iter_mut()
            .for_each(|entry| fill(&mut entry.value, scalars)),
    }
}

/// Returns whether two trees have the same values, whatever the notation of numbers and booleans.
pub(crate) fn same_meaning(one: &Value, other: &Value) -> bool {
    match (&one.data, &other.data) {
        (Data::Scalar(one), Data::Scalar(other)) => same_scalar(one, other),
        (Data::Seq(one), Data::Seq(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(a, b)| same_meaning(a, b))
        }
        (Data::Map(one), Data::Map(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .zip(other)
                    .all(|(a, b)| a.key == b.key && same_meaning(&a.value, &b.value))
        }
        _ => false,
    }
}

fn same_scalar(one: &Scalar, other: &Scalar) -> bool {
    let text = |meaning: &Meaning| matches!(meaning, Meaning::Text | Meaning::Ambiguous);
    match (one.meaning(), other.meaning()) {
        (a, b) if text(&a) && text(&b) => one.text == other.text,
        (a, b) => a == b,
    }
}

/// Formats text as a `|` block (header and lines), if it is readable and parses to the same text.
pub(crate) fn as_block(scalar: &Scalar, indent: usize) -> Option<(&'static str, String)> {
    let text = scalar.text.as_str();
    let odd = |c: char| {
        (c.is_control() && c != '\n') || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
    };
    let readable = scalar.style != Style::Plain
        && text.trim_end_matches('\n').contains('\n')
        && !text.starts_with([' ', '\n'])
        && !text.ends_with("\n\n")
        && !text
            .lines()
            .next_back()
            .unwrap_or_default()
            .trim()
            .is_empty()
        && !text.contains(odd);
    if !readable {
        return None;
    }
    let mut out = String::new();
    for line in text.lines() {
        out.push('\n');
        if !line.is_empty() {
            out.extend(std::iter::repeat_n(' ', indent));
            out.push_str(line);
        }
    }
    let header = if text.ends_with('\n') { "|" } else { "|-" };
    Some((header, out))
}
