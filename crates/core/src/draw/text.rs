//! Width of text in pixels and terminal cells, and escaping for each format.

/// The longest detail that is not truncated, in characters. Names are never truncated.
const MAX_DETAIL: usize = 40;

/// Replaces characters that control a terminal, reorder text or are invalid in XML; trims the ends.
///
/// Names and details come from files and must not be able to control a terminal.
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

/// Cleans a detail and truncates it.
pub(super) fn detail(text: &str) -> String {
    let text = clean(text);
    if text.chars().count() <= MAX_DETAIL {
        return text;
    }
    text.chars().take(MAX_DETAIL - 1).chain(['…']).collect()
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
/// The font of the viewer is unknown, so the widths are those of a wide one (DejaVu Sans, Verdana).
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

/// Cells of one character: the wide and zero-width ranges that occur in practice. Names are ASCII, and
/// a detail in another script may be off by a cell.
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
/// A word that is wider than the limit gets its own line, and the card grows.
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
