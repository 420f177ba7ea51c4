//! Text that fits: how wide it is on a screen, and how it is made safe for each format.
//!
//! In: any string. Out: widths in pixels or terminal cells, text without control characters.
//! Never: colours, positions.

/// The longest detail that is written in full, in characters. Names are never cut.
const LONGEST_DETAIL: usize = 40;

/// Replaces what can move the cursor, reorder text or is forbidden in XML; trims the ends.
///
/// Names and details come from files; a picture must not be a way to drive a terminal.
pub(super) fn clean(text: &str) -> String {
    let safe = |c: char| match c {
        '\n' | '\r' | '\t' | '\u{2028}' | '\u{2029}' => ' ',
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        '\u{fffe}' | '\u{ffff}' => '\u{fffd}',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.trim().chars().map(safe).collect()
}

/// Cleans a detail and shortens it to what a card can hold.
pub(super) fn detail(text: &str) -> String {
    let text = clean(text);
    if text.chars().count() <= LONGEST_DETAIL {
        return text;
    }
    text.chars().take(LONGEST_DETAIL - 1).chain(['…']).collect()
}

/// Escapes for XML text and attribute values.
pub(super) fn xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in clean(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// The weight of a font. Bold letters are wider.
#[derive(Clone, Copy)]
pub(super) enum Weight {
    Normal,
    Bold,
}

/// Returns the width in pixels of text in a sans-serif font of `size` pixels.
///
/// The reader's font is unknown, so the widths are those of a wide one (DejaVu Sans, Verdana):
/// in any other, text is a little narrower than its card, which nobody notices.
pub(super) fn width(text: &str, size: i64, weight: Weight) -> i64 {
    let normal: i64 = text.chars().map(char_width).sum();
    let per_mille = match weight {
        Weight::Normal => normal,
        Weight::Bold => normal * 112 / 100,
    };
    (per_mille * size + 999) / 1000
}

/// Thousandths of the font size.
fn char_width(c: char) -> i64 {
    match c {
        'i' | 'j' | 'l' | '\'' => 285,
        ' ' | '.' | ',' | '·' => 320,
        '|' | '!' | ':' | ';' | '-' | '/' | '\\' => 370,
        '(' | ')' | '[' | ']' | 'I' | 'f' | 't' => 400,
        'r' => 425,
        's' | 'z' | 'J' => 540,
        'c' | 'k' | 'v' | 'x' | 'y' => 595,
        'm' | 'M' | 'W' | '@' | '%' => 1000,
        'w' | '#' | '+' | '<' | '>' | '=' | '~' | '^' => 840,
        'A'..='Z' | '&' => 790,
        c if c.is_ascii() => 640,
        c => match cells_of(c) {
            0 => 0,
            1 => 840,
            _ => 1100,
        },
    }
}

/// Returns how many terminal cells text takes.
pub(super) fn cells(text: &str) -> usize {
    text.chars().map(cells_of).sum()
}

/// Cells of one character: the wide and the zero-width ranges that occur in practice. The exact
/// tables are a crate of their own; a host name is ASCII, and a detail in another script may be
/// off by a cell without harm.
fn cells_of(c: char) -> usize {
    match u32::from(c) {
        0x0300..=0x036f | 0x200b..=0x200d | 0x20d0..=0x20ff | 0xfe00..=0xfe0f => 0,
        0x1100..=0x115f | 0x2e80..=0xa4cf | 0xac00..=0xd7a3 | 0xf900..=0xfaff => 2,
        0xfe30..=0xfe6f | 0xff00..=0xff60 | 0xffe0..=0xffe6 | 0x1f300..=0x1faff => 2,
        0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

/// Breaks words into lines no wider than `limit` pixels, joined by middle dots.
///
/// A word that is wider than the limit gets a line of its own: the card grows.
pub(super) fn flow(words: &[String], limit: i64, size: i64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words.iter().filter(|word| !word.is_empty()) {
        let longer = lines.last().map(|line| format!("{line} · {word}"));
        match (longer, lines.last_mut()) {
            (Some(longer), Some(last)) if width(&longer, size, Weight::Normal) <= limit => {
                *last = longer;
            }
            _ => lines.push(word.clone()),
        }
    }
    lines
}
