//! Lines of many nodes, told apart by name and colour.
//!
//! In: a line and whose it is. Out: the line with the name before it.
//! Never: colour alone to tell them apart.

use owo_colors::{AnsiColors, OwoColorize as _};

/// Colours that can be read on dark and on light ground; red is for errors.
const COLORS: [AnsiColors; 5] = [
    AnsiColors::Cyan,
    AnsiColors::Green,
    AnsiColors::Magenta,
    AnsiColors::Yellow,
    AnsiColors::Blue,
];

/// Puts a node's name before a line.
pub(crate) fn of_node(label: &str, nth: usize, width: usize, text: &str) -> String {
    let name = format!("{label:width$} |");
    format!("{} {text}", name.color(COLORS[nth % COLORS.len()]))
}
