//! Writes a tree as YAML that parses to an equal value. Comments and the original layout are lost.

use super::tree::{Data, Entry, Meaning, Scalar, Style, Value};

/// Longest implicit key, in bytes: YAML allows 1,024 characters. Longer keys are written with `?`.
const LONGEST_KEY: usize = 1_000;

/// Writes a value as a YAML document: block style, two spaces, empty collections inline.
pub fn emit(value: &Value) -> String {
    let mut out = String::new();
    match &value.data {
        Data::Map(entries) if !entries.is_empty() => mapping(&mut out, entries, 0),
        Data::Seq(items) if !items.is_empty() => sequence(&mut out, items, 0),
        Data::Scalar(_) | Data::Seq(_) | Data::Map(_) => {
            inline(&mut out, value);
            out.push('\n');
        }
    }
    out
}

/// Writes a scalar so that it parses to the same value after `key: `.
pub fn emit_scalar(scalar: &Scalar) -> String {
    let mut out = String::new();
    scalar_into(&mut out, scalar);
    out
}

fn mapping(out: &mut String, entries: &[Entry], indent: usize) {
    for (nth, entry) in entries.iter().enumerate() {
        if nth > 0 {
            pad(out, indent);
        }
        let start = out.len();
        scalar_into(out, &Scalar::text(entry.key.text.clone()));
        if out.len() - start > LONGEST_KEY {
            out.insert_str(start, "? ");
            out.push('\n');
            pad(out, indent);
        }
        out.push(':');
        match &entry.value.data {
            Data::Map(inner) if !inner.is_empty() => {
                out.push('\n');
                pad(out, indent + 2);
                mapping(out, inner, indent + 2);
            }
            Data::Seq(items) if !items.is_empty() => {
                out.push('\n');
                pad(out, indent + 2);
                sequence(out, items, indent + 2);
            }
            Data::Scalar(_) | Data::Seq(_) | Data::Map(_) => {
                out.push(' ');
                inline(out, &entry.value);
                out.push('\n');
            }
        }
    }
}

fn sequence(out: &mut String, items: &[Value], indent: usize) {
    for (nth, item) in items.iter().enumerate() {
        if nth > 0 {
            pad(out, indent);
        }
        out.push_str("- ");
        match &item.data {
            Data::Map(entries) if !entries.is_empty() => mapping(out, entries, indent + 2),
            Data::Seq(inner) if !inner.is_empty() => sequence(out, inner, indent + 2),
            Data::Scalar(_) | Data::Seq(_) | Data::Map(_) => {
                inline(out, item);
                out.push('\n');
            }
        }
    }
}

fn inline(out: &mut String, value: &Value) {
    match &value.data {
        Data::Scalar(scalar) => scalar_into(out, scalar),
        Data::Seq(_) => out.push_str("[]"),
        Data::Map(_) => out.push_str("{}"),
    }
}

fn scalar_into(out: &mut String, scalar: &Scalar) {
    match scalar.meaning() {
        Meaning::Null => out.push_str("null"),
        Meaning::Bool(_) | Meaning::Int(_) | Meaning::Float(_) => out.push_str(&scalar.text),
        Meaning::Ambiguous | Meaning::Text if plain_is_safe(&scalar.text) => {
            out.push_str(&scalar.text);
        }
        Meaning::Ambiguous | Meaning::Text => quote(out, &scalar.text),
    }
}

/// Returns whether text is a string without quotes, also for YAML 1.1 parsers.
fn plain_is_safe(text: &str) -> bool {
    let plain = Scalar {
        text: text.to_owned(),
        style: Style::Plain,
    };
    let first_is_safe =
        text.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '/' | '_' | '$'));
    let all_safe = text.chars().all(|c| {
        c.is_ascii_alphanumeric()
            || matches!(
                c,
                ' ' | '_'
                    | '-'
                    | '.'
                    | '/'
                    | '@'
                    | '+'
                    | '='
                    | '$'
                    | ':'
                    | '!'
                    | '~'
                    | '('
                    | ')'
                    | ','
                    | ';'
            )
    });
    let single = matches!(text, "y" | "Y" | "n" | "N");
    first_is_safe
        && all_safe
        && !single
        && plain.meaning() == Meaning::Text
        && !text.contains(": ")
        && !text.contains(", ")
        && !text.ends_with([' ', ':'])
}

fn quote(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                let code = u32::from(c);
                out.push_str(&format!("\\u{code:04x}"));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn pad(out: &mut String, indent: usize) {
    out.extend(std::iter::repeat_n(' ', indent));
}
