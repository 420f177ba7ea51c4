//! Text from nodes, hypervisors and programs on them, escaped on construction.
//!
//! A terminal interprets control characters, and whoever controls a node controls its output. No
//! [`ForeignText`] contains any, however it was made, so that escaping cannot be forgotten where it is
//! printed, logged or stored. Escaping is idempotent, so that agent, driver and printer may each do it.

use std::borrow::Cow;
use std::fmt;
use std::fmt::Write as _;
use std::ops::Deref;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// The longest line, in bytes.
const LONGEST_LINE: usize = 16 << 10;
/// The longest text of several lines, in bytes: more than the files that specs describe.
const LONGEST_TEXT: usize = 512 << 10;
/// Space for the note that text was truncated.
const NOTE_LENGTH: usize = 64;

/// Text from another system, without control characters and of limited size.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct ForeignText(String);

impl ForeignText {
    /// Makes a single line: line breaks and tabs are escaped as well.
    pub fn line(text: &str) -> Self {
        Self(truncated(text, LONGEST_LINE, |_| false))
    }

    /// Makes text with line breaks and tabs.
    pub fn lines(text: &str) -> Self {
        Self(truncated(text, LONGEST_TEXT, is_break))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads text with line breaks and tabs.
    pub(crate) fn read_lines<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Self::lines(&String::deserialize(from)?))
    }
}

/// Reads a single line as a plain string.
pub(crate) fn read_line<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(ForeignText::line(&String::deserialize(from)?).0)
}

impl<'de> Deserialize<'de> for ForeignText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Self::line(&String::deserialize(from)?))
    }
}

impl From<&str> for ForeignText {
    fn from(text: &str) -> Self {
        Self::line(text)
    }
}

impl From<String> for ForeignText {
    fn from(text: String) -> Self {
        Self::line(&text)
    }
}

impl From<ForeignText> for String {
    fn from(text: ForeignText) -> Self {
        text.0
    }
}

impl Deref for ForeignText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ForeignText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl PartialEq<str> for ForeignText {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for ForeignText {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

/// Escapes control characters, except line breaks and tabs.
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| is_active(c) && !is_break(c)) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(escaped(text, usize::MAX, is_break).0)
}

/// Escapes the same, except colours and other text attributes (`ESC [ ... m`), which are our own.
pub fn escape_but_style(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| is_active(c) && !is_break(c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for (nth, part) in text.split('\x1b').enumerate() {
        match style_end(part).filter(|_| nth > 0) {
            Some(end) => {
                out.push('\x1b');
                out += &part[..end];
                out += &escape(&part[end..]);
            }
            None => {
                out += if nth > 0 { "\\x1b" } else { "" };
                out += &escape(part);
            }
        }
    }
    Cow::Owned(out)
}

/// Escapes all strings in a JSON value, by [`ForeignText::line`] or [`ForeignText::lines`].
pub fn escape_json(value: &mut Value, how: fn(&str) -> ForeignText) {
    let escape = |value| escape_json(value, how);
    match value {
        Value::String(text) => *text = how(text).into(),
        Value::Array(items) => items.iter_mut().for_each(escape),
        Value::Object(fields) => fields.values_mut().for_each(escape),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Escapes the same in JSON text, which remains equivalent.
pub fn escape_in_json(json: &str) -> Cow<'_, str> {
    if !json.chars().any(|c| is_active(c) && !is_break(c)) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if !is_active(c) || is_break(c) {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            _ = write!(out, "\\u{unit:04x}");
        }
    }
    Cow::Owned(out)
}

/// Returns the end of the text attribute sequence that this is the rest of, if it is one.
fn style_end(part: &str) -> Option<usize> {
    let body = part.strip_prefix('[')?;
    let end = body.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    (body[end..].starts_with('m')).then_some(end + 2)
}

fn is_break(c: char) -> bool {
    matches!(c, '\n' | '\t')
}

/// Returns whether a character is a control character, or reorders, hides or breaks text around it.
fn is_active(c: char) -> bool {
    // Nearly all characters are these.
    if matches!(c, ' '..='~') {
        return false;
    }
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

/// Escapes a text up to a limit, with a note on what was truncated.
fn truncated(text: &str, limit: usize, stays: fn(char) -> bool) -> String {
    if text.len() <= limit {
        let (whole, rest) = escaped(text, limit, stays);
        if rest.is_empty() {
            return whole;
        }
    }
    let (mut start, rest) = escaped(text, limit - NOTE_LENGTH, stays);
    _ = write!(start, "... (cut, {} more bytes)", rest.len());
    start
}

/// Escapes as much of a text as fits, and returns the rest.
fn escaped(text: &str, room: usize, stays: fn(char) -> bool) -> (String, &str) {
    let mut out = String::with_capacity(text.len().min(room));
    for (at, c) in text.char_indices() {
        let before = out.len();
        if !is_active(c) || stays(c) {
            out.push(c);
        } else {
            _ = match c {
                '\n' => write!(out, "\\n"),
                '\t' => write!(out, "\\t"),
                '\r' => write!(out, "\\r"),
                c if c.is_ascii() => write!(out, "\\x{:02x}", u32::from(c)),
                c => write!(out, "\\u{{{:x}}}", u32::from(c)),
            };
        }
        if out.len() > room {
            out.truncate(before);
            return (out, &text[at..]);
        }
    }
    (out, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        let hostile = "a\x1b]52;c;cm0gLXJmIC8=\x07b\x1b[2J\u{9b}31m\x7f\u{202e}c\r\n\td\u{2028}é";
        assert_eq!(
            ForeignText::line(hostile).as_str(),
            "a\\x1b]52;c;cm0gLXJmIC8=\\x07b\\x1b[2J\\u{9b}31m\\x7f\\u{202e}c\\r\\n\\td\\u{2028}é"
        );
        assert!(ForeignText::lines(hostile).contains("\\r\n\td"));
    }

    #[test]
    fn reading_json_escapes_too() {
        let text: ForeignText = serde_json::from_str(r#""\u001b[2Ja\nb""#).expect("text");
        assert_eq!(text, "\\x1b[2Ja\\nb");
    }

    #[test]
    fn a_message_of_a_megabyte_is_truncated_with_a_note() {
        let text = ForeignText::line(&"é".repeat(1 << 19));
        assert!(text.len() <= LONGEST_LINE);
        assert!(
            text.ends_with(" more bytes)"),
            "{}",
            &text[text.len() - 99..]
        );
        let controls = ForeignText::line(&"\x1b".repeat(LONGEST_LINE));
        assert!(controls.len() <= LONGEST_LINE && controls.ends_with(" more bytes)"));
        assert_eq!(ForeignText::line(&controls), controls);
    }

    #[test]
    fn escaped_json_means_the_same() {
        let value = serde_json::json!({ "a": "\u{9b}2J\u{202e}\u{e0001}\x7f\n\x1b" });
        let text = serde_json::to_string_pretty(&value).expect("JSON");
        let shown = escape_in_json(&text);
        assert!(!shown.chars().any(|c| is_active(c) && c != '\n'), "{shown}");
        assert_eq!(serde_json::from_str::<Value>(&shown).expect("JSON"), value);
    }

    #[test]
    fn only_colours_are_printed_unescaped() {
        let ours = "\x1b[1;31merror:\x1b[0m text\n\tmore";
        assert_eq!(escape_but_style(ours), ours);
        let theirs = "\x1b[31m\x1b[2J\x1b]52;c;x\x07\x1b[\x1b[1\x1bm\u{9b}2J\r";
        let shown = escape_but_style(theirs);
        assert_eq!(
            shown,
            "\x1b[31m\\x1b[2J\\x1b]52;c;x\\x07\\x1b[\\x1b[1\\x1bm\\u{9b}2J\\r"
        );
        assert_eq!(escape_but_style(&shown), shown);
    }
}
